"""The main job end to end on a tiny checkpoint: cells, failures, resuming, the command line."""

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
from huggingface_hub import HfApi
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import extrapolate as xt
from extrapolate.commands import cell as job
from extrapolate.commands import results as results_command
from extrapolate.reports.terminal import report
from extrapolate.results import COLUMNS
from extrapolate.storage import location
from extrapolate.sweeps import run as running
from tests.conftest import byte_tokenizer, tiny_model

ROOT = Path(__file__).parent.parent
MEASURED = ["seconds", "tokens_per_second", "peak_memory_bytes", "finished"]  # what a second run may change

Compose = Callable[..., DictConfig]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(f"{i}: the quick brown fox jumps over the lazy dog. " * 60, encoding="utf-8")
    return folder


@pytest.fixture
def cell(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> Iterator[Compose]:
    """Compose the configuration of one cell the way the command line does."""
    job.HELD.let_go()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):

        def composed(*overrides: str) -> DictConfig:
            return compose("sweep", [*settings(tmp_path, checkpoint_folder, corpus), *overrides])

        yield composed


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[xt.Checkpoint]:
    """Checkpoints whose model was loaded, one entry a time."""
    found: list[xt.Checkpoint] = []
    original = xt.Checkpoint.model

    def counted(checkpoint: xt.Checkpoint, head: str) -> Any:
        found.append(checkpoint)
        return original(checkpoint, head)

    monkeypatch.setattr(xt.Checkpoint, "model", counted)
    return found


def of_tiny(checkpoint: Path, corpus: Path) -> list[str]:
    """Overrides for the tiny checkpoint and texts."""
    return [
        "model=hf",
        f"model.path={checkpoint}",
        "model.dtype=float32",
        "model.device=cpu",
        "data=local",
        f"data.source.path={corpus}",
    ]


def settings(tmp_path: Path, checkpoint: Path, corpus: Path) -> list[str]:
    return [
        *of_tiny(checkpoint, corpus),
        "data.documents=2",
        "evaluation.lengths=[16,64,256]",
        f"results={tmp_path / 'results'}",
        "progress=false",
    ]


