"""Compare every strategy with its independent references, print and store the table, and fail when one is off.

The rows are those of ``tests/strategies.py``: a closed form in Python floats that shares no code with the package,
transformers' own function where it has the method, and published vectors; for a strategy of positions, the relative
position of each pair of query and key, one by one.

python -m experiments.verify
"""

from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import rich.box
import torch
import transformers
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

import extrapolate as xt
from extrapolate.commands.names import run
from extrapolate.errors import first_line
from extrapolate.storage import write_atomic
from tests.strategies import GOLDEN, TABLE, Row, positions_off

TOLERANCE = 1e-6
"""Largest relative difference of a frequency or an attention factor that passes."""

CLOSED, NATIVE, VECTOR, POSITIONS = "closed form", "transformers", "published vector", "pair by pair"


def compare(
    rows: tuple[Row, ...] = TABLE,
    vectors: tuple[tuple[xt.Strategy, xt.RopeSpec, dict[int, float], float], ...] = GOLDEN,
) -> pd.DataFrame:
    """One line for each strategy: references, how many settings were tried, largest relative difference, verdict."""
    found: dict[str, list[tuple[str, float, str]]] = {}  # strategy → (reference, difference, error)
    for row in rows:
        for spec in row.specs:
            strategy = row.strategy(spec.rotary_dim // 2)
            found.setdefault(strategy.name, []).extend(_against_forms(row, strategy, spec))
    for strategy, spec, values, total in vectors:
        got = strategy.frequencies(spec, 1).inv_freq
        pairs = torch.tensor([*values], dtype=torch.long)
        known = torch.tensor([*values.values(), total], dtype=torch.float64)
        worst = difference(torch.cat((got.double()[pairs], got.double().sum()[None])), known)
        found[strategy.name].append((VECTOR, worst, ""))
    return pd.DataFrame([_line(name, tried) for name, tried in found.items()])


def _against_forms(row: Row, strategy: xt.Strategy, spec: xt.RopeSpec) -> list[tuple[str, float, str]]:
    try:
        got = strategy.frequencies(spec, row.length(spec))
        references: list[tuple[str, Any, float]] = [(CLOSED, row.frequencies(spec), row.factor(spec))]
        native = row.transformers(spec)
    except Exception as error:
        return [(CLOSED, float("inf"), first_line(error))]
    if native is not None:
        references.append((NATIVE, *native))
    found = [
        (name, max(difference(got.inv_freq, expected), abs(got.attention_factor / factor - 1)), "")
        for name, expected, factor in references
    ]
    if row.relative or row.scale:
        found = [(POSITIONS, max(positions_off(row, strategy, spec), found[0][1]), "")]
    return found


def difference(found: torch.Tensor, expected: Any) -> float:
    """Largest relative difference; a pair that should stand still must do so exactly."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    off = (found.double() - expected).abs()
    return float(torch.where(off == 0, off, off / expected.abs()).max())


def _line(name: str, tried: list[tuple[str, float, str]]) -> dict[str, Any]:
    worst = max(off for _, off, _ in tried)
    error = next((error for _, _, error in tried if error), "")
    return {
        "strategy": name,
        "references": ", ".join(dict.fromkeys(reference for reference, _, _ in tried)),
        "settings": sum(reference != NATIVE for reference, _, _ in tried),  # transformers is asked at the same ones
        "largest_relative_difference": worst,
        "verdict": "equal" if worst <= TOLERANCE else f"error: {error}" if error else "OFF",
    }


def report(lines: pd.DataFrame, path: Path) -> None:
    """Print and store the table; exit code 1 when a strategy is off."""
    console = Console()
    title = f"strategies against their references (transformers {transformers.__version__}, tolerance {TOLERANCE:g})"
    table = Table(title=title, box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, side in (("strategy", "left"), ("references", "left"), ("settings", "right"), ("off by", "right")):
        table.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("verdict", overflow="fold")
    for line in lines.to_dict("records"):
        colour = "green" if line["verdict"] == "equal" else "red"
        references = line["references"].replace(CLOSED, "form").replace(VECTOR, "vector")
        worst = f"{line['largest_relative_difference']:.1e}"
        table.add_row(line["strategy"], references, str(line["settings"]), worst, f"[{colour}]{line['verdict']}[/]")
    console.print(table)
    write_atomic(path, lines.to_csv(index=False, float_format="%.3g").encode())
    console.print(str(path), soft_wrap=True, highlight=False)
    failed = lines.loc[lines["verdict"] != "equal", "strategy"].tolist()
    if failed:
        raise SystemExit(f"error: off their references: {', '.join(failed)}")


@hydra.main(version_base="1.3", config_path="../conf", config_name="verify")
def main(cfg: DictConfig) -> None:
    """Compare, print, store."""
    transformers.utils.logging.set_verbosity_error()
    report(compare(), Path(to_absolute_path(cfg.output)))


if __name__ == "__main__":
    run(main, "verify")
