"""What a transformers config says of a checkpoint's rotary embedding."""

import contextlib
import copy
import functools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from extrapolate.errors import ModelError
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.names import build

LOCAL = ("sliding", "local", "chunked")
"""Words in the names of layer types whose queries see a few tokens only."""

TABLES = {"codegen": 10000.0, "gptj": 10000.0, "roformer": 10000.0}
"""Theta of architectures whose code has it and whose config has not, by model type."""

ALPHA = ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text")
"""Model types whose code takes ``dynamic`` with an ``alpha`` for another, fixed base: theta·alpha^(d/(d-2))."""

SAME_TYPE = ({"mrope", "default"}, {"su", "longrope"})
"""Older and newer names of one scaling type, which a config may carry side by side."""


def layer_types(config: Any) -> tuple[str, ...]:
    """The layer types that have RoPE settings of their own; empty when all layers share one."""
    found = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return tuple(name for name, value in found.items() if isinstance(value, Mapping))


def is_local(layer_type: str) -> bool:
    """Whether layers of this type see a few tokens only."""
    return any(word in layer_type for word in LOCAL)


def _of_type(config: Any, layer_type: str | None) -> Any:
    """The config as layers of one type read it: Gemma 4 has a head size for each."""
    with contextlib.suppress(Exception):  # not every config has it, and those that do may refuse a name
        return config.per_layer_config[layer_type]
    return config


