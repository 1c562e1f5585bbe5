"""Adjusted base frequency: another theta, whatever the target length is."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class ABF(Strategy):
    """RoPE with an absolute base of its own instead of the checkpoint's: ``base^(-2i/d)``.

    Source: Xiong et al. 2023, arXiv 2309.16039, section 2; Code Llama (arXiv 2308.12950) uses 1,000,000.

    Args:
        base: the new theta, above 1.
    """

    name: ClassVar[str] = "abf"
    base: float = 500_000.0

    def __post_init__(self) -> None:
        number(self, "base", above=1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``base^(-2i/d)``."""
        return Frequencies(base_frequencies(self.base, rope.rotary_dim))