def command(*arguments: str, module: str = "experiments.sweep") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def run(
    folder: Path, *arguments: str, module: str = "experiments.sweep", check: int = 0
) -> subprocess.CompletedProcess[str]:
    """The command as a user gives it, from a folder of their own."""
    done = subprocess.run(
        command(*arguments, module=module), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == check, done.stdout + done.stderr
    return done


def results(tmp_path: Path) -> pd.DataFrame:
    return xt.read_results(tmp_path / "results")


# One cell


def test_a_row_says_what_it_measured(tmp_path: Path, checkpoint_folder: Path, cell: Compose) -> None:
    assert job.run_cell(cell("strategy=yarn", "factor=4"))["outcome"] == "computed"
    table = results(tmp_path)
    assert table["length"].tolist() == [16, 64, 256]
    row = table.iloc[2]
    expected = {
        "status": "ok",
        "model": str(checkpoint_folder),
        "dtype": "float32",
        "device": "cpu",
        "strategy": "yarn",
        "label": "yarn ×4",
        "factor": 4.0,
        "depends_on_length": False,
        "theta": 10000.0,
        "rotary_dim": 16,
        "pretrained_length": 64,
        "shipped_type": "default",
        "data": "local",
        "document_names": '["0.txt", "1.txt"]',
        "protocol": "prefix",
        "start_token": "none",
        "length_used": 256,
        "documents": 2,
        "tokens_scored": 510,
        "first_scored": 1,
        "last_scored": 255,
        "nonfinite": 0,
        "windows": 2,
        "context_min": 1,
        "context_max": 255,
        "bytes_scored": 510,  # a token is a byte
        "mean": "tokens",
        "unit": "document",
        "extrapolate_version": xt.__version__,
    }
    assert {name: row[name] for name in expected} == expected
    assert json.loads(row["parameters"]) == xt.YaRN(factor=4).parameters()
    units = json.loads(row["units"])
    assert [weight for _, weight in units] == [255, 255]
    assert sum(loss for loss, _ in units) == pytest.approx(row["nll_sum"], rel=1e-9)
    assert row["bits_per_byte"] == pytest.approx(row["nll_mean"] / math.log(2), rel=1e-9)
    assert row["attention_factor"] == pytest.approx(1.1386294361)
    filled = set(table.columns[table.notna().all()])
    of_others = {"stride", "targets", "depth", "samples", "accuracy", "answer_rank"}
    empty = {"error_type", "error_message", *of_others}
    assert {name for name, _, _ in COLUMNS} - filled - {"peak_memory_bytes"} == empty


def test_the_number_is_what_the_library_gives(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path, cell: Compose
) -> None:
    job.run_cell(cell("strategy=linear", "factor=4"))
    model, tokenizer = xt.load_model(str(checkpoint_folder), dtype="float32", device="cpu")
    total = 0.0
    with xt.patched(model, xt.Linear(factor=4)):
        for document in xt.load_documents(xt.Local(str(corpus)), tokenizer, documents=2):
            total += xt.token_losses(model, document.ids[None, :256]).double().sum().item()
    row = results(tmp_path).iloc[2]
    assert row["nll_sum"] == pytest.approx(total, rel=1e-6)
    assert row["nll_mean"] == pytest.approx(total / 510, rel=1e-6)


def test_a_strategy_that_depends_on_length_runs_a_pass_for_each_and_says_so(tmp_path: Path, cell: Compose) -> None:
    cfg = cell("strategy=plain")
    cfg.strategy = {"_target_": "tests.test_patch.Stretch"}
    assert job.run_cell(cfg)["outcome"] == "computed"
    table = results(tmp_path)
    assert table["depends_on_length"].all()
    job.run_cell(cell("strategy=plain"))
    plain, stretch = (results(tmp_path).query("strategy == @name") for name in ("plain", "stretch"))
    assert plain["nll_sum"].tolist()[:2] == pytest.approx(stretch["nll_sum"].tolist()[:2], rel=1e-6)  # up to L
    assert plain["nll_sum"].iloc[2] != pytest.approx(stretch["nll_sum"].iloc[2], rel=1e-4)  # beyond
    losses = xt.Ledger(tmp_path / "results").losses(stretch["key"].iloc[0])
    shapes = {name: tuple(tensor.shape) for name, tensor in losses.items() if name.startswith("window")}
    assert shapes == {"window_16": (2, 16), "window_64": (2, 64), "window_256": (2, 256)}


def test_strategies_of_positions_are_cells_and_automatic_parameters_are_told_for_each_length(
    tmp_path: Path, cell: Compose
) -> None:
    outcomes = [job.run_cell(cell(f"strategy={name}"))["outcome"] for name in ("plain", "self_extend", "dual_chunk")]
    assert outcomes == ["computed"] * 3
    table = results(tmp_path)
    of_each = {name: rows.sort_values("length") for name, rows in table.groupby("strategy")}
    assert of_each["self_extend"]["depends_on_length"].all()
    told = [json.loads(text) for text in of_each["self_extend"]["parameters"]]
    assert told == [{"group": 1, "window": 16}, {"group": 1, "window": 16}, {"group": 9, "window": 16}]
    assert not of_each["dual_chunk"]["depends_on_length"].any()
    assert {json.loads(text)["chunk"] for text in of_each["dual_chunk"]["parameters"]} == {48}
    for rows in of_each.values():  # up to L, and within a chunk, all are plain
        assert rows["nll_sum"].iloc[0] == pytest.approx(of_each["plain"]["nll_sum"].iloc[0], rel=1e-6)
    far = [rows["nll_sum"].iloc[2] for rows in of_each.values()]
    assert len({round(x, 2) for x in far}) == 3
    if sys.platform == "linux":
        assert (table["peak_memory_bytes"] > 2**26).all()
    assert job.run_cell(cell("strategy=self_extend"))["outcome"] == "reused"


def test_a_length_out_of_reach_is_a_recorded_outcome(tmp_path: Path, cell: Compose) -> None:
    outcome = job.run_cell(cell("strategy=self_extend", "strategy.group=2"))
    assert outcome["outcome"] == "failed"
    row = results(tmp_path).iloc[0]
    assert row["error_type"] == "StrategyError"
    assert "group·(L - window + window//group) = 112 tokens with L=64, and the text has 256" in row["error_message"]


# What makes a cell


def test_a_composed_strategy_is_one_cell_that_names_its_parts(tmp_path: Path, cell: Compose) -> None:
    assert job.run_cell(cell("strategy=compose"))["outcome"] == "computed"
    row = results(tmp_path).iloc[0]
    strategy = xt.compose(xt.YaRN(factor=4), xt.Resonance())
    assert (row["strategy"], row["label"], row["factor"]) == ("yarn+resonance", "yarn+resonance ×4", 4.0)
    assert json.loads(row["parameters"]) == strategy.parameters()
    assert job.run_cell(cell("strategy=compose"))["outcome"] == "reused"
    assert job.run_cell(cell("strategy=compose", "strategy@strategy.first=ntk"))["outcome"] == "computed"


def test_layers_are_chosen_recorded_and_part_of_the_key(tmp_path: Path, cell: Compose) -> None:
    choices = ("layers=null", "layers=[0]", "layers=[1]")
    keys = {job.run_cell(cell("strategy=linear", layers))["key"] for layers in choices}
    assert len(keys) == 3
    table = results(tmp_path).drop_duplicates("key").set_index("layers")
    assert set(table.index) == {"all", "0", "1"}
    assert list(table.loc[["all", "0"], "label"]) == ["linear ×4", "linear ×4, layers 0"]
    outcome = job.run_cell(cell("strategy=linear", "layers=[7]"))
    assert "layers must be indices from 0 to 1, got 7" in outcome["error_message"]


def test_factors_of_a_file_are_kept_by_content(tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "factors.json").write_text(json.dumps([1.0 + i for i in range(8)]))
    by_file = ["strategy=longrope", "strategy.long_factor=factors.json"]
    first = job.run_cell(cell(*by_file))
    assert first["outcome"] == "computed"
    assert results(tmp_path)["depends_on_length"].all()
    assert job.run_cell(cell("strategy=longrope", "strategy.long_factor=[1,2,3,4,5,6,7,8]"))["key"] == first["key"]
    (tmp_path / "factors.json").write_text(json.dumps([2.0] * 8))
    assert job.run_cell(cell(*by_file))["outcome"] == "computed"
    failed = job.run_cell(cell("strategy=longrope"))
    assert failed["outcome"] == "failed"
    assert "strategy.long_factor" in failed["error_message"]


SCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama-3.1-like": (
        "llama",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "Qwen-YaRN-like": ("qwen2", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "Phi-3-like": (
        "phi3",
        {
            "rope_type": "longrope",
            "short_factor": [1.0 + i / 32 for i in range(8)],
            "long_factor": [1.0 + i for i in range(8)],
        },
    ),
}


@pytest.mark.parametrize(("family", "scaling"), SCALED.values(), ids=SCALED)
def test_a_model_that_is_already_scaled(tmp_path: Path, cell: Compose, family: str, scaling: dict[str, Any]) -> None:
    tokenizer = byte_tokenizer()
    common: dict[str, Any] = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "sharpen": 4}
    bare = tiny_model(family, **common, **({"original_max_position_embeddings": 64} if family == "phi3" else {}))
    bare.config.max_position_embeddings = 64
    # as published: Phi-3 keeps its trained length beside the scaling, the others in it
    beside = {"original_max_position_embeddings": 64} if family == "phi3" else {}
    model = tiny_model(family, rope_parameters={**scaling, "rope_theta": 10000.0}, **common, **beside)
    for folder, saved in ((tmp_path / "scaled", model), (tmp_path / "bare", bare)):
        saved.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for name in ("shipped", "plain", "yarn"):
        assert job.run_cell(cell(f"strategy={name}", f"model.path={tmp_path / 'scaled'}"))["outcome"] == "computed"
    for name in ("plain", "yarn"):
        assert job.run_cell(cell(f"strategy={name}", f"model.path={tmp_path / 'bare'}"))["outcome"] == "computed"
    table = results(tmp_path)
    of_scaled, of_bare = (table[table["model"] == str(tmp_path / name)] for name in ("scaled", "bare"))
    # every row says what the checkpoint ships, what was done instead, and the length it was trained at
    assert set(of_scaled["shipped_type"]) == {scaling["rope_type"]}
    assert set(of_scaled["pretrained_length"]) == {64}
    assert set(of_scaled["theta"]) == {10000.0}
    assert set(of_scaled.loc[of_scaled["strategy"] == "shipped", "depends_on_length"]) == {family == "phi3"}
    scaled, unscaled = (
        {(name, length): total for name, length, total in zip(t["strategy"], t["length"], t["nll_sum"], strict=True)}
        for t in (of_scaled, of_bare)
    )
    # replaced, never stacked: the numbers of the same weights without a scaling
    assert {cell: total for cell, total in scaled.items() if cell[0] != "shipped"} == unscaled
    # shipped is transformers' own model; made anew for each length, because longrope carries state
    texts = xt.load_documents(xt.Local(str(tmp_path / "texts")), tokenizer, documents=2)
    for length in (16, 64, 256):
        own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "scaled").eval()
        total = sum(xt.token_losses(own, text.ids[None, :length]).double().sum().item() for text in texts)
        assert scaled["shipped", length] == pytest.approx(total, rel=1e-5)
    assert scaled["shipped", 256] != pytest.approx(scaled["plain", 256], rel=1e-4)


