"""Where a model keeps its rotary embedding, and what its config says of it. Found by structure, not by class name."""

import copy
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from extrapolate.errors import ModelError, first_line
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.names import build

TableForm = Literal["halves", "pairs", "single"]
"""How a rotary module lays out cos and sin: each frequency at i and i + d/2, at 2i and 2i + 1, or once."""


@dataclass(frozen=True)
class RotarySeam:
    """One rotary module of a model.

    Attributes:
        name: dotted path in the model.
        module: the module that turns position ids into cos and sin.
        pairs: d/2, the frequencies it holds.
        form: how it lays the tables out.
        casts: whether it returns them in the hidden states' dtype (else float32).
    """

    name: str
    module: nn.Module
    pairs: int
    form: TableForm
    casts: bool


def expand(table: Tensor, form: TableForm) -> Tensor:
    """Lay a (..., d/2) table out the way a model's attention expects it."""
    if form == "halves":
        return torch.cat((table, table), dim=-1)
    if form == "pairs":
        return table.repeat_interleave(2, dim=-1)
    return table


def find_rotary(model: nn.Module) -> list[RotarySeam]:
    """Every module of ``model`` that turns position ids into cos and sin of its ``inv_freq`` buffer.

    Raises:
        ModelError: by the model's name, with what was looked for, when there is none or one is not understood.
    """
    who = type(model).__name__
    seams = []
    for name, module in model.named_modules():
        buffers = [b for b, _ in module.named_buffers(recurse=False) if b.endswith("inv_freq") and "original" not in b]
        if not buffers:
            continue
        if buffers != ["inv_freq"]:
            raise ModelError(
                f"{who}: {name} keeps one set of frequencies for each layer type ({', '.join(buffers)}); "
                "models with several rotary embeddings are not supported yet"
            )
        seams.append(_understand(who, name, module))
    if not seams:
        raise ModelError(
            f"{who} has no rotary embedding that can be patched: looked for a module with an `inv_freq` buffer that is "
            "called with (x, position_ids) and found none"
        )
    return seams


def _understand(who: str, name: str, module: nn.Module) -> RotarySeam:
    """Run the module's own forward on a known ladder and see which table comes out."""
    pairs = module.get_buffer("inv_freq").numel()
    ladder = torch.linspace(0.5, 1.5, pairs)
    probe = copy.copy(module)  # the module itself is never touched: its buffers may hold anything, even nothing (meta)
    probe._buffers = {b: ladder.clone() for b in module._buffers}
    probe.__dict__.update(rope_type="default", attention_scaling=1.0)
    probe.__dict__.pop("forward", None)  # accelerate's hooks hang an instance forward that is bound to the original
    positions = torch.arange(4)[None]
    try:
        with torch.no_grad():
            cos, sin = type(module).forward(probe, torch.zeros(1, 4, 1), positions)
            low, _ = type(module).forward(probe, torch.zeros(1, 4, 1, dtype=torch.bfloat16), positions)
    except Exception as error:
        raise ModelError(
            f"{who}: {name} ({type(module).__name__}) holds `inv_freq` but cannot be called with (x, position_ids): "
            f"{first_line(error)}"
        ) from error
    phases = positions[..., None].float() * ladder
    form: TableForm
    for form in ("halves", "pairs", "single"):
        table = expand(phases, form)
        if cos.shape == table.shape and torch.allclose(cos, table.cos()) and torch.allclose(sin, table.sin()):
            return RotarySeam(name, module, pairs, form, casts=low.dtype == torch.bfloat16)
    raise ModelError(
        f"{who}: {name} ({type(module).__name__}) returns tables of shape {tuple(cos.shape)} that are not cos and sin "
        f"of its {pairs} frequencies in any known layout"
    )


def rope_parameters(config: Any) -> dict[str, Any]:
    """The RoPE settings of a config, from transformers 5's ``rope_parameters`` or the v4 attributes.

    Raises:
        ModelError: when there are none, or they differ by layer type.
    """
    found = getattr(config, "rope_parameters", None)
    if found is None:
        found = getattr(config, "rope_scaling", None) or {}
    parameters = dict(found)
    who = type(config).__name__
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ModelError(f"{who}: rope_parameters differ by layer type ({', '.join(parameters)}); not supported yet")
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = getattr(config, "rope_theta", None)
    if parameters["rope_theta"] is None:
        raise ModelError(
            f"{who} names no rope_theta (rope_parameters={found!r}); if the config was edited after loading, put the "
            "checkpoint's theta back: config.rope_parameters['rope_theta'] = ..."
        )
    parameters.setdefault("rope_type", parameters.get("type") or "default")
    if parameters.get("partial_rotary_factor") is None:
        parameters["partial_rotary_factor"] = getattr(config, "partial_rotary_factor", None) or 1.0
    return parameters


SAVED = "extrapolate"
"""Key of a config that was saved under a patch: what the checkpoint was before, and what was done to it."""


def saved_entry(config: Any) -> Mapping[str, Any] | None:
    """What saving under a patch left in a config, or None."""
    entry = getattr(config.get_text_config(), SAVED, None)
    return entry if isinstance(entry, Mapping) else None


def read_spec(config: Any, pretrained_length: int | None = None) -> RopeSpec:
    """The :class:`RopeSpec` that a transformers config describes.

    Args:
        config: a model's config; a multimodal one is read through its text part.
        pretrained_length: tokens; overrides what the config says.

    Raises:
        ModelError: when the config has no RoPE, or one that is not understood.
    """
    config = config.get_text_config()
    who = type(config).__name__
    parameters = rope_parameters(config)
    if parameters.get("mrope_section"):
        raise ModelError(
            f"{who}: multi-section rotary (mrope_section={parameters['mrope_section']}) is not supported yet"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
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
    of_length = functools.partial(_shipped, copy.deepcopy(config), rope_type)
    two_lists = rope_type == "longrope" and parameters.get("short_factor") != parameters.get("long_factor")
    follows = two_lists or rope_type == "dynamic"
    return replace(
        bare,
        shipped=of_length(pretrained_length),
        shipped_type=rope_type,
        shipped_at=of_length if follows else None,
    )


def _shipped(config: Any, rope_type: str, length: int) -> Frequencies:
    """The checkpoint's own frequencies for a text of ``length`` tokens, by transformers' own formulas."""
    # a copy, because transformers writes defaults into the config it computes from
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](copy.deepcopy(config), device="cpu", seq_len=length)
    return Frequencies(inv_freq.float(), float(attention_factor))


def deviation(seam: RotarySeam, spec: RopeSpec) -> float:
    """Largest relative difference between a module's buffer and the frequencies its config implies.

    0 where that cannot be told: on meta, and where the buffer follows the last text's length.
    """
    found, expected = seam.module.get_buffer("inv_freq"), spec.shipped.inv_freq
    if found.is_meta or spec.shipped_at is not None:
        return 0.0
    difference = ((found.float().cpu() - expected).abs() / expected.clamp_min(1e-30)).max().item()
    return math.inf if math.isnan(difference) else difference
