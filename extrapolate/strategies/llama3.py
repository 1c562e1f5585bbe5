"""Llama 3.1's scaling: NTK-by-parts with bounds of its own."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, blend, number, rising
from extrapolate.strategies.ntk_by_parts import kept_by_turns


@dataclass(frozen=True)
class Llama3(Strategy):
    """Llama 3.1's scaling; equal to :class:`NTKByParts` with alpha 1 and beta 4 at its defaults.

    Source: Meta's reference code for Llama 3.1 (factor 8) and 3.2 (factor 32), both over 8,192 tokens.

    Args:
        factor: s, at least 1.
        low_freq_factor: pairs with fewer turns in training are divided by s.
        high_freq_factor: pairs with more turns are kept; above ``low_freq_factor``.
    """

    name: ClassVar[str] = "llama3"
    factor: float = 4.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        rising(self, "low_freq_factor", "high_freq_factor")

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """Wavelength below L/high: kept; above L/low: divided by s; between: a linear mix over turns."""
        keep = kept_by_turns(rope, self.low_freq_factor, self.high_freq_factor)
        return Frequencies(blend(rope, self.factor, keep))
