"""One job of a sweep: a cell composed of YAML, run, or recorded as failed.

In a module of its own, not in the script, so that a parallel launcher's workers find it by name.
"""

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf

import extrapolate as xt
from extrapolate.commands.folders import results_folder
from extrapolate.commands.planning import REQUEST
from extrapolate.commands.preflight import made
from extrapolate.storage import digest
from extrapolate.sweeps.cell import Cell
from extrapolate.sweeps.run import Failure, Held, failed, request_of, run

HELD = Held()
"""The model in memory; the only state of a sweep's process."""


class Lost(xt.ExtrapolateError):
    """A cell whose process ended before the cell could say anything."""


def run_cell(cfg: DictConfig) -> dict[str, Any]:
    """One cell: reused, computed, or failed and recorded. Never raises on account of the cell itself."""
    ledger, asked = xt.Ledger(results_folder(cfg.results)), _request(cfg)
    try:
        cell = cell_of(cfg)
    except Exception as error:  # of a field: there is no cell
        outcome = failed(error, _labels(cfg), ledger, Failure(asked, _config(cfg)), [])
    else:
        outcome = run(
            cell,
            ledger,
            held=HELD,
            progress=cfg.progress,
            time_limit=cfg.get("time_limit"),
            force=bool(cfg.get("force")),
            failure=Failure(request_of(cell), _config(cfg), earlier=(asked,)),
        )
    return {name: value for name, value in dataclasses.asdict(outcome).items() if value is not None}


def cell_of(cfg: DictConfig) -> Cell:
    """The cell that a configuration describes.

    Raises:
        ExtrapolateError: for a field or a value of its parts.
    """
    evaluation: Any = made(cfg.evaluation, "evaluation")
    layers = cfg.layers if cfg.layers is None or isinstance(cfg.layers, str) else tuple(cfg.layers)
    names = cfg.data.names
    return Cell(
        checkpoint=made(cfg.model, "model"),
        strategy=made(cfg.strategy, "strategy"),
        source=made(cfg.data.source, "data.source") if evaluation.min_tokens else None,
        evaluation=evaluation,
        data=cfg.data.name,
        documents=cfg.data.documents,
        names=names if names is None or isinstance(names, str) else tuple(names),
        seed=cfg.data.seed,
        layers=layers,
    )


def record_lost(cfg: DictConfig) -> None:
    """Record a cell whose process ended before the cell could say anything."""
    error = Lost("its process ended without an outcome: killed, perhaps for the memory it took")
    ledger = xt.Ledger(results_folder(cfg.results))
    failed(error, _labels(cfg), ledger, Failure(_request(cfg), _config(cfg)), [])


def _request(cfg: DictConfig) -> str:
    # of the YAML text, because what was asked for may be no JSON value (factor=nan)
    asked: list[Any] = [OmegaConf.to_yaml(cfg[name], resolve=True) for name in REQUEST]
    if cfg.layers is not None:
        asked.append(str(cfg.layers))
    return digest(asked)[:24]


def _labels(cfg: DictConfig) -> dict[str, Any]:
    """What a row can say of a cell that is none."""
    name = str(cfg.strategy._target_).rpartition(".")[2].lower()
    return {"model": str(cfg.model.get("path")), "data": cfg.data.name, "strategy": name, "label": name}


def _config(cfg: DictConfig) -> str:
    """What a cell was asked for, so that ``python -m experiments.results retry`` can ask again."""
    names = [name for name in (*REQUEST, "layers", "progress", "time_limit", "force") if name in cfg]
    whole: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, names), resolve=False)
    for name in REQUEST:
        whole[name] = OmegaConf.to_container(cfg[name], resolve=True)
    return OmegaConf.to_yaml(whole)
