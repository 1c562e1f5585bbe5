"""Results of earlier releases go on being read, and their cells are found again under the keys they had."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from hydra import compose, initialize_config_dir

import extrapolate as xt
from extrapolate.commands import cell as job
from extrapolate.commands.names import CONF

BEFORE = Path(__file__).parent / "results_0_2_0"
"""A results folder that 0.2.0 wrote on 2026-12-07, before cells were values."""

BUNDLED = ["model=bundled", "model.dtype=float32", "model.device=cpu", "progress=false"]
PREFIX = ["data.names=[1885-Cleveland-1]", "evaluation.lengths=[128,512,1024]", "factor=4"]
SLIDING = [
    *("strategy=compose", "strategy@strategy.first=ntk", "strategy@strategy.then=log_n", "layers=[0,1]", "factor=2"),
    *("data.names=[1885-Cleveland-1]", "evaluation.protocol=sliding", "evaluation.stride=64", "evaluation.tokens=600"),
    "evaluation.lengths=[128,512]",
]
PASSKEY = ["evaluation=passkey", "evaluation.lengths=[256,512]", "evaluation.depths=[0.5]"]
CELLS = {
    "plain": ["strategy=plain", *PREFIX],
    "yarn": ["strategy=yarn", *PREFIX],
    "self_extend, a pass for each length": ["strategy=self_extend", *PREFIX],
    "composed, some layers, sliding": SLIDING,
    "passkey": ["strategy=plain", *PASSKEY],
    "passkey, linear": ["strategy=linear", *PASSKEY],
    "one long length": ["strategy=plain", "data.names=[1885-Cleveland-1]", "evaluation.lengths=[2048]"],
}

same_releases = pytest.mark.skipif(
    not (torch.__version__.startswith("2.13.0") and transformers.__version__ == "5.24.0"),
    reason="releases are part of a key, and these cells were computed with torch 2.13.0 and transformers 5.24.0",
)


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Path]:
    job.HELD.let_go()
    folder = tmp_path / "results"
    shutil.copytree(BEFORE, folder)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield folder


def test_it_is_read_whole() -> None:
    table = xt.read_results(BEFORE)
    assert table.drop_duplicates("key")["status"].value_counts().to_dict() == {"ok": 7, "failed": 1}
    assert set(table["extrapolate_version"]) == {"0.2.0"}
    assert {"plain", "yarn ×4", "self_extend", "linear ×4"} <= set(table["label"])
    assert len(list((BEFORE / "cells").iterdir())) == len(CELLS)


@same_releases
@pytest.mark.parametrize("overrides", CELLS.values(), ids=CELLS)
def test_its_cells_are_reused(before: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xt.Checkpoint, "model", lambda *_: pytest.fail("computed again"))
    outcome = job.run_cell(compose("sweep", [*overrides, *BUNDLED, f"results={before}"]))
    assert outcome["outcome"] == "reused"
    assert (BEFORE / "cells" / outcome["key"]).is_dir()


@same_releases
def test_its_failure_is_the_same_request(before: Path) -> None:
    asked = ["strategy=self_extend", "strategy.group=2", "strategy.window=64", "data.names=[1885-Cleveland-1]"]
    asked += ["evaluation.lengths=[2048]", *BUNDLED, f"results={before}"]
    outcome = job.run_cell(compose("sweep", asked))
    assert outcome["outcome"] == "failed"
    assert [path.name for path in (before / "failures").iterdir()] == [outcome["key"]]  # told once, not twice
