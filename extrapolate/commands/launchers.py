"""What a sweep needs to know of Hydra's launchers: their settings, and the share of the machine that a job has."""

import os
from pathlib import Path
from typing import Any

import filelock
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from extrapolate.storage import cache_dir

OURS = ("joblib", "submitit_local", "submitit_slurm", "ray")
"""Launchers of ``conf/hydra/launcher`` that their plugins have settings of the same name for."""

HELD: list[filelock.BaseFileLock] = []
"""The lock of this process's GPU, held until it ends."""


def prefer_our_settings() -> None:
    """Forget the plugins' own settings of :data:`OURS`: Hydra would check ours against them, and warn that it does."""
    Plugins.instance()  # they are stored while plugins are looked for
    stored = ConfigStore.instance().repo["hydra"]["launcher"]
    for name in OURS:
        stored.pop(f"{name}.yaml", None)


def threads(hydra: Any) -> int | None:
    """Threads of a job: the cores divided among the jobs that its launcher runs at a time; None for torch's own.

    Args:
        hydra: Hydra's settings of the job.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_once = hydra.launcher.get("n_jobs") or hydra.sweeper.get("max_batch_size") or 1
    if at_once < 0:  # joblib counts from the number of cores
        at_once = max(1, cores + 1 + int(at_once))
    return None if at_once == 1 else max(1, cores // int(at_once))


def take_gpu(hydra: Any) -> int | None:
    """Give this process a GPU of its own where joblib runs several; the next in turn when all are taken.

    Slurm and Ray show each job its own GPUs only; the other launchers run one job at a time, or none on a GPU.

    Returns:
        Its index; None where there is nothing to choose.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2 or not hydra.launcher.get("n_jobs") or HELD:
        return None
    index = _free(count, cache_dir("gpus"))
    if index is None:
        index = int(hydra.job.num) % count
    torch.cuda.set_device(index)
    return index


def _free(count: int, folder: Path) -> int | None:
    for index in range(count):
        lock = filelock.FileLock(folder / f"{index}.lock", blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            continue
        HELD.append(lock)  # let go when the process ends, however it ends
        return index
    return None
