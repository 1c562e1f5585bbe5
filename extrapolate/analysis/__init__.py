"""Theory: what rotary embedding and each strategy do, apart from any model. Statistics: what result tables say, and how
surely. Attention: what a model makes of it.
"""

from extrapolate.analysis.attention import (
    AttentionStatistics,
    attention_statistics,
    copy_attention,
    retrieval_distance,
)
from extrapolate.analysis.bounds import (
    cosine_sum,
    critical_dimension,
    long_term_decay,
    smallest_base,
    supported_length,
    supporting_bases,
)
from extrapolate.analysis.estimates import Estimate, exact_pair_test, holm, of_blocks, of_documents, share_interval
from extrapolate.analysis.lengths import context_gain, measured_breaks, usable_length
from extrapolate.analysis.linear_attention import linear_attention
from extrapolate.analysis.pairs import break_length, break_lengths, rotary_pairs
from extrapolate.analysis.positions import relative_positions
from extrapolate.analysis.published import beside_published
from extrapolate.analysis.statistics import intervals, paired, paired_answers, short_context_cost

__all__ = [
    "AttentionStatistics",
    "Estimate",
    "attention_statistics",
    "beside_published",
    "break_length",
    "break_lengths",
    "context_gain",
    "copy_attention",
    "cosine_sum",
    "critical_dimension",
    "exact_pair_test",
    "holm",
    "intervals",
    "linear_attention",
    "long_term_decay",
    "measured_breaks",
    "of_blocks",
    "of_documents",
    "paired",
    "paired_answers",
    "relative_positions",
    "retrieval_distance",
    "rotary_pairs",
    "share_interval",
    "short_context_cost",
    "smallest_base",
    "supported_length",
    "supporting_bases",
    "usable_length",
]
