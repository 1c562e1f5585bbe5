"""Fixed NTK: the NTK-aware base, and the first pair slowed down too."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, number
from extrapolate.strategies.ntk_mixed import NTKMixed


@dataclass(frozen=True)
class NTKFixed(Strategy):
    """NTK-RoPE-fixed: base ``theta·s`` and every pair divided by ``s^(2/d)``; the last is exactly interpolated.

    That is pair i divided by ``s^(2(i+1)/d)``: :class:`NTKMixed` with b = 1.

    Source: Su 2023, kexue.fm/archives/9675; vLLM's ``ntk`` type.

    Args:
        factor: s, at least 1.
    """

    name: ClassVar[str] = "ntk_fixed"
    factor: float = 4.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """``(theta·s)^(-2i/d) / s^(2/d)``."""
        return NTKMixed(self.factor, mixed_b=1.0).frequencies(rope, length)
