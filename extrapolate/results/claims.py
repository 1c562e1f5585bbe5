"""Claims: while one process computes a cell, others wait for it instead of computing it too."""

import contextlib
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import filelock
from upath import UPath

from extrapolate.errors import ResultError
from extrapolate.storage import Location

BEAT = 5.0
"""Seconds between two signs of life of an owner."""

STALE = 60.0
"""Seconds without a sign of life after which an owner on another machine, or one that hangs, counts as dead."""

POLL = 0.5
"""Seconds between two looks at a claim that another process holds."""


class _Claim(Protocol):
    """One process's attempt at a claim."""

    def take(self) -> bool:
        """Make it ours if it is free, or its owner dead."""
        ...

    def owner(self) -> dict[str, Any] | None:
        """Who holds it instead, where known."""
        ...

    def beat(self) -> bool:
        """Show that we live; False when it is ours no more."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


@contextlib.contextmanager
def claimed(path: Location, done: Callable[[], bool], waiting: Callable[[str], None] | None = None) -> Iterator[bool]:
    """Hold a claim, or wait until another process that holds it is done.

    A claim names its owner, who touches it every few seconds. It is taken over when its owner is dead: its process is
    gone, or it gave no sign of life for a minute.

    Args:
        path: of the claim.
        done: whether what is claimed is finished; looked at whenever the claim is free.
        waiting: called once with the owner's name before waiting for another process.

    Returns:
        A context: True when the claim is held and what it claims is to be done, False when it was done meanwhile.

    Raises:
        ResultError: when the claim cannot be written.
    """
    claim = _claim_at(path)
    told = False
    try:
        while not claim.take():
            owner = claim.owner()
            if owner is not None and not told and waiting is not None:
                waiting(f"process {owner.get('pid')} on {owner.get('host')}")
                told = True
            time.sleep(POLL * random.uniform(0.5, 1.5))  # of two that gave way to each other, one is first
    except OSError as error:
        raise ResultError(f"cannot claim a cell in {path.parent}: {error}") from error
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(claim, stop), daemon=True)
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
        with contextlib.suppress(OSError):
            claim.release()


def forget(path: Location) -> None:
    """Delete the claim of an owner that is dead, such as one killed when what it claimed was done; others stay."""
    with contextlib.suppress(OSError):  # nothing depends on it
        if path.exists() and (claim := _claim_at(path)).take():
            claim.release()


def _claim_at(path: Location) -> _Claim:
    return _Linked(path) if isinstance(path, Path) else _Listed(path)


def _beat(claim: _Claim, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with contextlib.suppress(OSError):
            if not claim.beat():
                return


def _self() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def _gone(owner: dict[str, Any] | None) -> bool:
    """Whether the owner was a process of this machine that is no more."""
    if owner is None or owner.get("host") != socket.gethostname():
        return False
    born = _born(int(owner["pid"]))
    return born is None or born != owner.get("born")


@dataclass(frozen=True)
class _Linked:
    """A claim on a file system: a file made by a hard link, which fails where there is one."""

    path: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def take(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.{self.token}")
        aside.write_text(json.dumps({"token": self.token, **_self()}), encoding="utf-8")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self.path)  # whole or not at all, and only where there is none
                return True
            if _alive(self.path):
                return False
            with _changing(self.path):  # of two that find a dead owner, one succeeds it
                if not self.path.exists() or _alive(self.path):
                    return False
                aside.replace(self.path)
                return True
        finally:
            aside.unlink(missing_ok=True)

    def owner(self) -> dict[str, Any] | None:
        return _owner(self.path)

    def beat(self) -> bool:
        if (_owner(self.path) or {}).get("token") != self.token:
            return False
        os.utime(self.path)
        return True

    def release(self) -> None:
        with _changing(self.path):
            if (_owner(self.path) or {}).get("token") == self.token:
                self.path.unlink(missing_ok=True)


@dataclass
class _Listed:
    """A claim where nothing is made only if it is not there, such as an object store: a folder of contenders.

    Each writes a file of its own and then lists the folder: alone, it holds the claim; beside others, it withdraws. Of
    two at once, at least one sees the other, so never both hold it. Signs of life are counted, and their pauses
    measured by who waits, so clocks need not agree.
    """

    path: UPath
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    beats: int = 0
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    other: dict[str, Any] | None = None

    def take(self) -> bool:
        self._write()
        self.other = None
        for file in list(self.path.iterdir()):
            if file.name == self.token:
                continue
            owner = _owner(file)
            if self._dead(file.name, owner):
                file.unlink(missing_ok=True)
            elif owner is not None:  # gone between the two looks
                self.other = owner
        if self.other is not None:
            self.release()
        return self.other is None

    def owner(self) -> dict[str, Any] | None:
        return self.other

    def beat(self) -> bool:
        if not (self.path / self.token).exists():
            return False
        self.beats += 1
        self._write()
        return True

    def release(self) -> None:
        (self.path / self.token).unlink(missing_ok=True)

    def _write(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / self.token).write_text(json.dumps({"beats": self.beats, **_self()}), encoding="utf-8")

    def _dead(self, name: str, owner: dict[str, Any] | None) -> bool:
        if _gone(owner):
            return True
        beats = -1 if owner is None else int(owner.get("beats", -1))
        known, since = self.seen.get(name, (None, 0.0))
        if known != beats:
            self.seen[name] = (beats, time.monotonic())
            return False
        return time.monotonic() - since > STALE


def _changing(path: Path) -> filelock.BaseFileLock:
    """Held for the moment in which a claim that exists is taken over or given back."""
    return filelock.FileLock(path.with_name(".changing.lock"))


def _owner(path: Location) -> dict[str, Any] | None:
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
    return not _gone(owner) and age < STALE


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
