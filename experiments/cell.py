"""One cell of a sweep: reused, computed, or failed and recorded.

conf → model → spec → strategy → patch → documents → token losses → protocol → rows. In a module of its own, not in the
script, so that a parallel launcher's workers find it by name.
"""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig, OmegaConf
from torch import nn

import extrapolate as xt
from experiments.folders import results_folder
from experiments.planning import REQUEST
from experiments.preflight import made
from extrapolate.errors import ExtrapolateError, first_line
from extrapolate.models.load import DTYPES
from extrapolate.models.memory import Footprint, free_memory
from extrapolate.results import cell_key
from extrapolate.results.ledger import CELLS
from extrapolate.results.schema import json_text
from extrapolate.storage import cache_dir, digest

log = logging.getLogger("extrapolate")

HELD: dict[tuple[xt.Checkpoint, str, str], nn.Module] = {}
"""The model in memory, at most one; the only state of a sweep's process."""


class MemoryEstimateError(ExtrapolateError):
    """A cell that cannot fit into memory, found out before it runs."""


class TimeLimitError(ExtrapolateError):
    """A cell that took longer than it may."""


STATUSES: dict[type[Exception], str] = {torch.OutOfMemoryError: "oom", MemoryEstimateError: "skipped"}
"""What a row calls the cell that ended in such an exception; others failed."""


def run_cell(cfg: DictConfig) -> dict[str, Any]:
    """One cell: reused, computed, or failed and recorded. Never raises on account of the cell itself."""
    ledger = xt.Ledger(results_folder(cfg.results))
    request = _request(cfg)
    facts: dict[str, Any] = _labels(cfg)
    try:
        with _time_limit(cfg.get("time_limit")):
            outcome = _compute(cfg, ledger, facts)
    except Exception as error:
        failure = _failure(error)
        if failure["status"] == "oom" and "device" in facts:
            facts["peak_memory_bytes"] = _peak_memory(facts["device"])
        rows, lines = _failed_rows(request, facts, failure), failure.pop("traceback")
        try:
            where = f"traceback: {ledger.record_failure(request, rows, lines, _config(cfg))}"
        except xt.ResultError as trouble:  # a full disk, a folder that is read-only: what is there stays as it is
            where = f"not recorded: {trouble}\n{lines}"
        told = (facts["label"], failure["status"], failure["error_type"], failure["error_message"], where)
        log.error("%s %s: %s: %s (%s)", *told)
        outcome = {"outcome": "failed", "key": request, **failure, "label": facts["label"]}
    else:
        ledger.clear_failure(request)
    if outcome.get("status") == "oom":
        _free_memory()  # here, where the traceback that held the tensors is gone
    return outcome


