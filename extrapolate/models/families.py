"""Where a model keeps its rotary embedding. Found by structure, not by class name."""

import contextlib
import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from extrapolate.errors import ModelError, first_line
from extrapolate.models.spec import is_local, read_spec
from extrapolate.rope import RopeSpec

TableForm = Literal["halves", "pairs", "single", "sine_first", "complex", "sinusoid", "stacked"]
"""What a rotary module returns: (cos, sin) with each frequency at i and i + d/2, at 2i and 2i + 1, or once; (sin, cos)
with each once; one complex number a pair; one tensor of all sines, then all cosines; one of (cos, sin) by pair."""

Call = Literal["positions", "shape", "length", "count"]
"""How it is called: (x, position_ids); (shape of the ids, tokens cached), RoFormer's; (x, seq_len), of checkpoints that
bring their own code, whose layers take the rows they need; (rows), ChatGLM's, which does the same."""


@dataclass(frozen=True)
class RotarySeam:
    """One set of frequencies that a rotary module of a model holds.

    Attributes:
        name: dotted path in the model.
        module: the module that turns position ids into cos and sin.
        pairs: d/2, the frequencies it holds.
        form: what it returns.
        casts: whether it returns them in the hidden states' dtype (else float32).
        layer_type: which of the module's sets; None when it has one.
        call: how it is called.
        lead: dimensions of size 1 before those of a table, where all rows are returned.
        axes: for each pair the row of (3, batch, T) position ids that turns it (multi-section rotary); None where
            position ids have no rows.
    """

    name: str
    module: nn.Module
    pairs: int
    form: TableForm
    casts: bool
    layer_type: str | None = None
    call: Call = "positions"
    lead: int = 0
    axes: tuple[int, ...] | None = None

    @property
    def buffer(self) -> Tensor | None:
        """The module's own frequencies; None where it holds a table."""
        name = "inv_freq" if self.layer_type is None else f"{self.layer_type}_inv_freq"
        return self.module._buffers.get(name)

    @property
    def is_local(self) -> bool:
        """Whether it serves layers that see a few tokens only."""
        return self.layer_type is not None and is_local(self.layer_type)


def lay_out(cos: Tensor, sin: Tensor, form: TableForm) -> Any:
    """Lay (..., d/2) tables out the way a model's attention expects them."""
    if form == "halves":
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    if form == "pairs":
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    if form == "single":
        return cos, sin
    if form == "sine_first":
        return sin, cos
    if form == "complex":
        return torch.complex(cos, sin)
    if form == "stacked":
        return torch.stack((cos, sin), dim=-1)
    return torch.cat((sin, cos), dim=-1)


