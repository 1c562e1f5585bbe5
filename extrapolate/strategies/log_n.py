"""Factors on the attention logits: by the query's position, or constant."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Transform, number


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


@dataclass(frozen=True)
class Temperature(Transform):
    """A constant factor on every attention logit, also of dimensions that do not rotate; frequencies stay as they are.

    Above 1 attention sharpens. It multiplies what other parts bring, such as YaRN's attention factor, whose square it
    corresponds to.

    Args:
        scale: factor on the logits, above 0.
    """

    name: ClassVar[str] = "temperature"
    scale: float = 1.1

    def __post_init__(self) -> None:
        number(self, "scale", above=0)

    def transform(self, frequencies: Frequencies, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """The frequencies unchanged."""
        return frequencies

    def query_scale(self, rope: RopeSpec, position: Tensor) -> Tensor:  # noqa: ARG002
        """The scale at every index, float32."""
        return position.float().fill_(self.scale)