def rope_parameters(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """The RoPE settings of a config, from transformers 5's ``rope_parameters`` or the v4 attributes.

    Args:
        config: of a text model.
        layer_type: whose, where they differ by layer type.

    Raises:
        ModelError: when there are none.
    """
    found = getattr(config, "rope_parameters", None)
    if found is None:
        found = getattr(config, "rope_scaling", None) or {}
    parameters = dict(found)
    who = type(config).__name__
    if any(isinstance(value, Mapping) for value in parameters.values()):
        if not isinstance(parameters.get(layer_type), Mapping):
            known = ", ".join(layer_types(config))
            raise ModelError(f"{who}: no RoPE settings for layer type {layer_type!r}; there are {known}")
        parameters = dict(parameters[layer_type])
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = getattr(config, "rope_theta", None) or TABLES.get(getattr(config, "model_type", ""))
    if parameters["rope_theta"] is None:
        raise ModelError(
            f"{who} names no rope_theta (rope_parameters={found!r}); if the config was edited after loading, put the "
            "checkpoint's theta back: config.rope_parameters['rope_theta'] = ..."
        )
    older, newer = parameters.get("type"), parameters.get("rope_type")
    if older and newer and older != newer and {older, newer} not in SAME_TYPE:
        warnings.warn(
            f"{who} names two scaling types: type={older!r} and rope_type={newer!r}; rope_type counts, as in "
            "transformers; remove the other from the config",
            stacklevel=2,
        )
    parameters.setdefault("rope_type", older or "default")
    if parameters.get("partial_rotary_factor") is None:
        parameters["partial_rotary_factor"] = getattr(config, "partial_rotary_factor", None) or 1.0
    return parameters


SAVED = "extrapolate"
"""Key of a config that was saved under a patch: what the checkpoint was before, and what was done to it."""


def saved_entry(config: Any) -> Mapping[str, Any] | None:
    """What saving under a patch left in a config, or None."""
    entry = getattr(config.get_text_config(), SAVED, None)
    return entry if isinstance(entry, Mapping) else None


def read_spec(config: Any, pretrained_length: int | None = None, layer_type: str | None = None) -> RopeSpec:
    """The :class:`RopeSpec` that a transformers config describes.

    Args:
        config: a model's config; a multimodal one is read through its text part.
        pretrained_length: tokens; overrides what the config says.
        layer_type: whose frequencies, where they differ by layer type; those of global layers when left out.

    Raises:
        ModelError: when the config has no RoPE, or one that is not understood.
    """
    config = config.get_text_config()
    who = type(config).__name__
    types = layer_types(config)
    if types and layer_type is None:
        layer_type = next((name for name in types if not is_local(name)), types[0])
    if layer_type is not None:
        config = _of_type(config, layer_type)
    parameters = rope_parameters(config, layer_type if types else None)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None and getattr(config, "hidden_size", None) is None:
        raise ModelError(
            f"{who} has neither head_dim nor hidden_size: a model of several transformers, each with a config of its "
            "own, has no one length that a strategy could be for"
        )
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    if getattr(config, "model_type", None) in TABLES:
        head_dim = getattr(config, "rotary_dim", None) or head_dim
    entry = saved_entry(config) or {}  # saved under a patch: theta and L are those of the checkpoint before it
    share = float(parameters["partial_rotary_factor"])
    if parameters["rope_type"] == "proportional":  # there the key is the share of pairs that rotate
        share = 1.0
    theta = float(entry.get("rope_theta", parameters["rope_theta"]))
    if pretrained_length is None:
        pretrained_length = (
            entry.get("pretrained_length")
            or parameters.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or getattr(config, "max_position_embeddings", None)
        )
    if isinstance(pretrained_length, bool) or not isinstance(pretrained_length, int) or pretrained_length < 1:
        raise ModelError(
            f"{who}: pretrained_length must be a whole number of tokens of at least 1, got {pretrained_length!r}; "
            "give it with pretrained_length=..."
        )
    bare = RopeSpec(int(head_dim * share), theta, pretrained_length, partial_rotary_factor=share)
    if entry and not entry.get("in_rope_parameters"):
        strategy = build(entry.get("strategy"))
        shipped_at = functools.partial(strategy.frequencies, bare)
        return replace(bare, shipped=shipped_at(pretrained_length), shipped_type=strategy.name, shipped_at=shipped_at)
    rope_type = parameters["rope_type"]
    if rope_type == "default" and parameters["rope_theta"] == theta:
        return bare
    if rope_type not in {"default", *ROPE_INIT_FUNCTIONS}:
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise ModelError(f"{who}: unknown rope_type {rope_type!r}; transformers knows {known}")
    if rope_type == "default":
        shipped = Frequencies(base_frequencies(float(parameters["rope_theta"]), bare.rotary_dim))
        return replace(bare, shipped=shipped, shipped_type=(entry.get("strategy") or {}).get("strategy", rope_type))
    if rope_type == "dynamic" and parameters.get("alpha") and getattr(config, "model_type", None) in ALPHA:
        base = theta * float(parameters["alpha"]) ** (bare.rotary_dim / (bare.rotary_dim - 2))
        return replace(bare, shipped=Frequencies(base_frequencies(base, bare.rotary_dim)), shipped_type="ntk_alpha")
    mscale = (parameters.get("short_mscale"), parameters.get("long_mscale"))
    of_length = functools.partial(
        _shipped, copy.deepcopy(config), rope_type, layer_type if types else None, pretrained_length, mscale
    )
    two_lists = rope_type == "longrope" and parameters.get("short_factor") != parameters.get("long_factor")
    follows = two_lists or rope_type == "dynamic" or mscale[0] != mscale[1]
    return replace(
        bare,
        shipped=of_length(pretrained_length),
        shipped_type=rope_type,
        shipped_at=of_length if follows else None,
    )


def _shipped(
    config: Any,
    rope_type: str,
    layer_type: str | None,
    pretrained_length: int,
    mscale: tuple[float | None, float | None],
    length: int,
) -> Frequencies:
    """The checkpoint's own frequencies for a text of ``length`` tokens, by transformers' own formulas."""
    # a copy, because transformers writes defaults into the config it computes from
    options = {} if layer_type is None else {"layer_type": layer_type}
    of_range = mscale[int(length > pretrained_length)]
    if of_range is not None:  # PhiMoE's code takes these for the factor, and never the list for long texts
        length = 1
    # the length as a tensor, as transformers' modules have it: its powers are taken in float32, bit for bit as there
    seq_len: Any = torch.tensor(length)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[rope_type](copy.deepcopy(config), device="cpu", seq_len=seq_len, **options)
    return Frequencies(inv_freq.float(), float(factor if of_range is None else of_range))
