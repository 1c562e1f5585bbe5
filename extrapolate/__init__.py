"""Context-length extrapolation on Hugging Face models: RoPE scaling strategies, exact patching, defined perplexities.

Importing patches nothing and downloads nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
from extrapolate.evaluation import (
    Evaluation,
    Perplexity,
    PseudoPerplexity,
    Score,
    masked_losses,
    prefix_score,
    token_losses,
)
from extrapolate.models import (
    Checkpoint,
    Patch,
    load_model,
    patch,
    patched,
    read_spec,
    to_llama_cpp_options,
    to_rope_parameters,
    to_vllm_options,
    unpatch,
)
from extrapolate.results import Ledger, read_results
from extrapolate.rope import RopeSpec
from extrapolate.strategies import (
    ABF,
    NTK,
    STRING,
    AttentionSinks,
    Band,
    Composed,
    DualChunk,
    DynamicLinear,
    DynamicNTK,
    DynamicYaRN,
    FoPE,
    Frequencies,
    GiraffePower,
    GiraffeTruncate,
    LeakyReRoPE,
    Linear,
    Llama3,
    LMInfinite,
    LogN,
    LongRoPE,
    MrRoPE,
    NoPE,
    NTKByParts,
    NTKFixed,
    NTKMixed,
    Plain,
    Proportional,
    ReRoPE,
    Resonance,
    SelfExtend,
    Shipped,
    Strategy,
    Temperature,
    Transform,
    YaRN,
    compose,
)
from extrapolate.version import __version__

if TYPE_CHECKING:
    from extrapolate import plots

__all__ = [
    "ABF",
    "NTK",
    "STRING",
    "AttentionSinks",
    "Band",
    "Checkpoint",
    "Composed",
    "DataError",
    "Document",
    "DualChunk",
    "DynamicLinear",
    "DynamicNTK",
    "DynamicYaRN",
    "Evaluation",
    "EvaluationError",
    "ExtrapolateError",
    "FoPE",
    "Frequencies",
    "GiraffePower",
    "GiraffeTruncate",
    "HuggingFace",
    "LMInfinite",
    "LeakyReRoPE",
    "Ledger",
    "Linear",
    "Llama3",
    "LoadError",
    "Local",
    "LogN",
    "LongRoPE",
    "ModelError",
    "MrRoPE",
    "NTKByParts",
    "NTKFixed",
    "NTKMixed",
    "NoPE",
    "Patch",
    "Perplexity",
    "Plain",
    "Proportional",
    "PseudoPerplexity",
    "ReRoPE",
    "Resonance",
    "ResultError",
    "RopeSpec",
    "Score",
    "SelfExtend",
    "Shipped",
    "Sotu",
    "Strategy",
    "StrategyError",
    "Temperature",
    "Transform",
    "YaRN",
    "__version__",
    "compose",
    "load_documents",
    "load_model",
    "masked_losses",
    "patch",
    "patched",
    "plots",
    "prefix_score",
    "read_results",
    "read_spec",
    "to_llama_cpp_options",
    "to_rope_parameters",
    "to_vllm_options",
    "token_losses",
    "unpatch",
]


def __getattr__(name: str) -> Any:
    """Import :mod:`extrapolate.plots` on first use: matplotlib is half a second that a sweep's start need not pay."""
    if name == "plots":
        return importlib.import_module("extrapolate.plots")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