def test_a_finished_cell_is_not_computed_again(cell: Compose) -> None:
    first = job.run_cell(cell("strategy=yarn", "factor=4"))
    for same in (
        ["factor=4.0"],
        ["strategy.beta_fast=32", "factor=4"],  # a default spelled out
        ["factor=4", "evaluation.batch_size=2"],
        ["factor=4", "evaluation.lengths=[256,16,64,16]"],
        ["factor=4", "data.names=[0.txt,1.txt]"],
        ["factor=4", "data.names=[1.txt,0.txt]"],
        ["factor=4", "model.pretrained_length=64"],
        ["factor=4", "name=other"],
        ["factor=4", "+note=x"],
    ):
        again = job.run_cell(cell("strategy=yarn", *same))
        assert (again["outcome"], again["key"]) == ("reused", first["key"]), same


def test_whatever_can_change_the_number_makes_another_cell(cell: Compose, corpus: Path) -> None:
    # case 50
    keys = [job.run_cell(cell("strategy=yarn"))["key"]]
    for other in (
        ["factor=2"],
        ["strategy.beta_fast=16"],
        ["model.dtype=bfloat16"],
        ["model.attn_implementation=eager"],
        ["model.pretrained_length=32"],
        ["evaluation.lengths=[16,64]"],
        ["evaluation.start_token=first"],
        ["data.documents=1"],
        ["data.seed=1"],
    ):
        outcome = job.run_cell(cell("strategy=yarn", *other))
        assert outcome["outcome"] == "computed", other
        keys.append(outcome["key"])
    assert len(set(keys)) == len(keys)
    text = (corpus / "0.txt").read_text()
    (corpus / "0.txt").write_text(text[:-1] + "!")  # one byte, past the longest length
    assert job.run_cell(cell("strategy=yarn"))["outcome"] == "computed"


def test_a_damaged_cell_is_reported_and_computed_again_and_the_others_are_reused(tmp_path: Path, cell: Compose) -> None:
    # case 58
    keys = {name: job.run_cell(cell(f"strategy={name}"))["key"] for name in ("plain", "yarn")}
    before = results(tmp_path).drop(columns=MEASURED)
    file = tmp_path / "results" / "cells" / keys["yarn"] / "scores.parquet"
    file.write_bytes(file.read_bytes()[:100])
    assert job.run_cell(cell("strategy=plain"))["outcome"] == "reused"
    with pytest.warns(UserWarning, match=r"scores\.parquet has 100 bytes instead of .* computed again"):
        assert job.run_cell(cell("strategy=yarn"))["outcome"] == "computed"
    pd.testing.assert_frame_equal(results(tmp_path).drop(columns=MEASURED), before)


