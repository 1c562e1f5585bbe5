"""The ledger: one cell, one folder, whole or absent. What is finished is never computed again."""

import contextlib
import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
from torch import Tensor

from extrapolate.errors import ResultError
from extrapolate.results.claims import claimed, forget
from extrapolate.results.schema import SCHEMA, SCHEMA_VERSION, from_csv, to_table
from extrapolate.storage import Location, digest, location, remove, remove_asides, write_folder

CELLS, FAILURES, CLAIMS = "cells", "failures", "claims"
RECORD, SCORES, LOSSES, TRACEBACK = "cell.json", "scores.parquet", "losses.safetensors", "traceback.txt"
CONFIG = "config.yaml"


def cell_key(identity: Mapping[str, Any]) -> str:
    """Key of a cell: a hash of everything that can change its numbers, and of nothing else."""
    return digest(identity)[:24]


@dataclass(frozen=True)
class Ledger:
    """A results folder, local or at any URL that fsspec knows.

    Layout: ``cells/<key>/`` holds ``cell.json`` (identity, checksums), ``scores.parquet`` (rows of the one schema) and
    ``losses.safetensors`` (what was measured, such as per-token losses, as the evaluation names it);
    ``failures/<request>/`` holds the rows and the traceback of a cell that failed, until the same request succeeds;
    ``claims/<key>`` is there while a process computes that cell.
    """

    root: Location

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", location(self.root))

    def finished(self, key: str) -> bool:
        """Whether the cell is there and whole. A damaged one is reported and counts as absent."""
        folder = self.root / CELLS / key
        if not folder.exists():
            return False
        problem = _damage(folder)
        if problem:
            warnings.warn(f"{folder} is damaged ({problem}); its cell is computed again", stacklevel=2)
        return problem is None

    @contextlib.contextmanager
    def claim(self, key: str, waiting: Callable[[str], None] | None = None) -> Iterator[bool]:
        """A context in which this process alone computes a cell; False in it when another finished it meanwhile.

        Args:
            key: of the cell.
            waiting: called once with the name of the process that holds it, before waiting for it.

        Raises:
            ResultError: when the folder cannot be written.
        """
        folder = self.root / CELLS / key
        with claimed(self.root / CLAIMS / key, lambda: folder.exists() and _damage(folder) is None, waiting) as mine:
            if mine:
                remove_asides(folder)
            yield mine

    def forget_claim(self, key: str) -> None:
        """Delete what a process left that was killed when its cell was finished."""
        forget(self.root / CLAIMS / key)

    def write(
        self, identity: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], measured: Mapping[str, Tensor]
    ) -> Location:
        """Store a finished cell; one that is there and whole already holds the same and is kept.

        Args:
            identity: what its key is the hash of.
            rows: of the one schema.
            measured: what the evaluation measured, by its names.

        Returns:
            The cell's folder.
        """
        key = cell_key(identity)
        target = self.root / CELLS / key
        if target.exists() and not _damage(target):
            return target
        tensors = {name: tensor.contiguous() for name, tensor in measured.items()}
        files = {SCORES: _parquet(to_table(rows)), LOSSES: safetensors.torch.save(tensors)}
        return _write(target, {"key": key, "identity": identity}, files)

    def record_failure(
        self, request: str, rows: Sequence[Mapping[str, Any]], traceback: str, config: str | None = None
    ) -> Location:
        """Store the outcome of a cell that failed, with its traceback.

        Args:
            request: hash of what was asked for.
            rows: of the one schema, with error_type and error_message.
            traceback: text.
            config: what was asked for, as YAML, so that it can be tried again.

        Returns:
            The path of the traceback.
        """
        files = {SCORES: _parquet(to_table(rows)), TRACEBACK: traceback.encode()}
        if config is not None:
            files[CONFIG] = config.encode()
        return _write(self.root / FAILURES / request, {"key": request}, files) / TRACEBACK

    def clear_failure(self, request: str) -> None:
        """Forget an earlier failure of a request that has succeeded now."""
        with contextlib.suppress(OSError):  # no success is lost over it
            remove(self.root / FAILURES / request)

    def losses(self, key: str) -> dict[str, Tensor]:
        """What a finished cell measured, as its evaluation's ``measure`` names it; ``scores`` takes it back.

        Of perplexity ``window_n`` holds (windows, n) float32 losses, nats, of windows of n tokens.

        Raises:
            ResultError: when the cell is absent or damaged.
        """
        folder = self.root / CELLS / key
        problem = _damage(folder)
        if problem:
            raise ResultError(f"{folder}: {problem}")
        tensors: dict[str, Tensor] = safetensors.torch.load((folder / LOSSES).read_bytes())
        return tensors


