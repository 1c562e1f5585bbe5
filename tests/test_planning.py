"""What a sweep launches: each cell once, models together, the longest first; and how far it says it is."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig

from extrapolate.commands.planning import deferred, planned
from extrapolate.sweeps.progress import OUTCOME, duration, overall, time_left

CONF = Path(__file__).parent.parent / "conf"


@pytest.fixture(autouse=True)
def _conf() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def load(overrides: Sequence[str]) -> DictConfig:
    return compose("sweep", list(overrides))


def grid(*axes: Sequence[str]) -> list[list[str]]:
    jobs: list[list[str]] = [[]]
    for axis in axes:
        jobs = [[*job, value] for job in jobs for value in axis]
    return jobs


def test_what_does_not_apply_to_a_strategy_leaves_it_one_cell() -> None:
    strategies = [f"strategy={name}" for name in ("plain", "yarn", "self_extend")]
    plan = planned(grid(strategies, ["factor=2", "factor=4"], ["strategy.group=4", "strategy.group=8"]), load)
    assert plan.jobs == (
        ("strategy=plain", "factor=2"),
        ("strategy=yarn", "factor=2"),
        ("strategy=yarn", "factor=4"),
        ("strategy=self_extend", "factor=2", "strategy.group=4"),
        ("strategy=self_extend", "factor=2", "strategy.group=8"),
    )
    assert plan.notes == (
        "strategy.group does not apply to strategy=plain, strategy=yarn, which runs without it",
        "12 combinations are 5 cells: the others ask for the same",
    )


def test_a_field_that_no_strategy_has_is_an_error() -> None:
    jobs = grid(["strategy=yarn", "strategy=self_extend"], ["strategy.gruop=4"])
    with pytest.raises(ConfigCompositionException, match=r"strategy\.gruop"):
        planned(jobs, load)
    with pytest.raises(ConfigCompositionException, match="factr"):
        planned([["factr=2"]], load)


def test_cells_of_a_model_come_together_and_the_longest_first() -> None:
    lengths = [f"evaluation.lengths=[64,{n}]" for n in (128, 512, 256)]
    plan = planned(grid(lengths, ["model=bundled", "model=smollm2"]), load)
    assert [job[1] for job in plan.jobs] == ["model=bundled"] * 3 + ["model=smollm2"] * 3
    assert plan.weights == (512, 256, 128) * 2


def test_lengths_that_are_wrong_are_left_to_the_cell() -> None:
    plan = planned([["evaluation.lengths=x"], ["strategy=longrope"], ["factor=nan"]], load)
    assert len(plan.jobs) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # set on each job: the default strategy may have no such field
        (["-m", "strategy=string,self_extend", "strategy.window=8"], "strategy.window=choice(8)"),
        (["-m", "strategy=longrope,yarn", "strategy.long_factor=[1,2]"], "strategy.long_factor=choice([1,2])"),
        # Hydra does so itself
        (["-m", "strategy=string,self_extend", "strategy.window=8,16"], "strategy.window=8,16"),
        (["-m", "strategy=string,self_extend", "strategy.window=range(1,3)"], "strategy.window=range(1,3)"),
        (["-m", "strategy=self_extend", "strategy.window=8"], "strategy.window=8"),
        (["strategy=self_extend", "strategy.window=8"], "strategy.window=8"),
        (["-m", "strategy=a,b", "factor=2"], "factor=2"),
    ],
)
def test_a_field_of_a_swept_strategy_waits_for_its_strategy(arguments: list[str], expected: str) -> None:
    assert deferred(arguments) == [*arguments[:-1], expected]


def test_time_left_counts_what_was_computed_only() -> None:
    weights = (4.0, 2.0, 2.0, 1.0)
    assert time_left(weights, {}, 10) is None
    assert time_left(weights, {3: False}, 10) is None, "a reused cell says nothing of the others"
    assert time_left(weights, {0: True}, 8) == 10
    assert time_left(weights, {0: True, 3: False}, 8) == 8
    assert time_left(weights, {0: True, 1: True, 2: True, 3: False}, 12) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (100, "2 min"), (3600, "60 min"), (5400, "1 h 30 min"), (90060, "25 h 01 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_progress_is_told_as_cells_finish(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="extrapolate")
    with overall(tmp_path, (2.0, 1.0, 1.0)):
        (tmp_path / "0").mkdir()
        (tmp_path / "0" / OUTCOME).write_text(json.dumps({"outcome": "computed"}))
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.05)
    (message,) = caplog.messages
    assert message.startswith("1 of 3 cells done, about ")
    with overall(tmp_path, (2.0, 1.0), shown=False):
        time.sleep(0.6)
    assert len(caplog.messages) == 1
