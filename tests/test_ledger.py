"""The ledger: a cell is whole or absent, found by everything that can change its numbers and by nothing else."""

import hashlib
import json
import math
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import extrapolate as xt
from extrapolate.results import COLUMNS, SCHEMA, cell_key
from extrapolate.results.schema import to_table
from extrapolate.storage import new_folder, write_atomic

IDENTITY = {"model": {"digest": "abc", "dtype": "bfloat16"}, "strategy": {"factor": 4.0}, "data": ["d1"]}


def rows(key: str, **changes: Any) -> list[dict[str, Any]]:
    shared = {
        "key": key,
        "status": "ok",
        "model": "m",
        "data": "d",
        "strategy": "yarn",
        "label": "yarn ×4",
        "factor": 4.0,
    }
    return [
        {**shared, "length": n, "nll_sum": 3.0 * n, "nll_mean": 3.0, "perplexity": math.exp(3), **changes}
        for n in (64, 128)
    ]


def store(ledger: xt.Ledger, identity: dict[str, Any] = IDENTITY, **changes: Any) -> Any:
    return ledger.write(identity, rows(cell_key(identity), **changes), {"window_128": torch.full((2, 128), 3.0)})


@pytest.fixture
def ledger(tmp_path: Path) -> xt.Ledger:
    return xt.Ledger(tmp_path / "results")


def test_a_cell_is_read_back_as_it_was_written(ledger: xt.Ledger) -> None:
    store(ledger)
    key = cell_key(IDENTITY)
    assert ledger.finished(key)
    table = xt.read_results(ledger.root)
    assert list(table.columns) == [name for name, _, _ in COLUMNS]
    assert table["length"].tolist() == [64, 128]
    assert table["nll_sum"].tolist() == [192.0, 384.0]
    assert table["key"].unique().tolist() == [key]
    losses = ledger.losses(key)
    assert torch.equal(losses["window_128"], torch.full((2, 128), 3.0))


def test_losses_read_back_give_the_same_scores(tiny: Any, ledger: xt.Ledger) -> None:
    # a protocol can change without running the model again
    evaluation = xt.Perplexity(lengths=[64, 128])
    documents = [xt.Document("a", torch.randint(3, 128, (130,)))]
    losses = evaluation.measure(tiny, documents)
    ledger.write(IDENTITY, rows(cell_key(IDENTITY)), losses)
    assert evaluation.scores(ledger.losses(cell_key(IDENTITY))) == evaluation.scores(losses)


def test_an_absent_cell_is_not_finished(ledger: xt.Ledger) -> None:
    assert not ledger.finished(cell_key(IDENTITY))
    with pytest.raises(xt.ResultError):
        ledger.losses(cell_key(IDENTITY))


def test_the_key_follows_every_value_and_no_order() -> None:
    # case 50
    reordered = {name: IDENTITY[name] for name in reversed(IDENTITY)}
    assert cell_key(reordered) == cell_key(IDENTITY)
    for change in (
        {"model": {"digest": "abc", "dtype": "float32"}},
        {"model": {"digest": "abd", "dtype": "bfloat16"}},
        {"strategy": {"factor": 2.0}},
        {"data": ["d2"]},
        {"data": ["d1", "d2"]},
    ):
        assert cell_key({**IDENTITY, **change}) != cell_key(IDENTITY)


