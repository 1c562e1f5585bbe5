"""Tables as matplotlib figures. Knows no model: rows in, figure out."""

from extrapolate.plots.attention import attention_by_distance, copying, pairs_in_use
from extrapolate.plots.curves import loss_by_position, perplexity_by_length
from extrapolate.plots.retrieval import retrieval
from extrapolate.plots.style import COLOURS, MARKERS, Figure
from extrapolate.plots.tables import answers, curve_names, perplexities, score_table, told_apart, unlike_documents
from extrapolate.plots.theory import decay, frequencies, relative_positions, unseen_phases
from extrapolate.plots.verdicts import cost_against_usable_length, pair_names, paired_differences

__all__ = [
    "COLOURS",
    "MARKERS",
    "Figure",
    "answers",
    "attention_by_distance",
    "copying",
    "cost_against_usable_length",
    "curve_names",
    "decay",
    "frequencies",
    "loss_by_position",
    "pair_names",
    "paired_differences",
    "pairs_in_use",
    "perplexities",
    "perplexity_by_length",
    "relative_positions",
    "retrieval",
    "score_table",
    "told_apart",
    "unlike_documents",
    "unseen_phases",
]
