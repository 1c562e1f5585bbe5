"""Unscaled RoPE: the baseline that every other strategy is measured against."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.strategies.base import Strategy


@dataclass(frozen=True)
class Plain(Strategy):
    """RoPE as pretraining began with it, ``theta^(-2i/d)``, whatever scaling the checkpoint ships.

    Source: RoFormer, arXiv 2104.09864, Eq. 15.
    """

    name: ClassVar[str] = "plain"
