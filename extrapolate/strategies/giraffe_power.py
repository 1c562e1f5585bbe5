"""Giraffe's power basis: slow pairs fade to a standstill."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class GiraffePower(Strategy):
    """Power scaling: ``theta^(-2i/d)·(1 - 2i/d)^p``, whatever the target length is.

    Source: Pal et al. 2023 (Giraffe), arXiv 2308.10882, section 3.2; made for fine-tuning.

    Args:
        power: p, above 0.
    """

    name: ClassVar[str] = "giraffe_power"
    power: float = 0.5

    def __post_init__(self) -> None:
        number(self, "power", above=0)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``theta^(-2i/d)·(1 - 2i/d)^p``."""
        pairs = rope.rotary_dim // 2
        slower = (1 - torch.arange(pairs, dtype=torch.float64) / pairs) ** self.power
        return Frequencies((base_frequencies(rope.theta, rope.rotary_dim).double() * slower).float())
