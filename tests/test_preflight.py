"""What can be known before a model is loaded is said before the first job, all at once."""

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import extrapolate as xt
from extrapolate.commands import cell as job
from extrapolate.commands.preflight import ConfigError, bytes_of, made, preflight, problems, results_problems
from tests.test_sweep import Compose, cell, corpus, results, run, settings

__all__ = ["cell", "corpus"]

WRONG: dict[str, tuple[list[str], str]] = {
    "a factor below 1": (["factor=0.5"], "yarn: factor must be a number of at least 1, got 0.5"),
    "no length": (["evaluation.lengths=[]"], r"lengths must be whole numbers of at least 2 tokens, got \[\]"),
    "a protocol that is none": (["evaluation.protocol=prefx"], "protocol must be one of prefix"),
    "a corpus that is not there": (["data.source.path=/nowhere"], "data path '/nowhere' does not exist"),
    "no document": (["data.documents=0"], "documents must be a whole number of at least 1, or null"),
    "a document twice": (["data.names=[a,a]"], "names lists a document twice"),
    "a folder that is no checkpoint": (["model.path=${hydra:runtime.cwd}"], "holds no config.json"),
    "a file that is not there": (["model.path=/nowhere.gguf"], "no such file: /nowhere.gguf"),
    "neither folder nor id": (["model.path=/no/where"], "neither an existing folder or GGUF file nor a Hub id"),
    "a dtype that is none": (["model.dtype=float8"], "dtype must be 'auto' or one of"),
    "a device that is none": (["model.device=quantum"], "device='quantum' is not available here"),
    "a length out of reach": (
        ["strategy=self_extend", "strategy.group=2"],
        "= 112 tokens with L=64, and the text has 256",
    ),
    "factors of another width": (["strategy=longrope", "strategy.long_factor=[1,2]"], "long_factor"),
    "a field that is none": (["+strategy.hello=1"], "strategy.hello: YaRN has no field 'hello'; there are factor"),
    "a field of the evaluation": (
        ["+evaluation.strid=1"],
        "evaluation.strid: Perplexity has no field 'strid'; did you mean",
    ),
    "a value still to be given": (["strategy=longrope"], "strategy: Missing mandatory value: strategy.long_factor"),
    "no time": (["time_limit=0"], "time_limit must be a positive number of seconds, or null, got 0"),
}


