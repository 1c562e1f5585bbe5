"""Files that are whole or absent, here or on any fsspec location; content digests, and the user's cache folder."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs
from upath import UPath

from extrapolate.errors import ResultError

Location = Path | UPath
"""A folder or file: a path, or what fsspec knows by a URL."""


def location(where: str | os.PathLike[str] | UPath) -> Location:
    """A path, or what a URL such as ``s3://bucket/folder`` names.

    Raises:
        ResultError: for a URL of a kind that fsspec does not know, or whose package is not installed.
    """
    if isinstance(where, Path | UPath):
        return where
    text = os.fspath(where)
    if "://" not in text:
        return Path(text)
    try:
        found = UPath(text)
        _ = found.fs  # imports what it needs
    except (ValueError, ImportError) as error:
        raise ResultError(f"cannot use the location {text!r}: {error}") from error
    return found


def remove(folder: Location) -> None:
    """Delete a folder with all that is in it; nothing where there is none."""
    if isinstance(folder, Path):
        # out of sight at once, also of who reads meanwhile
        aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        folder.fs.rm(folder.path, recursive=True)


def write_folder(target: Location, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, whole or not at all, in place of one that is there.

    Where a location has no folders to rename, the last file is written last and an old one deleted first: while it is
    there, all are.

    Args:
        target: the folder.
        files: name → content; the last must say what the others hold.
    """
    if isinstance(target, Path):
        with new_folder(target) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
        return
    *_, seal = files
    (target / seal).unlink(missing_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (target / name).write_bytes(content)


def remove_asides(target: Location) -> None:
    """Delete what a process that was killed while it wrote ``target`` left beside it; only where nobody writes it."""
    if isinstance(target, Path):
        for aside in target.parent.glob(f".{target.name}.*"):
            shutil.rmtree(aside, ignore_errors=True)


def cache_dir(*parts: str) -> Path:
    """A folder under the user's cache, ``$EXTRAPOLATE_CACHE`` when set; made on first use."""
    root = os.environ.get("EXTRAPOLATE_CACHE") or platformdirs.user_cache_dir("extrapolate")
    folder = Path(root, *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def new_folder(target: Path, *, keep: bool = False) -> Iterator[Path]:
    """Fill a folder aside and rename it to ``target`` when the block ends without an exception.

    Args:
        target: replaced where it exists.
        keep: leave a ``target`` that another process made meanwhile as it is, since others may be reading it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield aside
        aside.chmod(0o755)
        for _ in range(100):
            try:
                aside.rename(target)
                return
            except OSError:
                if not target.exists():
                    raise
            if keep:
                return
            old = aside.with_name(aside.name + ".old")
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                target.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        raise OSError(f"could not replace {target}: other processes keep writing it")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_atomic(target: Location, content: bytes) -> None:
    """Write a file aside and rename it, so that no reader and no crash ever sees half of it.

    An object store shows a file when all of it is there, and needs no file aside.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(target, Path):
        target.write_bytes(content)
        return
    handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(aside).chmod(0o644)
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys), as 64 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, remembered by path, size and modification time so that weights are read once."""
    path = path.resolve()
    stat = path.stat()
    stamp = [str(path), stat.st_size, stat.st_mtime_ns]
    memo = cache_dir("digests") / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memo.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return str(known["sha256"])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    write_atomic(memo, json.dumps({"stamp": stamp, "sha256": found}).encode())
    return found
