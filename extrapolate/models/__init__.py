"""Loading a checkpoint, finding its rotary embedding, patching it."""

from extrapolate.models.families import read_spec
from extrapolate.models.load import Checkpoint, load_model
from extrapolate.models.patch import Patch, patch, patched, unpatch

__all__ = ["Checkpoint", "Patch", "load_model", "patch", "patched", "read_spec", "unpatch"]
