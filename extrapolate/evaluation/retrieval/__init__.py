"""Retrieval tasks, one a file: whether the far text is used, or merely survived."""

from extrapolate.evaluation.retrieval.common_words import CommonWords
from extrapolate.evaluation.retrieval.key_value import KeyValue
from extrapolate.evaluation.retrieval.needle import Needle
from extrapolate.evaluation.retrieval.passkey import Passkey
from extrapolate.evaluation.retrieval.variable_tracking import VariableTracking

__all__ = ["CommonWords", "KeyValue", "Needle", "Passkey", "VariableTracking"]
