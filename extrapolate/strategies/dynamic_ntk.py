"""Dynamic NTK: the NTK-aware base grows with the text."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, number
from extrapolate.strategies.ntk import NTK


@dataclass(frozen=True)
class DynamicNTK(Strategy):
    """NTK-aware scaling with ``s·l/L - (s - 1)`` in place of the factor, for a text of l tokens; plain up to L.

    With factor 1 this is the "pure" form, ``l/L``: just enough for the text at hand. transformers' ``dynamic`` type is
    this formula with the factor of the config.

    Source: emozilla 2023; Peng et al. 2023, arXiv 2309.00071, section 3.3; transformers' dynamic form.

    Args:
        factor: s, at least 1; how much faster than the text the base grows.
    """

    name: ClassVar[str] = "dynamic_ntk"
    depends_on_length: ClassVar[bool] = True
    factor: float = 4.0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """``(theta·(s·l/L - (s-1))^(d/(d-2)))^(-2i/d)`` with ``l = max(length, L)``."""
        stretch = max(length, rope.pretrained_length) / rope.pretrained_length
        return NTK(factor=self.factor * stretch - (self.factor - 1)).frequencies(rope, length)
