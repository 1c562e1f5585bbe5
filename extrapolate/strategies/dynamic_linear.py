"""Dynamic position interpolation: just enough for the text at hand."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.linear import Linear


@dataclass(frozen=True)
class DynamicLinear(Strategy):
    """Position interpolation by ``max(1, l/L)`` for a text of l tokens; plain up to L.

    Source: Peng et al. 2023, arXiv 2309.00071, section 3.3, and the authors' code.
    """

    name: ClassVar[str] = "dynamic_linear"
    depends_on_length: ClassVar[bool] = True

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """``theta^(-2i/d) / max(1, length/L)``."""
        return Linear(factor=max(1.0, length / rope.pretrained_length)).frequencies(rope, length)
