"""What is measured on a model at a length. An evaluation never sees a strategy."""

from extrapolate.evaluation.losses import token_losses
from extrapolate.evaluation.masked import masked_losses
from extrapolate.evaluation.perplexity import Perplexity, Score, perplexity, prefix_score

__all__ = ["Perplexity", "Score", "masked_losses", "perplexity", "prefix_score", "token_losses"]
