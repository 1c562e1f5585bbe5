"""Claims: while one process computes a cell, others wait for it instead of computing it too."""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from extrapolate.errors import ResultError

BEAT = 5.0
"""Seconds between two signs of life of an owner."""

STALE = 60.0
"""Seconds without a sign of life after which an owner on another machine, or one that hangs, counts as dead."""

POLL = 0.5
"""Seconds between two looks at a claim that another process holds."""


@contextlib.contextmanager
def claimed(path: Path, done: Callable[[], bool], waiting: Callable[[str], None] | None = None) -> Iterator[bool]:
    """Hold a claim, or wait until another process that holds it is done.

    A claim is a file that names its owner and that the owner touches every few seconds. It is taken over when its owner
    is dead: its process is gone, or it gave no sign of life for a minute.

    Args:
        path: of the claim.
        done: whether what is claimed is finished; looked at whenever the claim is free.
        waiting: called once with the owner's name before waiting for another process.

    Returns:
        A context: True when the claim is held and what it claims is to be done, False when it was done meanwhile.

    Raises:
        ResultError: when the claim cannot be written.
    """
    token = uuid.uuid4().hex
    told = False
    while not _take(path, token):
        owner = _owner(path)
        if owner is not None and not told and waiting is not None:
            waiting(f"process {owner.get('pid')} on {owner.get('host')}")
            told = True
        time.sleep(POLL)
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, token, stop), daemon=True)
    try:
        if done():
            yield False
            return
        beating.start()
        yield True
    finally:
        stop.set()
        if beating.is_alive():
            beating.join()
        with contextlib.suppress(OSError), _changing(path):
            if (_owner(path) or {}).get("token") == token:
                path.unlink(missing_ok=True)


def _changing(path: Path) -> filelock.BaseFileLock:
    """Held for the moment in which a claim that exists is taken over or given back."""
    return filelock.FileLock(path.with_name(".changing.lock"))


def _take(path: Path, token: str) -> bool:
    """Make the claim ours if it is free, or its owner dead."""
    content = json.dumps({"token": token, "host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{token}")
        aside.write_text(content, encoding="utf-8")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)  # whole or not at all, and only where there is none
                return True
            if _alive(path):
                return False
            with _changing(path):  # of two that find a dead owner, one succeeds it
                if not path.exists() or _alive(path):
                    return False
                aside.replace(path)
                return True
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"cannot claim a cell in {path.parent}: {error}") from error


def _owner(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _alive(path: Path) -> bool:
    """Whether the owner of a claim lives; False where there is no claim."""
    owner = _owner(path)
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    if owner is not None and owner.get("host") == socket.gethostname():
        born = _born(int(owner["pid"]))
        if born is None or born != owner.get("born"):
            return False
    return age < STALE


def _born(pid: int) -> str | None:
    """When a process of this machine started, in a form that only it has; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[19]
    except FileNotFoundError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # no /proc: macOS
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _beat(path: Path, token: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        if (_owner(path) or {}).get("token") != token:
            return
        with contextlib.suppress(OSError):
            os.utime(path)
