"""The end of a sweep: every job accounted for, numbers readable, unlike numbers named."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from extrapolate.commands.summary import outcomes
from extrapolate.reports.terminal import number, print_incomparable, report, terminal_table
from tests.test_plots import table


def printed(*things: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    for thing in things:
        thing(console) if callable(thing) else console.print(thing)
    return console.export_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [(17.0561, "17.06"), (1234.5, "1.23e+03"), (math.inf, "inf"), (math.nan, "–"), (1e308, "1e+308")],
)
def test_a_number_is_readable_or_says_what_it_is(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_marks_the_pretrained_length_and_thins_out_many_lengths() -> None:
    text = printed(terminal_table(table(plain=[20.0, 19.0, math.inf])))
    assert "128*" in text
    assert "inf" in text
    many = table(plain=[20.0 + i for i in range(30)])
    head = printed(terminal_table(many)).splitlines()[2].split()
    assert len(head) == 1 + 7
    assert head[1] == "64"
    assert head[-1] == f"{64 * 2**29:,}"
    many["pretrained_length"] = 64 * 2**14
    assert f"{64 * 2**14:,}*" in printed(terminal_table(many))


def test_a_job_that_ended_without_an_outcome_is_a_failure(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / str(i) / ".hydra").mkdir(parents=True)
    (tmp_path / "0" / "outcome.json").write_text(json.dumps({"outcome": "computed", "label": "plain"}))
    assert [job["outcome"] for job in outcomes(tmp_path)] == ["computed", "failed"]
    (tmp_path / "0" / "outcome.json").write_text("{cut")
    assert [job["outcome"] for job in outcomes(tmp_path)] == ["failed", "failed"]


def test_an_empty_sweep_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path, []) == 1
    assert "no job ran" in capsys.readouterr().out


def test_curves_on_different_documents_are_named() -> None:
    # case 44
    rows = table(plain=[20.0], yarn=[21.0])
    rows["data_digest"], rows["document_names"] = ["aaaa", "bbbb"], ['["one", "two"]', '["one"]']
    text = printed(lambda console: print_incomparable(console, rows))
    assert "different documents" in text
    assert 'plain: ["one", "two"]' in text
    assert 'yarn: ["one"]' in text
    rows["data_digest"] = "aaaa"
    assert printed(lambda console: print_incomparable(console, rows)) == ""
