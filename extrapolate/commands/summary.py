"""The end of a sweep: table in the terminal, figure, CSV, every failure, and the exit code."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from extrapolate.commands.folders import results_folder
from extrapolate.reports.terminal import report
from extrapolate.sweeps.progress import OUTCOME


class Summary(Callback):
    """Hydra callback: reports a results folder when all jobs are done, and exits with 1 when one of them failed."""

    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        """After a single job."""
        self._report(config, Path(config.hydra.run.dir))

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """After all jobs, in the process that launched them."""
        self._report(config, Path(config.hydra.sweep.dir))

    def _report(self, config: DictConfig, logs: Path) -> None:
        try:
            jobs = outcomes(Path(to_absolute_path(str(logs))))
            published: Any = config.get("published")
            curves = OmegaConf.to_container(published, resolve=True) if published else None
            failed = report(results_folder(config.results), jobs, curves)  # type: ignore[arg-type]
        except Exception:  # Hydra would turn it into a warning and exit with 0
            traceback.print_exc()
            sys.exit(1)
        if failed:
            sys.exit(1)


def outcomes(logs: Path) -> list[dict[str, Any]]:
    """What each job of a sweep noted; a job that started and noted nothing is a failure."""
    found = []
    jobs = {f.parent for f in logs.rglob(OUTCOME)} | {f.parent for f in logs.rglob(".hydra") if f.is_dir()}
    for job in sorted(jobs):
        try:
            found.append(json.loads((job / OUTCOME).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            message = f"the job in {job} ended without an outcome ({type(error).__name__})"
            found.append({"outcome": "failed", "label": job.name, "error_type": "Lost", "error_message": message})
    return found
