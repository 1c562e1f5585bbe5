"""Theory: what rotary embedding is, apart from any model. Statistics: what result tables say, and how surely."""

from extrapolate.analysis.linear_attention import linear_attention
from extrapolate.analysis.positions import relative_positions
from extrapolate.analysis.statistics import context_gain, intervals, paired, short_context_cost, usable_length

__all__ = [
    "context_gain",
    "intervals",
    "linear_attention",
    "paired",
    "relative_positions",
    "short_context_cost",
    "usable_length",
]