def read_results(path: str | Location) -> pd.DataFrame:
    """Every recorded cell at or below a folder as one tidy table, a row for each cell and length (and depth).

    Columns and units are those of :data:`extrapolate.results.schema.COLUMNS`. Failed cells have rows too, with their
    status and error. Damaged cells are reported with a warning and left out.

    Args:
        path: a results folder, or one above several; or the ``scores.csv`` that a sweep wrote. A path or a URL.

    Raises:
        ResultError: when there is no such folder, or the file is no table of results.
    """
    root = location(path)
    if root.suffix == ".csv" and root.is_file():
        try:
            return _tidy(from_csv(root.read_bytes()))
        except ResultError as error:
            raise ResultError(f"{root}: {error}") from error
    if not root.is_dir():
        raise ResultError(f"no results folder at {root}")
    tables: dict[str, pa.Table] = {}
    for folder in _cells(root):
        problem = _damage(folder)
        if problem:
            warnings.warn(f"{folder} is damaged ({problem}) and left out; run the sweep again", stacklevel=2)
        elif folder.name not in tables:  # the same cell may stand in two results folders
            tables[folder.name] = pq.read_table(io.BytesIO((folder / SCORES).read_bytes()), schema=SCHEMA)
    return _tidy(pa.concat_tables(tables.values()) if tables else SCHEMA.empty_table())


def _tidy(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    frame = frame.astype({name: "Int64" for name in SCHEMA.names if SCHEMA.field(name).type == pa.int64()})
    baseline = ~frame["strategy"].isin(["plain", "shipped"])  # what others are compared with comes first
    return (
        frame.assign(_baseline=baseline)
        .sort_values(["model", "data", "_baseline", "strategy", "factor", "key", "length", "depth"], ignore_index=True)
        .drop(columns="_baseline")
    )


def recorded(root: str | Location) -> Iterator[tuple[Location, str | None]]:
    """Every folder of a cell or a failure at or below a folder, and what is wrong with it; None for nothing."""
    for folder in _cells(location(root)):
        yield folder, _damage(folder)


def _cells(root: Location) -> Iterator[Location]:
    found: list[Location] = list(root.rglob(RECORD))
    for record in sorted(found, key=str):
        # a folder that is still being written starts with a dot
        below = record.as_posix().removeprefix(root.as_posix()).split("/")
        if not any(part.startswith(".") for part in below):
            yield record.parent


def _write(target: Location, record: Mapping[str, Any], files: Mapping[str, bytes]) -> Location:
    checksums = {name: {"bytes": len(content), "sha256": _sha256(content)} for name, content in files.items()}
    whole = {"schema": SCHEMA_VERSION, **record, "files": checksums}
    sealed = {**files, RECORD: json.dumps(whole, indent=1, ensure_ascii=False).encode()}
    try:
        write_folder(target, sealed)
    except OSError as error:
        raise ResultError(f"cannot write results to {target}: {error}") from error
    return target


def _damage(folder: Location) -> str | None:
    """What is wrong with a cell's folder, or None."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["schema"] > SCHEMA_VERSION:
            return f"schema {record['schema']} is newer than this release's {SCHEMA_VERSION}"
        for name, expected in record["files"].items():
            content = (folder / name).read_bytes()
            if len(content) != expected["bytes"]:
                return f"{name} has {len(content)} bytes instead of {expected['bytes']}"
            if _sha256(content) != expected["sha256"]:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{RECORD}: {type(error).__name__}: {error}"
    return None


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
