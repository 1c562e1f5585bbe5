"""The checkpoint as it came, its own scaling included."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy

LENGTH_DEPENDENT_TYPES = frozenset({"dynamic", "longrope"})
"""Scalings of transformers whose frequencies change with the length of the call."""


@dataclass(frozen=True)
class Shipped(Strategy):
    """What the checkpoint's config asks for; bit-equal to :class:`Plain` where it ships no scaling.

    A checkpoint whose own scaling depends on the length (transformers' ``dynamic`` and ``longrope``) is served up to
    its pretrained length and refused beyond it, because one set of frequencies cannot stand for it there.
    """

    name: ClassVar[str] = "shipped"

    def varies_with_length(self, rope: RopeSpec) -> bool:
        """True for a checkpoint whose own scaling follows the length."""
        return rope.shipped_type in LENGTH_DEPENDENT_TYPES

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """The checkpoint's own frequencies.

        Raises:
            StrategyError: when they depend on the length and ``length`` exceeds the pretrained length.
        """
        if self.varies_with_length(rope) and length > rope.pretrained_length:
            raise StrategyError(
                f"shipped: the checkpoint's own rope_type {rope.shipped_type!r} changes with the length, so it "
                f"cannot be applied at length {length} (pretrained length {rope.pretrained_length}); choose a "
                "strategy by name"
            )
        return rope.shipped
