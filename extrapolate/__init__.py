"""Context-length extrapolation on Hugging Face models: RoPE scaling strategies, exact patching, defined perplexities.

Importing patches nothing and downloads nothing.
"""

from extrapolate import plots
from extrapolate.data import Document, HuggingFace, Local, Sotu, load_documents
from extrapolate.errors import (
    DataError,
    EvaluationError,
    ExtrapolateError,
    LoadError,
    ModelError,
    ResultError,
    StrategyError,
)
from extrapolate.evaluation import Perplexity, Score, prefix_score, token_losses
from extrapolate.models import Checkpoint, Patch, load_model, patch, patched, read_spec, unpatch
from extrapolate.results import Ledger, read_results
from extrapolate.rope import RopeSpec
from extrapolate.strategies import NTK, Band, Frequencies, Linear, Plain, Shipped, Strategy, YaRN
from extrapolate.version import __version__

__all__ = [
    "NTK",
    "Band",
    "Checkpoint",
    "DataError",
    "Document",
    "EvaluationError",
    "ExtrapolateError",
    "Frequencies",
    "HuggingFace",
    "Ledger",
    "Linear",
    "LoadError",
    "Local",
    "ModelError",
    "Patch",
    "Perplexity",
    "Plain",
    "ResultError",
    "RopeSpec",
    "Score",
    "Shipped",
    "Sotu",
    "Strategy",
    "StrategyError",
    "YaRN",
    "__version__",
    "load_documents",
    "load_model",
    "patch",
    "patched",
    "plots",
    "prefix_score",
    "read_results",
    "read_spec",
    "token_losses",
    "unpatch",
]
