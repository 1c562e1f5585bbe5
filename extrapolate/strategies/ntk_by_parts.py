"""NTK-by-parts: interpolate pairs by how many turns they made in training."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, blend, number, rising


def kept_by_turns(rope: RopeSpec, alpha: float, beta: float) -> Tensor:
    """(d/2,) float64, rising from 0 to 1 as a pair's turns in training rise from alpha to beta."""
    # the ramp from the exact ladder: near its slow end a float32 ladder's error would grow by the factor
    exact = rope.theta ** (-torch.arange(0, rope.rotary_dim, 2, dtype=torch.float64) / rope.rotary_dim)
    turns = rope.pretrained_length * exact / (2 * math.pi)
    return ((turns - alpha) / (beta - alpha)).clamp(0, 1)


@dataclass(frozen=True)
class NTKByParts(Strategy):
    """NTK-by-parts as the YaRN paper has it: a ramp over turns made in training, no temperature.

    Source: Peng et al. 2023, arXiv 2309.00071, Eq. 17-19. :class:`YaRN` ramps over the dimension index instead.

    Args:
        factor: s, at least 1.
        alpha: pairs with fewer turns than this in training are divided by s.
        beta: pairs with more turns are kept.
    """

    name: ClassVar[str] = "ntk_by_parts"
    factor: float = 4.0
    alpha: float = 1.0
    beta: float = 32.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        rising(self, "alpha", "beta")

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``(1-g)·f/s + g·f`` with ``g = clip((L/lambda - alpha) / (beta - alpha), 0, 1)``."""
        return Frequencies(blend(rope, self.factor, kept_by_turns(rope, self.alpha, self.beta)))
