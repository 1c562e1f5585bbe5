"""p-RoPE: only the fastest pairs rotate."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True)
class Proportional(Strategy):
    """p-RoPE: the first p·d/2 pairs as in plain RoPE, the others stand still; transformers' ``proportional`` type.

    Source: Barbero et al. 2024, arXiv 2410.06205, section 6.

    Args:
        p: share of pairs that rotate, above 0 and at most 1; 1 is plain.
    """

    name: ClassVar[str] = "proportional"
    p: float = 0.75

    def __post_init__(self) -> None:
        number(self, "p", above=0, maximum=1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``theta^(-2i/d)`` for i below p·d/2, else 0.

        Raises:
            StrategyError: when not one pair is left; that is :class:`NoPE`.
        """
        kept = int(self.p * rope.rotary_dim // 2)
        if kept == 0:
            raise StrategyError(
                f"proportional: p={self.p:g} leaves none of {rope.rotary_dim // 2} pairs; use nope for no rotation"
            )
        plain = base_frequencies(rope.theta, rope.rotary_dim)
        plain[kept:] = 0.0
        return Frequencies(plain)
