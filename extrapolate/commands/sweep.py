"""Measure perplexity by length of one model under one strategy, or of every combination asked for with ``-m``.

See ``--help`` for the settings; :mod:`extrapolate.commands.planning` chooses the jobs,
:mod:`extrapolate.commands.cell` is what a job does, :mod:`extrapolate.commands.summary` its end.
"""

import json
import logging
import sys
from pathlib import Path

import hydra
import torch
import transformers
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from extrapolate.commands.cell import run_cell
from extrapolate.commands.launchers import prefer_our_settings, take_gpu, threads
from extrapolate.commands.names import CONF, run
from extrapolate.commands.planning import deferred
from extrapolate.commands.preflight import preflight
from extrapolate.storage import write_atomic
from extrapolate.sweeps.progress import OUTCOME

log = logging.getLogger("extrapolate")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sweep")
def main(cfg: DictConfig) -> None:
    """Run one cell and note its outcome beside the job's log; the summary callback prints the table."""
    transformers.utils.logging.disable_progress_bar()
    hydra_config = HydraConfig.get()
    if hydra_config.mode == RunMode.RUN:  # the sweeper does so for its jobs
        preflight([cfg])
    take_gpu(hydra_config)
    count = cfg.threads or threads(hydra_config)
    if count:
        torch.set_num_threads(count)
    outcome = run_cell(cfg)
    folder = Path(hydra_config.runtime.output_dir)
    try:
        write_atomic(folder / OUTCOME, json.dumps(outcome).encode())
    except OSError as error:
        log.error("cannot note the outcome in %s: %s", folder, error)


def start() -> None:
    """The command, with the arguments of the command line."""
    sys.argv[1:] = deferred(sys.argv[1:])
    prefer_our_settings()
    run(main, "sweep")