def _compute(cfg: DictConfig, ledger: xt.Ledger, facts: dict[str, Any]) -> dict[str, Any]:
    strategy: xt.Strategy = made(cfg.strategy, "strategy")
    layers = cfg.layers if cfg.layers is None or isinstance(cfg.layers, str) else sorted(cfg.layers)
    label = strategy.label if layers is None else f"{strategy.label}, layers {_words(layers)}"
    facts.update(strategy=strategy.name, label=label, parameters=json_text(strategy.parameters()))
    facts.update(factor=strategy.parameters().get("factor"))
    evaluation: xt.Evaluation = made(cfg.evaluation, "evaluation")
    facts.update(lengths=evaluation.lengths, **evaluation.columns())
    checkpoint: xt.Checkpoint = made(cfg.model, "model")
    content = checkpoint.digest()
    spec = _spec(checkpoint, content, layers if isinstance(layers, str) else None)
    dtype, device = checkpoint.resolved_dtype(), checkpoint.torch_device().type
    facts.update(dtype=dtype, device=device, attn_implementation=checkpoint.attn_implementation)
    facts.update(
        model_digest=content,
        theta=spec.theta,
        rotary_dim=spec.rotary_dim,
        pretrained_length=spec.pretrained_length,
        shipped_type=spec.shipped_type,
        depends_on_length=strategy.varies_with_length(spec),
    )
    strategy.bands(spec, evaluation.longest)  # refuses a length out of its reach before anything is loaded
    tokenizer = _tokenizer(checkpoint, content)
    documents = _documents(cfg, tokenizer, evaluation.min_tokens)
    facts.update(data=cfg.data.name if documents else None)
    identity = {
        "model": {
            "digest": content,
            "dtype": dtype,
            "device": device,
            "attn_implementation": checkpoint.attn_implementation,
            "theta": spec.theta,
            "rotary_dim": spec.rotary_dim,
            "pretrained_length": spec.pretrained_length,
            # 0.2.0 read it as another scaling; cells of all other checkpoints keep their keys
            **({"shipped_type": spec.shipped_type} if spec.shipped_type == "ntk_alpha" else {}),
        },
        "strategy": {"class": _class_name(strategy), "parameters": strategy.parameters()},
        "data": sorted(document.digest for document in documents),
        "evaluation": evaluation.identity(tokenizer),
        "versions": _versions(),
        **({} if layers is None else {"layers": layers}),
    }
    key = cell_key(identity)
    if ledger.finished(key):
        ledger.forget_claim(key)
        log.info("%s: reused, finished earlier (cell %s)", label, key)
        return {"outcome": "reused", "key": key, "label": label}

    with ledger.claim(key, waiting=functools.partial(log.info, "%s: waiting for %s, which computes it", label)) as mine:
        if not mine:
            log.info("%s: reused, finished by another process (cell %s)", label, key)
            return {"outcome": "reused", "key": key, "label": label}
        if not cfg.get("force"):
            _check_memory(checkpoint, content, spec, strategy, evaluation)
        model = model_of(checkpoint, content, evaluation.head)
        _reset_peak_memory(device)
        with xt.patched(model, strategy, pretrained_length=checkpoint.pretrained_length, layers=layers) as handle:
            follows = ", a pass for each length" if handle.varies_with_length else ""
            log.info(
                "%s: %d document(s), inputs of up to %d tokens%s", label, len(documents), evaluation.longest, follows
            )
            facts.update(layers=handle.layers)
            started = time.perf_counter()
            one_pass, description = not handle.varies_with_length, label if cfg.progress else None
            measured = _measured(evaluation, label, model, documents, tokenizer, one_pass, description)
            seconds = time.perf_counter() - started
        scores = evaluation.scores(measured)
        facts.pop("lengths")
        shared = {
            **facts,
            **_stamp(),
            "key": key,
            "attention_factor": strategy.frequencies(spec, spec.pretrained_length).attention_factor,
            "data_digest": digest(identity["data"]),
            "document_names": json_text([document.name for document in documents]),
            "seconds": seconds,
            "tokens_per_second": int(measured["input_tokens"]) / seconds,
            "peak_memory_bytes": _peak_memory(device),
        }
        rows = []
        for score in scores:
            used = strategy.at(spec, score.length_used if handle.varies_with_length else evaluation.longest)
            status = "nonfinite" if score.nonfinite else "ok"
            rows.append({**shared, **vars(score), "status": status, "parameters": json_text(used.parameters())})
        _stop_clock()
        _write(ledger, identity, rows, measured)
        bad = [score.length for score in scores if score.nonfinite]
        if bad:
            log.warning("%s: losses that are not finite from length %d on", label, bad[0])
    log.info("%s: computed in %.1f s (cell %s)", label, seconds, key)
    return {"outcome": "computed", "key": key, "label": label}


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimeLimitError` where the block still runs after so many seconds; never while it writes."""
    if seconds is None:
        yield
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise xt.EvaluationError(f"time_limit must be a positive number of seconds, or null, got {seconds!r}")
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise xt.EvaluationError("time_limit needs the timer signal of a main thread, which there is not here")

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


def _check_memory(
    checkpoint: xt.Checkpoint, content: str, spec: xt.RopeSpec, strategy: xt.Strategy, evaluation: Any
) -> None:
    """Refuse what cannot fit, before minutes are spent on loading it.

    Raises:
        MemoryEstimateError: with the estimate, what is free, and the longest length that would fit.
    """
    if checkpoint.device_map:  # spread over devices, or offloaded: what fits is accelerate's to say
        return
    device, dtype = checkpoint.torch_device().type, DTYPES.get(checkpoint.resolved_dtype())
    if dtype is None or device not in ("cpu", "cuda"):
        return
    longest, config = evaluation.longest, checkpoint.config()
    bands = len(strategy.bands(spec, longest)) if strategy.changes_attention else 0
    room = Footprint(config, dtype, checkpoint.attn_implementation, bands)
    held = (checkpoint, content, evaluation.head) in HELD
    weights = 0 if held else room.weights(evaluation.head)
    if not held and HELD:
        HELD.clear()  # it is replaced in any case
        _free_memory()
    free = free_memory(device)
    needed = weights + room.activations(longest)
    if needed <= free:
        return
    fits = room.longest(free - weights, longest)
    raise MemoryEstimateError(
        f"length {longest:,} needs about {needed / 2**30:.1f} GiB ({'' if held else 'weights and '}activations), "
        f"{free / 2**30:.1f} GiB are free on {device}; "
        + (f"the longest length that fits is about {fits:,}" if fits > 1 else "no length fits")
        + "; force=true runs it nevertheless"
    )


def _measured(
    evaluation: Any,
    label: str,
    model: nn.Module,
    documents: list[xt.Document],
    tokenizer: Any,
    one_pass: bool,
    description: str | None,
) -> dict[str, torch.Tensor]:
    """What an evaluation measures; where memory runs out, in batches of half the size, down to one window."""
    while True:
        try:
            found: dict[str, torch.Tensor] = evaluation.measure(
                model, documents, tokenizer, one_pass=one_pass, description=description
            )
            return found
        except torch.OutOfMemoryError:
            size = getattr(evaluation, "batch_size", 1)
            if size == 1:
                raise
        _free_memory()  # here, where the traceback that held the tensors is gone
        evaluation = dataclasses.replace(evaluation, batch_size=size // 2)
        log.warning("%s: out of memory in batches of %d, goes on in batches of %d", label, size, size // 2)


def _write(ledger: xt.Ledger, identity: dict[str, Any], rows: list[dict[str, Any]], measured: Any) -> None:
    """Into the results folder; where that takes no more, aside, because it may have taken hours."""
    try:
        ledger.write(identity, rows, measured)
    except xt.ResultError as error:
        kept = xt.Ledger(cache_dir("rescued")).write(identity, rows, measured)
        raise xt.ResultError(f"{error}; what was measured is kept: move {kept} to {ledger.root / CELLS}") from error


def record_lost(cfg: DictConfig) -> None:
    """Record a cell whose process ended before the cell could say anything."""
    message = "its process ended without an outcome: killed, perhaps for the memory it took"
    request, failure = _request(cfg), {"status": "failed", "error_type": "Lost", "error_message": message}
    rows = _failed_rows(request, _labels(cfg), failure)
    xt.Ledger(results_folder(cfg.results)).record_failure(request, rows, message, _config(cfg))


def _request(cfg: DictConfig) -> str:
    # of the YAML text, because what was asked for may be no JSON value (factor=nan)
    asked: list[Any] = [OmegaConf.to_yaml(cfg[name], resolve=True) for name in REQUEST]
    if cfg.layers is not None:
        asked.append(str(cfg.layers))
    return digest(asked)[:24]


def _documents(cfg: DictConfig, tokenizer: Any, min_tokens: int) -> list[xt.Document]:
    """Of the data group; none for an evaluation that brings its own text."""
    if not min_tokens:
        return []
    return xt.load_documents(
        made(cfg.data.source, "data.source"),
        tokenizer,
        documents=cfg.data.documents,
        min_tokens=min_tokens,
        names=None if cfg.data.names is None else list(cfg.data.names),
        seed=cfg.data.seed,
        progress=cfg.progress,
    )


def model_of(checkpoint: xt.Checkpoint, content: str, head: str) -> nn.Module:
    """The one model that this process holds: jobs of a sweep share it, another checkpoint or content replaces it."""
    if (checkpoint, content, head) not in HELD:
        HELD.clear()  # before loading: two models at once may not fit
        _free_memory()
        HELD[checkpoint, content, head] = checkpoint.model(head)
    return HELD[checkpoint, content, head]


@functools.lru_cache(maxsize=1)
def _tokenizer(checkpoint: xt.Checkpoint, content: str) -> Any:  # noqa: ARG001
    return checkpoint.tokenizer()


@functools.lru_cache(maxsize=1)
def _spec(checkpoint: xt.Checkpoint, content: str, layers: str | None) -> xt.RopeSpec:  # noqa: ARG001
    return checkpoint.spec(layers)


def _words(layers: str | list[int]) -> str:
    return layers if isinstance(layers, str) else ",".join(map(str, layers))


def _labels(cfg: DictConfig) -> dict[str, Any]:
    """What a row can say of a cell that may fail before anything is constructed."""
    target = str(cfg.strategy._target_).rpartition(".")[2]
    return {
        "model": str(cfg.model.get("path")),
        "data": cfg.data.name,
        "strategy": target.lower(),
        "label": target.lower(),
    }


def _config(cfg: DictConfig) -> str:
    """What a cell was asked for, so that ``python -m experiments.results retry`` can ask again."""
    names = [name for name in (*REQUEST, "layers", "progress", "time_limit", "force") if name in cfg]
    whole: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, names), resolve=False)
    for name in REQUEST:
        whole[name] = OmegaConf.to_container(cfg[name], resolve=True)
    return OmegaConf.to_yaml(whole)


def _failure(error: Exception) -> dict[str, str]:
    """The exception as text, and nothing that would keep its tensors alive."""
    cause = error
    while type(cause).__module__.startswith("hydra") and cause.__cause__ is not None:  # instantiate wraps what it calls
        cause = cause.__cause__  # type: ignore[assignment]
    return {
        "status": STATUSES.get(type(cause), "failed"),
        "error_type": type(cause).__name__,
        "error_message": first_line(cause),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _failed_rows(request: str, facts: dict[str, Any], failure: dict[str, str]) -> list[dict[str, Any]]:
    shared = {name: value for name, value in facts.items() if name != "lengths"}
    shared |= {"key": request, **_stamp(), **{n: failure[n] for n in ("status", "error_type", "error_message")}}
    return [{**shared, "length": length} for length in facts.get("lengths", [None])]


RESET_PEAK, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def _reset_peak_memory(device: str) -> None:
    """Let the peak of this cell start from what is held now, so that no earlier cell's is told."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):  # Linux only
        RESET_PEAK.write_text("5")


def _peak_memory(device: str) -> int | None:
    """Bytes: allocated on the GPU, or resident on the CPU; None where the system does not tell."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if not STATUS.exists():
        return None
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _class_name(strategy: xt.Strategy) -> str:
    """A strategy's own name; with its module when it is not one of the package's."""
    if isinstance(strategy, xt.Composed):
        return "+".join(_class_name(part) for part in strategy.parts)
    kind = type(strategy)
    return strategy.name if kind.__module__.startswith("extrapolate.") else f"{kind.__module__}.{kind.__qualname__}"


def _versions() -> dict[str, str]:
    """Releases whose change may change a number; the build (``+cpu``) is covered by the device."""
    return {
        "extrapolate": xt.__version__,
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
    }


def _stamp() -> dict[str, str]:
    """When a row was made, and with which releases."""
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"finished": finished, **{f"{package}_version": version for package, version in _versions().items()}}
