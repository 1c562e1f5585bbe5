"""Mixed NTK: every pair is slowed down, the more the slower it is."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class NTKMixed(Strategy):
    """NTK-RoPE-mixed: pair i divided by ``exp(a·(i+1)^b)``, so that the last is exactly interpolated.

    Source: Su 2023, kexue.fm/archives/9706, and its author's code; vLLM's ``ntk`` type with ``mixed_b``.

    Args:
        factor: s, at least 1.
        mixed_b: b; 1 is :class:`NTKFixed`, smaller values slow the fast pairs down more.
    """

    name: ClassVar[str] = "ntk_mixed"
    factor: float = 4.0
    mixed_b: float = 0.75

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        number(self, "mixed_b", above=0)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``theta^(-2i/d) · exp(-a·(i+1)^b)`` with ``a = ln s / (d/2)^b``."""
        pairs = rope.rotary_dim // 2
        rank = torch.arange(1, pairs + 1, dtype=torch.float64)
        slower = torch.exp(-math.log(self.factor) * (rank / pairs) ** self.mixed_b)
        return Frequencies((base_frequencies(rope.theta, rope.rotary_dim).double() * slower).float())
