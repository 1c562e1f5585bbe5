"""Loading a checkpoint, finding its rotary embedding, patching it."""

from extrapolate.models.export import to_llama_cpp_options, to_rope_parameters, to_vllm_options
from extrapolate.models.load import Checkpoint, load_model
from extrapolate.models.patch import Patch, patch, patched, unpatch
from extrapolate.models.spec import read_spec

__all__ = [
    "Checkpoint",
    "Patch",
    "load_model",
    "patch",
    "patched",
    "read_spec",
    "to_llama_cpp_options",
    "to_rope_parameters",
    "to_vllm_options",
    "unpatch",
]
