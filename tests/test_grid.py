"""The Python function of a sweep: the command's cells under the command's keys, without Hydra."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import extrapolate as xt
from extrapolate.commands import cell as job
from extrapolate.sweeps import LoadedModel
from tests.conftest import byte_tokenizer, tiny_model
from tests.test_sweep import MEASURED, ROOT, Compose, cell, corpus, results, run, settings

__all__ = ["cell", "corpus"]

STRATEGIES = [xt.Plain(), xt.YaRN(factor=4), xt.SelfExtend(), xt.compose(xt.NTK(factor=2), xt.Resonance())]
LENGTHS = xt.Perplexity(lengths=[16, 64, 256])


def checkpoint(folder: Path) -> xt.Checkpoint:
    return xt.Checkpoint(str(folder), dtype="float32", device="cpu")


def swept(tmp_path: Path, model: Any, corpus: Path, strategies: Any = STRATEGIES, **options: Any) -> pd.DataFrame:
    given = {"documents": 2, "results": tmp_path / "results", "progress": False, **options}
    evaluation = given.pop("evaluation", LENGTHS)
    return xt.sweep(model, strategies, evaluation, xt.Local(str(corpus)), **given)


def no_more_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xt.Checkpoint, "model", lambda *_: pytest.fail("computed again"))


ASKED = {
    "plain": ["strategy=plain"],
    "yarn": ["strategy=yarn", "factor=4"],
    "self_extend": ["strategy=self_extend"],
    "composed": ["strategy=compose", "strategy@strategy.first=ntk", "strategy@strategy.then=resonance", "factor=2"],
}


def test_after_the_command_nothing_is_computed(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [job.run_cell(cell(*asked)) for asked in ASKED.values()]
    assert {outcome["outcome"] for outcome in outcomes} == {"computed"}
    no_more_models(monkeypatch)
    table = swept(tmp_path, checkpoint(checkpoint_folder), corpus)
    assert set(table["key"]) == {outcome["key"] for outcome in outcomes}
    pd.testing.assert_frame_equal(table, results(tmp_path))


def test_after_the_function_the_command_computes_nothing(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    table = swept(tmp_path, checkpoint(checkpoint_folder), corpus, [xt.Plain(), xt.YaRN(factor=4)])
    done = run(tmp_path, "-m", "strategy=plain,yarn", "factor=4", *settings(tmp_path, checkpoint_folder, corpus))
    assert "0 computed, 2 reused, 0 failed" in done.stdout
    pd.testing.assert_frame_equal(table, results(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "strategy", "options"),
    [
        (["strategy=linear", "layers=[1]"], xt.Linear(factor=4), {"layers": [1]}),
        (["strategy=plain", "data.names=[2.txt,0.txt]"], xt.Plain(), {"names": ["2.txt", "0.txt"]}),
        (["strategy=plain", "data.seed=3"], xt.Plain(), {"seed": 3}),
        (["strategy=plain", "data.documents=null"], xt.Plain(), {"documents": None}),
        (["strategy=plain", "model.pretrained_length=32"], xt.Plain(), {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_every_choice_has_the_commands_key(
    tmp_path: Path,
    checkpoint_folder: Path,
    corpus: Path,
    cell: Compose,
    overrides: list[str],
    strategy: xt.Strategy,
    options: dict[str, Any],
) -> None:
    trained = 32 if "model.pretrained_length=32" in overrides else None
    model = xt.Checkpoint(str(checkpoint_folder), dtype="float32", device="cpu", pretrained_length=trained)
    (key,) = set(swept(tmp_path, model, corpus, strategy, **options)["key"])
    outcome = job.run_cell(cell(*overrides))
    assert (outcome["outcome"], outcome["key"]) == ("reused", key)


def test_an_evaluation_that_brings_its_own_text_needs_no_corpus(
    tmp_path: Path, checkpoint_folder: Path, cell: Compose
) -> None:
    asked: dict[str, Any] = {"lengths": [200], "depths": [0.5], "samples": 1, "haystack": "filler"}
    table = xt.sweep(
        checkpoint(checkpoint_folder),
        xt.Plain(),
        xt.Passkey(**asked),
        results=tmp_path / "results",
        progress=False,
    )
    assert table["accuracy"].notna().all()
    assert table["data"].isna().all()
    command = ["evaluation=passkey", "evaluation.lengths=[200]", "evaluation.depths=[0.5]", "evaluation.samples=1"]
    assert job.run_cell(cell("strategy=plain", *command))["outcome"] == "reused"


def test_what_fails_is_a_row_and_is_forgotten_when_it_succeeds(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    strategies = [xt.SelfExtend(group=2, window=32), xt.Plain()]
    table = swept(tmp_path, checkpoint(checkpoint_folder), corpus, strategies)
    assert table.groupby("label")["status"].unique().map(list).to_dict() == {"plain": ["ok"], "self_extend": ["failed"]}
    failed = table[table["status"] == "failed"]
    assert failed["length"].tolist() == [16, 64, 256]
    assert failed["pretrained_length"].tolist() == [64] * 3  # what is known is told
    assert "and the text has 256" in failed["error_message"].iloc[0]
    text = (corpus / "0.txt").read_bytes()
    (corpus / "0.txt").write_bytes(b"\xff")
    assert set(swept(tmp_path, checkpoint(checkpoint_folder), corpus, xt.NTK(factor=4))["status"]) == {"failed"}
    (corpus / "0.txt").write_bytes(text)
    assert set(swept(tmp_path, checkpoint(checkpoint_folder), corpus, xt.NTK(factor=4))["status"]) == {"ok"}
    assert set(results(tmp_path).query("label == 'ntk ×4'")["status"]) == {"ok"}


def test_a_failure_of_the_command_is_forgotten_too(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path, cell: Compose
) -> None:
    text = (corpus / "0.txt").read_bytes()
    (corpus / "0.txt").write_bytes(b"\xff")
    assert job.run_cell(cell("strategy=plain"))["outcome"] == "failed"
    (corpus / "0.txt").write_bytes(text)
    swept(tmp_path, checkpoint(checkpoint_folder), corpus, xt.Plain())
    assert set(results(tmp_path)["status"]) == {"ok"}


def test_only_the_rows_of_its_cells_come_back(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    first = swept(tmp_path, checkpoint(checkpoint_folder), corpus, xt.Plain())
    second = swept(tmp_path, str(checkpoint_folder), corpus, [xt.YaRN(factor=2)] * 2)  # each cell once
    assert (first["label"].unique().tolist(), second["label"].unique().tolist()) == (["plain"], ["yarn ×2"])
    assert len(second) == 3
    assert results(tmp_path)["key"].nunique() == 2


# A model in memory


def test_a_loaded_model_gives_the_same_numbers_and_its_key_says_what_was_loaded(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    by_path = swept(tmp_path, checkpoint(checkpoint_folder), corpus, xt.YaRN(factor=4))
    loaded_here: Any = xt.load_model(str(checkpoint_folder), dtype="float32", device="cpu")
    model, tokenizer = loaded_here
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loaded = swept(tmp_path, (model, tokenizer), corpus, xt.YaRN(factor=4))
    assert loaded["nll_sum"].tolist() == by_path["nll_sum"].tolist()
    assert loaded["model_digest"].str.startswith("loaded:").all()
    assert set(loaded["key"]).isdisjoint(by_path["key"])
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    again = swept(tmp_path, (copy.deepcopy(model), tokenizer), corpus, xt.YaRN(factor=4))
    assert set(again["key"]) == set(loaded["key"])  # the same weights
    with torch.no_grad():
        model.lm_head.weight[3, 5] += 1e-3
    other = swept(tmp_path, (model, tokenizer), corpus, xt.YaRN(factor=4))
    assert set(other["key"]).isdisjoint(loaded["key"])


def test_what_identifies_a_loaded_model_is_its_config_too() -> None:
    tokenizer = byte_tokenizer()
    one, other = (
        LoadedModel(tiny_model(rope_parameters={"rope_type": "default", "rope_theta": theta}), tokenizer)
        for theta in (1e4, 2e4)
    )  # the same weights
    assert one.digest() != other.digest()
    assert one.digest() == LoadedModel(tiny_model(), tokenizer).digest()


# Several processes, and none of Hydra


def test_two_processes_give_the_same_table(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    strategies = [xt.Plain(), xt.YaRN(factor=4), xt.Linear(factor=4)]
    one = swept(tmp_path, checkpoint(checkpoint_folder), corpus, strategies)
    two = swept(tmp_path, checkpoint(checkpoint_folder), corpus, strategies, results=tmp_path / "two", jobs=2)
    pd.testing.assert_frame_equal(one.drop(columns=MEASURED), two.drop(columns=MEASURED))


def test_it_needs_no_hydra(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    code = f"""
import sys
sys.modules["hydra"] = sys.modules["omegaconf"] = None
import extrapolate as xt
table = xt.sweep({str(checkpoint_folder)!r}, xt.Plain(), xt.Perplexity(lengths=[64]), xt.Local({str(corpus)!r}))
print(table["status"].tolist(), "experiments" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['ok'] False"
    assert "cells: 100%" in done.stderr  # a bar
    assert (tmp_path / "results" / "sweep" / "cells").is_dir()


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, xt.Plain(), LENGTHS), {}, xt.LoadError, "models must be names, paths, Checkpoints or loaded models"),
        (([], xt.Plain(), LENGTHS), {}, xt.LoadError, "models must be a model or a list of at least one"),
        (("bundled", "yarn", LENGTHS), {}, xt.StrategyError, r"strategies must be one or several such as .*got 'y'"),
        (("bundled", [], LENGTHS), {}, xt.StrategyError, "strategies must be one or several"),
        (("bundled", xt.Plain(), [1024]), {}, xt.EvaluationError, "evaluation must be one or several .*got 1024"),
        (("bundled", xt.Plain(), LENGTHS), {}, xt.EvaluationError, "perplexity needs texts: give data, such as"),
        (("bundled", xt.Plain(), LENGTHS, xt.Sotu()), {"jobs": 0}, xt.EvaluationError, "jobs must be a whole number"),
    ],
    ids=["a model", "no model", "a name for a strategy", "no strategy", "an evaluation", "no corpus", "no job"],
)
def test_what_is_no_sweep_is_refused_before_anything_runs(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        xt.sweep(*arguments, results=tmp_path / "results", **options)
    assert not list(tmp_path.iterdir())


def test_a_loaded_model_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(xt.LoadError, match=r"a loaded model needs its tokenizer: give \(model, tokenizer\)"):
        xt.sweep(tiny_model(), xt.Plain(), LENGTHS, xt.Sotu(), results=tmp_path)
