"""Temperature: a constant factor on the attention logits."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Transform, number


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
