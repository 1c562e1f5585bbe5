"""Search a strategy's fields for a checkpoint: Optuna proposes, fixed targets judge, unseen documents decide.

extrapolate search search=yarn
extrapolate search search=longrope trials=200 workers=2
extrapolate search search=self_extend target=2048

A search that was stopped goes on where it was; the same command elsewhere on the same ``storage`` is another worker.
See ``--help`` for the settings.
"""

import contextlib
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydra
import optuna
import torch
import yaml
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from tqdm.auto import tqdm

import extrapolate as xt
from extrapolate.commands.cell import HELD, run_cell
from extrapolate.commands.names import CONF, run
from extrapolate.commands.preflight import made, preflight
from extrapolate.plots.style import COLOURS, Figure, plain_frame
from extrapolate.reports.conclusions import save_figures
from extrapolate.reports.terminal import print_paths, report
from extrapolate.rope import base_frequencies
from extrapolate.storage import Location, digest, write_atomic

log = logging.getLogger("extrapolate")

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
PAIRS = "pairs"
"""In a field's space: one number for each rotary pair."""


class SearchError(xt.ExtrapolateError, ValueError):
    """A setting of a search that cannot be."""


@dataclass(frozen=True)
class Problem:
    """What is searched, and on what it is judged.

    Attributes:
        model: unpatched.
        spec: of its rotary embedding.
        tokenizer: of the model.
        documents: of the search; the final score has others.
        evaluation: fixed targets behind ``short`` and behind ``target`` tokens of context.
        settings: of the command.
        plain: loss of the same targets behind the short context, without a strategy, nats a token.
    """

    model: Any
    spec: xt.RopeSpec
    tokenizer: Any
    documents: Sequence[xt.Document]
    evaluation: xt.Perplexity
    settings: DictConfig
    plain: float

    def losses(self, strategy: xt.Strategy, documents: Sequence[xt.Document]) -> tuple[float, float]:
        """Mean loss of the targets (behind the short context, behind the long one), nats a token."""
        with xt.patched(self.model, strategy, pretrained_length=self.spec.pretrained_length) as handle:
            one_pass = not handle.varies_with_length
            measured = self.evaluation.measure(self.model, documents, self.tokenizer, one_pass=one_pass)
        short, target = self.evaluation.scores(measured)
        return short.nll_mean, target.nll_mean

    def value(self, short: float, target: float) -> float:
        """One number of both: the loss at the target, and ``penalty`` times what the short context lost."""
        return target + float(self.settings.penalty) * max(0.0, short - self.plain)


