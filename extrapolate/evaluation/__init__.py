"""What is measured on a model at a length. An evaluation never sees a strategy."""

from extrapolate.evaluation.base import Evaluation, Score, perplexity
from extrapolate.evaluation.key_tokens import KeyTokens
from extrapolate.evaluation.losses import token_losses
from extrapolate.evaluation.masked import PseudoPerplexity, masked_losses
from extrapolate.evaluation.perplexity import Perplexity, prefix_score
from extrapolate.evaluation.retrieval import CommonWords, KeyValue, Needle, Passkey, VariableTracking

__all__ = [
    "CommonWords",
    "Evaluation",
    "KeyTokens",
    "KeyValue",
    "Needle",
    "Passkey",
    "Perplexity",
    "PseudoPerplexity",
    "Score",
    "VariableTracking",
    "masked_losses",
    "perplexity",
    "prefix_score",
    "token_losses",
]
