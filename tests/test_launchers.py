"""The same sweep on every launcher; the share of the machine that each of its jobs takes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import extrapolate as xt
from extrapolate.commands import launchers
from tests.test_sweep import ENVIRONMENT, MEASURED, command, corpus, run, settings

__all__ = ["corpus"]

CONF = Path(__file__).parent.parent / "conf"
NAMES = sorted(path.stem for path in (CONF / "hydra" / "launcher").glob("*.yaml"))  # basic is Hydra's own


def composed(name: str, *overrides: str) -> Any:
    """Hydra's settings under a launcher."""
    launchers.prefer_our_settings()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("sweep", [f"hydra/launcher={name}", *overrides], return_hydra_config=True)
    return cfg.hydra


def test_the_launchers_are_these() -> None:
    assert NAMES == ["joblib", "ray", "submitit_local", "submitit_slurm"]


@pytest.mark.parametrize("name", ["basic", *[n for n in NAMES if n != "ray"]])
def test_every_launcher_composes_without_a_warning_and_instantiates(name: str) -> None:
    from hydra.core.plugins import Plugins

    hydra = composed(name)
    OmegaConf.set_struct(hydra, False)
    hydra.job.name, hydra.sweep.dir = "sweep", "somewhere"
    launcher = Plugins.instance()._instantiate(hydra.launcher)
    assert type(launcher).__name__.removesuffix("Launcher").lower() in name.replace("submitit_", "")
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    ("name", "overrides", "share"),
    [
        ("basic", [], None),
        ("joblib", [], 4),
        ("joblib", ["hydra.launcher.n_jobs=8"], 1),
        ("joblib", ["hydra.launcher.n_jobs=16"], 1),
        ("joblib", ["hydra.launcher.n_jobs=1"], None),
        ("joblib", ["hydra.launcher.n_jobs=-1"], 1),
        ("submitit_local", [], 4),
        ("submitit_slurm", [], None),  # torch looks at the cores that Slurm gave
    ],
)
def test_the_cores_are_divided_among_jobs(
    monkeypatch: pytest.MonkeyPatch, name: str, overrides: list[str], share: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert launchers.threads(composed(name, *overrides)) == share


def test_each_joblib_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("EXTRAPOLATE_CACHE", str(tmp_path))
    monkeypatch.setattr(launchers, "HELD", [])
    joblib = OmegaConf.create({"launcher": {"n_jobs": 3}, "job": {"num": 1}})
    (tmp_path / "gpus").mkdir()
    with filelock.FileLock(tmp_path / "gpus" / "0.lock"):  # another worker
        assert launchers.take_gpu(joblib) == 1
        assert launchers.take_gpu(joblib) is None, "it is kept for the next cell"
    launchers.HELD.pop().release()
    with filelock.FileLock(tmp_path / "gpus" / "0.lock"), filelock.FileLock(tmp_path / "gpus" / "1.lock"):
        assert launchers.take_gpu(joblib) == 1, "more workers than GPUs: in turn"
    assert launchers.take_gpu(OmegaConf.create({"launcher": {}, "job": {"num": 0}})) is None
    assert chosen == [1, 1]


def test_slurm_gets_an_array_with_walltime_gpu_and_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit")
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hydra = composed("submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.account=lab")
    OmegaConf.set_struct(hydra, False)
    hydra.sweep.dir, hydra.job.name = str(tmp_path), "sweep"
    wanted: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    folder, retries = wanted.pop("submitit_folder"), wanted.pop("max_num_timeout")
    del wanted["_target_"]
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=retries)
    common = {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node"}
    common |= {"stderr_to_stdout"}
    executor.update_parameters(**{k if k in common else f"slurm_{k}": v for k, v in wanted.items()})
    executor._executor.parameters["map_count"] = 100
    script = executor._executor._make_submission_file_text("x", "uid")
    assert executor._executor.max_num_timeout == 2
    for line in (
        "--partition=gpu",
        "--account=lab",
        "--array=0-99%64",
        "--time=240",
        "--gpus-per-node=1",
        "--cpus-per-task=8",
        "--mem=64GB",
        "--requeue",
        "--signal=USR2@120",
    ):
        assert f"#SBATCH {line}" in script, script


@pytest.mark.sweeps
def test_the_table_is_the_same_on_every_launcher(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    # case 53
    tables = []
    for name in ("basic", "joblib", "submitit_local"):
        done = sweep(tmp_path, checkpoint_folder, corpus, name)
        assert "6 computed, 0 reused, 0 failed" in done.stdout, done.stdout + done.stderr
        assert "UserWarning" not in done.stdout + done.stderr
        tables.append(xt.read_results(tmp_path / name).drop(columns=MEASURED))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    pd.testing.assert_frame_equal(tables[0], tables[2])
    again = sweep(tmp_path, checkpoint_folder, corpus, "joblib")
    assert "0 computed, 6 reused, 0 failed" in again.stdout
    assert "of 6 cells done" in again.stdout


@pytest.mark.sweeps
def test_the_table_is_the_same_on_ray(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    pytest.importorskip("ray", reason="make test-ray")
    tables = []
    for name in ("basic", "ray"):
        assert "6 computed, 0 reused, 0 failed" in sweep(tmp_path, checkpoint_folder, corpus, name).stdout
        tables.append(xt.read_results(tmp_path / name).drop(columns=MEASURED))
    pd.testing.assert_frame_equal(tables[0], tables[1])


@pytest.mark.sweeps
@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signal")
def test_a_worker_that_dies_takes_no_other_cell_with_it(tmp_path: Path, checkpoint_folder: Path, corpus: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nfrom dataclasses import dataclass\nimport extrapolate as xt\n"
        "@dataclass(frozen=True)\nclass Deadly(xt.Plain):\n"
        "    def frequencies(self, rope, length):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = settings(tmp_path, checkpoint_folder, corpus)
    grid = ["-m", "strategy=deadly,plain,linear,yarn", "factor=2,4"]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{tmp_path}"}
    (tmp_path / "conf" / "strategy").mkdir(parents=True)
    (tmp_path / "conf" / "strategy" / "deadly.yaml").write_text("_target_: deadly.Deadly\n")
    searched = f"hydra.searchpath=[{tmp_path / 'conf'}]"
    done = subprocess.run(
        command(*grid, *arguments, searched, "hydra/launcher=joblib"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "a job died with its process" in done.stdout
    table = xt.read_results(tmp_path / "results")
    assert set(table.loc[table["status"] == "ok", "label"]) == {"linear ×2", "linear ×4", "yarn ×2", "yarn ×4", "plain"}
    assert "1 failed" in done.stdout
    failed = table[table["error_type"] == "Lost"]
    assert set(failed["label"]) == {"deadly"}
    assert "its process ended without an outcome" in failed["error_message"].iloc[0]


def sweep(tmp_path: Path, checkpoint_folder: Path, corpus: Path, launcher: str) -> subprocess.CompletedProcess[str]:
    arguments = settings(tmp_path, checkpoint_folder, corpus)[:-1]
    grid = ["-m", "strategy=plain,linear,ntk,yarn", "factor=2,4", f"hydra/launcher={launcher}"]
    wanted = [*grid, "evaluation.lengths=[16,64]", "strategy=linear,ntk,yarn"]
    return run(tmp_path, *wanted, *arguments, f"results={tmp_path / launcher}", "progress=true")