def test_a_value_that_is_no_number_has_no_key() -> None:
    with pytest.raises(ValueError, match="JSON"):
        cell_key({"factor": math.nan})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(
            (name, how)
            for name in ("cell.json", "scores.parquet", "losses.safetensors")
            for how in ("cut", "empty", "gone")
        ),
        ("scores.parquet", "flipped"),
        ("losses.safetensors", "flipped"),
    ],
)
def test_a_damaged_cell_is_reported_and_its_neighbours_kept(ledger: xt.Ledger, name: str, damage: str) -> None:
    # case 58
    other = {**IDENTITY, "data": ["other"]}
    folder = store(ledger)
    store(ledger, other)
    file = folder / name
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[:100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "gone":
        file.unlink()
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.warns(UserWarning, match="damaged .* computed again"):
        assert not ledger.finished(cell_key(IDENTITY))
    if (folder / "cell.json").exists():
        with pytest.warns(UserWarning, match="damaged .* left out"):
            table = xt.read_results(ledger.root)
    else:
        table = xt.read_results(ledger.root)
    assert table["key"].unique().tolist() == [cell_key(other)]
    store(ledger)  # computed again
    assert ledger.finished(cell_key(IDENTITY))
    assert len(xt.read_results(ledger.root)) == 4


def test_a_cell_of_a_newer_schema_is_left_alone(ledger: xt.Ledger) -> None:
    record = store(ledger) / "cell.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "schema": 99}))
    with pytest.warns(UserWarning, match="schema 99 is newer"):
        assert xt.read_results(ledger.root).empty


def test_a_cell_of_an_earlier_release_is_read(ledger: xt.Ledger) -> None:
    """One that 0.2.0 wrote and that is kept as it was: what a later release must still read."""
    stored = Path(__file__).parent / "cells" / "0.2.0"
    key = json.loads((stored / "cell.json").read_text())["key"]
    shutil.copytree(stored, ledger.root / "cells" / key)
    assert ledger.finished(key)
    table = xt.read_results(ledger.root)
    assert list(table.columns) == [name for name, _, _ in COLUMNS]
    assert table["length"].tolist() == [64, 128]
    assert table["nll_mean"].tolist() == [3.0, 3.0]
    assert table["label"].unique().tolist() == ["yarn ×4"]
    assert torch.equal(ledger.losses(key)["window_128"], torch.full((2, 128), 3.0))


def test_columns_that_an_earlier_release_did_not_have_are_empty(ledger: xt.Ledger) -> None:
    folder = store(ledger)
    table = pq.read_table(folder / "scores.parquet").drop_columns(["depth", "status"])
    pq.write_table(table, folder / "scores.parquet")
    content = (folder / "scores.parquet").read_bytes()
    record = json.loads((folder / "cell.json").read_text())
    record["files"]["scores.parquet"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "cell.json").write_text(json.dumps({**record, "schema": record["schema"] - 1}))
    read = xt.read_results(ledger.root)
    assert read[["depth", "status"]].isna().all(axis=None)
    assert read["nll_sum"].tolist() == [192.0, 384.0]


def test_a_failure_is_recorded_with_its_traceback_and_forgotten_when_it_succeeds(ledger: xt.Ledger) -> None:
    failed = rows("req", status="failed", error_type="ValueError", error_message="no", perplexity=None)
    path = ledger.record_failure("req", failed, "Traceback ...\nValueError: no")
    assert path.read_text().endswith("ValueError: no")
    table = xt.read_results(ledger.root)
    assert table["status"].tolist() == ["failed", "failed"]
    assert table["error_message"].tolist() == ["no", "no"]
    assert table["perplexity"].isna().all()
    ledger.clear_failure("req")
    assert xt.read_results(ledger.root).empty
    ledger.clear_failure("req")


def test_what_is_being_written_is_not_read(ledger: xt.Ledger, tmp_path: Path) -> None:
    folder = store(ledger)
    shutil.copytree(folder, folder.with_name(".half.tmp"))
    assert len(xt.read_results(ledger.root)) == 2

    def crash() -> None:
        with new_folder(tmp_path / "x") as aside:
            (aside / "file").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        crash()
    assert not (tmp_path / "x").exists()
    assert not list(tmp_path.glob(".x*"))


def test_an_existing_folder_is_replaced_or_kept(tmp_path: Path) -> None:
    for content, keep in (("one", False), ("two", False), ("three", True)):
        with new_folder(tmp_path / "x", keep=keep) as folder:
            (folder / "file").write_text(content)
    assert (tmp_path / "x" / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_several_results_folders_are_read_together_and_each_cell_once(tmp_path: Path) -> None:
    store(xt.Ledger(tmp_path / "a"))
    store(xt.Ledger(tmp_path / "b"))
    store(xt.Ledger(tmp_path / "b"), {**IDENTITY, "data": ["other"]})
    assert len(xt.read_results(tmp_path)) == 4


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(xt.ResultError, match="no results folder at"):
        xt.read_results(tmp_path / "none")


def test_an_empty_folder_is_an_empty_table(tmp_path: Path) -> None:
    table = xt.read_results(tmp_path)
    assert table.empty
    assert list(table.columns) == SCHEMA.names


def test_a_row_that_does_not_fit_the_schema_is_refused() -> None:
    with pytest.raises(xt.ResultError, match="unknown result column\\(s\\) perplxity"):
        to_table([{"perplxity": 1.0}])
    with pytest.raises(xt.ResultError, match="does not fit"):
        to_table([{"length": "many"}])


def test_numbers_keep_their_types_and_infinities(ledger: xt.Ledger) -> None:
    store(ledger, perplexity=math.inf, nll_mean=800.0, nonfinite=0)
    table = xt.read_results(ledger.root)
    assert table["perplexity"].tolist() == [math.inf, math.inf]
    assert table["length"].dtype == pd.Int64Dtype()
    assert table["pretrained_length"].isna().all()


def _store_many(root: str, worker: int) -> None:
    ledger = xt.Ledger(Path(root))
    for i in range(20):
        store(ledger)  # the same cell as everybody
        store(ledger, {**IDENTITY, "data": [f"{worker}-{i}"]})


def test_processes_that_write_at_once_lose_nothing(ledger: xt.Ledger) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_store_many, args=(str(ledger.root), n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    table = xt.read_results(ledger.root)
    assert len(table) == 2 * (1 + 3 * 20)
    assert not list(ledger.root.rglob(".*"))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    write_atomic(target, b"one")
    write_atomic(target, b"two")
    assert target.read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_a_published_table_is_read_back_from_its_csv(ledger: xt.Ledger, tmp_path: Path) -> None:
    store(ledger, depends_on_length=True, units="[[192.0, 64.0]]", documents=2)
    odd = {"model": {"digest": "other"}}
    store(ledger, odd, status="nonfinite", perplexity=math.inf, nll_mean=math.nan, label="NA", factor=None)
    table = xt.read_results(ledger.root)
    path = tmp_path / "scores.csv"
    table.to_csv(path, index=False)
    pd.testing.assert_frame_equal(xt.read_results(path), table)
    table.drop(columns=["mean", "units"]).to_csv(path, index=False)  # of an earlier release
    older = xt.read_results(path)
    assert list(older.columns) == [name for name, _, _ in COLUMNS]
    assert older["units"].isna().all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("key,length\nabc,many\n", r"scores.csv: column length does not hold int64: .*'many'"),
        ("key,depends_on_length\nabc,maybe\n", "column depends_on_length does not hold bool: 'maybe'"),
        ("key,lenght\nabc,64\n", r"unknown result column\(s\) lenght"),
        ("", "not a CSV table"),
    ],
)
def test_a_csv_that_is_no_table_of_results_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(content)
    with pytest.raises(xt.ResultError, match=message):
        xt.read_results(path)
