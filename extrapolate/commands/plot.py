"""Redraw the table and the figures of a results folder, without running a model.

python -m experiments.plot results=results/quickstart ceiling=30
python -m experiments.plot results=docs/verdicts_16k/scores.csv    # of a published table, beside it
"""

import hydra
from omegaconf import DictConfig
from rich.console import Console

import extrapolate as xt
from extrapolate.commands.folders import results_folder
from extrapolate.commands.names import CONF, run
from extrapolate.reports.conclusions import draw
from extrapolate.reports.terminal import print_paths, print_scores


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="plot")
def main(cfg: DictConfig) -> None:
    """Read, print, draw."""
    console = Console()
    try:
        results = results_folder(cfg.results)
        table = xt.read_results(results)
    except xt.ResultError as error:
        raise SystemExit(f"error: {error}") from error
    if table.empty:
        raise SystemExit(f"error: {results} holds no cells; run a sweep first")
    print_scores(console, table)
    published = results.suffix == ".csv"  # its raw rows stay as they are
    folder = results.parent if published else results
    print_paths(console, draw(table, folder, raw=not published, ceiling=cfg.ceiling))


def start() -> None:
    """The command, with the arguments of the command line."""
    run(main, "plot")
