"""YaRN: interpolate slow pairs, keep fast ones, blend between, and sharpen attention."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy, blend, flag, number, rising


@dataclass(frozen=True)
class YaRN(Strategy):
    """YaRN as its authors' code has it: a linear ramp over the dimension index and a temperature on cos and sin.

    Source: Peng et al. 2023, arXiv 2309.00071, and the authors' code. The paper's Eq. 18 ramps over rotations
    instead; the released checkpoints use the index.

    Args:
        factor: s, at least 1.
        beta_fast: pairs that make more turns than this in training are kept.
        beta_slow: pairs that make fewer turns than this in training are divided by s.
        truncate: round the ramp's ends outwards to whole dimensions, as the authors do.
        attention_factor: replaces the default ``0.1·ln s + 1`` on cos and sin; logits scale by its square.
        mscale: with ``mscale_all_dim``: the factor is m(mscale) / m(mscale_all_dim), m(k) = 0.1·k·ln s + 1 (DeepSeek).
        mscale_all_dim: see ``mscale``.
    """

    name: ClassVar[str] = "yarn"
    factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        rising(self, "beta_slow", "beta_fast")
        flag(self, "truncate")
        if self.attention_factor is not None:
            number(self, "attention_factor", above=0)
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise StrategyError(
                f"yarn: mscale and mscale_all_dim act together, give both or neither, got mscale={self.mscale}, "
                f"mscale_all_dim={self.mscale_all_dim}"
            )
        if self.mscale is not None:
            number(self, "mscale", above=0)
            number(self, "mscale_all_dim", above=0)
            if self.attention_factor is not None:
                raise StrategyError(
                    f"yarn: attention_factor={self.attention_factor:g} would override mscale={self.mscale:g}; give one"
                )

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        log_s = math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (0.1 * self.mscale * log_s + 1) / (0.1 * self.mscale_all_dim * log_s + 1)
        return 0.1 * log_s + 1

    def ramp_bounds(self, rope: RopeSpec) -> tuple[float, float]:
        """First and last pair index of the blend: below it pairs are kept, above it divided by s."""

        def index(turns: float) -> float:  # the pair that makes this many turns in L positions
            return (
                rope.rotary_dim * math.log(rope.pretrained_length / (2 * math.pi * turns)) / (2 * math.log(rope.theta))
            )

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, rope.rotary_dim - 1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``(1-g)·f/s + g·f``, g falling from 1 to 0 between :meth:`ramp_bounds`; with the attention factor."""
        low, high = self.ramp_bounds(rope)
        high = max(high, low + 0.001)  # an empty ramp is a step, as the authors have it
        pair = torch.arange(rope.rotary_dim // 2, dtype=torch.float64)
        keep = 1 - ((pair - low) / (high - low)).clamp(0, 1)
        return Frequencies(blend(rope, self.factor, keep), self._attention_factor())
