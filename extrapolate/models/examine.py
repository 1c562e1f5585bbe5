"""Whether a model's attention can run in bands, told from a few tokens, and what each layer needs for it."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.errors import ModelError, first_line
from extrapolate.models.attention import NAME, PROBE, Banded, Probe, Seat, register
from extrapolate.models.installed import Installed, install
from extrapolate.models.rotary import PatchedRotary
from extrapolate.rope import Layout, RopeSpec, cos_sin, rotate
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.plain import Plain

LAYOUTS: tuple[Layout | None, ...] = ("half_split", "interleaved", None)
"""How an attention module may pair the dimensions it rotates; None: it does not rotate."""

PROBE_TOKENS = 16
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Of the examination, relative; 0.1 for dtypes of half the size."""


def banded(
    model: nn.Module,
    strategy: Strategy,
    spec: RopeSpec,
    length: int | None,
    stock: Installed,
    rotaries: Mapping[str, PatchedRotary],
) -> Installed:
    """Examine a model's attention on a few tokens and give each layer its seat.

    Three passes under plain RoPE, whatever the checkpoint ships and its buffers hold: with the model's own attention;
    with our function, which sees how each layer rotates; with the identity for a rotary module, where rotating in our
    function must give the same queries, keys and hidden states.

    Raises:
        ModelError: by the model's name, when a layer does not come through our function or does not rotate in a known
            way, or the hidden states differ. The model is then half patched: the caller restores it.
    """
    who = type(model).__name__
    register()
    tables = {name: PatchedRotary(Plain(), spec, rotary.seam) for name, rotary in rotaries.items()}
    plain = replace(stock, modules={**stock.modules, **tables})
    install(model, plain)
    expected = _hidden(model)
    configs = _rerouted(stock.configs)
    install(model, replace(plain, configs=configs))
    turned: dict[int, tuple[Tensor, Tensor]] = {}
    bare = Seat(Banded(Plain(), spec), None)

    def note(module: nn.Module, query: Tensor, key: Tensor) -> Seat:
        turned[id(module)] = (query, key)
        return bare

    _hidden(model, note)
    install(model, Installed({**stock.modules, **rotaries}, {}, configs))
    reference, own = Banded(Plain(), spec), Banded(strategy, spec, length, configs=dict(stock.configs))
    found: dict[int, Layout | None] = {}
    cos, sin = cos_sin(Plain().frequencies(spec, PROBE_TOKENS), torch.arange(PROBE_TOKENS))

    def recognise(module: nn.Module, query: Tensor, key: Tensor) -> Seat:
        if id(module) not in turned:
            raise ModelError(f"{who}: {type(module).__name__} reaches the attention function in some passes only")
        errors = {
            layout: max(
                _distance(x if layout is None else rotate(x, cos.to(x.device), sin.to(x.device), layout), y)
                for x, y in zip((query, key), turned[id(module)], strict=True)
            )
            for layout in LAYOUTS
        }
        best = min(errors, key=lambda layout: errors[layout])
        if not errors[best] < TOLERANCE.get(query.dtype, 0.1):
            raise ModelError(
                f"{who}: {type(module).__name__} rotates queries and keys in no known way (half-split and interleaved "
                f"pairs were tried; the nearest is {errors[best]:.3g} off), so its positions cannot be changed"
            )
        found[id(module)] = best
        return Seat(reference, best)

    again = _hidden(model, recognise)
    layers = int(model.config.get_text_config().num_hidden_layers)  # type: ignore[union-attr, operator]
    if len(found) != layers:
        raise ModelError(
            f"{who}: {len(found)} of {layers} layers call transformers' attention interface, so positions cannot be "
            "changed in all of them; Llama, Qwen, Mistral, Gemma and their like do (looked for "
            "ALL_ATTENTION_FUNCTIONS.get_interface in every layer)"
        )
    if all(layout is None for layout in found.values()):
        raise ModelError(
            f"{who}: no layer uses the tables of {', '.join(rotaries)}, so {strategy!r} would change nothing"
        )
    off = _distance(again, expected)
    if not off < TOLERANCE.get(expected.dtype, 0.1):
        raise ModelError(
            f"{who}: in bands its hidden states are {off:.3g} off its own; something in its attention is not understood"
        )
    names = {id(module): name for name, module in model.named_modules()}
    return Installed(
        {**stock.modules, **rotaries}, {names[i]: Seat(own, layout) for i, layout in found.items()}, configs
    )


def _rerouted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the configs that choose our attention function; who shares one goes on sharing it."""
    copies = {id(config): copy.copy(config) for config in configs.values()}
    for config in copies.values():
        for field, value in vars(config).items():
            if id(value) in copies:  # the text part of a larger config
                config.__dict__[field] = copies[id(value)]
        config.__dict__["_attn_implementation_internal"] = NAME
    return {name: copies[id(config)] for name, config in configs.items()}


def _distance(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference relative to that of ``expected``; infinite for other shapes."""
    if found.shape != expected.shape:
        return math.inf
    return float((found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-30))


def _hidden(model: Any, probe: Probe | None = None) -> Tensor:
    """Last hidden states (1, T, hidden) of a few tokens."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    token = PROBE.set(probe)
    try:
        output = trial(model, (torch.arange(PROBE_TOKENS)[None] * 7 + 3) % vocabulary, "examine its attention")
    finally:
        PROBE.reset(token)
    found: Tensor = output.last_hidden_state
    return found


@torch.no_grad()
def trial(model: Any, tokens: Tensor, purpose: str) -> Any:
    """What a model's body makes of (1, T) tokens, in evaluation mode.

    Raises:
        ModelError: when it fails, with the purpose.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        body = getattr(model, "base_model", model)
        return body(input_ids=tokens.to(next(model.parameters()).device), use_cache=False)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__}: a pass of {tokens.shape[1]} tokens to {purpose} failed: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        for module in training:
            module.training = True
