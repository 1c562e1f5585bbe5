"""The sweeper of ``extrapolate sweep``, in the one package where Hydra looks for plugins."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from extrapolate.commands.names import stop
from extrapolate.commands.planning import Plan, planned
from extrapolate.sweeps.progress import OUTCOME, overall

log = logging.getLogger("extrapolate")


class CellSweeper(BasicSweeper):
    """Every combination, as Hydra's own sweeper has it, planned (:mod:`extrapolate.commands.planning`) and watched.

    A job that dies with its process takes no other with it: its neighbours are launched again.
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

        def load(job: Sequence[str]) -> DictConfig:
            return loader.load_sweep_config(config, list(job))

        try:
            plan = planned(combinations, load)
        except ConfigCompositionException as error:
            stop([str(error)])
        for note in plan.notes:
            log.info(note)
        if not plan.jobs:
            raise ConfigCompositionException("the sweep is empty: one of " + " ".join(arguments) + " has no value")
        from extrapolate.commands.preflight import (
            preflight,  # when it is needed: Hydra looks for plugins in every command
        )

        preflight(plan.configs)
        folder = Path(config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, folder / "multirun.yaml")
        with overall(folder, plan.weights, shown=bool(config.get("progress", True))):
            size = self.max_batch_size or len(plan.jobs)
            done = [self._launch(folder, plan.jobs[i : i + size], i) for i in range(0, len(plan.jobs), size)]
        self._record_lost(folder, plan, load)
        return done

    def _launch(self, folder: Path, jobs: Sequence[Sequence[str]], first: int) -> list[Any]:
        """Launch jobs as numbers ``first``…; where a process dies, its neighbours again, and each that began alone."""
        assert self.launcher is not None
        done: list[Any] = []
        left = {first + i: list(job) for i, job in enumerate(jobs)}
        alone: list[int] = []  # one of these was deadly
        while left:
            rest = [n for n in left if n not in alone]
            # launchers number their jobs without gaps
            runs = [rest] if rest and len(rest) == rest[-1] - rest[0] + 1 else [[n] for n in rest]
            before = (len(left), len(alone))
            for run in [*runs, *([n] for n in alone if n in left)]:
                try:
                    done += self.launcher.launch([left[n] for n in run], initial_job_idx=run[0])
                    left = {n: job for n, job in left.items() if n not in run}
                except Exception as error:  # of the launcher: jobs themselves never raise
                    log.error("a job died with its process: %s: %s", type(error).__name__, error)
                    if _queued(self.launcher):  # the others go on, out of our hands
                        return done
                    left = {n: job for n, job in left.items() if not (folder / str(n) / OUTCOME).exists()}
                    begun = [n for n in run if n in left and (folder / str(n)).exists()]
                    left = {n: job for n, job in left.items() if n not in begun or n not in alone}
                    alone += [n for n in begun if n not in alone]
                    break
            if (len(left), len(alone)) == before:
                log.error("%d jobs could not be launched", len(left))
                break
        return done

    def _record_lost(self, folder: Path, plan: Plan, load: Callable[[Sequence[str]], DictConfig]) -> None:
        """Record the cells of jobs that began and noted nothing; not of those that may still run elsewhere."""
        if _queued(self.launcher):
            return
        from extrapolate.commands.cell import record_lost
        from extrapolate.errors import ResultError

        for number, job in enumerate(plan.jobs):
            if (folder / str(number)).exists() and not (folder / str(number) / OUTCOME).exists():
                with contextlib.suppress(ResultError):  # the folder that takes no more may be why
                    record_lost(load(job))


def _queued(launcher: Any) -> bool:
    """Whether jobs wait and run in a queue of their own."""
    return "slurm" in type(launcher).__name__.lower()
