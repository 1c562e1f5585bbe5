"""mrRoPE: YaRN's ramp, climbed in the exponent of the factor."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, blend, choice, number, rising
from extrapolate.strategies.yarn import YaRN, temperature

Variant = Literal["uni", "pro"]


@dataclass(frozen=True)
class MrRoPE(Strategy):
    """mixed-radix RoPE: between YaRN's bounds pairs are divided by powers of s that climb from 0 to 1.

    "uni" climbs evenly, which is YaRN with a geometric blend; "pro" climbs progressively, slow pairs taking more of it.

    Source: the authors' released code (``yarn_radix`` and ``yarn_radix3``).

    Args:
        factor: s, at least 1.
        variant: ``uni`` or ``pro``.
        beta_fast: pairs that make more turns than this in training are kept.
        beta_slow: pairs that make fewer turns than this in training are divided by s.
        attention_factor: replaces YaRN's default ``0.1·ln s + 1`` on cos and sin.
    """

    name: ClassVar[str] = "mrrope"
    factor: float = 4.0
    variant: Variant = "pro"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        choice(self, "variant", Variant)
        rising(self, "beta_slow", "beta_fast")
        if self.attention_factor is not None:
            number(self, "attention_factor", above=0)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``f / s^e``, k pairs into a ramp of n: ``e = k/n`` (uni) or ``k(k+1) / (n(n+1))`` (pro)."""
        low, high = YaRN(self.factor, self.beta_fast, self.beta_slow).ramp_bounds(rope)
        n = max(high - low, 0.001)  # an empty ramp is a step, as in YaRN
        k = (torch.arange(rope.rotary_dim // 2, dtype=torch.float64) - low).clamp(0, n)
        exponent = k / n if self.variant == "uni" else k * (k + 1) / (n * (n + 1))
        factor = temperature(self.factor) if self.attention_factor is None else self.attention_factor
        return Frequencies(blend(rope, self.factor, 1 - exponent, "geometric"), factor)
