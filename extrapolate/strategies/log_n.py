"""Log-n scaling: a factor on the query that grows with its position."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Transform


@dataclass(frozen=True)
class LogN(Transform):
    """Log-n scaling: a query at index i is multiplied by ``max(1, ln(i + 1) / ln L)``; frequencies stay as they are.

    It keeps the entropy of attention from growing with the number of keys. Up to the pretrained length L it is 1.

    Source: Su 2021 and 2023, kexue.fm/archives/8823 and 9708.
    """

    name: ClassVar[str] = "log_n"

    def transform(self, frequencies: Frequencies, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """The frequencies unchanged."""
        return frequencies

    def query_scale(self, rope: RopeSpec, position: Tensor) -> Tensor:
        """``max(1, ln(i + 1) / ln L)``, float32."""
        if rope.pretrained_length < 2:
            raise StrategyError(f"log_n needs a pretrained length of at least 2, got {rope.pretrained_length}")
        return ((position.double() + 1).log() / math.log(rope.pretrained_length)).clamp(min=1).float()
