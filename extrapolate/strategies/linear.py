"""Position interpolation."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class Linear(Strategy):
    """Position interpolation: every position, hence every frequency, divided by ``factor``.

    Source: Chen et al. 2023, arXiv 2306.15595, Eq. 3-4.

    Args:
        factor: s = target length / pretrained length, at least 1.
    """

    name: ClassVar[str] = "linear"
    factor: float = 4.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``theta^(-2i/d) / s``."""
        return Frequencies(base_frequencies(rope.theta, rope.rotary_dim) / self.factor)