def test_plain_does_not_depend_on_the_factor(tmp_path: Path, cell: Compose) -> None:
    outcomes = [
        job.run_cell(cell(f"strategy={strategy}", f"factor={factor}"))["outcome"]
        for strategy in ("plain", "yarn")
        for factor in (2, 4)
    ]
    assert outcomes == ["computed", "reused", "computed", "computed"]
    assert len(results(tmp_path)) == 3 * 3


def test_jobs_in_one_process_load_the_model_once_and_leave_it_as_it_was(
    cell: Compose, loads: list[xt.Checkpoint]
) -> None:
    for strategy in ("plain", "yarn", "ntk"):
        job.run_cell(cell(f"strategy={strategy}"))
    assert len(loads) == 1
    job.run_cell(cell("strategy=yarn", "factor=8", "model.dtype=bfloat16"))
    assert len(loads) == 2
    assert len(job.HELD.models) == 1  # the earlier one was let go


def test_results_do_not_depend_on_the_order_of_the_sweep(tmp_path: Path, cell: Compose) -> None:
    # case 24: plain, X, plain in one process
    orders = (("plain", "yarn", "linear"), ("linear", "yarn", "plain"))
    tables = []
    for i, order in enumerate(orders):
        for strategy in order:
            job.run_cell(cell(f"strategy={strategy}", f"results={tmp_path / str(i)}"))
        tables.append(xt.read_results(tmp_path / str(i)).drop(columns=MEASURED))
    pd.testing.assert_frame_equal(tables[0], tables[1])


# Failure is an outcome


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["factor=0.5"], "StrategyError", "yarn: factor must be a number of at least 1, got 0.5"),
        (["factor=nan"], "StrategyError", "yarn: factor must be a number of at least 1, got nan"),
        (["factor=abc"], "StrategyError", "yarn: factor must be a number of at least 1, got 'abc'"),
        (["evaluation.lengths=512"], "EvaluationError", "give a list in brackets"),
        (
            ["evaluation.lengths=[100000]"],
            "DataError",
            "asked for 2 document(s) of at least 100,000 tokens, found 0 among 3",
        ),
        (["data.source.path=nowhere"], "DataError", "data path 'nowhere' does not exist"),
        (["data.source.path=???"], "MissingMandatoryValue", "data.source.path"),
        (["model.path=./nowhere"], "LoadError", "neither an existing folder"),
        (["model.path=???"], "MissingMandatoryValue", "model.path"),
        (["model.dtype=int3"], "LoadError", "dtype must be 'auto' or one of"),
        (["model.pretrained_length=-1"], "ModelError", "pretrained_length must be a whole number"),
    ],
)
def test_bad_input_is_recorded_in_one_line(
    tmp_path: Path, cell: Compose, overrides: list[str], error: str, message: str
) -> None:
    job.run_cell(cell("strategy=plain"))
    outcome = job.run_cell(cell("strategy=yarn", *overrides))
    assert (outcome["outcome"], outcome["error_type"]) == ("failed", error)
    assert message in outcome["error_message"]
    table = results(tmp_path)
    assert len(table.query("status == 'ok'")) == 3  # nothing finished is lost
    failed = table.query("status == 'failed'")
    assert set(failed["error_type"]) == {error}
    assert message in failed["error_message"].iloc[0]
    (traceback,) = (tmp_path / "results" / "failures").glob("*/traceback.txt")
    assert "Traceback (most recent call last)" in traceback.read_text()
    assert message in traceback.read_text()


