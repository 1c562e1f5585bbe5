"""Every combination of models, strategies and evaluations as one table, from Python: what the command does."""

import itertools
import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm.auto import tqdm

from extrapolate.data.documents import Source
from extrapolate.data.sources import HuggingFace, Local, Sotu
from extrapolate.errors import EvaluationError, LoadError, StrategyError
from extrapolate.evaluation.base import Evaluation
from extrapolate.models.load import Checkpoint
from extrapolate.results.ledger import Ledger, read_results
from extrapolate.storage import Location, location
from extrapolate.strategies.base import Strategy
from extrapolate.sweeps.cell import Cell, LoadedModel, Model
from extrapolate.sweeps.run import Held, Outcome, run

NAMES = {Sotu: "sotu", Local: "local", HuggingFace: "hf"}
"""What rows call a corpus; the command calls it the same."""


def sweep(
    models: Any,
    strategies: Strategy | Sequence[Strategy],
    evaluation: Evaluation | Sequence[Evaluation],
    data: Source | None = None,
    *,
    documents: int | None = 1,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    layers: str | Sequence[int] | None = None,
    results: str | os.PathLike[str] | Location = "results/sweep",
    jobs: int = 1,
    progress: bool = True,
    time_limit: float | None = None,
    force: bool = False,
) -> pd.DataFrame:
    """Measure every combination, or reuse it where it is finished; the same cells under the same keys as the command's.

    A cell that fails is a row with its error, and the others run. A sweep that was stopped goes on where it was, and
    two of them may share a results folder.

    Args:
        models: a name or path as :func:`extrapolate.load_model` takes it, a :class:`~extrapolate.Checkpoint`, a loaded
            model with its tokenizer as ``(model, tokenizer)``, or a list of these. Of a name the dtype is bfloat16
            where the command's is: for ``smollm2`` and ``bundled``; the checkpoint's own for any other.
        strategies: one or several.
        evaluation: one or several.
        data: the corpus, such as ``extrapolate.Sotu()``; not needed where an evaluation brings its own text.
        documents: how many of its texts; None for all that are long enough.
        names: exactly these texts; ``documents`` does not apply then.
        seed: shuffle the corpus before choosing; its own order when left out.
        layers: which layers run the strategies, as :func:`extrapolate.patch` takes it.
        results: folder or URL of the results; finished cells there are reused.
        jobs: processes; each holds a model of its own. A loaded model is run in this one.
        progress: a bar over the cells, on a terminal or in a notebook, and one in each.
        time_limit: seconds of a cell, loading included.
        force: run cells whose estimated memory does not fit, too.

    Returns:
        The rows of these cells, in the order of :func:`extrapolate.read_results`; failed ones with their error.

    Raises:
        LoadError: for something that is no model.
        StrategyError: for something that is no strategy.
        EvaluationError: for something that is no evaluation, one that needs texts where there is no ``data``, or a
            number of jobs below 1.
        ResultError: when the results folder cannot be read.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise EvaluationError(f"jobs must be a whole number of at least 1, got {jobs!r}")
    chosen = None if names is None else names if isinstance(names, str) else tuple(names)
    cells = list(
        dict.fromkeys(  # the same cell once
            Cell(
                checkpoint=model,
                strategy=strategy,
                source=data if measure.min_tokens else None,
                evaluation=measure,
                data=None if data is None else NAMES.get(type(data), type(data).__name__.lower()),
                documents=documents,
                names=chosen,
                seed=seed,
                layers=layers if layers is None or isinstance(layers, str) else tuple(layers),
            )
            # cells of a model together: one is held at a time
            for model, strategy, measure in itertools.product(
                _models(models),
                _several(strategies, Strategy, StrategyError, "strategies", "extrapolate.YaRN(factor=4)"),
                _evaluations(evaluation),
            )
        )
    )
    root = location(results)
    options = {"time_limit": time_limit, "force": force}
    outcomes = _run_all(cells, root, jobs, progress, options)
    keys = {outcome.key for outcome in outcomes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of damaged cells that are not this sweep's
        table = read_results(root)
    found: pd.DataFrame = table[table["key"].isin(keys)].reset_index(drop=True)
    return found


def _run_all(
    cells: Sequence[Cell], root: Location, jobs: int, progress: bool, options: dict[str, Any]
) -> list[Outcome]:
    """Run cells, those of checkpoints in several processes where asked for; a bar tells how far they are."""
    apart = [cell for cell in cells if jobs > 1 and not isinstance(cell.checkpoint, LoadedModel)]
    here = [cell for cell in cells if cell not in apart]
    ledger, held, outcomes = Ledger(root), Held(), []
    with tqdm(total=len(cells), desc="cells", unit="cell", disable=not progress) as bar:
        if apart:
            threads = max(1, torch.get_num_threads() // jobs)
            # spawned, because a forked process cannot use a GPU, and torch's threads do not survive a fork
            with ProcessPoolExecutor(jobs, get_context("spawn"), _set_threads, (threads,)) as pool:
                for outcome in pool.map(_run_apart, [(cell, str(root), options) for cell in apart]):
                    outcomes.append(outcome)
                    bar.update()
        for cell in here:
            bar.set_postfix_str(cell.label)
            outcomes.append(run(cell, ledger, held=held, progress=progress, **options))
            bar.update()
    return outcomes


_HELD = Held()
"""The model of a worker process."""


def _set_threads(count: int) -> None:
    torch.set_num_threads(count)


def _run_apart(asked: tuple[Cell, str, dict[str, Any]]) -> Outcome:
    cell, root, options = asked
    return run(cell, Ledger(location(root)), held=_HELD, **options)


def _models(models: Any) -> list[Model]:
    given = models if isinstance(models, list) else [models]
    if not given:
        raise LoadError("models must be a model or a list of at least one, got []")
    return [_model(each) for each in given]


def _model(given: Any) -> Model:
    if isinstance(given, Checkpoint | LoadedModel):
        return given
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        return Checkpoint(path, dtype="bfloat16" if path in ("smollm2", "bundled") else "auto")
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], nn.Module):
        return LoadedModel(*given)
    if isinstance(given, nn.Module):
        raise LoadError("a loaded model needs its tokenizer: give (model, tokenizer)")
    raise LoadError(
        f"models must be names, paths, Checkpoints or loaded models with their tokenizers, got {type(given).__name__}"
    )


def _several(given: Any, kind: type, error: type[Exception], what: str, such_as: str) -> list[Any]:
    found = [given] if isinstance(given, kind) else list(given) if isinstance(given, Iterable) else [given]
    if not found or not all(isinstance(each, kind) for each in found):
        wrong = next((each for each in found if not isinstance(each, kind)), found)
        raise error(f"{what} must be one or several such as {such_as}, got {wrong!r}")
    return found


def _evaluations(given: Any) -> list[Evaluation]:
    found = list(given) if isinstance(given, list | tuple) else [given]
    wrong = [each for each in found if not all(hasattr(each, name) for name in ("measure", "scores", "identity"))]
    if not found or wrong:
        got = repr(wrong[0]) if wrong else "[]"
        raise EvaluationError(
            f"evaluation must be one or several such as extrapolate.Perplexity(lengths=[1024]), got {got}"
        )
    return found
