"""A strategy in the words of other engines: transformers' rope_parameters, options of vLLM and llama.cpp.

What an engine cannot express is refused with the reason; nothing is approximated.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import torch

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec, base_frequencies
from extrapolate.strategies import (
    ABF,
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    NTKFixed,
    NTKMixed,
    Plain,
    Proportional,
    Shipped,
    Strategy,
    YaRN,
)

STILL = 1e20
"""Divisor of a pair that stands still, in a list of divisors: its phase stays below 1e-13 at every position."""

Parameters = dict[str, Any]


def to_rope_parameters(strategy: Strategy, spec: RopeSpec) -> Parameters:
    """The ``rope_parameters`` with which transformers itself does what ``strategy`` does to a checkpoint.

    A method that transformers knows goes by its name. Any other that does not depend on the length becomes its
    ``longrope`` type with two equal lists of divisors, which is exact. The ``dynamic`` type takes the pretrained length
    from the config's ``max_position_embeddings``, so that must be L; its frequencies carry over from one call to the
    next there, here they do not.

    Args:
        strategy: any strategy.
        spec: of the checkpoint, from :func:`read_spec`.

    Returns:
        A dictionary for ``config.rope_parameters``, theta included.

    Raises:
        StrategyError: with the reason, when transformers cannot express it.
    """
    return next(rope_parameter_forms(strategy, spec))


def to_vllm_options(strategy: Strategy, spec: RopeSpec, length: int) -> str:
    """Options for ``vllm serve`` with which it does what ``strategy`` does, for texts up to ``length`` tokens.

    Frequencies that vLLM has no type for go through its ``longrope`` type, which serves models with half-split pairs
    (Llama, Qwen, Mistral, not GLM or Cohere).

    Args:
        strategy: any strategy.
        spec: of the checkpoint, from :func:`read_spec`.
        length: tokens; vLLM's ``--max-model-len``.

    Returns:
        A string for the shell, quoted.

    Raises:
        StrategyError: with the reason, when vLLM cannot express it.
    """
    _refuse_positions(strategy, "vLLM")
    check_length(length)
    if strategy.varies_with_length(spec):
        raise StrategyError(
            f"{strategy.label}: vLLM computes one table for all texts, so it has nothing that follows each text's "
            "length; choose a form that does not"
        )
    kind = type(strategy)
    parameters: Parameters | None = None
    if kind in {Plain, Linear, NTK, ABF, Llama3} or (isinstance(strategy, YaRN) and _default_temperature(strategy)):
        parameters = _native(strategy, spec)
    elif kind in {NTKFixed, NTKMixed}:
        parameters = {"rope_type": "ntk", **strategy.parameters()}  # vLLM's fields have the same names
    if parameters is None:
        parameters = _as_divisors(strategy, spec, "vLLM")
        mscale = parameters.pop("attention_factor")  # vLLM's names for it
        parameters |= {"short_mscale": mscale, "long_mscale": mscale}
        del parameters["factor"]
    parameters = _common(spec) | parameters
    overrides = json.dumps({"max_position_embeddings": length, "rope_parameters": parameters})
    return f"--hf-overrides {shlex.quote(overrides)} --max-model-len {length}"


def to_llama_cpp_options(strategy: Strategy, spec: RopeSpec, length: int) -> str:
    """Options for llama.cpp's programs with which they do what ``strategy`` does, at a context of ``length`` tokens.

    Args:
        strategy: any strategy.
        spec: of the checkpoint, from :func:`read_spec`.
        length: tokens; llama.cpp's ``--ctx-size``.

    Returns:
        A string for the shell.

    Raises:
        StrategyError: with the reason, when llama.cpp cannot express it by options.
    """
    _refuse_positions(strategy, "llama.cpp")
    check_length(length)
    if spec.shipped_type in {"llama3", "longrope"}:
        raise StrategyError(
            f"{strategy.label}: the GGUF file of a checkpoint with {spec.shipped_type} scaling carries its factors, "
            "which llama.cpp applies on top of every option; convert the checkpoint without its scaling"
        )
    size = f"--ctx-size {length}"
    kind = type(strategy)
    if kind in {Plain, NTK, ABF} or (isinstance(strategy, Shipped) and spec.shipped_type == "default"):
        theta = (_native(strategy, spec) or {}).get("rope_theta", spec.theta)
        return f"{size} --rope-scaling none --rope-freq-base {theta:.9g}"
    base = f"--rope-freq-base {spec.theta:.9g}"
    if kind is Linear:
        return f"{size} --rope-scaling linear --rope-scale {strategy.parameters()['factor']:.9g} {base}"
    if isinstance(strategy, YaRN) and _is_index_ramp(strategy) and strategy.truncate:
        if not _default_temperature(strategy):
            raise StrategyError(
                f"{strategy.label}: llama.cpp's releases differ in what --yarn-attn-factor multiplies, so only YaRN's "
                "own attention factor can be expressed"
            )
        return (
            f"{size} --rope-scaling yarn --rope-scale {strategy.factor:.9g} {base} "
            f"--yarn-orig-ctx {spec.pretrained_length} --yarn-ext-factor 1 --yarn-attn-factor 1 "
            f"--yarn-beta-fast {strategy.beta_fast:.9g} --yarn-beta-slow {strategy.beta_slow:.9g}"
        )
    raise StrategyError(
        f"{strategy.label}: llama.cpp's options know another base, linear scaling, and YaRN with the index ramp, "
        "arithmetic blend and truncated ends; other frequencies need factors written into the GGUF file"
    )


def rope_parameter_forms(strategy: Strategy, spec: RopeSpec) -> Iterator[Parameters]:
    """Every way to say it in rope_parameters, by its own name first."""
    _refuse_positions(strategy, "transformers")
    common = _common(spec)
    native = _native(strategy, spec)
    if native is not None:
        yield common | native
    if native is None or not strategy.varies_with_length(spec):
        yield common | _as_divisors(strategy, spec, "transformers")


def _common(spec: RopeSpec) -> Parameters:
    share = {"partial_rotary_factor": spec.partial_rotary_factor} if spec.partial_rotary_factor != 1 else {}
    return {"rope_theta": spec.theta, **share}


def _native(strategy: Strategy, spec: RopeSpec) -> Parameters | None:
    """By transformers' own name for the method; None where it has none."""
    name = _NATIVE.get(type(strategy))
    return name(strategy, spec) if name is not None else None