def suggest(trial: Any, space: DictConfig, spec: xt.RopeSpec, factor: float) -> dict[str, Any]:
    """Fields of a strategy, from the space of each.

    Raises:
        SearchError: for a space that is none.
    """
    found: dict[str, Any] = {}
    for field, node in space.items():
        name, kind = str(field), dict(node)
        if "choices" in kind:
            found[name] = trial.suggest_categorical(name, list(kind["choices"]))
        elif kind.pop(PAIRS, False):
            high = kind.pop("high", None) or 1.25 * factor
            names = [f"{name}.{i:02d}" for i in range(spec.rotary_dim // 2)]
            low, step = float(kind["low"]), kind.get("step")
            if step:  # Optuna wants the end on the grid
                high = low + math.floor((high - low) / step + 1e-9) * step
            # never falling, whatever a sampler proposes
            found[name] = sorted(trial.suggest_float(n, low, high, step=step) for n in names)
        elif {"low", "high"} <= set(kind):
            kind["low"] = math.ceil(factor) if kind["low"] is None else kind["low"]
            whole = all(isinstance(kind[end], int) for end in ("low", "high"))
            found[name] = (trial.suggest_int if whole else trial.suggest_float)(name, **kind)
        else:
            raise SearchError(f"space.{name} needs low and high, choices, or pairs, got {kind}")
    return found


def starts(cfg: DictConfig, spec: xt.RopeSpec) -> list[dict[str, Any]]:
    """The points a search begins with, as Optuna's parameters.

    Each is a strategy of ``conf/strategy`` in a few words: its values of the searched fields, or, where divisors are
    searched, what it divides each pair by.
    """
    found = []
    for node in cfg.start:
        strategy: xt.Strategy = instantiate(node)
        strategy = strategy.at(spec, cfg.target)
        frequencies = strategy.frequencies(spec, cfg.target)
        known = {**strategy.parameters(), "attention_factor": frequencies.attention_factor, "start_tokens": 0}
        point: dict[str, Any] = {}
        for field, kind in cfg.space.items():
            name = str(field)
            if kind.get(PAIRS):
                plain = base_frequencies(spec.theta, spec.rotary_dim)
                for i, divisor in enumerate((plain / frequencies.inv_freq).tolist()):
                    point[f"{name}.{i:02d}"] = divisor
            elif name in known:
                point[name] = known[name]
        found.append({name: _inside(value, cfg.space[name.partition(".")[0]]) for name, value in point.items()})
    return found


def _inside(value: Any, kind: Mapping[str, Any]) -> Any:
    """The nearest value that the space has."""
    if "choices" in kind or not isinstance(value, int | float):
        return value
    low, high, step = kind.get("low"), kind.get("high"), kind.get("step")
    value = max(low, value) if low is not None else value
    value = min(high, value) if high is not None else value
    if step:
        value = low + round((value - low) / step) * step
    return round(value, 10) if isinstance(value, float) else value


def strategy_of(cfg: DictConfig, fields: Mapping[str, Any]) -> xt.Strategy:
    """The searched strategy with these fields.

    Raises:
        SearchError: for a field that it does not have.
    """
    unknown = [name for name in fields if name not in cfg.strategy]
    if unknown:
        raise SearchError(f"space.{unknown[0]}: {cfg.strategy._target_.rpartition('.')[2]} has no field {unknown[0]!r}")
    found: xt.Strategy = made(cfg.strategy, "strategy", **fields)
    return found


def study_of(cfg: DictConfig, folder: Path, spec: xt.RopeSpec, identity: Any) -> optuna.Study:
    """The study in its storage, made or gone on with: the same search, the same study."""
    folder.mkdir(parents=True, exist_ok=True)
    storage = cfg.storage or f"sqlite:///{folder / 'study.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        backend = optuna.storages.RDBStorage(storage, heartbeat_interval=30, grace_period=120)
    name = f"{cfg.name}-{digest(identity)[:12]}"
    directions: Any = ["minimize", "minimize"] if cfg.objective == "pareto" else ["minimize"]
    study = optuna.create_study(
        study_name=name,
        storage=backend,
        load_if_exists=True,
        directions=directions,
        pruner=instantiate(cfg.pruner),
    )
    # what a sampler draws must not repeat what it drew before it was stopped; evolution counts trials itself
    begun = len(study.trials)
    study.sampler = instantiate(cfg.sampler, seed=cfg.seed + (0 if "Evolution" in cfg.sampler._target_ else begun))
    if begun:
        log.info("goes on with study %s, %d trials so far", name, begun)
    for point in starts(cfg, spec):
        study.enqueue_trial(point, skip_if_exists=True)
    return study


def optimise(study: optuna.Study, problem: Problem) -> None:
    """Run trials until so many are finished, whoever ran them."""
    cfg = problem.settings
    wanted = int(cfg.trials)

    def finished() -> int:
        return len(study.get_trials(deepcopy=False, states=FINISHED))

    if finished() >= wanted:
        return
    with tqdm(total=wanted, desc="trials", unit="trial", disable=None if cfg.progress else True) as bar:

        def told(study: optuna.Study, _: FrozenTrial) -> None:
            bar.n = finished()
            with contextlib.suppress(ValueError, RuntimeError):  # none came to an end yet, or there are two objectives
                bar.set_postfix_str(f"best {study.best_value:.4f}", refresh=False)
            bar.refresh()

        study.optimize(
            lambda trial: _value(trial, problem),
            callbacks=[MaxTrialsCallback(wanted, states=FINISHED), told],
        )


def _value(trial: optuna.Trial, problem: Problem) -> float | tuple[float, float]:
    """What a trial is judged by: one number, or (loss at the target, loss behind the short context)."""
    cfg, started = problem.settings, time.perf_counter()
    pareto = cfg.objective == "pareto"
    try:
        strategy = strategy_of(cfg, suggest(trial, cfg.space, problem.spec, float(cfg.factor)))
        strategy.bands(problem.spec, problem.evaluation.longest)  # refuses what it cannot reach
        means: list[tuple[float, float]] = []
        for step, document in enumerate(problem.documents):
            means.append(problem.losses(strategy, [document]))
            short, target = (sum(values) / len(means) for values in zip(*means, strict=True))
            if not math.isfinite(short + target):
                raise xt.EvaluationError("a loss is not finite")
            if not pareto:
                trial.report(problem.value(short, target), step)
                if trial.should_prune() and step + 1 < len(problem.documents):
                    _note(trial, short, target, started)
                    raise optuna.TrialPruned
    except (xt.StrategyError, xt.EvaluationError) as error:
        trial.set_user_attr("error", str(error))
        raise optuna.TrialPruned(str(error)) from error  # samplers learn from it; of a failure they would not
    _note(trial, short, target, started)
    return (target, short) if pareto else problem.value(short, target)


def _note(trial: optuna.Trial, short: float, target: float, started: float) -> None:
    noted = {"short": short, "target": target, "seconds": time.perf_counter() - started}
    for name, value in {**noted, "worker": f"{platform.node()}:{os.getpid()}"}.items():
        trial.set_user_attr(name, value)


def winner(study: optuna.Study, problem: Problem) -> FrozenTrial:
    """The best trial; of a Pareto front the one that the penalty prefers.

    Raises:
        SearchError: when no trial came to an end.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not done:
        errors = {t.user_attrs.get("error", "interrupted") for t in study.trials}
        raise SearchError(f"no trial of {len(study.trials)} came to an end: {'; '.join(sorted(errors))}")
    front = study.best_trials if problem.settings.objective == "pareto" else done
    return min(front, key=lambda t: (problem.value(t.user_attrs["short"], t.user_attrs["target"]), t.number))


def fields_of(trial: FrozenTrial, cfg: DictConfig, spec: xt.RopeSpec) -> dict[str, Any]:
    """A finished trial's fields."""
    fixed = optuna.trial.FixedTrial(trial.params)
    return suggest(fixed, cfg.space, spec, float(cfg.factor))


def write_winner(folder: Path, strategy: xt.Strategy, spec: xt.RopeSpec, cfg: DictConfig) -> list[Path]:
    """``strategy/found.yaml`` for sweeps, ``factors.json`` of divisors, ``exports.json`` for other engines."""
    target = {"_target_": cfg.strategy._target_, **strategy.parameters()}
    head = f"# Found by extrapolate search ({cfg.name}) at {cfg.target} tokens.\n"
    files = {folder / "strategy" / "found.yaml": head + yaml.safe_dump(target, sort_keys=False)}
    if isinstance(strategy, xt.LongRoPE):
        files[folder / "factors.json"] = json.dumps(list(strategy.long_factor))
    exports: dict[str, Any] = {}
    for engine, export in (
        ("transformers rope_parameters", lambda: xt.to_rope_parameters(strategy, spec)),
        ("vllm serve", lambda: xt.to_vllm_options(strategy, spec, int(cfg.target))),
        ("llama.cpp", lambda: xt.to_llama_cpp_options(strategy, spec, int(cfg.target))),
    ):
        try:
            exports[engine] = export()
        except xt.StrategyError as error:
            exports[engine] = f"cannot express it: {error}"
    files[folder / "exports.json"] = json.dumps(exports, indent=1, ensure_ascii=False)
    for path, text in files.items():
        write_atomic(path, text.encode())
    return list(files)


def write_pictures(folder: Path, study: optuna.Study, problem: Problem, found: xt.Strategy) -> list[Location]:
    """Divisors by pair beside YaRN's and NTK's, the importance of each parameter, and all trials."""
    cfg = problem.settings
    pictures: dict[str, Figure] = {}
    if not found.changes_positions:
        others = [xt.YaRN(factor=cfg.factor), xt.NTK(factor=cfg.factor)]
        title = f"found for {cfg.model.path} at {cfg.target:,} tokens"
        labels = [f"found: {found.label}", *(strategy.label for strategy in others)]
        pictures["factors"] = xt.plots.frequencies(
            [found, *others], problem.spec, int(cfg.target), title=title, labels=labels
        )
    importance = importances(study, problem)
    if importance:
        pictures["importance"] = _bars(importance)
    pictures["trials"] = _scatter(study, problem)
    return save_figures(folder, pictures)


def importances(study: optuna.Study, problem: Problem) -> dict[str, float]:
    """Share of the value's variance that each parameter explains (PED-ANOVA); empty where too few trials tell."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 10:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental, and meant for values that are to be low, as ours are
        with contextlib.suppress(ValueError, RuntimeError):
            found: dict[str, float] = optuna.importance.get_param_importances(
                study,
                evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
                target=lambda t: problem.value(t.user_attrs["short"], t.user_attrs["target"]),
            )
            return found
    return {}


def _bars(importance: Mapping[str, float]) -> Figure:
    names = sorted(importance)  # divisors in the order of their pairs
    figure = Figure(figsize=(5.2, max(2.2, 0.2 * len(names) + 1.0)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(names, [importance[name] for name in names], color=COLOURS[0])
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
    axes.set_xlabel("share of the variance it explains")
    axes.tick_params(axis="y", labelsize=7)
    plain_frame(axes, grid="x")
    return figure


def _scatter(study: optuna.Study, problem: Problem) -> Figure:
    """The loss at the target against that behind the short context, every finished trial."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    points = [(t.user_attrs["short"], t.user_attrs["target"]) for t in done]
    axes.scatter([x for x, _ in points], [y for _, y in points], s=12, color=COLOURS[5], label="trials")
    begun = [(t.user_attrs["short"], t.user_attrs["target"]) for t in done if "fixed_params" in t.system_attrs]
    if begun:
        axes.scatter([x for x, _ in begun], [y for _, y in begun], s=40, marker="s", color=COLOURS[1], label="starts")
    best = winner(study, problem).user_attrs
    axes.scatter([best["short"]], [best["target"]], s=80, marker="*", color=COLOURS[6], label="found")
    axes.axvline(problem.plain, color="0.35", linewidth=1, linestyle="--")
    axes.set_xlabel(f"loss behind {problem.evaluation.lengths[0]:,} tokens (nats a token; dashed: plain)")
    axes.set_ylabel(f"loss behind {problem.evaluation.lengths[-1]:,} tokens")
    axes.legend(frameon=False, fontsize=8)
    plain_frame(axes)
    return figure


def prepare(cfg: DictConfig) -> tuple[Problem, Any]:
    """Model, documents and targets of a search, and what makes it the same search.

    Raises:
        SearchError: for settings that cannot be.
    """
    if cfg.objective not in ("penalty", "pareto"):
        raise SearchError(f"objective must be penalty or pareto, got {cfg.objective!r}")
    both = sorted(set(cfg.search_documents) & set(cfg.final_documents))
    if both:
        raise SearchError(f"search_documents and final_documents must be disjoint, both have {', '.join(both)}")
    if not 2 <= cfg.short < cfg.target:
        raise SearchError(f"short={cfg.short} must be at least 2 tokens and below target={cfg.target}")
    checkpoint: xt.Checkpoint = made(cfg.model, "model")
    content = checkpoint.digest()
    spec, tokenizer = checkpoint.spec(), checkpoint.tokenizer()
    evaluation = xt.Perplexity(lengths=[cfg.short, cfg.target], protocol="last", targets=cfg.targets)
    documents = xt.load_documents(
        made(cfg.data.source, "data.source"),
        tokenizer,
        names=list(cfg.search_documents),
        min_tokens=evaluation.min_tokens,
        progress=cfg.progress,
    )
    problem = Problem(HELD.get(checkpoint, "causal"), spec, tokenizer, documents, evaluation, cfg, math.nan)
    short, target = problem.losses(xt.Plain(), documents)
    log.info("plain: %.4f behind %d tokens, %.4f behind %d", short, cfg.short, target, cfg.target)
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    # the sampler's room was another one: a search that was begun there goes on
    settings["sampler"]["_target_"] = cfg.sampler._target_.replace("extrapolate.searches.", "experiments.")
    parts = ("strategy", "space", "objective", "penalty", "sampler", "pruner", "seed")
    identity = {
        "model": [content, checkpoint.resolved_dtype()],
        "documents": sorted(d.digest for d in documents),
        "evaluation": evaluation.identity(tokenizer),
        **{part: settings[part] for part in parts},
    }
    return replace(problem, plain=short), identity


def final_cells(cfg: DictConfig, folder: Path, found: xt.Strategy | None = None) -> list[DictConfig]:
    """Plain, the starts and the winner on unseen documents: cells of a results folder, as a sweep has them."""
    nodes = [{"_target_": "extrapolate.Plain"}, *OmegaConf.to_container(cfg.start, resolve=True)]  # type: ignore[misc]
    if found is not None:
        nodes.append({"_target_": cfg.strategy._target_, **found.parameters()})
    evaluation = {
        "_target_": "extrapolate.Perplexity",
        "lengths": [cfg.short, cfg.target],
        "protocol": "last",
        "targets": cfg.targets,
    }
    return [
        OmegaConf.create(
            {
                "model": cfg.model,
                "strategy": node,
                "data": {**cfg.data, "names": list(cfg.final_documents)},
                "evaluation": evaluation,
                "layers": None,
                "results": str(folder / "final"),
                "progress": bool(cfg.progress),
            }
        )
        for node in nodes
    ]


def final_score(cfg: DictConfig, folder: Path, found: xt.Strategy) -> int:
    """Score the winner, the starts and plain on unseen documents; how many of these cells failed."""
    return report(folder / "final", [run_cell(cell) for cell in final_cells(cfg, folder, found)])


def search(cfg: DictConfig) -> int:
    """Run or go on with a search, write what it found; how many of the final cells failed."""
    folder = Path(to_absolute_path(cfg.results))
    if not cfg.helper:
        preflight(final_cells(cfg, folder))
    problem, identity = prepare(cfg)
    study = study_of(cfg, folder, problem.spec, identity)
    as_helper = ("workers=1", "helper=true", f"threads={torch.get_num_threads()}")
    helpers = [
        subprocess.Popen([sys.executable, "-m", "extrapolate", "search", *sys.argv[1:], *as_helper])
        for _ in range(int(cfg.workers) - 1)
    ]
    try:
        optimise(study, problem)
    finally:
        for helper in helpers:
            helper.wait()
    if cfg.helper:
        return 0
    best = winner(study, problem)
    found = strategy_of(cfg, fields_of(best, cfg, problem.spec))
    paths: list[Location] = [*write_winner(folder, found, problem.spec, cfg), folder / "trials.csv"]
    write_atomic(folder / "trials.csv", study.trials_dataframe().to_csv(index=False).encode())
    paths += write_pictures(folder, study, problem, found)
    console = Console(width=None if sys.stdout.isatty() else 140)
    states = {state.name.lower(): len(study.get_trials(deepcopy=False, states=(state,))) for state in FINISHED}
    counts = [f"{n} {state}" for state, n in states.items() if n]
    refused = sum("error" in trial.user_attrs for trial in study.trials)
    counts += [f"{refused} of them refused"] if refused else []
    console.print(f"{len(study.trials)} trials: {', '.join(counts)}")
    told = {
        k: round(v, 4) if isinstance(v, float) else v
        for k, v in best.user_attrs.items()
        if k not in ("seconds", "worker")
    }
    console.print(f"best is trial {best.number}: {told}; on documents that the search never saw:")
    failed = final_score(cfg, folder, found)
    print_paths(console, paths)
    console.print(f"use it: extrapolate sweep --config-dir {folder} strategy=found", soft_wrap=True)
    return failed


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="search")
def main(cfg: DictConfig) -> None:
    """Search, and exit with 1 when a final cell failed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # failed trials are in the table
    torch.set_num_threads(cfg.threads or max(1, torch.get_num_threads() // int(cfg.workers)))
    try:
        failed = search(cfg)
    except xt.ExtrapolateError as error:
        raise SystemExit(f"error: {error}") from error
    if failed:
        raise SystemExit(1)


def start() -> None:
    """The command, with the arguments of the command line."""
    run(main, "search")