@dataclass(frozen=True)
class Raising(xt.Strategy):
    """Of a user, whose maths may do anything to its process."""

    def frequencies(self, rope: xt.RopeSpec, length: int) -> xt.Frequencies:
        raise SystemExit(f"{rope} {length}")


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_cell_is_found_without_its_model(
    cell: Compose, tmp_path: Path, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xt.Checkpoint, "model", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(xt.Checkpoint, "tokenizer", lambda *_: pytest.fail("loaded"))
    overrides = [o.replace("${hydra:runtime.cwd}", str(tmp_path)) for o in overrides]
    found = problems(cell(*overrides))
    assert len(found) == 1
    assert re.search(message, found[0]), found[0]


def test_all_that_is_wrong_is_said_at_once_and_nothing_else(cell: Compose) -> None:
    cfg = cell("factor=0.5", "evaluation.lengths=[]", "data.source.path=/nowhere", "model.dtype=float8")
    assert len(problems(cfg)) == 4
    assert problems(cell("strategy=plain")) == []
    of_a_user = cell("strategy=plain")
    of_a_user.strategy = {"_target_": "tests.test_preflight.Raising"}
    assert problems(of_a_user) == []  # whose code is run in its own job


def test_a_corpus_that_is_not_used_is_not_looked_at(cell: Compose) -> None:
    assert problems(cell("evaluation=passkey", "data.source.path=/nowhere")) == []


def test_a_model_of_the_hub_is_not_fetched(cell: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        pytest.fail("asked the Hub")

    monkeypatch.setattr("socket.socket.connect", refused)
    assert problems(cell("model.path=some/model", "strategy=self_extend", "strategy.group=2")) == []


def test_what_is_wrong_with_every_cell_stops_the_sweep(cell: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell(f"strategy={name}", "factor=0.5", "evaluation.lengths=[]") for name in ("yarn", "linear")]
    with pytest.raises(SystemExit) as stopped:
        preflight(cells)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # what both have is said once
    assert all(line.startswith("error: ") for line in lines)


def test_what_is_wrong_with_one_cell_is_told_and_stays_its_own(cell: Compose, caplog: pytest.LogCaptureFixture) -> None:
    cells = [cell("strategy=yarn", "factor=0.5"), cell("strategy=plain")]
    with caplog.at_level(logging.WARNING, "extrapolate"):
        preflight(cells)
    assert caplog.messages == ["1 of 2 cells will fail: yarn: factor must be a number of at least 1, got 0.5"]


def test_a_folder_that_takes_no_file_stops_any_sweep(cell: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = cell("strategy=plain")
    cfg.results = "/proc/nowhere"
    with pytest.raises(SystemExit) as stopped:
        preflight([cfg, cell("strategy=plain")])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: results=/proc/nowhere: cannot write there: ")


def test_looking_at_a_results_folder_leaves_nothing(tmp_path: Path) -> None:
    assert results_problems([str(tmp_path / "a" / "b")]) == []
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    (problem,) = results_problems([str(tmp_path / "file" / "below")])
    assert "cannot write there" in problem
    assert results_problems(["memory://bucket/results"]) == []
    (unknown,) = results_problems(["nosuch://bucket/results"])
    assert "results=nosuch://bucket/results: cannot write there" in unknown


def test_a_disk_without_room_is_found(tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = bytes_of([cell("strategy=plain", "data.documents=2", "evaluation.lengths=[16,64,256]")] * 3)
    assert needed == 3 * 2 * 336 * 4
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    (problem,) = results_problems([str(tmp_path)], needed)
    assert "MiB are free there, and the losses of this sweep take about" in problem
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert results_problems([str(tmp_path)], needed) == []
    assert bytes_of([cell("strategy=plain", "evaluation.lengths=many")]) == 0


def test_an_unknown_field_is_the_same_error_in_a_cell(cell: Compose, tmp_path: Path) -> None:
    outcome = job.run_cell(cell("+strategy.hello=1"))
    assert (outcome["outcome"], outcome["error_type"]) == ("failed", "ConfigError")
    assert outcome["error_message"].startswith("strategy.hello: YaRN has no field 'hello'; there are factor, beta_fast")
    assert results(tmp_path).iloc[0]["error_type"] == "ConfigError"
    with pytest.raises(ConfigError):
        made(cell("+model.hello=1").model, "model")
    with pytest.raises(xt.StrategyError):  # not Hydra's own around it
        made(cell("factor=0.5").strategy, "strategy")


# The command


@pytest.mark.parametrize("multirun", [False, True])
def test_the_command_says_all_at_once_and_exits_with_2(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path, multirun: bool
) -> None:
    arguments = ["strategy=yarn", "factor=0.5", *settings(tmp_path, checkpoint_folder, corpus), "evaluation.lengths=[]"]
    arguments += ["data.source.path=/nowhere", "results=/proc/nowhere"]
    done = run(tmp_path, *(["-m"] if multirun else []), *arguments, check=2)
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("error: ") for line in lines)
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "results" / "cells").exists()


def test_a_sweep_with_one_wrong_cell_runs_the_others(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    arguments = ["-m", "strategy=yarn", "factor=0.5,2", *settings(tmp_path, checkpoint_folder, corpus)]
    done = run(tmp_path, *arguments, check=1)
    assert "1 computed, 0 reused, 1 failed" in done.stdout
    assert "1 of 2 cells will fail: yarn: factor must be" in done.stdout
    assert sorted(results(tmp_path).drop_duplicates("key")["status"]) == ["failed", "ok"]


def test_a_misspelt_field_of_a_swept_strategy_stops_it(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    arguments = ["-m", "strategy=yarn,linear", "strategy.beta_fst=3", *settings(tmp_path, checkpoint_folder, corpus)]
    done = run(tmp_path, *arguments, check=2)
    assert "no job has a setting 'strategy.beta_fst'; did you mean strategy.beta_fast" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_without_a_finished_cell_draws_nothing(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    (corpus / "0.txt").write_bytes(b"\xff")  # found when it is read
    done = run(tmp_path, "strategy=yarn", *settings(tmp_path, checkpoint_folder, corpus), check=1)
    assert "0 computed, 0 reused, 1 failed" in done.stdout
    assert ".png" not in done.stdout
    assert {path.name for path in (tmp_path / "results").iterdir() if path.is_file()} == {"scores.csv"}
