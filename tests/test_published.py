"""A paper's numbers beside ours, and every experiment that has them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

import extrapolate as xt
from extrapolate.analysis import beside_published
from extrapolate.commands.planning import planned

CONF = Path(__file__).parent.parent / "conf"
PAPERS = ["lceg_pg19", "mrrope_olmo_1b", "pi_pg19", "streaming_llm", "yarn_proof_pile"]


@pytest.fixture(autouse=True)
def _conf() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def test_the_difference_is_ours_minus_theirs_and_a_bound_is_kept_or_not() -> None:
    rows = [
        {"model": "m", "strategy": "yarn", "parameters": json.dumps({"factor": f}), "length": n, "perplexity": p}
        for f, n, p in ((2.0, 64, 9.0), (4.0, 64, 3.3), (4.0, 128, 2000.0), (4.0, 256, 500.0))
    ]
    numbers = {64: 3.0, 128: ">1000", 256: ">1000", 512: 5.0}
    curve = {"model": "m", "strategy": "yarn", "parameters": {"factor": 4.0}, "perplexity": numbers}
    found = beside_published(pd.DataFrame(rows), [curve])
    assert found["label"].unique().tolist() == ["yarn, factor=4"]
    assert found["perplexity"].tolist()[:3] == [3.3, 2000.0, 500.0]
    assert math.isnan(found["perplexity"].iloc[3])
    assert found["difference"].iloc[0] == pytest.approx(0.3)
    assert found["ratio"].iloc[0] == pytest.approx(0.1)
    assert found["ratio"].iloc[1] == 0
    assert found[["difference", "ratio"]].iloc[2:].isna().all(axis=None)
    with pytest.raises(xt.ResultError, match="needs model, strategy"):
        beside_published(pd.DataFrame(rows), [{"perplexity": {}}])
    with pytest.raises(xt.ResultError, match="a number or a bound"):
        beside_published(pd.DataFrame(rows), [{**curve, "perplexity": {64: "?"}}])


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_experiment_runs_what_the_paper_printed(name: str) -> None:
    cfg = compose("sweep", [f"experiment={name}"], return_hydra_config=True)
    axes = [[f"{k}={v.strip()}" for v in str(values).split(",")] for k, values in cfg.hydra.sweeper.params.items()]
    jobs: list[list[str]] = [[f"experiment={name}"]]
    for axis in axes:
        jobs = [[*job, value] for job in jobs for value in axis]
    cells = [compose("sweep", list(job)) for job in planned(jobs, lambda job: compose("sweep", list(job))).jobs]
    published: Any = OmegaConf.to_container(cfg.published)
    assert published["source"]
    lengths = set(instantiate(cfg.evaluation).lengths)
    for curve in published["curves"]:
        assert set(curve["perplexity"]) <= lengths
        found = [cell for cell in cells if cell.model.path == curve["model"]]
        strategies = [instantiate(cell.strategy) for cell in found]
        wanted = curve.get("parameters") or {}
        fitting = [
            s
            for s in strategies
            if s.name == curve["strategy"] and all(s.parameters()[k] == v for k, v in wanted.items())
        ]
        assert len(fitting) >= 1, curve
    assert {cell.model.path for cell in cells} == {curve["model"] for curve in published["curves"]}


def test_the_olmo_curve_has_its_nineteen_lengths() -> None:
    assert list(compose("sweep", ["experiment=mrrope_olmo_1b"]).evaluation.lengths) == list(range(4096, 40961, 2048))
