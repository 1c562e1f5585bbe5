"""What can be known to be wrong before a model is loaded: said at once, before the first job."""

import functools
import logging
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import extrapolate as xt
from extrapolate.commands.folders import results_folder, with_absolute_paths
from extrapolate.commands.names import stop, unknown_fields
from extrapolate.data.documents import check_choice
from extrapolate.errors import ExtrapolateError, first_line
from extrapolate.models.spec import layer_types, read_spec
from extrapolate.storage import Location

log = logging.getLogger("extrapolate")

BYTES_A_LOSS = 4
"""Of each token of model input, float32."""


class ConfigError(ExtrapolateError, ValueError):
    """A field of the configuration that its class does not have."""


def preflight(cells: Sequence[DictConfig]) -> None:
    """Check everything about the cells of a sweep that needs no model; say all that is wrong and exit with 2.

    What is wrong with some cells only is theirs: it is told, and the sweep goes on; they end as recorded failures.

    Args:
        cells: their configurations.
    """
    of_all = results_problems(sorted({str(cell.results) for cell in cells}), bytes_of(cells))
    of_each = [problems(cell) for cell in cells]
    if of_all or (cells and all(of_each)):
        stop([*of_all, *(problem for found in of_each for problem in found)])
    wrong = sum(bool(found) for found in of_each)
    for problem in dict.fromkeys(problem for found in of_each for problem in found):
        log.warning("%d of %d cells will fail: %s", wrong, len(cells), problem)


def problems(cell: DictConfig) -> list[str]:
    """What is wrong with one cell, a line each; nothing where that takes a model to know."""
    found: list[str] = []
    strategy = _made(cell.strategy, "strategy", found)
    evaluation = _made(cell.evaluation, "evaluation", found)
    checkpoint = _made(cell.model, "model", found)
    _check_data(cell, evaluation, found)
    seconds = cell.get("time_limit")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        found.append(f"time_limit must be a positive number of seconds, or null, got {seconds!r}")
    if checkpoint is None:
        return found
    try:
        spec = _spec(checkpoint, cell.layers if isinstance(cell.get("layers"), str) else None)
        if spec is not None and strategy is not None and evaluation is not None and _own(strategy):
            strategy.bands(spec, evaluation.longest)  # refuses a length out of its reach
            strategy.frequencies(spec, evaluation.longest)
    except ExtrapolateError as error:
        found.append(str(error))
    return found


def _own(strategy: xt.Strategy) -> bool:
    """Whether all of it is the package's: what a user's code does may take its process with it, and is its cell's."""
    parts = strategy.parts if isinstance(strategy, xt.Composed) else (strategy,)
    return all(type(part).__module__.startswith("extrapolate.") for part in parts)


def made(node: DictConfig, where: str, **fields: Any) -> Any:
    """What a node of the configuration stands for; relative paths mean the folder the command was given in.

    Args:
        node: with a ``_target_``.
        where: its place in the configuration.
        **fields: instead of what the node has.

    Raises:
        ConfigError: for a field that its class does not have.
        ExtrapolateError: of the class, for a value.
    """
    node = with_absolute_paths(node)
    unknown = unknown_fields(node, where)
    if unknown:
        raise ConfigError("; ".join(unknown))
    try:
        return instantiate(node, **fields)
    except InstantiationException as error:  # hydra wraps what it calls
        cause: BaseException = error
        while type(cause).__module__.startswith("hydra") and cause.__cause__ is not None:
            cause = cause.__cause__
        if cause is error:
            raise
        raise cause from error


def _made(node: DictConfig, where: str, found: list[str]) -> Any | None:
    try:
        return made(node, where)
    except ExtrapolateError as error:
        found.append(str(error))
    except OmegaConfBaseException as error:  # a value that is still to be given
        found.append(f"{where}: {first_line(error)}")
    except Exception as error:
        found.append(f"{where}: {type(error).__name__}: {first_line(error)}")
    return None


def _check_data(cell: DictConfig, evaluation: Any, found: list[str]) -> None:
    """The corpus, where the evaluation takes texts of it."""
    if evaluation is not None and not evaluation.min_tokens:
        return
    source = _made(cell.data.source, "data.source", found)
    try:
        check_choice(cell.data.documents, None if cell.data.names is None else cell.data.names)
        check = getattr(source, "check", None)
        if check is not None:
            check()
    except ExtrapolateError as error:
        found.append(str(error))


@functools.lru_cache(maxsize=64)
def _spec(checkpoint: xt.Checkpoint, layers: str | None) -> xt.RopeSpec | None:
    """The rotary embedding, where the config is on this machine."""
    config = checkpoint.peek()
    if config is None:
        return None
    return read_spec(config, checkpoint.pretrained_length, layers if layers in layer_types(config) else None)


def results_problems(folders: Sequence[str], needed: int = 0) -> list[str]:
    """What is wrong with results folders: whether each takes a file, and has room for ``needed`` bytes."""
    found = []
    for name in folders:
        try:
            folder = results_folder(name)
            _try_to_write(folder)
        except (OSError, ExtrapolateError, ValueError) as error:
            found.append(f"results={name}: cannot write there: {first_line(error)}; choose another folder")
            continue
        except Exception as error:  # of whatever stands behind a URL
            found.append(f"results={name}: cannot write there: {type(error).__name__}: {first_line(error)}")
            continue
        if isinstance(folder, Path):
            free = shutil.disk_usage(_nearest(folder)).free
            if free < needed:
                found.append(
                    f"results={name}: {free / 2**20:,.0f} MiB are free there, and the losses of this sweep take about "
                    f"{needed / 2**20:,.0f} MiB; choose another folder"
                )
    return found


def bytes_of(cells: Sequence[DictConfig]) -> int:
    """About how much the losses of the cells take on disk; 0 for a cell that cannot be told."""
    total = 0
    for cell in cells:
        try:
            documents = len(cell.data.names) if cell.data.names else int(cell.data.documents or 1)
            total += BYTES_A_LOSS * documents * sum(int(n) for n in cell.evaluation.lengths)
        except (TypeError, ValueError, AttributeError, OmegaConfBaseException):
            continue
    return total


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _try_to_write(folder: Location) -> None:
    """Write a file into a folder and delete it, and the folders that this made.

    Raises:
        OSError: where that cannot be done.
    """
    made_here = [path for path in (folder, *folder.parents) if not path.exists()] if isinstance(folder, Path) else []
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".writable.{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"1")  # a full disk takes the name and not the content
        probe.unlink()
    finally:
        for path in made_here:
            try:
                path.rmdir()
            except OSError:  # another sweep began to use it
                break
