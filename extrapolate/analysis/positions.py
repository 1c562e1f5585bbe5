"""Which relative positions a strategy lets a query see."""

import math

import torch
from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies import Strategy


def relative_positions(strategy: Strategy, spec: RopeSpec, length: int, *, step: int = 1) -> Tensor:
    """Relative position at which each query sees each key.

    Args:
        strategy: any.
        spec: of the checkpoint.
        length: tokens of the text.
        step: every how many tokens; 1 for all.

    Returns:
        (n, n) float32, query by key, NaN where a key is not seen; n is ``length / step``, rounded up.

    Raises:
        StrategyError: when two bands share a pair, one has a key after its query, or the strategy refuses the length.
    """
    index = torch.arange(0, length, step)
    n = index.numel()
    query, key = index[:, None], index[None, :]
    found = torch.full((n, n), math.nan)
    for band in strategy.bands(spec, length):
        covered = band.covers(query, key).expand(n, n)
        if (covered & (key > query)).any():
            raise StrategyError(f"{strategy.label}: a band has a key after its query")
        if (covered & ~found.isnan()).any():
            raise StrategyError(f"{strategy.label}: two bands have a pair in common")
        relative = band.query_position(index).double()[:, None] - band.key_position(index).double()[None, :]
        found = torch.where(covered, relative.float(), found)
    return found
