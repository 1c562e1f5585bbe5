"""Run a cell: reuse what is finished, compute and record it, or record how it failed."""

import contextlib
import dataclasses
import datetime
import functools
import gc
import logging
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from extrapolate.data.documents import Document
from extrapolate.errors import EvaluationError, ExtrapolateError, ResultError, first_line
from extrapolate.models.load import DTYPES, Checkpoint
from extrapolate.models.memory import Footprint, free_memory
from extrapolate.models.patch import patched
from extrapolate.results.ledger import CELLS, Ledger, cell_key
from extrapolate.results.schema import json_text
from extrapolate.storage import cache_dir, digest
from extrapolate.sweeps.cell import Cell, Identity, LoadedModel, Model, versions

log = logging.getLogger("extrapolate")


class MemoryEstimateError(ExtrapolateError):
    """A cell that cannot fit into memory, found out before it runs."""


class TimeLimitError(ExtrapolateError):
    """A cell that took longer than it may."""


STATUSES: dict[type[BaseException], str] = {torch.OutOfMemoryError: "oom", MemoryEstimateError: "skipped"}
"""What a row calls the cell that ended in such an exception; others failed."""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        outcome: ``computed``, ``reused`` or ``failed``.
        key: of the finished cell; of a failure that of the request.
        label: of its strategy.
        status: of a failure: ``failed``, ``oom`` or ``skipped``.
        error_type: class of its exception.
        error_message: its first line.
    """

    outcome: str
    key: str
    label: str
    status: str | None = None
    error_type: str | None = None
    error_message: str | None = None


@dataclass
class Held:
    """The one model in memory: cells of a sweep share it, another checkpoint or content replaces it.

    Attributes:
        models: at most one.
    """

    models: dict[tuple[Model, str, str], nn.Module] = field(default_factory=dict)

    def holds(self, checkpoint: Model, head: str) -> bool:
        """Whether the model is here already."""
        return (checkpoint, checkpoint.digest(), head) in self.models

    def get(self, checkpoint: Model, head: str) -> nn.Module:
        """The model, loaded where it is not here."""
        wanted = (checkpoint, checkpoint.digest(), head)
        if wanted not in self.models:
            self.let_go()  # before loading: two models at once may not fit
            self.models[wanted] = checkpoint.model(head)
        return self.models[wanted]

    def let_go(self) -> None:
        """Free what is here."""
        if self.models:
            self.models.clear()
            free_unused_memory()


@dataclass(frozen=True)
class Failure:
    """How a failed cell is recorded.

    Attributes:
        request: hash of what was asked for, under which it is kept.
        config: the same as YAML, so that a command can try it again.
        earlier: other hashes of the same request, of earlier releases: forgotten with it.
    """

    request: str
    config: str | None = None
    earlier: tuple[str, ...] = ()


def run(
    cell: Cell,
    ledger: Ledger,
    *,
    held: Held | None = None,
    progress: bool = False,
    time_limit: float | None = None,
    force: bool = False,
    failure: Failure | None = None,
) -> Outcome:
    """Run one cell, or reuse it. Never raises on account of the cell itself.

    Args:
        cell: what to measure.
        ledger: where finished cells are kept.
        held: the model in memory, shared by the cells of a sweep.
        progress: bars on a terminal.
        time_limit: seconds, loading included; a cell that takes longer is recorded as failed.
        force: run it even where its estimated memory does not fit.
        failure: how it is recorded when it fails; under :func:`request_of` when left out.
    """
    kept = Failure(request_of(cell)) if failure is None else failure
    try:
        with _time_limit(time_limit):
            outcome = _compute(cell, ledger, Held() if held is None else held, progress=progress, force=force)
    except Exception as error:
        outcome = failed(error, facts_of(cell), ledger, kept, evaluation_lengths(cell))
    else:
        ledger.clear_failure(kept.request)
    for request in kept.earlier:
        ledger.clear_failure(request)
    if outcome.status == "oom":
        free_unused_memory()  # here, where the traceback that held the tensors is gone
    return outcome


def request_of(cell: Cell) -> str:
    """A hash of what was asked for, known without reading anything."""
    checkpoint = cell.checkpoint
    named = dataclasses.asdict(checkpoint) if isinstance(checkpoint, Checkpoint) else checkpoint.digest()
    asked = {
        "model": named,
        "strategy": [type(cell.strategy).__name__, cell.strategy.parameters()],
        "source": repr(cell.source),
        "choice": [cell.documents, cell.names, cell.seed],
        "evaluation": [type(cell.evaluation).__name__, repr(cell.evaluation)],
        "layers": cell.layers,
    }
    return digest(asked)[:24]


def failed(
    error: BaseException, facts: Mapping[str, Any], ledger: Ledger, kept: Failure, lengths: Sequence[Any]
) -> Outcome:
    """Record how a cell failed, a row for each length; where that cannot be written, only the log tells.

    Args:
        error: what ended it; nothing of it is kept that would keep its tensors alive.
        facts: columns that are known of the cell.
        ledger: where it is recorded.
        kept: under which name.
        lengths: that it would have measured; one row without any.
    """
    status, lines = STATUSES.get(type(error), "failed"), "".join(traceback.format_exception(error))
    told = {"status": status, "error_type": type(error).__name__, "error_message": first_line(error)}
    peak = {"peak_memory_bytes": peak_memory(str(facts["device"]))} if status == "oom" and "device" in facts else {}
    shared = {**facts, **peak, "key": kept.request, **_stamp(), **told}
    try:
        rows = [{**shared, "length": length} for length in lengths or [None]]
        where = f"traceback: {ledger.record_failure(kept.request, rows, lines, kept.config)}"
    except ResultError as trouble:  # a full disk, a folder that is read-only: what is there stays as it is
        where = f"not recorded: {trouble}\n{lines}"
    label = str(facts["label"])
    log.error("%s %s: %s: %s (%s)", label, status, told["error_type"], told["error_message"], where)
    return Outcome("failed", kept.request, label, **told)


def evaluation_lengths(cell: Cell) -> Sequence[int]:
    """Tokens of model input that a cell is asked for."""
    return list(cell.evaluation.lengths)


def facts_of(cell: Cell) -> dict[str, Any]:
    """What can be said of a cell that failed: all that can be known of it here."""
    facts = cell.described()
    with contextlib.suppress(Exception):
        checkpoint = cell.checkpoint
        facts |= {"dtype": checkpoint.resolved_dtype(), "device": checkpoint.torch_device().type}
        facts |= {"attn_implementation": checkpoint.attn_implementation}
    with contextlib.suppress(Exception):
        facts |= cell.of_checkpoint()
    return facts


def _compute(cell: Cell, ledger: Ledger, held: Held, *, progress: bool, force: bool) -> Outcome:
    strategy, evaluation, label = cell.strategy, cell.evaluation, cell.label
    strategy.bands(cell.spec, evaluation.longest)  # refuses a length out of its reach before anything is loaded
    documents = cell.texts(progress=progress)
    identity = cell.identity(documents)
    key = cell_key(identity)
    if ledger.finished(key):
        ledger.forget_claim(key)
        log.info("%s: reused, finished earlier (cell %s)", label, key)
        return Outcome("reused", key, label)
    with ledger.claim(key, waiting=functools.partial(log.info, "%s: waiting for %s, which computes it", label)) as mine:
        if not mine:
            log.info("%s: reused, finished by another process (cell %s)", label, key)
            return Outcome("reused", key, label)
        if not force:
            _check_memory(cell, held)
        seconds = _measure_and_write(cell, documents, identity, ledger, held, progress=progress)
    log.info("%s: computed in %.1f s (cell %s)", label, seconds, key)
    return Outcome("computed", key, label)


def _measure_and_write(
    cell: Cell, documents: list[Document], identity: Identity, ledger: Ledger, held: Held, *, progress: bool
) -> float:
    """Compute a cell and store it; the seconds that its forward passes took."""
    strategy, evaluation, spec = cell.strategy, cell.evaluation, cell.spec
    device = cell.checkpoint.torch_device().type
    model = held.get(cell.checkpoint, evaluation.head)
    reset_peak_memory(device)
    layers = list(cell.layers) if isinstance(cell.layers, tuple) else cell.layers
    with patched(model, strategy, pretrained_length=cell.checkpoint.pretrained_length, layers=layers) as handle:
        varies = handle.varies_with_length
        follows = ", a pass for each length" if varies else ""
        many, longest = len(documents), evaluation.longest
        log.info("%s: %d document(s), inputs of up to %d tokens%s", cell.label, many, longest, follows)
        started = time.perf_counter()
        measured = _measured(cell, model, documents, one_pass=not varies, progress=progress)
        seconds = time.perf_counter() - started
        ran_in = handle.layers
    scores = evaluation.scores(measured)
    shared = {
        **cell.described(),
        **cell.of_checkpoint(),
        **_stamp(),
        "layers": ran_in,
        "key": cell_key(identity),
        "attention_factor": strategy.frequencies(spec, spec.pretrained_length).attention_factor,
        "data_digest": digest(identity["data"]),
        "document_names": json_text([document.name for document in documents]),
        "seconds": seconds,
        "tokens_per_second": int(measured["input_tokens"]) / seconds,
        "peak_memory_bytes": peak_memory(device),
    }
    rows = []
    for score in scores:
        used = strategy.at(spec, score.length_used if varies else evaluation.longest)
        status = "nonfinite" if score.nonfinite else "ok"
        rows.append({**shared, **vars(score), "status": status, "parameters": json_text(used.parameters())})
    _stop_clock()
    _write(ledger, identity, rows, measured)
    bad = [score.length for score in scores if score.nonfinite]
    if bad:
        log.warning("%s: losses that are not finite from length %d on", cell.label, bad[0])
    return seconds


def _measured(
    cell: Cell, model: nn.Module, documents: list[Document], *, one_pass: bool, progress: bool
) -> dict[str, torch.Tensor]:
    """What an evaluation measures; where memory runs out, in batches of half the size, down to one window."""
    evaluation: Any = cell.evaluation
    while True:
        try:
            found: dict[str, torch.Tensor] = evaluation.measure(
                model, documents, cell.tokenizer, one_pass=one_pass, description=cell.label if progress else None
            )
            return found
        except torch.OutOfMemoryError:
            size = getattr(evaluation, "batch_size", 1)
            if size == 1:
                raise
        free_unused_memory()  # here, where the traceback that held the tensors is gone
        evaluation = dataclasses.replace(evaluation, batch_size=size // 2)
        log.warning("%s: out of memory in batches of %d, goes on in batches of %d", cell.label, size, size // 2)


def _write(ledger: Ledger, identity: Identity, rows: list[dict[str, Any]], measured: Any) -> None:
    """Into the results folder; where that takes no more, aside, because it may have taken hours."""
    try:
        ledger.write(identity, rows, measured)
    except ResultError as error:
        kept = Ledger(cache_dir("rescued")).write(identity, rows, measured)
        raise ResultError(f"{error}; what was measured is kept: move {kept} to {ledger.root / CELLS}") from error


def _check_memory(cell: Cell, held: Held) -> None:
    """Refuse what cannot fit, before minutes are spent on loading it.

    Raises:
        MemoryEstimateError: with the estimate, what is free, and the longest length that would fit.
    """
    checkpoint, strategy, evaluation = cell.checkpoint, cell.strategy, cell.evaluation
    if checkpoint.device_map:  # spread over devices, or offloaded: what fits is accelerate's to say
        return
    device, dtype = checkpoint.torch_device().type, DTYPES.get(checkpoint.resolved_dtype())
    if dtype is None or device not in ("cpu", "cuda"):
        return
    longest = evaluation.longest
    bands = len(strategy.bands(cell.spec, longest)) if strategy.changes_attention else 0
    room = Footprint(checkpoint.config(), dtype, checkpoint.attn_implementation, bands)
    here = isinstance(checkpoint, LoadedModel) or held.holds(checkpoint, evaluation.head)
    weights = 0 if here else room.weights(evaluation.head)
    if not here:
        held.let_go()  # it is replaced in any case
    free = free_memory(device)
    needed = weights + room.activations(longest)
    if needed <= free:
        return
    fits = room.longest(free - weights, longest)
    raise MemoryEstimateError(
        f"length {longest:,} needs about {needed / 2**30:.1f} GiB ({'' if here else 'weights and '}activations), "
        f"{free / 2**30:.1f} GiB are free on {device}; "
        + (f"the longest length that fits is about {fits:,}" if fits > 1 else "no length fits")
        + "; force=true runs it nevertheless"
    )


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimeLimitError` where the block still runs after so many seconds; never while it writes."""
    if seconds is None:
        yield
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise EvaluationError(f"time_limit must be a positive number of seconds, or null, got {seconds!r}")
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise EvaluationError("time_limit needs the timer signal of a main thread, which there is not here")

    def expired(*_: Any) -> None:
        raise TimeLimitError(f"not done after time_limit={seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        _stop_clock()
        signal.signal(signal.SIGALRM, before)


def _stop_clock() -> None:
    """What is measured is not thrown away for the time that it takes to write it."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)


RESET_PEAK, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak_memory(device: str) -> None:
    """Let the peak of this cell start from what is held now, so that no earlier cell's is told."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):  # Linux only
        RESET_PEAK.write_text("5")


def peak_memory(device: str) -> int | None:
    """Bytes: allocated on the GPU, or resident on the CPU; None where the system does not tell."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if not STATUS.exists():
        return None
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


def free_unused_memory() -> None:
    """Give back what nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _stamp() -> dict[str, str]:
    """When a row was made, and with which releases."""
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"finished": finished, **{f"{package}_version": version for package, version in versions().items()}}
