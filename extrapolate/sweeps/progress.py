"""How far a whole sweep is, whichever launcher runs its jobs."""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm.auto import tqdm

OUTCOME = "outcome.json"
"""What each job leaves in its folder when it is done."""

POLL = 0.5
"""Seconds between two looks."""

log = logging.getLogger("extrapolate")


@contextlib.contextmanager
def overall(folder: Path, weights: Sequence[float], *, shown: bool = True) -> Iterator[None]:
    """Show how many of a sweep's jobs are done and how long the rest may take: a bar on a terminal, else log lines.

    Args:
        folder: of the sweep; job ``i`` leaves its outcome in ``folder/i``.
        weights: of each job, in proportion to how long it may take.
        shown: whether at all.
    """
    if not shown:
        yield
        return
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, tuple(weights), stop), daemon=True)
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join()


def _watch(folder: Path, weights: tuple[float, ...], stop: threading.Event) -> None:
    done: dict[int, bool] = {}  # number → whether it was computed now
    started = time.monotonic()
    terminal = sys.stderr.isatty()
    with tqdm(total=len(weights), desc="cells", unit="cell", position=0, disable=not terminal) as bar:
        last = False
        while not last:
            last = stop.wait(POLL)
            new = _finished(folder, len(weights)) - set(done)
            done |= {number: _computed(folder / str(number) / OUTCOME) for number in new}
            if not new:
                continue
            left = time_left(weights, done, time.monotonic() - started)
            words = "" if left is None else f", about {duration(left)} left"
            if terminal:
                bar.set_postfix_str(words.removeprefix(", "), refresh=False)
                bar.update(len(new))
            elif len(done) < len(weights):
                log.info("%d of %d cells done%s", len(done), len(weights), words)


def _finished(folder: Path, count: int) -> set[int]:
    names = {path.parent.name for path in folder.glob(f"*/{OUTCOME}")}
    return {int(name) for name in names if name.isdecimal() and int(name) < count}


def _computed(outcome: Path) -> bool:
    try:
        return bool(json.loads(outcome.read_text(encoding="utf-8"))["outcome"] == "computed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def time_left(weights: Sequence[float], done: dict[int, bool], elapsed: float) -> float | None:
    """Seconds until the rest is done, at the rate of those computed now; None before the first.

    Args:
        weights: of all jobs.
        done: number → whether it was computed now, rather than reused or failed, which takes no time.
        elapsed: seconds since the start.
    """
    computed = sum(weights[number] for number, now in done.items() if now)
    rest = sum(weight for number, weight in enumerate(weights) if number not in done)
    return elapsed / computed * rest if computed else None


def duration(seconds: float) -> str:
    """In the two largest units that matter."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
