"""No position embedding at all."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Strategy


@dataclass(frozen=True)
class NoPE(Strategy):
    """No rotation: cos 1 and sin 0 at every position, so that only the causal mask tells positions apart.

    Source: Kazemnejad et al. 2023, arXiv 2305.19466; on a model trained with RoPE, DroPE (arXiv 2512.12167) before its
    recalibration.
    """

    name: ClassVar[str] = "nope"

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """Zeros."""
        return Frequencies(torch.zeros(rope.rotary_dim // 2))
