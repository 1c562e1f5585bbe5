"""What paths on a command line mean: relative to the folder the command was given in."""

from pathlib import Path

from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from extrapolate.models.load import BUNDLED, PACKAGED
from extrapolate.storage import Location, location

PATHS = ("path", "offload_folder", "long_factor", "short_factor")
"""Settings that may name a file or folder."""


def with_absolute_paths(node: DictConfig) -> DictConfig:
    """Relative paths mean the folder the command was given in, also when Hydra changes into the job's own."""
    node = node.copy()
    for name in node:
        value = None if OmegaConf.is_missing(node, name) else node[name]
        if isinstance(value, DictConfig):
            node[name] = with_absolute_paths(value)
        elif name in PATHS and isinstance(value, str) and value not in {*PACKAGED, *BUNDLED}:
            absolute = to_absolute_path(value)
            node[name] = absolute if Path(absolute).exists() else value
    return node


def results_folder(where: str) -> Location:
    """A URL that fsspec knows, or a path; a relative one means the folder the command was given in.

    Raises:
        ResultError: for a URL of a kind that fsspec does not know, or whose package is not installed.
    """
    return location(where if "://" in where else to_absolute_path(where))
