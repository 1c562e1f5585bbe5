"""The checkpoint as it came, its own scaling included."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy


@dataclass(frozen=True)
class Shipped(Strategy):
    """What the checkpoint's config asks for; bit-equal to :class:`Plain` where it ships no scaling.

    A checkpoint whose own scaling follows the length (transformers' ``dynamic`` and ``longrope``) takes a pass for
    each length.
    """

    name: ClassVar[str] = "shipped"

    def varies_with_length(self, rope: RopeSpec) -> bool:
        """True for a checkpoint whose own scaling follows the length."""
        return rope.shipped_at is not None

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """The checkpoint's own frequencies, at ``length`` where they depend on it."""
        return rope.shipped if rope.shipped_at is None else rope.shipped_at(length)
