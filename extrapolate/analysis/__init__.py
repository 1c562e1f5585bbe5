"""Theory: what rotary embedding is, apart from any model."""

from extrapolate.analysis.linear_attention import linear_attention
from extrapolate.analysis.positions import relative_positions

__all__ = ["linear_attention", "relative_positions"]
