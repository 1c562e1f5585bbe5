"""Theory: what rotary embedding is, apart from any model."""

from extrapolate.analysis.linear_attention import linear_attention

__all__ = ["linear_attention"]
