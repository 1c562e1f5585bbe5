"""Resonance: wavelengths rounded to whole positions, after any other method."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Transform


@dataclass(frozen=True)
class Resonance(Transform):
    """Resonance RoPE: every wavelength becomes a whole number of positions, so that a pair's turns repeat exactly.

    A pair that stands still stays so, and the attention factor is kept.

    Source: Wang et al. 2024, arXiv 2403.00071, section 3.
    """

    name: ClassVar[str] = "resonance"

    def transform(self, frequencies: Frequencies, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``2·pi / round(2·pi/f)``."""
        f = frequencies.inv_freq.double()
        wavelength = (2 * math.pi / f).round().clamp(min=1)  # infinite where a pair stands still
        return dataclasses.replace(frequencies, inv_freq=(2 * math.pi / wavelength).float())
