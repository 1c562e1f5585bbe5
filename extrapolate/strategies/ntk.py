"""NTK-aware scaling: a larger base instead of smaller positions."""

import math
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class NTK(Strategy):
    """NTK-aware base change ``theta·s^(d/(d-2))``: the first pair is unchanged, the last is exactly interpolated.

    Source: bloc97 2023, and Peng et al. 2023 (YaRN), arXiv 2309.00071, Definition 1. Webuis call the factor "alpha".

    Args:
        factor: s, at least 1.
    """

    name: ClassVar[str] = "ntk"
    factor: float = 4.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)

    def base(self, rope: RopeSpec) -> float:
        """``theta·s^(d/(d-2))``.

        Raises:
            StrategyError: for a rotary dimension of 2, where the exponent is not defined.
        """
        d = rope.rotary_dim
        if d <= 2:
            raise StrategyError(f"ntk: needs a rotary dimension above 2 (the base grows by s^(d/(d-2))), got {d}")
        return rope.theta * math.pow(self.factor, d / (d - 2))

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``base^(-2i/d)``."""
        return Frequencies(base_frequencies(self.base(rope), rope.rotary_dim))