def find_rotary(model: nn.Module) -> list[RotarySeam]:
    """Every set of frequencies with which a module of ``model`` turns position ids into cos and sin.

    Raises:
        ModelError: by the model's name, with what was looked for, when there is none or one is not understood.
    """
    who = type(model).__name__
    seams = []
    for name, module in _text_modules(model):
        buffers = [b for b, _ in module.named_buffers(recurse=False) if b.endswith("inv_freq") and "original" not in b]
        for buffer in buffers:
            layer_type = buffer.removesuffix("inv_freq").removesuffix("_") or None
            seams.append(_understand(who, name, module, layer_type, module.get_buffer(buffer).numel()))
        table: Tensor | None = module._buffers.get("embed_positions")
        if table is not None and table.ndim == 2 and next(module.parameters(), None) is None:  # GPT-J, CodeGen
            seams.append(_understand(who, name, module, None, int(table.shape[1]) // 2))
        of_heads = isinstance(module, nn.Embedding) and name.endswith("embed_positions")
        if of_heads and module.embedding_dim == _head_width(model):
            seams.append(_understand(who, name, module, None, int(module.embedding_dim) // 2))  # RoFormer
    if not seams:
        raise ModelError(
            f"{who} has no rotary embedding that can be patched: looked for a module with an `inv_freq` buffer or a "
            "table of sinusoids that is called with (x, position_ids) and found none"
        )
    return seams


def _text_modules(model: Any) -> list[tuple[str, nn.Module]]:
    """The modules of a model's language part, by name; images and sounds have rotary embeddings of their own."""
    text = model.config.get_text_config()
    if text is model.config:
        return list(model.named_modules())
    others = {id(value) for value in vars(model.config).values() if isinstance(value, PreTrainedConfig)} - {id(text)}
    skipped = tuple(f"{name}." for name, m in model.named_modules() if id(m.__dict__.get("config")) in others)
    return [(name, m) for name, m in model.named_modules() if not f"{name}.".startswith(skipped)]


def _head_width(model: Any) -> int | None:
    """Dimensions of a head, where the heads share the model's width."""
    config = model.config.get_text_config()
    heads, hidden = (getattr(config, field, None) for field in ("num_attention_heads", "hidden_size"))
    return hidden // heads if isinstance(heads, int) and isinstance(hidden, int) and heads > 1 else None


def _understand(who: str, name: str, module: nn.Module, layer_type: str | None, pairs: int) -> RotarySeam:
    """Run the module's own forward on a known ladder and see how it wants to be called and which table comes out."""
    ladder = torch.linspace(0.5, 1.5, pairs)
    what = f"{name} ({type(module).__name__})"
    one, several = torch.arange(4)[None], torch.stack([torch.arange(4)[None] * n + n for n in (1, 3, 7)])
    failures, found, low, call = [], None, None, None
    for call in _calls(module):
        try:
            found, low = (_tables(module, layer_type, ladder, call, one, t) for t in (torch.float32, torch.bfloat16))
            break
        except Exception as error:
            failures.append(error)
    if found is None or call is None:
        raise ModelError(
            f"{who}: {what} holds `inv_freq` but cannot be called with (x, position_ids): {first_line(failures[0])}"
        ) from failures[0]
    phases = one[..., None].float() * ladder
    if call != "positions":
        phases = phases[0]
    for form in get_args(TableForm):
        expected = lay_out(phases.cos(), phases.sin(), form)
        lead = 0 if call == "positions" else parts(found)[0].ndim - parts(expected)[0].ndim
        if _equal(found, _led(expected, lead)):
            break
    else:
        raise ModelError(
            f"{who}: {what} returns tables of shape {tuple(parts(found)[0].shape)} that are not cos and sin of its "
            f"{pairs} frequencies in any known layout"
        )
    axes = None
    if form in get_args(TableForm)[:3] and call == "positions":
        with contextlib.suppress(Exception):  # position ids without rows
            tables = _tables(module, layer_type, ladder, call, several, torch.float32)
            axes = _axes(tables, several[..., None].float() * ladder, form)
    casts = parts(low)[0].dtype == torch.bfloat16
    return RotarySeam(name, module, pairs, form, casts, layer_type, call, lead, axes)


def _calls(module: nn.Module) -> tuple[Call, ...]:
    return ("shape",) if isinstance(module, nn.Embedding) else ("positions", "length", "count")


def _tables(
    module: nn.Module, layer_type: str | None, ladder: Tensor, call: Call, positions: Tensor, dtype: torch.dtype
) -> Any:
    """What the module returns for a known ladder."""
    probe = _probe(module, layer_type, ladder)
    forward, x, count = type(module).forward, torch.zeros(1, 1, 4, 1, dtype=dtype), positions.shape[-1]
    with torch.no_grad():
        if call == "shape":
            return forward(probe, (1, count))
        if call == "length":
            return forward(probe, x, seq_len=count)
        if call == "count":
            return forward(probe, count)
        kind = {} if layer_type is None else {"layer_type": layer_type}
        try:
            return forward(probe, x[0], positions, **kind)
        except Exception:
            if positions.ndim == 3:
                raise
            return forward(probe, x[0], positions.expand(3, 1, count), **kind)  # text, height and width, always


def _led(expected: Any, lead: int) -> Any:
    if isinstance(expected, tuple):
        return tuple(_led(part, lead) for part in expected)
    return expected[(None,) * max(lead, 0)]


def parts(found: Any) -> tuple[Tensor, ...]:
    """The tensors of what a rotary module returns: two, or one."""
    return found if isinstance(found, tuple) else (found,)


def _probe(module: nn.Module, layer_type: str | None, ladder: Tensor) -> nn.Module:
    """A copy that holds a known ladder; the module is never touched: its buffers may hold anything, even nothing."""
    probe = copy.copy(module)
    phases = torch.arange(4)[:, None] * ladder
    table = torch.cat((phases.sin(), phases.cos()), dim=-1)
    probe._buffers = {b: ladder.clone() for b in module._buffers if b.endswith("inv_freq")}
    if "embed_positions" in module._buffers:
        probe._buffers["embed_positions"] = table
    if isinstance(module, nn.Embedding):
        probe._parameters = {"weight": nn.Parameter(table, requires_grad=False)}
    prefix = "" if layer_type is None else f"{layer_type}_"
    probe.__dict__.update(
        rope_type="default" if layer_type is None else {layer_type: "default"}, **{f"{prefix}attention_scaling": 1.0}
    )
    if "max_seq_len_cached" in module.__dict__:
        probe.__dict__["max_seq_len_cached"] = 0  # of tables that are kept: makes them anew
    if "rope_init_fn" in module.__dict__:  # computes anew in every call (PhiMoE)
        probe.__dict__["rope_init_fn"] = lambda *_, **__: (ladder, 1.0)
        probe.__dict__["config"] = SimpleNamespace(rope_parameters={"rope_type": "default"})
    probe.__dict__.pop("forward", None)  # accelerate's hooks hang an instance forward that is bound to the original
    return probe


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(_equal(f, e) for f, e in zip(found, expected, strict=True))
    if not isinstance(found, Tensor) or found.shape != expected.shape or found.is_complex() != expected.is_complex():
        return False
    return torch.allclose(found, expected, atol=1e-6)


def _axes(found: Any, phases: Tensor, form: TableForm) -> tuple[int, ...] | None:
    """Which of three rows of position ids turned each pair, from tables made with phases (3, 1, T, d/2)."""
    each = [lay_out(row.cos(), row.sin(), form)[0] for row in phases]
    pairs = torch.arange(phases.shape[-1])
    owner = lay_out(pairs, pairs, form)[0]  # the pair that each entry belongs to
    if not isinstance(found, tuple) or found[0].shape != each[0].shape:
        return None
    axes = []
    for pair in pairs:
        place = owner == pair
        fits = [n for n, row in enumerate(each) if torch.allclose(found[0][..., place], row[..., place], atol=1e-6)]
        if len(fits) != 1:
            return None
        axes.append(fits[0])
    return tuple(axes)


def spec_of(seam: RotarySeam, config: Any, pretrained_length: int | None = None) -> RopeSpec:
    """What the config says of one seam; a module that was given a config of its own is read from that (Granite SWA)."""
    text, own = config.get_text_config(), seam.module.__dict__.get("config")
    if own is not None and type(own) is type(text) and own.rope_parameters != getattr(text, "rope_parameters", None):
        config = own
    if seam.call in {"length", "count"}:
        return _spec_of_remote_code(seam, text, pretrained_length)
    return read_spec(config, pretrained_length, seam.layer_type)


def _spec_of_remote_code(seam: RotarySeam, config: Any, pretrained_length: int | None) -> RopeSpec:
    """Of checkpoints that bring their own code, whose configs use other words and leave the theta to the code."""
    theta = getattr(config, "rope_theta", None) or getattr(seam.module, "base", None)
    if theta is None and seam.call == "count":
        theta = 10000.0 * getattr(config, "rope_ratio", 1.0)  # ChatGLM's code
    names = ("max_position_embeddings", "model_max_length", "seq_length")
    length = pretrained_length or next((n for n in (getattr(config, name, None) for name in names) if n), None)
    who = type(config).__name__
    if theta is None:
        raise ModelError(f"{who} names no rope_theta and {seam.name} no base; set config.rope_theta")
    if length is None:
        raise ModelError(f"{who} names none of {', '.join(names)}; give it with pretrained_length=...")
    return RopeSpec(2 * seam.pairs, float(theta), int(length))
