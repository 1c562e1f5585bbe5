"""The verify command: every strategy is in its table, and a wrong one is caught."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import extrapolate as xt
from experiments import verify
from tests import reference
from tests.strategies import TABLE
from tests.test_strategies import EVERY
from tests.test_sweep import run

ROOT = Path(__file__).parent.parent


def test_every_strategy_equals_its_references() -> None:
    lines = verify.compare().set_index("strategy")
    assert {kind.name for kind in EVERY} <= set(lines.index)
    assert (lines["verdict"] == "equal").all()
    assert (lines["largest_relative_difference"] < verify.TOLERANCE).all()
    assert (lines.loc[[kind.name for kind in EVERY], "settings"] >= 3).all()
    of_frequencies = lines[lines["references"] != verify.POSITIONS]  # relative positions are whole numbers
    assert (of_frequencies["largest_relative_difference"] > 0).mean() > 0.5  # float64 references: not our own output
    for name in ("linear", "yarn", "llama3", "dynamic_ntk", "longrope", "proportional", "plain"):
        assert "transformers" in str(lines.loc[name, "references"])


def test_a_wrong_formula_and_one_that_raises_are_caught() -> None:
    yarn = next(row for row in TABLE if row.strategy() == xt.YaRN(factor=4))
    wrong = dataclasses.replace(yarn, frequencies=lambda rope: reference.ntk(rope, 4))
    hot = dataclasses.replace(yarn, attention_factor=1.0, native=None)
    raising = dataclasses.replace(yarn, frequencies=lambda rope: [1 / 0])  # noqa: ARG005
    assert list(verify.compare((yarn,), ())["verdict"]) == ["equal"]
    assert list(verify.compare((wrong,), ())["verdict"]) == ["OFF"]
    assert list(verify.compare((hot,), ())["verdict"]) == ["OFF"]
    assert list(verify.compare((raising,), ())["verdict"]) == ["error: division by zero"]
    rerope = next(row for row in TABLE if row.strategy() == xt.ReRoPE(window=17))
    unlike: tuple[Any, ...] = (lambda _, __, i, j: i - j, lambda _, __, i, j: i - j if i - j < 17 else None)
    for relative in unlike:
        assert list(verify.compare((dataclasses.replace(rerope, relative=relative),), ())["verdict"]) == ["OFF"]
    cold = dataclasses.replace(rerope, scale=lambda _, i: 1 + i / 1e4)
    assert list(verify.compare((cold,), ())["verdict"]) == ["OFF"]
    spec = xt.RopeSpec(128, 1e4, 4096)
    assert list(verify.compare((yarn,), ((xt.YaRN(factor=4), spec, {1: 0.5}, 1.0),))["verdict"]) == ["OFF"]


def test_a_pair_that_should_stand_still_must() -> None:
    row = next(row for row in TABLE if isinstance(row.strategy(), xt.NoPE))
    assert verify.compare((row,), ())["largest_relative_difference"][0] == 0
    wrong = dataclasses.replace(row, setting=xt.Plain())
    assert verify.compare((wrong,), ())["verdict"][0] == "OFF"


def test_the_command_prints_stores_and_exits(tmp_path: Path) -> None:
    done = run(tmp_path, f"output={tmp_path / 'verify.csv'}", module="experiments.verify")
    assert "dynamic_yarn" in done.stdout
    stored = pd.read_csv(tmp_path / "verify.csv")
    assert set(stored["verdict"]) == {"equal"}
    with pytest.raises(SystemExit, match=r"error: off their references: plain, .*, longrope"):
        verify.report(stored.assign(verdict="OFF"), tmp_path / "off.csv")
    assert set(pd.read_csv(tmp_path / "off.csv")["verdict"]) == {"OFF"}


def test_the_readme_shows_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    stored = pd.read_csv(ROOT / "docs" / "verify.csv")
    rows = [
        [c.strip(" `") for c in line.strip("|").split("|")] for line in readme.splitlines() if line.startswith("| `")
    ]
    shown = {row[0]: row[1:] for row in rows if len(row) == 5 and row[4] == "equal"}
    assert shown == {
        line["strategy"]: [
            line["references"],
            str(line["settings"]),
            f"{line['largest_relative_difference']:.1e}",
            line["verdict"],
        ]
        for line in stored.to_dict("records")
    }
    assert set(stored["strategy"]) == set(verify.compare()["strategy"])
    assert stored["settings"].tolist() == verify.compare()["settings"].tolist()
