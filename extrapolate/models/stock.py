"""What a model's own rotary modules really produce, beside what its config says of them."""

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.errors import ModelError
from extrapolate.models.families import RotarySeam, TableForm, parts
from extrapolate.models.spec import rope_parameters, saved_entry
from extrapolate.rope import RopeSpec

TOLERANCE = 0.01
"""Relative: a buffer that was rounded to bfloat16 is off by less."""

SHORT = 4
"""Tokens of a text that is short for every checkpoint; a module that follows the length starts anew with it."""


def check_stock(model: nn.Module, seam: RotarySeam, spec: RopeSpec) -> None:
    """Compare what was read from the config with what the model's own module gives, below and above L.

    Buffers may hold anything: they are in no checkpoint, and a cast rounds them. So where they differ, a new module of
    the same class decides. When it agrees with the config, a warning says that the unpatched model runs on something
    else. When it does not, its code has a rule of its own that was misread.

    Raises:
        ModelError: by the model's name, for a rule of its own; a patch would start from a wrong reading.
    """
    who, entry = type(model).__name__, saved_entry(model.config)
    if entry is not None and not entry.get("in_rope_parameters"):
        return  # the strategy that it was saved under is not in its modules
    off, length = deviation(seam.module, seam, spec)
    if off <= TOLERANCE:
        return
    which = "" if seam.layer_type is None else f"{seam.layer_type}_"
    rebuilt = _rebuilt(seam)
    if rebuilt is not None:
        misread, at = deviation(rebuilt, seam, spec)
        if misread > TOLERANCE:
            told = _told(model, seam)
            raise ModelError(
                f"{who}: {type(seam.module).__name__} does not do what {told} says: for a text of {at:,} tokens its "
                f"own tables are up to {misread:.3g} times off {spec.shipped_type} RoPE with theta {spec.theta:g}; its "
                "code has a rule of its own that is not known here, and every strategy would start from a wrong reading"
            )
    warnings.warn(
        f"{who}: {seam.name}.{which}inv_freq is up to {off:.3g} times off what the config implies (theta "
        f"{spec.theta:g}, a text of {length:,} tokens); the patch uses the config, but the unpatched model does not",
        stacklevel=3,
    )


def deviation(module: nn.Module, seam: RotarySeam, spec: RopeSpec) -> tuple[float, int]:
    """Largest relative difference between a module's tables and those its config implies, and at which text length.

    0 where that cannot be told: on meta, where the module keeps tables that it makes when it likes (checkpoints' own
    code; their buffer is looked at), and where a table ends before the length.
    """
    if any(b.is_meta for b in (*module.buffers(), *module.parameters())):
        return 0.0, 0
    if seam.call in ("length", "count"):
        found = seam.buffer
        off = 0.0 if found is None else _relative(found.float().cpu(), spec.shipped.inv_freq)
        return off, spec.pretrained_length
    worst, where = 0.0, 0
    probe = _copied(module)
    for length in (SHORT, 2 * max(spec.pretrained_length, _declared(module)) + 1):
        expected = spec.shipped if spec.shipped_at is None else spec.shipped_at(length)
        found_at = own_frequencies(probe, seam, length)
        if found_at is None:
            continue
        inv_freq, radius = found_at
        off = max(
            _relative(inv_freq, expected.inv_freq),
            _relative(radius, torch.full_like(radius, expected.attention_factor)),
        )
        if off > worst:
            worst, where = off, length
    return worst, where


def own_frequencies(module: nn.Module, seam: RotarySeam, length: int) -> tuple[Tensor, Tensor] | None:
    """What a module makes of position 1 of a text: angle and radius of each pair, (d/2,) float64.

    The angle at position 1 is the frequency, in radians. Call it on a copy: a module may note the length.

    Args:
        module: the seam's, or one of its class.
        seam: how it is called, and what it returns.
        length: tokens of the text, at least 2.

    Returns:
        (inv_freq, attention factor of each pair); None where the module has no such row.
    """
    positions = torch.tensor([[0, 1, length - 1]])
    device = next((b.device for b in (*module.buffers(), *module.parameters())), torch.device("cpu"))
    positions, x = positions.to(device), torch.zeros(1, 3, 1, device=device)
    kind = {} if seam.layer_type is None else {"layer_type": seam.layer_type}
    forward: Any = type(module).forward
    try:
        with torch.no_grad():
            if seam.call == "shape":
                return _polar(forward(module, (1, 2)), seam.form)
            try:
                return _polar(forward(module, x, positions, **kind), seam.form)
            except Exception:  # text, height and width, always
                return _polar(forward(module, x, positions.expand(3, 1, 3), **kind), seam.form)
    except IndexError:  # a table that ends
        return None


def _polar(found: Any, form: TableForm) -> tuple[Tensor, Tensor]:
    """Angle and radius of each pair in the second row of a table, laid out in any form."""
    rows = [part[..., 1, :] if form != "stacked" else part[..., 1, :, :] for part in parts(found)]
    if form == "halves":
        half = rows[0].shape[-1] // 2
        cos, sin = (row[..., :half] for row in rows)
    elif form == "pairs":
        cos, sin = (row[..., 0::2] for row in rows)
    elif form == "single":
        cos, sin = rows
    elif form == "sine_first":
        sin, cos = rows
    elif form == "complex":
        cos, sin = rows[0].real, rows[0].imag
    elif form == "stacked":
        cos, sin = rows[0].unbind(-1)
    else:
        sin, cos = rows[0].chunk(2, dim=-1)
    cos, sin = (row.reshape(-1, row.shape[-1])[0].double().cpu() for row in (cos, sin))
    return torch.atan2(sin, cos), torch.hypot(cos, sin)


def _relative(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return math.inf
    difference = ((found.double() - expected.double()).abs() / expected.double().abs().clamp_min(1e-30)).max().item()
    return math.inf if math.isnan(difference) else difference


def _copied(module: nn.Module) -> nn.Module:
    """A copy whose buffers and notes are its own; its parameters, which nothing here changes, are shared."""
    probe = copy.copy(module)
    probe._buffers = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
    if "rope_init_fn" in probe.__dict__ and "config" in probe.__dict__:  # it may write defaults into the config
        probe.__dict__["config"] = copy.deepcopy(probe.__dict__["config"])
    probe.__dict__.pop("forward", None)  # accelerate's hooks hang an instance forward that is bound to the original
    return probe


def _rebuilt(seam: RotarySeam) -> nn.Module | None:
    """A new module of the same class from the same config; None where it is made in another way."""
    config = seam.module.__dict__.get("config")
    if config is None:
        return None
    try:
        made: nn.Module = type(seam.module)(copy.deepcopy(config))
    except Exception:
        return None
    return made


def _declared(module: nn.Module) -> int:
    """Tokens up to which the module takes a text for short, by its own count."""
    found = getattr(module, "original_max_seq_len", None)
    return found if isinstance(found, int) else 0


def _told(model: Any, seam: RotarySeam) -> str:
    config = model.config.get_text_config()
    parameters = rope_parameters(config, seam.layer_type)
    kept = {name: value for name, value in parameters.items() if name != "partial_rotary_factor" or value != 1}
    return f"rope_parameters={kept}"
