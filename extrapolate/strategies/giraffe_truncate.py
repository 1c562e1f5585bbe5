"""Giraffe's truncated basis: pairs that never finish a turn are set to one slow speed, the slowest stand still."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number, rising


@dataclass(frozen=True)
class GiraffeTruncate(Strategy):
    """Truncated basis: f at or above b is kept, f between a and b becomes rho, f at or below a becomes 0.

    All three in units of ``2·pi/L``, that is in turns over the pretrained length.

    Source: Pal et al. 2023 (Giraffe), arXiv 2308.10882, section 3.2, and the authors' code (1/8, 1, 1/16); made for
    fine-tuning.

    Args:
        a: turns over L at or below which a pair stands still.
        b: turns over L from which a pair is kept; above a.
        rho: turns over L of the pairs between, above 0.
    """

    name: ClassVar[str] = "giraffe_truncate"
    a: float = 0.125
    b: float = 1.0
    rho: float = 0.0625

    def __post_init__(self) -> None:
        rising(self, "a", "b")
        number(self, "rho", above=0)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """Kept, ``rho·2·pi/L``, or 0, by the turns a pair makes over L."""
        plain = base_frequencies(rope.theta, rope.rotary_dim)
        one_turn = 2 * math.pi / rope.pretrained_length
        between = torch.full_like(plain, self.rho * one_turn)
        slow = torch.where(plain > self.a * one_turn, between, torch.zeros_like(plain))
        return Frequencies(torch.where(plain >= self.b * one_turn, plain, slow))
