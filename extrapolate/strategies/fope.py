"""FoPE's zeroing: pairs that never finished a turn in training stand still."""

import math
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy


@dataclass(frozen=True)
class FoPE(Strategy):
    """The training-free part of Fourier position embedding: a pair with a wavelength above L is set to 0.

    The other part, a learned mixture of sines for each pair, needs training.

    Source: Hua et al. 2024, arXiv 2412.17739, section 3.3.
    """

    name: ClassVar[str] = "fope"

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``theta^(-2i/d)``, or 0 where that is below ``2·pi/L``."""
        plain = base_frequencies(rope.theta, rope.rotary_dim)
        return Frequencies(plain.masked_fill(plain < 2 * math.pi / rope.pretrained_length, 0.0))