def test_retrieval_and_perplexity_share_a_folder_and_each_has_its_table_and_figures(
    tmp_path: Path, cell: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run_cell(cell("strategy=yarn"))
    for task in ("passkey", "needle", "variable_tracking"):
        few = [] if task == "variable_tracking" else ["evaluation.depths=[0,1]"]
        for strategy in ("plain", "yarn"):
            sizes = f"evaluation.lengths=[600,{700 if task == 'needle' else 900}]"
            done = job.run_cell(cell(f"evaluation={task}", f"strategy={strategy}", sizes, *few))
            assert done["outcome"] == "computed"
    table = results(tmp_path)
    passkey = table[(table["evaluation"] == "passkey") & (table["strategy"] == "plain")]
    assert list(zip(passkey["length"], passkey["depth"], strict=True)) == [(600, 0), (600, 1), (900, 0), (900, 1)]
    assert passkey["data"].isna().all()  # it brings its own text
    assert table.loc[table["evaluation"] == "needle", "data"].eq("local").all()
    assert table.loc[table["evaluation"] == "variable_tracking", "depth"].isna().all()
    assert table["accuracy"].dropna().between(0, 1).all()
    report(tmp_path / "results", [{"outcome": "computed"}])
    printed = capsys.readouterr().out
    assert "perplexity by length" in printed
    assert "answers right" in printed
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert {"perplexity_by_length.png", "retrieval.png", "retrieval_loss.svg", "scores.csv", "verdicts.csv"} <= names
    verdicts = pd.read_csv(tmp_path / "results" / "verdicts.csv")
    assert set(verdicts["evaluation"]) == {"passkey", "needle", "variable_tracking"}


def test_fixed_targets_end_with_usable_lengths_gains_and_their_figure(
    tmp_path: Path, cell: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    for strategy in ("plain", "yarn"):
        job.run_cell(cell(f"strategy={strategy}", "evaluation.protocol=last", "evaluation.targets=8"))
    report(tmp_path / "results", [{"outcome": "computed"}])
    printed = capsys.readouterr().out
    assert "loss minus that of plain on the same tokens" in printed
    assert "verdicts hold over all 3 comparisons together" in printed
    for name in ("short_context_costs", "usable_lengths", "context_gains"):
        frame = pd.read_csv(tmp_path / "results" / f"{name}.csv")
        assert "yarn ×4" in set(frame["label"]), name
    for name in ("paired_differences", "cost_against_usable_length"):
        assert (tmp_path / "results" / f"{name}.svg").stat().st_size > 1000


def test_a_failed_cell_is_tried_again_and_its_failure_forgotten(tmp_path: Path, cell: Compose, corpus: Path) -> None:
    text = (corpus / "0.txt").read_bytes()
    (corpus / "0.txt").write_bytes(b"\xff")
    assert job.run_cell(cell("strategy=yarn"))["outcome"] == "failed"
    (corpus / "0.txt").write_bytes(text)
    assert job.run_cell(cell("strategy=yarn"))["outcome"] == "computed"
    assert set(results(tmp_path)["status"]) == {"ok"}


def test_a_failed_cell_is_retried_from_what_was_recorded(
    tmp_path: Path, cell: Compose, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (corpus / "0.txt").read_bytes()
    (corpus / "0.txt").write_bytes(b"\xff")
    job.run_cell(cell("strategy=yarn", "factor=2", "layers=[0]"))
    job.run_cell(cell("strategy=yarn", "factor=0.5"))
    retry = ["retry", "--results", str(tmp_path / "results")]
    assert results_command.main([*retry, "--where", "factor=2"]) == 1
    assert "1 tried, 1 failed" in capsys.readouterr().out
    (corpus / "0.txt").write_bytes(text)
    assert results_command.main(retry) == 1  # a factor of 0.5 is as wrong as before
    assert "2 tried, 1 failed" in capsys.readouterr().out
    table = results(tmp_path)
    assert table.groupby("status")["label"].unique().map(list).to_dict() == {
        "failed": ["yarn"],
        "ok": ["yarn ×2, layers 0"],
    }
    job.run_cell(cell("strategy=yarn", "factor=2", "layers=[0]"))
    assert len(results(tmp_path)) == len(table), "the same cell as the sweep's own"


def test_running_out_of_memory_is_an_outcome_and_the_next_cell_runs(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = xt.Perplexity.measure

    def measure(self: xt.Perplexity, *args: Any, **options: Any) -> Any:
        if max(self.lengths) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")
        return original(self, *args, **options)

    monkeypatch.setattr(xt.Perplexity, "measure", measure)
    runs = [job.run_cell(cell("strategy=plain", f"evaluation.lengths=[16,{n}]")) for n in (64, 400, 100)]
    assert [r["outcome"] for r in runs] == ["computed", "failed", "computed"]
    table = results(tmp_path)
    failed = table.query("status == 'oom'")
    assert failed["length"].tolist() == [16, 400]
    assert failed["peak_memory_bytes"].gt(2**20).all()
    first, last = (table[table["key"] == runs[i]["key"]].iloc[0] for i in (0, 2))
    assert first["nll_sum"] == pytest.approx(last["nll_sum"], rel=1e-6)


def test_where_memory_runs_out_batches_are_halved_and_the_numbers_stay(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliding = ["strategy=plain", "evaluation.protocol=sliding", "evaluation.lengths=[64]", "evaluation.tokens=512"]
    expected = job.run_cell(cell(*sliding, "evaluation.stride=32", "evaluation.batch_size=1"))
    before = results(tmp_path)["nll_sum"].iloc[0]
    shutil.rmtree(tmp_path / "results")
    tried: list[int] = []
    original = xt.Perplexity.measure

    def measure(self: xt.Perplexity, *args: Any, **options: Any) -> Any:
        tried.append(self.batch_size)
        if self.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, *args, **options)

    monkeypatch.setattr(xt.Perplexity, "measure", measure)
    found = job.run_cell(cell(*sliding, "evaluation.stride=32", "evaluation.batch_size=11"))
    assert tried == [11, 5, 2]
    assert found == expected, "the size of a batch is no part of a cell"
    assert results(tmp_path)["nll_sum"].iloc[0] == pytest.approx(before, rel=1e-6)


def test_losses_that_are_not_finite_are_stored_and_marked(
    tmp_path: Path, cell: Compose, checkpoint_folder: Path
) -> None:
    model = tiny_model(vocab_size=257)
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    broken = tmp_path / "broken"
    model.save_pretrained(broken)
    for file in checkpoint_folder.glob("token*"):
        (broken / file.name).write_bytes(file.read_bytes())
    outcome = job.run_cell(cell("strategy=plain", f"model.path={broken}"))
    assert outcome["outcome"] == "computed"
    table = results(tmp_path)
    assert set(table["status"]) == {"nonfinite"}
    assert table["nonfinite"].tolist() == table["tokens_scored"].tolist()
    assert table[["nll_sum", "perplexity"]].isna().all(axis=None)


# The command


@pytest.mark.parametrize(
    ("chdir", "launcher"),
    [
        (True, "basic"),
        pytest.param(False, "basic", marks=pytest.mark.sweeps),
        pytest.param(True, "joblib", marks=pytest.mark.sweeps),
        pytest.param(False, "joblib", marks=pytest.mark.sweeps),
    ],
)
def test_the_command_from_relative_paths(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path, chdir: bool, launcher: str
) -> None:
    # case 52: a model path with slashes, a list of lengths, relative paths, jobs that change directory
    relative = Path(os.path.relpath(checkpoint_folder, tmp_path))
    arguments = settings(Path(), relative, Path(corpus.name))
    how = [f"hydra.job.chdir={chdir}", f"hydra/launcher={launcher}"]
    done = run(tmp_path, "-m", "strategy=plain,yarn", "factor=2,4", *arguments, *how)
    assert "3 computed, 0 reused, 0 failed" in done.stdout  # plain has no factor
    for name in ("scores.csv", "perplexity_by_length.png", "perplexity_by_length.svg"):
        assert (tmp_path / "results" / name).stat().st_size > 1000
        assert str(tmp_path / "results" / name) in done.stdout
    for label in ("plain", "yarn ×2", "yarn ×4", "64*"):
        assert label in done.stdout
    table = results(tmp_path)
    assert sorted(table["label"].unique()) == ["plain", "yarn ×2", "yarn ×4"]
    assert len(pd.read_csv(tmp_path / "results" / "scores.csv")) == 9
    assert done.stderr == ""


def test_failing_jobs_are_all_listed_and_the_others_finish(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    # case 48
    done = run(
        tmp_path, "-m", "strategy=linear,ntk", "factor=0.5,2", *settings(tmp_path, checkpoint_folder, corpus), check=1
    )
    assert "2 computed, 0 reused, 2 failed" in done.stdout
    for strategy in ("linear", "ntk"):
        assert (
            f"failed {strategy}: StrategyError: {strategy}: factor must be a number of at least 1, got 0.5"
            in done.stdout
        )
    table = results(tmp_path)
    assert sorted(table.query("status == 'ok'")["label"].unique()) == ["linear ×2", "ntk ×2"]
    assert sorted(table.query("status == 'failed'")["strategy"].unique()) == ["linear", "ntk"]
    assert len(list((tmp_path / "results" / "failures").glob("*/traceback.txt"))) == 2
    logs = [log.read_text() for log in (tmp_path / "results" / "logs").rglob("sweep.log")]
    assert sum("StrategyError" in log for log in logs) == 2


def test_a_single_job_needs_no_m_and_a_bare_list_is_caught(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    # case 52
    arguments = settings(tmp_path, checkpoint_folder, corpus)
    many = f"evaluation.lengths={list(range(2, 122))}"  # no folder is named after it
    assert "1 computed" in run(tmp_path, "strategy=plain", *arguments, many).stdout
    assert len(results(tmp_path)) == 120
    wrong = run(tmp_path, "-m", "strategy=plain", *arguments, "evaluation.lengths=16,64", check=2)
    assert wrong.stderr.count("give a list in brackets, quoted for the shell") == 2  # one for each
    assert len(results(tmp_path)) == 120


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    # case 50: SIGKILL while the third of six cells or a later one runs
    arguments = ["-m", "strategy=linear,ntk,yarn", "factor=2,4", *settings(tmp_path, checkpoint_folder, corpus)]
    arguments += ["evaluation.lengths=[64,2000]"]
    whole = run(tmp_path, *arguments, f"results={tmp_path / 'whole'}")
    assert "6 computed, 0 reused, 0 failed" in whole.stdout

    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "results"
    deadline = time.monotonic() + 120
    while len(finished(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(finished(folder))
    assert 2 <= kept < 6

    resumed = run(tmp_path, *arguments)
    assert f"{6 - kept} computed, {kept} reused, 0 failed" in resumed.stdout
    tables = [xt.read_results(tmp_path / name).drop(columns=MEASURED) for name in ("results", "whole")]
    pd.testing.assert_frame_equal(tables[0], tables[1])


@pytest.mark.sweeps
def test_two_sweeps_on_one_folder_compute_every_cell_once(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    # case 54; ten times in `make test-slow`
    two_sweeps(tmp_path, checkpoint_folder, corpus)


@pytest.mark.slow
def test_killed_at_random_moments_a_sweep_loses_and_repeats_nothing(
    tmp_path: Path, checkpoint_folder: Path, corpus: Path
) -> None:
    # case 50, thirty times: while a random one of the cells left is read, computed or written
    moments = random.Random(0)
    arguments = ["-m", "strategy=linear,ntk,yarn", "factor=2,3,4,8", *settings(tmp_path, checkpoint_folder, corpus)]
    arguments += ["evaluation.lengths=[64,2000]"]
    run(tmp_path, *arguments, f"results={tmp_path / 'whole'}")
    whole = xt.read_results(tmp_path / "whole")
    expected = whole.drop(columns=MEASURED)
    stamps = pd.to_datetime(whole.groupby("key")["finished"].first())
    span = (stamps.max() - stamps.min()).total_seconds() / 11  # of one cell
    kills, killed_writing = 0, 0
    for sweep in range(10):
        folder = tmp_path / str(sweep)
        for kill in range(3):
            kept = finished(folder)
            until = moments.randint(len(kept), min(len(kept) + 3, 11))
            process = subprocess.Popen(
                command(*arguments, f"results={folder}"),
                cwd=tmp_path,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if kill == 2 and any((folder / "cells").glob(".*")):  # every third while it writes
                    break
                if kill < 2 and len(finished(folder)) >= until and any((folder / "claims").glob("[!.]*")):
                    time.sleep(moments.uniform(0, span))
                    break
            kills += process.poll() is None
            process.kill()
            process.wait()
            assert kept <= finished(folder), "what was finished is lost"
            killed_writing += any((folder / "cells").glob(".*"))
        kept = finished(folder)
        resumed = run(tmp_path, *arguments, f"results={folder}")
        assert f"{12 - len(kept)} computed, {len(kept)} reused, 0 failed" in resumed.stdout
        pd.testing.assert_frame_equal(xt.read_results(folder).drop(columns=MEASURED), expected)
        assert not list(folder.rglob("claims/[!.]*"))
        assert not list((folder / "cells").glob(".*")), "nothing half-written stays"
        print(f"sweep {sweep}: {len(kept)} of 12 cells kept over three kills, {12 - len(kept)} computed after them")
    print(f"{kills} kills, {killed_writing} of them left a cell half-written")
    assert kills >= 28


def finished(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cells").glob("[!.]*")}


@pytest.mark.slow
def test_two_sweeps_ten_times(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    for i in range(10):
        (tmp_path / str(i)).mkdir()
        two_sweeps(tmp_path / str(i), checkpoint_folder, corpus)


def two_sweeps(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    arguments = ["-m", "strategy=linear,ntk", "factor=2,4", *settings(tmp_path, checkpoint_folder, corpus)]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command(*arguments), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    counts = [re.search(r"(\d) computed, (\d) reused, 0 failed", text) for text in printed]
    computed = [int(found[1]) for found in counts if found]
    assert len(computed) == 2
    assert sum(computed) == 4, printed
    table = results(tmp_path)
    assert table["key"].nunique() == 4
    assert len(table) == 4 * 3
    assert not list((tmp_path / "results" / "claims").glob("[!.]*"))


def test_plot_redraws_from_results_without_a_model(tmp_path: Path, cell: Compose) -> None:
    job.run_cell(cell("strategy=plain"))
    done = run(tmp_path, "results=results", module="experiments.plot")
    assert "plain" in done.stdout
    assert (tmp_path / "results" / "perplexity_by_length.svg").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"results", "texts"}  # no log folders
    for folder in ("nowhere", "texts"):
        wrong = run(tmp_path, f"results={folder}", module="experiments.plot", check=1)
        assert wrong.stderr.startswith("error: ")
        assert wrong.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak anew")
def test_peak_memory_is_that_of_the_cell_and_not_of_an_earlier_one() -> None:
    # case 47
    running.reset_peak_memory("cpu")
    before = running.peak_memory("cpu") or 0
    block = torch.ones(2**26)  # 256 MiB
    assert (running.peak_memory("cpu") or 0) > before + 2**27
    del block
    running.reset_peak_memory("cpu")
    assert (running.peak_memory("cpu") or 0) < before + 2**27


# Memory, time, and where nothing can be written


@pytest.mark.skipif(sys.platform == "win32", reason="the timer signal is of POSIX")
def test_a_cell_that_takes_too_long_is_recorded_and_the_next_one_runs(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = xt.Perplexity.measure

    def measure(self: xt.Perplexity, *args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + (30 if max(self.lengths) > 300 else 0)
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return original(self, *args, **options)

    monkeypatch.setattr(xt.Perplexity, "measure", measure)
    job.run_cell(cell("strategy=plain"))  # loads the model
    slow = job.run_cell(cell("strategy=plain", "evaluation.lengths=[400]", "time_limit=0.5"))
    assert (slow["outcome"], slow["error_type"]) == ("failed", "TimeLimitError")
    assert slow["error_message"] == "not done after time_limit=0.5 seconds"
    assert job.run_cell(cell("strategy=yarn", "time_limit=600"))["outcome"] == "computed"
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert sorted(results(tmp_path)["status"].unique()) == ["failed", "ok"]
    wrong = job.run_cell(cell("strategy=ntk", "time_limit=-1"))
    assert "time_limit must be a positive number of seconds" in wrong["error_message"]
    assert not list((tmp_path / "results" / "claims").glob("[!.]*"))


def test_what_cannot_fit_is_skipped_with_what_would(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch, loads: list[xt.Checkpoint]
) -> None:
    monkeypatch.setattr(running, "free_memory", lambda _: 2**19)
    eager = ["strategy=yarn", "evaluation.lengths=[16,256]", "model.attn_implementation=eager"]
    outcome = job.run_cell(cell(*eager))
    assert (outcome["outcome"], outcome["status"]) == ("failed", "skipped")
    assert not loads, "found out before the model is loaded"
    table = results(tmp_path)
    assert table["status"].tolist() == ["skipped"] * 2
    message = re.fullmatch(
        r"length 256 needs about 0\.0 GiB \(weights and activations\), 0\.0 GiB are free on cpu; the longest length "
        r"that fits is about (\d+); force=true runs it nevertheless",
        table["error_message"].iloc[0],
    )
    assert message
    fits = int(message[1])
    assert 2 < fits < 256
    assert job.run_cell(cell(*eager[:1], f"evaluation.lengths=[{fits}]", eager[2]))["outcome"] == "computed"
    assert job.run_cell(cell(*eager, "force=true"))["outcome"] == "computed"
    monkeypatch.setattr(running, "free_memory", lambda _: 0)
    assert "no length fits" in job.run_cell(cell("strategy=ntk"))["error_message"]
    assert results_command.main(["retry", "--results", str(tmp_path / "results"), "--force"]) == 0
    assert set(results(tmp_path)["status"]) == {"ok"}


def test_a_hub_that_cannot_be_reached_is_a_recorded_outcome(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(HfApi, "model_info", unreachable)
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    model = job.run_cell(cell("strategy=plain", "model.path=meta-llama/Llama-2-7b-hf"))
    data = job.run_cell(cell("strategy=plain", "data=pg19"))
    assert [each["error_type"] for each in (model, data)] == ["LoadError", "DataError"]
    for each in (model, data):
        assert "the Hub cannot be reached from here" in each["error_message"]
    assert job.run_cell(cell("strategy=plain"))["outcome"] == "computed"
    assert sorted(results(tmp_path)["status"]) == ["failed"] * 2 * len(cell().evaluation.lengths) + ["ok"] * len(
        cell().evaluation.lengths
    )


def test_memory_is_free_again_after_a_cell_that_ran_out_of_it(cell: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    # case 47: the traceback must not keep tensors alive
    kept: list[weakref.ref[torch.Tensor]] = []

    def measure(*_: Any, **__: Any) -> Any:
        block = torch.ones(1000)
        kept.append(weakref.ref(block))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(xt.Perplexity, "measure", measure)
    assert job.run_cell(cell("strategy=plain"))["status"] == "oom"
    assert [block() for block in kept] == [None]


def test_a_folder_that_takes_nothing_costs_no_computation(
    tmp_path: Path, cell: Compose, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a file where the folder should be: a read-only disk refuses root, who runs these tests, no more than this does
    monkeypatch.setattr(xt.Perplexity, "measure", lambda *_, **__: pytest.fail("computed for nothing"))
    (tmp_path / "results").write_text("in the way")
    outcome = job.run_cell(cell("strategy=plain"))
    assert (outcome["outcome"], outcome["error_type"]) == ("failed", "ResultError")
    assert outcome["error_message"].startswith(f"cannot claim a cell in {tmp_path / 'results'}")
    assert "not recorded: cannot write results to" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_costs_no_computation(tmp_path: Path, cell: Compose) -> None:
    (tmp_path / "results").mkdir(mode=0o500)
    outcome = job.run_cell(cell("strategy=plain"))
    assert "Permission denied" in outcome["error_message"]


@pytest.mark.usefixtures("own_cache")
def test_a_disk_that_fills_up_keeps_what_is_there_and_what_was_measured(
    tmp_path: Path, cell: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job.run_cell(cell("strategy=plain"))
    before = results(tmp_path)
    original = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.is_relative_to(tmp_path / "results") and len(content) > 1000:
            original(path, content[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        outcome = job.run_cell(cell("strategy=yarn"))
    assert outcome["outcome"] == "failed"
    assert "No space left on device" in outcome["error_message"]
    match = re.search(r"what was measured is kept: move (\S+) to (\S+)$", outcome["error_message"])
    assert match
    pd.testing.assert_frame_equal(results(tmp_path).query("status == 'ok'"), before)
    assert {p.name for p in (tmp_path / "results" / "cells").iterdir()} == {first["key"]}, "nothing half-written"
    shutil.move(match[1], match[2])
    assert job.run_cell(cell("strategy=yarn"))["outcome"] == "reused"


def test_results_may_be_anywhere_that_fsspec_knows(
    tmp_path: Path, cell: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"memory://sweep-{tmp_path.name}/results"
    computed = [job.run_cell(cell(f"strategy={s}", f"results={where}")) for s in ("plain", "yarn", "plain")]
    assert [c["outcome"] for c in computed] == ["computed", "computed", "reused"]
    for s in ("plain", "yarn"):
        job.run_cell(cell(f"strategy={s}"))
    here = results(tmp_path).drop(columns=MEASURED)
    pd.testing.assert_frame_equal(xt.read_results(where).drop(columns=MEASURED), here)
    assert job.run_cell(cell("strategy=yarn", "factor=0.5", f"results={where}"))["outcome"] == "failed"
    losses = xt.Ledger(location(where)).losses(computed[0]["key"])
    assert torch.equal(
        losses["window_256"].nan_to_num(),
        xt.Ledger(tmp_path / "results").losses(computed[0]["key"])["window_256"].nan_to_num(),
    )
    file = location(where) / "cells" / computed[1]["key"] / "scores.parquet"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(UserWarning, match="has 100 bytes instead of"):
        assert job.run_cell(cell("strategy=yarn", f"results={where}"))["outcome"] == "computed"
    report(location(where), [{"outcome": "computed"}])
    assert f"{where}/scores.csv" in capsys.readouterr().out
    assert (location(where) / "perplexity_by_length.png").read_bytes().startswith(b"\x89PNG")
    assert results_command.main(["failed", "--results", where]) == 0
    assert "factor must be a number of at least 1" in capsys.readouterr().out
    assert results_command.main(["prune", "--results", where, "--where", "status=failed", "--yes"]) == 0
    assert set(xt.read_results(where)["status"]) == {"ok"}
    assert not list((location(where) / "claims").rglob("*.*"))
    unknown = job.run_cell(cell("strategy=plain", "results=memory://x"))
    assert unknown["outcome"] == "computed"
    with pytest.raises(xt.ResultError, match="cannot use the location 'nowhere://x'"):
        job.run_cell(cell("strategy=plain", "results=nowhere://x"))
