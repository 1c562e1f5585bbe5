"""The search: what it proposes, what it judges by, that it goes on, and what it leaves behind."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import extrapolate as xt
from extrapolate.commands import search as command
from extrapolate.commands.search import SearchError, search, suggest
from extrapolate.searches.evolution import LongRoPEEvolution
from tests.test_sweep import corpus, of_tiny, run

__all__ = ["corpus"]

CONF = Path(__file__).parent.parent / "conf"
SEARCHES = sorted(path.stem for path in (CONF / "search").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _conf() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@pytest.fixture
def settings(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> list[str]:
    return [
        *of_tiny(checkpoint_folder, corpus),
        "search_documents=[0.txt,1.txt]",
        "final_documents=[2.txt]",
        "target=256",
        "short=48",
        "targets=16",
        "factor=4",
        "progress=false",
        f"results={tmp_path / 'search'}",
    ]


def composed(name: str, *overrides: str) -> DictConfig:
    return compose("search", [f"search={name}", *overrides])


SPEC = xt.RopeSpec(rotary_dim=16, theta=10000.0, pretrained_length=64)


# What is proposed


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_composes_and_its_starts_lie_in_its_space(name: str) -> None:
    cfg = composed(name)
    assert not set(cfg.search_documents) & set(cfg.final_documents)
    fields = {field.name for field in dataclasses.fields(_class(cfg))}
    assert set(cfg.space) <= fields
    for point in command.starts(cfg, SPEC):
        fixed = optuna.trial.FixedTrial(point)
        assert command.strategy_of(cfg, suggest(fixed, cfg.space, SPEC, 8.0)).name == name


def _class(cfg: DictConfig) -> Any:
    return getattr(xt, cfg.strategy._target_.rpartition(".")[2])


def test_longropes_search_has_the_papers_settings() -> None:
    cfg = composed("longrope")
    sampler = cfg.sampler
    assert (sampler.population, sampler.mutations, sampler.crossovers, sampler.parents) == (64, 16, 16, 32)
    assert cfg.trials == 64 + 40 * 32
    assert (cfg.space.long_factor.low, cfg.space.long_factor.step) == (1.0, 0.01)
    assert {0, 1, 2, 4, 256} <= set(cfg.space.start_tokens.choices)


def test_longrope_starts_as_yarn_ntk_and_interpolation_are() -> None:
    cfg = composed("longrope")
    expected = [xt.YaRN(factor=8), xt.NTK(factor=8), xt.Linear(factor=8)]
    for point, strategy in zip(command.starts(cfg, SPEC), expected, strict=True):
        fields = suggest(optuna.trial.FixedTrial(point), cfg.space, SPEC, 8.0)
        found = command.strategy_of(cfg, fields).frequencies(SPEC, 512)
        wanted = strategy.frequencies(SPEC, 512)
        assert found.inv_freq.tolist() == pytest.approx(wanted.inv_freq.tolist(), rel=5e-3)  # steps of 0.01
        assert found.attention_factor == pytest.approx(wanted.attention_factor, abs=5e-3)
        assert fields["start_tokens"] == 0


def evolved(seed: int, trials: int, stop: int | None = None) -> tuple[list[dict[str, Any]], list[float]]:
    """A study whose best divisors are known: 1, 2, 3, 4."""
    study = optuna.create_study(sampler=_sampler(seed))
    study.enqueue_trial({f"long_factor.{i:02d}": 2.5 for i in range(4)} | {"start_tokens": 0})

    def value(trial: optuna.Trial) -> float:
        fields = suggest(trial, SPACE, xt.RopeSpec(rotary_dim=8, theta=1e4, pretrained_length=64), 4.0)
        return float(sum(abs(x - i - 1) for i, x in enumerate(fields["long_factor"])) + fields["start_tokens"])

    study.optimize(value, n_trials=stop or trials)
    if stop:
        study.sampler = _sampler(seed)  # a process that goes on has a sampler of its own
        study.optimize(value, n_trials=trials - stop)
    return [t.params for t in study.trials], [float(t.value or 0) for t in study.trials]


def _sampler(seed: int) -> LongRoPEEvolution:
    return LongRoPEEvolution(population=12, mutations=8, crossovers=4, parents=8, seed=seed)


SPACE = OmegaConf.create(
    {
        "long_factor": {"pairs": True, "low": 1.0, "high": None, "step": 0.01},
        "start_tokens": {"choices": [0, 1, 4]},
    }
)


def test_evolution_improves_stays_monotone_and_in_its_range() -> None:
    params, values = evolved(0, 250)
    assert values[0] == pytest.approx(4.0)
    assert min(values) < 0.7
    for genes in params[1:]:
        divisors = [genes[f"long_factor.{i:02d}"] for i in range(4)]
        assert divisors == sorted(divisors)
        assert all(1 <= x <= 5 and abs(x * 100 - round(x * 100)) < 1e-6 for x in divisors)
        assert genes["start_tokens"] in (0, 1, 4)


def test_evolution_that_is_resumed_goes_on_as_it_would_have() -> None:
    assert evolved(3, 60)[0] == evolved(3, 60, stop=31)[0]
    assert evolved(3, 60)[0] != evolved(4, 60)[0]


def test_a_generation_breeds_from_the_best_of_earlier_ones_only() -> None:
    sampler = _sampler(0)
    study = optuna.create_study(sampler=sampler)
    for i in range(20):
        trial = study.ask()
        trial.suggest_float("x.00", 0, 100, step=1)
        study.tell(trial, float(100 - i))
    best = sampler._best(study, 23)  # of the generation 12…23
    assert len(best) == 8
    assert best == [study.trials[i].params for i in range(11, 3, -1)]


@pytest.mark.parametrize("node", [{"low": 1.0}, {"values": [1]}, {}])
def test_a_space_that_is_none(node: dict[str, Any]) -> None:
    with pytest.raises(SearchError, match=r"space\.x needs low and high, choices, or pairs"):
        suggest(optuna.trial.FixedTrial({}), OmegaConf.create({"x": node}), SPEC, 4.0)


# The command


def test_a_search_finds_writes_and_goes_on(
    tmp_path: Path, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = composed("yarn", *settings, "trials=12")
    assert search(cfg) == 0
    folder = tmp_path / "search"
    printed = capsys.readouterr().out
    assert "12 trials" in printed
    trials = pd.read_csv(folder / "trials.csv")
    assert len(trials) == 12
    first = trials.iloc[0]  # the authors' own values come first
    assert (first["params_beta_fast"], first["params_beta_slow"]) == (32, 1)
    assert first["params_attention_factor"] == pytest.approx(0.1 * math.log(4) + 1)
    done = trials[trials["state"] == "COMPLETE"]
    best = done.sort_values("value").iloc[0]
    found = yaml.safe_load((folder / "strategy" / "found.yaml").read_text())
    assert found["_target_"] == "extrapolate.YaRN"
    assert found["beta_fast"] == best["params_beta_fast"]
    # a value is the loss at the target and what the short context lost; computed here without the search
    model, tokenizer = xt.load_model(str(cfg.model.path), dtype="float32", device="cpu")
    documents = xt.load_documents(xt.Local(cfg.data.source.path), tokenizer, names=["0.txt", "1.txt"])

    def loss(strategy: xt.Strategy, length: int) -> float:
        with xt.patched(model, strategy):
            ends = [xt.token_losses(model, d.ids[None, 256 - length : 256])[0, -16:] for d in documents]
        return float(sum(e.double().mean() for e in ends)) / 2

    strategy = xt.YaRN(**{k: v for k, v in found.items() if k != "_target_"})
    short, target = loss(strategy, 48), loss(strategy, 256)
    assert best["value"] == pytest.approx(target + max(0.0, short - loss(xt.Plain(), 48)), rel=1e-5)
    # the final score is on other documents
    final = xt.read_results(folder / "final")
    assert set(final["document_names"]) == {'["2.txt"]'}
    assert final["key"].nunique() == 3
    exports = json.loads((folder / "exports.json").read_text())
    assert exports["transformers rope_parameters"]["rope_type"] in ("yarn", "longrope")
    for name in ("factors.png", "trials.svg", "study.db"):
        assert (folder / name).stat().st_size > 1000
    # more trials go on; the same number has nothing left to do
    assert search(composed("yarn", *settings, "trials=14")) == 0
    assert "14 trials" in capsys.readouterr().out
    assert search(composed("yarn", *settings, "trials=14")) == 0
    again = pd.read_csv(folder / "trials.csv")
    assert len(again) == 14
    pd.testing.assert_series_equal(again["value"][:12], trials["value"])
    assert "importance.png" in {path.name for path in folder.iterdir()}
    # another question is another study
    assert search(composed("yarn", *settings, "trials=3", "targets=8")) == 0
    assert len(pd.read_csv(folder / "trials.csv")) == 3


def test_divisors_are_found_and_taken_by_a_sweep(tmp_path: Path, settings: list[str]) -> None:
    cfg = composed("longrope", *settings, "trials=6", "sampler.population=4", "space.start_tokens.choices=[0,1]")
    assert search(cfg) == 0
    factors = tmp_path / "search" / "factors.json"
    strategy = xt.LongRoPE(long_factor=str(factors), switch_length=0)  # type: ignore[arg-type]
    assert len(strategy.long_factor) == 8
    assert list(strategy.long_factor) == sorted(strategy.long_factor)
    found = yaml.safe_load((tmp_path / "search" / "strategy" / "found.yaml").read_text())
    assert tuple(found["long_factor"]) == strategy.long_factor


def test_what_cannot_reach_the_target_is_recorded_and_a_front_has_two_objectives(
    tmp_path: Path, settings: list[str]
) -> None:
    space = ["space.group.low=2", "space.group.high=8", "space.window.low=16", "space.window.high=48"]
    cfg = composed("self_extend", *settings, "trials=10", "objective=pareto", *space)
    assert search(cfg) == 0
    trials = pd.read_csv(tmp_path / "search" / "trials.csv")
    refused = trials[trials["user_attrs_error"].notna()]
    assert len(refused) > 0
    assert set(refused["state"]) == {"PRUNED"}, "a sampler learns from what is pruned, not from failures"
    assert refused["user_attrs_error"].str.contains("tokens with L=64, and the text has 256").all()
    done = trials[trials["state"] == "COMPLETE"]
    assert done[["values_0", "values_1"]].notna().all(axis=None)
    assert (done["values_0"] == done["user_attrs_target"]).all()


@pytest.mark.sweeps
def test_workers_share_a_search(tmp_path: Path, settings: list[str]) -> None:
    """Two processes, one study: both work, no trial twice, and at most one more than asked for."""
    bigger = ["target=2000", "short=500", "targets=100", "factor=32", "trials=80", "workers=2"]
    done = run(tmp_path, "search=yarn", *settings, *bigger, module="experiments.search")
    trials = pd.read_csv(tmp_path / "search" / "trials.csv")
    finished = trials[trials["state"].isin(["COMPLETE", "PRUNED", "FAIL"])]
    assert 80 <= len(finished) <= 81
    assert trials["number"].is_unique
    assert finished["user_attrs_worker"].nunique() == 2
    assert f"{len(trials)} trials" in done.stdout


def test_the_least_group_is_the_factor() -> None:
    trial = optuna.create_study().ask()
    suggest(trial, composed("self_extend").space, SPEC, 7.5)
    assert trial.distributions["group"] == optuna.distributions.IntDistribution(8, 64, log=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective=best"], "objective must be penalty or pareto, got 'best'"),
        (["final_documents=[1.txt]"], "must be disjoint, both have 1.txt"),
        (["short=256"], "short=256 must be at least 2 tokens and below target=256"),
        (["+space.betafast.low=1", "+space.betafast.high=2"], "YaRN has no field 'betafast'"),
        (["search_documents=[9.txt]"], "9.txt"),
    ],
)
def test_bad_settings(settings: list[str], overrides: list[str], message: str) -> None:
    with pytest.raises(xt.ExtrapolateError, match=message.replace("(", r"\(")):
        search(composed("yarn", *settings, "trials=2", *overrides))
