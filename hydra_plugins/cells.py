"""The sweeper of ``experiments.sweep``, in the one package where Hydra looks for plugins."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from experiments.planning import planned
from experiments.progress import OUTCOME, overall

log = logging.getLogger("extrapolate")


class CellSweeper(BasicSweeper):
    """Every combination, as Hydra's own sweeper has it, planned (:mod:`experiments.planning`) and watched.

    A job that dies with its process takes no other with it: those that never began are launched again.
    """

    def __init__(self, max_batch_size: int | None = None, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size, params)

    def sweep(self, arguments: list[str]) -> Any:
        """Launch the planned jobs.

        Raises:
            ConfigCompositionException: when there is none, or an override fits none of them.
        """
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        config, loader = self.config, self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        (combinations,) = self.split_arguments(overrides, None)
        plan = planned(combinations, lambda job: loader.load_sweep_config(config, list(job)))
        for note in plan.notes:
            log.info(note)
        if not plan.jobs:
            raise ConfigCompositionException("the sweep is empty: one of " + " ".join(arguments) + " has no value")
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        with overall(folder, plan.weights, shown=bool(self.config.get("progress", True))):
            size = self.max_batch_size or len(plan.jobs)
            return [self._launch(folder, plan.jobs[i : i + size], i) for i in range(0, len(plan.jobs), size)]

    def _launch(self, folder: Path, jobs: Sequence[Sequence[str]], first: int) -> list[Any]:
        """Launch jobs as numbers ``first``…; again those that a dying worker left behind before they began."""
        assert self.launcher is not None
        done: list[Any] = []
        left = {first + i: job for i, job in enumerate(jobs)}
        while left:
            numbers = list(left)
            # of a second launch the numbers may have gaps, which launchers do not know
            runs = [numbers] if numbers == list(range(numbers[0], numbers[-1] + 1)) else [[n] for n in numbers]
            before = len(left)
            for run in runs:
                try:
                    done += self.launcher.launch([list(left[n]) for n in run], initial_job_idx=run[0])
                except Exception as error:  # of the launcher: jobs themselves never raise
                    log.error("a job died with its process: %s: %s", type(error).__name__, error)
                    queued = "slurm" in type(self.launcher).__name__.lower()  # the others go on, out of our hands
                    left = {} if queued else {n: left[n] for n in left if not (folder / str(n)).exists()}
                    break
                left = {n: job for n, job in left.items() if n not in run}
            if len(left) == before:
                break
        for number in left:
            log.error("job %d could not be launched", number)
        for job in done:
            if not (folder / str(job.hydra_cfg.hydra.job.num) / OUTCOME).exists():
                _ = job.return_value  # raises what kept it from noting its outcome
        return done
