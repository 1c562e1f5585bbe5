"""Rotary position embedding: frequencies, and the rotation in its three equivalent forms.

Notation of the field: ``d`` is the rotary dimension of a head (``rotary_dim``), pair ``i`` of ``d/2`` turns by
``inv_freq[i]`` radians a position, and the score of a query at ``m`` with a key at ``n`` depends on ``m - n`` only
(Su et al. 2021, RoFormer, arXiv 2104.09864, Eq. 14-16 and 34).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from extrapolate.errors import StrategyError

Layout = Literal["half_split", "interleaved"]
"""Which entries of a head form a pair: ``(i, i + d/2)`` (GPT-NeoX, Llama) or ``(2i, 2i + 1)`` (RoFormer)."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """What a strategy makes of a head's rotation.

    Attributes:
        inv_freq: (d/2,) float32, radians a position, finite and not negative.
        attention_factor: multiplies cos and sin, so attention logits scale by its square.
        start_tokens: positions below this turn by ``start_inv_freq`` instead, with an attention factor of 1 (LongRoPE).
        start_inv_freq: as ``inv_freq``; given exactly when ``start_tokens`` is above 0.

    Raises:
        StrategyError: when a value is not finite, is negative, or has another shape or dtype.
    """

    inv_freq: Tensor
    attention_factor: float = 1.0
    start_tokens: int = 0
    start_inv_freq: Tensor | None = None

    def __post_init__(self) -> None:
        for name, f in (("inv_freq", self.inv_freq), ("start_inv_freq", self.start_inv_freq)):
            if f is None:
                continue
            if f.ndim != 1 or f.numel() == 0 or f.dtype != torch.float32:
                raise StrategyError(f"{name} must be (d/2,) float32, got {tuple(f.shape)} {f.dtype}")
            if not torch.isfinite(f).all() or (f < 0).any():
                raise StrategyError(f"{name} must be finite and not negative, got {f.tolist()}")
        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise StrategyError(f"attention_factor must be a positive number, got {self.attention_factor!r}")
        if (self.start_tokens > 0) != (self.start_inv_freq is not None):
            raise StrategyError(f"start_inv_freq belongs to start_tokens above 0, got start_tokens={self.start_tokens}")

    def equal(self, other: "Frequencies") -> bool:
        """Whether both hold the same numbers bit for bit."""
        if (self.attention_factor, self.start_tokens) != (other.attention_factor, other.start_tokens):
            return False
        pairs = ((self.inv_freq, other.inv_freq), (self.start_inv_freq, other.start_inv_freq))
        return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class RopeSpec:
    """The rotary embedding of a checkpoint, read from its config and never from what a buffer happens to hold.

    Attributes:
        rotary_dim: d, rotated dimensions of a head; even, at most head_dim.
        theta: base of the geometric ladder, the checkpoint's own.
        pretrained_length: L, tokens: ``original_max_position_embeddings`` if given, else ``max_position_embeddings``.
        shipped: what the checkpoint itself uses, its own scaling included; plain RoPE when left out.
        shipped_type: the checkpoint's own scaling by transformers' name, ``"default"`` for none.
        shipped_at: text length in tokens → what the checkpoint uses for it, where its own scaling follows the length
            (transformers' ``dynamic`` and ``longrope``); ``shipped`` is then its value at the pretrained length.
        partial_rotary_factor: share of a head's dimensions that rotate, which an exported config must repeat.

    Raises:
        StrategyError: when a field is outside its range.
    """

    rotary_dim: int
    theta: float
    pretrained_length: int
    shipped: Frequencies = field(default=None)  # type: ignore[assignment]  # set in __post_init__
    shipped_type: str = "default"
    shipped_at: Callable[[int], Frequencies] | None = None
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise StrategyError(f"rotary_dim must be an even number of at least 2, got {self.rotary_dim!r}")
        if not (math.isfinite(self.theta) and self.theta > 1):
            raise StrategyError(f"theta must be a finite number above 1, got {self.theta!r}")
        if self.pretrained_length < 1:
            raise StrategyError(f"pretrained_length must be at least 1 token, got {self.pretrained_length!r}")
        if self.shipped is None:
            object.__setattr__(self, "shipped", Frequencies(base_frequencies(self.theta, self.rotary_dim)))
        if self.shipped.inv_freq.numel() * 2 != self.rotary_dim:
            raise StrategyError(
                f"shipped holds {self.shipped.inv_freq.numel()} frequencies, rotary_dim {self.rotary_dim} needs "
                f"{self.rotary_dim // 2}"
            )


def base_frequencies(theta: float, rotary_dim: int) -> Tensor:
    """The geometric ladder ``theta^(-2i/d)`` (RoFormer, Eq. 15), (d/2,) float32, radians a position.

    Evaluated in float32 in the very order of operations that transformers uses, so that unscaled RoPE is bit-equal to
    the stock model; relative error against float64 stays below 1e-6 for every theta in use.
    """
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim  # (d/2,)
    return 1.0 / (theta**exponent)


def _polar(frequencies: Frequencies, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Angle (..., T, d/2) and radius (..., T, 1) of every pair at ``positions`` (..., T).

    Both float32, whatever the model's dtype is.
    """
    m = positions[..., None].to(torch.float32)
    phases = m * frequencies.inv_freq.to(m.device)
    radius = torch.full_like(m, frequencies.attention_factor)
    if frequencies.start_inv_freq is not None:
        start = m < frequencies.start_tokens
        phases = torch.where(start, m * frequencies.start_inv_freq.to(m.device), phases)
        radius = radius.masked_fill(start, 1.0)
    return phases, radius


def cos_sin(frequencies: Frequencies, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair's phase at ``positions`` (..., T), each (..., T, d/2) float32.

    Both carry the attention factor.
    """
    phases, radius = _polar(frequencies, positions)
    return phases.cos() * radius, phases.sin() * radius


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout = "half_split") -> Tensor:
    """Rotate the first d dimensions of queries or keys; dimensions past d (partial rotary) pass unchanged.

    Args:
        x: (..., T, head_dim).
        cos: (T, d/2) or anything that broadcasts to (..., T, d/2).
        sin: as ``cos``.
        layout: which entries form a pair.

    Returns:
        (..., T, head_dim) in x's dtype.
    """
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    if layout == "half_split":
        a, b = rotated[..., :half], rotated[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    elif layout == "interleaved":
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        raise ValueError(f"layout must be 'half_split' or 'interleaved', got {layout!r}")
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def unit_circle(frequencies: Frequencies, positions: Tensor) -> Tensor:
    """The table ``a·e^(j m f_i)`` that Llama's first release precomputed: (..., T, d/2) complex64."""
    phases, radius = _polar(frequencies, positions)
    return torch.polar(radius.expand_as(phases).contiguous(), phases)


def rotate_complex(x: Tensor, table: Tensor, layout: Layout = "interleaved") -> Tensor:
    """Rotation as multiplication of complex numbers, one a pair: the independent form of :func:`rotate`.

    Args:
        x: (..., T, head_dim).
        table: (..., T, d/2) complex64 from :func:`unit_circle`.
        layout: which entries are real and imaginary part of one number; in Llama's first release, neighbours.

    Returns:
        (..., T, head_dim) in x's dtype.
    """
    half = table.shape[-1]
    rotated, rest = x[..., : 2 * half].to(torch.float32), x[..., 2 * half :]
    if layout == "half_split":
        rotated = torch.stack((rotated[..., :half], rotated[..., half:]), dim=-1)
    else:
        rotated = rotated.reshape(*rotated.shape[:-1], half, 2)
    turned = torch.view_as_real(torch.view_as_complex(rotated.contiguous()) * table)  # (..., T, d/2, 2)
    turned = turned.transpose(-1, -2).flatten(-2) if layout == "half_split" else turned.flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
