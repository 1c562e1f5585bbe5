"""What the frequencies alone say of long contexts: decay with distance, bounds on the base, the critical dimension."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies

CHUNK = 4096
"""Distances at a time."""


def long_term_decay(frequencies: Frequencies, distances: Tensor) -> Tensor:
    """RoFormer's bound on the score as a function of distance, up to a factor that does not depend on it.

    ``2/d · sum_j |S_j|`` with ``S_j`` the sum of ``e^(i·m·f)`` over the j fastest pairs, by which summation by parts
    bounds the score of any query and key at distance m. It falls with m, on average and in waves.

    Source: Su et al. 2021 (RoFormer), arXiv 2104.09864, section 3.4.3, Eq. 35-37 and Figure 2.

    Args:
        frequencies: of any strategy; the attention factor does not count.
        distances: (n,) tokens.

    Returns:
        (n,) float64; (d/2 + 1) / 2 at distance 0.
    """
    f = frequencies.inv_freq.double()
    found = []
    for part in torch.split(distances.double(), CHUNK):
        phases = part[:, None] * f
        sums = torch.polar(torch.ones_like(phases), phases).cumsum(dim=1)
        found.append(sums.abs().mean(dim=1))
    return torch.cat(found)


def cosine_sum(frequencies: Frequencies, distances: Tensor) -> Tensor:
    """``B(m) = sum_i cos(m·f_i)``: whether a similar key scores higher than a random one at distance m.

    Where it is below 0 the model cannot tell similar tokens from others any more, on average over queries and keys
    whose entries are independent and alike.

    Source: Men et al. 2024, Base of RoPE Bounds Context Length, arXiv 2405.14591, Theorem 1.

    Args:
        frequencies: of any strategy.
        distances: (n,) tokens.

    Returns:
        (n,) float64; d/2 at distance 0.
    """
    f = frequencies.inv_freq.double()
    return torch.cat([torch.cos(part[:, None] * f).sum(dim=1) for part in torch.split(distances.double(), CHUNK)])


def supported_length(frequencies: Frequencies, limit: int) -> int | None:
    """The first distance, in tokens, at which :func:`cosine_sum` is below 0; None when there is none up to ``limit``.

    Source: Men et al. 2024, arXiv 2405.14591, Eq. 8.
    """
    for start in range(0, limit + 1, CHUNK):
        distances = torch.arange(start, min(start + CHUNK, limit + 1))
        below = (cosine_sum(frequencies, distances) < 0).nonzero()
        if below.numel():
            return start + int(below[0])
    return None


def supporting_bases(length: int, rotary_dim: int, bases: Sequence[float]) -> NDArray[np.bool_]:
    """Which bases keep :func:`cosine_sum` from falling below 0 at any distance up to ``length``.

    The set has holes: a base that supports a length may have larger ones above it that do not.

    Args:
        length: tokens.
        rotary_dim: d.
        bases: theta, each above 1.

    Returns:
        As many truth values as bases.
    """
    exponents, distances = _ladder(length, rotary_dim)
    return np.array([_lowest(base, exponents, distances)[0] >= 0 for base in bases], dtype=bool)


def smallest_base(length: int, rotary_dim: int) -> int:
    """The smallest whole base that supports a length (:func:`supporting_bases`), found by trying each in turn.

    The paper's Table 2 has 4.3e3 for 1,000 and 8.4e4 for 8,000 tokens at d = 128, from a coarser search. Larger bases
    may fail again, so it is a lower bound, not a recommendation.

    Source: Men et al. 2024, arXiv 2405.14591, Eq. 8 and Table 2.

    Raises:
        StrategyError: when ``length`` or ``rotary_dim`` is not positive, or ``rotary_dim`` is odd.
    """
    if length < 1 or rotary_dim < 2 or rotary_dim % 2:
        raise StrategyError(
            f"length must be at least 1 and rotary_dim even and at least 2, got {length!r} and {rotary_dim!r}"
        )
    exponents, distances = _ladder(length, rotary_dim)
    worst: int | None = None  # where the last base failed; the next one fails near it
    base = 2
    while True:
        if worst is not None:
            near = slice(max(0, worst - 40), worst + 41)
            value, at = _lowest(base, exponents, distances[near])
            if value < 0:
                worst = near.start + at
                base += 1
                continue
        value, worst = _lowest(base, exponents, distances)
        if value >= 0:
            return base
        base += 1


def critical_dimension(rotary_dim: int, theta: float, pretrained_length: int) -> int:
    """Dimensions of a head that make a full turn within the pretrained length; the others see part of the circle.

    ``2·ceil(d/2 · log_theta(L / 2π))``. Source: Liu et al. 2023, Scaling Laws of RoPE-based Extrapolation,
    arXiv 2310.05209, Theorem 1.

    Args:
        rotary_dim: d.
        theta: base.
        pretrained_length: L, tokens.

    Returns:
        At least 0, at most d.
    """
    turning = math.ceil(rotary_dim / 2 * math.log(pretrained_length / (2 * math.pi), theta))
    return 2 * min(max(turning, 0), rotary_dim // 2)


def _ladder(length: int, rotary_dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.arange(0, rotary_dim, 2) / rotary_dim, np.arange(length + 1, dtype=np.float64)


def _lowest(base: float, exponents: NDArray[np.float64], distances: NDArray[np.float64]) -> tuple[float, int]:
    """The lowest cosine sum of a base, and at which of the distances."""
    sums = np.cos(distances[:, None] * base**-exponents).sum(axis=1)
    at = int(sums.argmin())
    return float(sums[at]), at
