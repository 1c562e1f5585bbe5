"""YaRN: interpolate slow pairs, keep fast ones, blend between, and sharpen attention."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Blend, Strategy, blend, choice, flag, number, rising
from extrapolate.strategies.ntk_by_parts import kept_by_turns

Ramp = Literal["index", "rotations"]
"""What the ramp between kept and interpolated pairs runs over."""


def temperature(factor: float) -> float:
    """``0.1·ln s + 1``, the factor on cos and sin (YaRN, arXiv 2309.00071, Eq. 22: sqrt(1/t))."""
    return 0.1 * math.log(factor) + 1


@dataclass(frozen=True)
class YaRN(Strategy):
    """YaRN as its authors' code has it: a linear ramp over the dimension index and a temperature on cos and sin.

    Source: Peng et al. 2023, arXiv 2309.00071, and the authors' code. The paper's Eq. 18 ramps over rotations
    instead (``ramp``); the released checkpoints use the index. The harmonic blend is the "revised" YaRN of PoSE's code
    (Zhu et al. 2023, arXiv 2309.10400), the geometric one is what :class:`MrRoPE` ("uni") does.

    Args:
        factor: s, at least 1.
        beta_fast: pairs that make more turns than this in training are kept.
        beta_slow: pairs that make fewer turns than this in training are divided by s.
        ramp: over the pair's ``index``, or over the ``rotations`` it makes in training.
        blend: ``arithmetic`` (in frequency), ``harmonic`` (in wavelength) or ``geometric``.
        truncate: round the index ramp's ends outwards to whole dimensions, as the authors do; for the ramp over
            rotations, which has no such ends, it must be true.
        attention_factor: replaces the default ``0.1·ln s + 1`` on cos and sin; logits scale by its square.
        mscale: with ``mscale_all_dim``: the factor is m(mscale) / m(mscale_all_dim), m(k) = 0.1·k·ln s + 1 (DeepSeek).
        mscale_all_dim: see ``mscale``.
    """

    name: ClassVar[str] = "yarn"
    factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ramp: Ramp = "index"
    blend: Blend = "arithmetic"
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        rising(self, "beta_slow", "beta_fast")
        choice(self, "ramp", Ramp)
        choice(self, "blend", Blend)
        flag(self, "truncate")
        if self.ramp == "rotations" and not self.truncate:
            raise StrategyError("yarn: truncate=False has no effect with ramp=rotations, which has no ends to round")
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
        if self.mscale is not None and self.mscale_all_dim is not None:
            log_s = math.log(self.factor)
            return (0.1 * self.mscale * log_s + 1) / (0.1 * self.mscale_all_dim * log_s + 1)
        return temperature(self.factor)

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

    def _keep(self, rope: RopeSpec) -> Tensor:
        if self.ramp == "rotations":
            return kept_by_turns(rope, self.beta_slow, self.beta_fast)
        low, high = self.ramp_bounds(rope)
        high = max(high, low + 0.001)  # an empty ramp is a step, as the authors have it
        pair = torch.arange(rope.rotary_dim // 2, dtype=torch.float64)
        return 1 - ((pair - low) / (high - low)).clamp(0, 1)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """``(1-g)·f/s + g·f``, g falling from 1 to 0 between :meth:`ramp_bounds`; with the attention factor."""
        return Frequencies(blend(rope, self.factor, self._keep(rope), self.blend), self._attention_factor())
