"""Context-length extrapolation on Hugging Face models: RoPE scaling strategies, exact patching, defined perplexities.

Importing patches nothing and downloads nothing, and loads torch and transformers when a name is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from extrapolate.version import __version__

if TYPE_CHECKING:
    from extrapolate import analysis, plots
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
        CommonWords,
        Evaluation,
        KeyTokens,
        KeyValue,
        Needle,
        Passkey,
        Perplexity,
        PseudoPerplexity,
        Score,
        VariableTracking,
        masked_losses,
        prefix_score,
        token_losses,
    )
    from extrapolate.harness import lm_eval_model
    from extrapolate.models import (
        Checkpoint,
        load_model,
        read_spec,
        to_llama_cpp_options,
        to_rope_parameters,
        to_vllm_options,
    )
    from extrapolate.models.patch import Patch, patch, patched, unpatch
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
    from extrapolate.sweeps import Cell, sweep

__all__ = [
    "ABF",
    "NTK",
    "STRING",
    "AttentionSinks",
    "Band",
    "Cell",
    "Checkpoint",
    "CommonWords",
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
    "KeyTokens",
    "KeyValue",
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
    "Needle",
    "NoPE",
    "Passkey",
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
    "VariableTracking",
    "YaRN",
    "__version__",
    "analysis",
    "compose",
    "lm_eval_model",
    "load_documents",
    "load_model",
    "masked_losses",
    "patch",
    "patched",
    "plots",
    "prefix_score",
    "read_results",
    "read_spec",
    "sweep",
    "to_llama_cpp_options",
    "to_rope_parameters",
    "to_vllm_options",
    "token_losses",
    "unpatch",
]

ROOMS = ("errors", "rope", "strategies", "results", "data", "evaluation", "models", "harness", "sweeps")
"""Where the public names are, what loads fast first."""

MODULES = (*ROOMS, "analysis", "plots")
"""What is an attribute without being imported by name."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use: torch and transformers are seconds that ``--help`` need not wait for."""
    if name in MODULES:
        return importlib.import_module(f"extrapolate.{name}")
    if name in __all__:
        for room in ROOMS:
            found = getattr(importlib.import_module(f"extrapolate.{room}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__, *MODULES})
