"""A results folder as one self-contained HTML page, and its scores as a LaTeX table.

extrapolate report results=results/quickstart
"""

import warnings

import hydra
from omegaconf import DictConfig
from rich.console import Console

import extrapolate as xt
from extrapolate.commands.folders import results_folder
from extrapolate.commands.names import CONF, run
from extrapolate.reports.page import HTML, TEX, html, latex
from extrapolate.reports.terminal import print_paths
from extrapolate.storage import write_atomic


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="report")
def main(cfg: DictConfig) -> None:
    """Read, write the page and the table."""
    try:
        results = results_folder(cfg.results)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            table = xt.read_results(results)
    except xt.ResultError as error:
        raise SystemExit(f"error: {error}") from error
    if table.empty:
        raise SystemExit(f"error: {results} holds no cells; run a sweep first")
    told = [str(note.message) for note in notes]
    page = html(table, results, title=cfg.title or results.name, notes=told, ceiling=float(cfg.ceiling))
    paths = [results / HTML]
    write_atomic(paths[0], page.encode())
    text = latex(table)
    if text is not None:
        paths.append(results / TEX)
        write_atomic(paths[1], text.encode())
    print_paths(Console(), paths)


def start() -> None:
    """The command, with the arguments of the command line."""
    run(main, "report")
