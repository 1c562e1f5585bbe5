"""python -m experiments.results: looking, and deleting nothing by accident."""

import io
import json
import sys
from pathlib import Path

import pytest

import extrapolate as xt
from extrapolate.commands.results import main
from extrapolate.results import cell_key
from tests.test_ledger import IDENTITY, rows, store

OTHER = {**IDENTITY, "other": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two results folders below one: a finished cell and a failure, and another finished cell."""
    ledger = xt.Ledger(tmp_path / "a")
    store(ledger, label="plain")
    failed = rows("req", status="failed", label="yarn ×0.5", error_type="ValueError", error_message="factor [0.5]")
    ledger.record_failure("req", failed, "Traceback ...\nValueError: factor [0.5]")
    store(xt.Ledger(tmp_path / "b"), OTHER, label="ntk ×8", factor=8.0)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    found = capsys.readouterr()
    return found.out + found.err


def test_list_has_a_line_for_each_cell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "list", "--results", str(folder))
    for word in ("plain", "yarn ×0.5", "ntk ×8", "failed", "64, 128", "3 cells", cell_key(IDENTITY)[:12]):
        assert word in text
    assert "1 cells" in said(capsys, "list", "--results", str(folder), "--where", "label=ntk*")
    assert "1 cells" in said(capsys, "list", "--results", str(folder), "--where", "factor=8")
    both = ["--where", "status=ok", "--where", "label=plain"]
    assert "1 cells" in said(capsys, "list", "--results", str(folder), *both)


def test_show_tells_everything_about_one_cell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = cell_key(OTHER)
    text = said(capsys, "show", "--results", str(folder), key[:8])
    assert str(folder / "b" / "cells" / key) in text
    assert "ntk ×8" in text
    assert "what the evaluation" not in text
    wrong = said(capsys, "show", "--results", str(folder), "zzz", code=1)
    assert wrong.startswith("error: key 'zzz' must be the beginning of exactly one cell's")


def test_failed_lists_errors_and_tracebacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "failed", "--results", str(folder))
    assert "yarn ×0.5: ValueError: factor [0.5]" in text
    assert str(folder / "a" / "failures" / "req" / "traceback.txt") in text
    assert "Traceback ..." in said(capsys, "failed", "--results", str(folder), "--tracebacks")
    assert "recorded without its settings" in said(capsys, "retry", "--results", str(folder), code=1)


def test_prune_deletes_what_was_asked_for_and_only_when_told(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = folder / "b" / "cells" / cell_key(OTHER)
    prune = ["prune", "--results", str(folder), "--where", "label=ntk*"]
    assert "1 to delete" in said(capsys, *prune, "--dry-run")
    assert "add --yes" in said(capsys, *prune, code=1)  # no terminal to ask at

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert "nothing deleted" in said(capsys, *prune)
    assert cell.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "1 deleted" in said(capsys, *prune)
    assert not cell.exists()
    assert len(xt.read_results(folder)["key"].unique()) == 2
    assert "1 deleted" in said(capsys, "prune", "--results", str(folder), "--where", "status=failed", "--yes")
    assert not list((folder / "a" / "failures").iterdir())
    assert "0 to delete" in said(capsys, *prune)
    assert "so that it never deletes everything" in said(capsys, "prune", "--results", str(folder), code=1)


def test_prune_deletes_damaged_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = folder / "b" / "cells" / cell_key(OTHER)
    (cell / "scores.parquet").write_bytes(b"PAR1")
    assert "is damaged" in said(capsys, "list", "--results", str(folder))
    text = said(capsys, "prune", "--results", str(folder), "--damaged", "--yes")
    assert "scores.parquet has 4 bytes instead of" in text
    assert not cell.exists()
    assert len(xt.read_results(folder)["key"].unique()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "label"], "--where takes COLUMN=PATTERN, got 'label'"),
        (["--where", "labl=x"], "there is no column 'labl'; there are key, status"),
    ],
)
def test_a_wrong_filter_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    text = said(capsys, "list", "--results", str(folder), *arguments, code=1)
    assert text.startswith("error: " + message)
    assert text.count("\n") == 1


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["list"], ["failed"], ["show", "k"], ["retry"], ["prune", "--damaged"]):
        text = said(capsys, *command, "--results", str(tmp_path / "none"), code=1)
        assert text.startswith("error: no results folder at")


def test_a_failure_keeps_what_was_asked_for(folder: Path) -> None:
    ledger = xt.Ledger(folder / "a")
    path = ledger.record_failure("req", rows("req", status="failed"), "T", "strategy: {factor: 0.5}\n")
    assert (path.parent / "config.yaml").read_text() == "strategy: {factor: 0.5}\n"
    assert "config.yaml" in json.loads((path.parent / "cell.json").read_text())["files"]