def _yarn(strategy: YaRN, spec: RopeSpec) -> Parameters | None:
    if not _is_index_ramp(strategy):
        return None
    fields = strategy.parameters()
    fields = {k: v for k, v in fields.items() if v is not None and k not in {"ramp", "blend"}}
    return {"rope_type": "yarn", **fields, "original_max_position_embeddings": spec.pretrained_length}


def _longrope(strategy: LongRoPE, spec: RopeSpec) -> Parameters | None:
    if strategy.start_tokens or not strategy.varies_with_length(spec):
        return None
    switch = strategy.switch_length
    return {
        "rope_type": "longrope",
        "factor": strategy.factor,
        "short_factor": list(strategy.short_factor or (1.0,) * len(strategy.long_factor)),
        "long_factor": list(strategy.long_factor),
        "attention_factor": strategy.frequencies(spec, 1).attention_factor,
        "original_max_position_embeddings": spec.pretrained_length if switch is None else switch,
    }


def _proportional(strategy: Proportional, spec: RopeSpec) -> Parameters | None:
    # the share of a head that rotates at all is the same key, so where it is taken the divisors must do
    if spec.partial_rotary_factor != 1:
        return None
    return {"rope_type": "proportional", "partial_rotary_factor": strategy.p}


_NATIVE: dict[type[Strategy], Callable[[Any, RopeSpec], Parameters | None]] = {
    Plain: lambda _, __: {"rope_type": "default"},
    Shipped: lambda _, spec: {"rope_type": "default"} if spec.shipped_type == "default" else None,
    Linear: lambda strategy, _: {"rope_type": "linear", "factor": strategy.factor},
    ABF: lambda strategy, _: {"rope_type": "default", "rope_theta": strategy.base},
    NTK: lambda strategy, spec: {"rope_type": "default", "rope_theta": strategy.base(spec)},
    YaRN: _yarn,
    Llama3: lambda strategy, spec: {
        "rope_type": "llama3",
        **strategy.parameters(),
        "original_max_position_embeddings": spec.pretrained_length,
    },
    DynamicNTK: lambda strategy, _: {"rope_type": "dynamic", "factor": strategy.factor},
    LongRoPE: _longrope,
    Proportional: _proportional,
}


def _as_divisors(strategy: Strategy, spec: RopeSpec, engine: str) -> Parameters:
    """Any frequencies that do not depend on the length, as longrope with two equal lists."""
    found = strategy.frequencies(spec, spec.pretrained_length)
    if found.start_tokens:
        raise StrategyError(f"{strategy.label}: no rope_type of {engine} leaves the first tokens' rotation alone")
    if strategy.varies_with_length(spec):
        raise StrategyError(
            f"{strategy.label}: it follows each text's length in a way {engine} has no rope_type for; "
            "export the fixed form for one target length instead"
        )
    plain = base_frequencies(spec.theta, spec.rotary_dim).double()
    moving = found.inv_freq > 0
    divisors = torch.where(moving, plain / found.inv_freq.double(), STILL).tolist()
    return {
        "rope_type": "longrope",
        "factor": max(1.0, *(x for x in divisors if x < STILL), 1.0),
        "short_factor": divisors,
        "long_factor": list(divisors),
        "attention_factor": found.attention_factor,
        "original_max_position_embeddings": spec.pretrained_length,
    }


def _is_index_ramp(strategy: YaRN) -> bool:
    return type(strategy) is YaRN and strategy.ramp == "index" and strategy.blend == "arithmetic"


def _default_temperature(strategy: YaRN) -> bool:
    return _is_index_ramp(strategy) and strategy.attention_factor is None and strategy.mscale is None


def _refuse_positions(strategy: Strategy, engine: str) -> None:
    if strategy.changes_attention:
        raise StrategyError(
            f"{strategy.label}: it changes positions or scales queries, which {engine} has no option for"
        )


def check_length(length: int) -> None:
    """Refuse what is no number of tokens.

    Raises:
        StrategyError: naming the value and the rule.
    """
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise StrategyError(f"length must be a whole number of tokens of at least 1, got {length!r}")
