"""What a table of results lets one conclude, as tables and figures in a folder."""

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

import extrapolate as xt
from extrapolate.analysis import context_gain, paired, paired_answers, short_context_cost, usable_length
from extrapolate.storage import Location, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(table: pd.DataFrame, results: Location, *, raw: bool = True, **options: Any) -> list[Location]:
    """Write ``scores.csv`` (``raw``), what follows from it, and the figures, drawn with ``options``, into a folder.

    Nothing is written that shows nothing: no figure without a finished cell, no file without a row.
    """
    if table.empty:
        return []
    apart = xt.plots.told_apart(table)
    tables = {**({"scores": table} if raw else {}), **conclusions(apart)}
    paths = [results / f"{name}.csv" for name in tables]
    for path, frame in zip(paths, tables.values(), strict=True):
        write_atomic(path, frame.to_csv(index=False).encode())
    if measured(table):
        paths += save_figures(results, figures(apart, tables, **options))
    return paths


def measured(table: pd.DataFrame) -> bool:
    """Whether any cell of the table was finished, finite or not."""
    return bool(table["status"].isin(["ok", "nonfinite"]).any())


def save_figures(folder: Location, found: "Mapping[str, Figure]") -> list[Location]:
    """Write each figure under its name as PNG and SVG."""
    import matplotlib as mpl  # not before there is something to draw

    paths = []
    with mpl.rc_context({"svg.hashsalt": "extrapolate", "svg.fonttype": "none"}):  # the same rows, the same file
        for name, figure in found.items():
            for suffix, how in ((".png", {"dpi": 200}), (".svg", {"metadata": {"Date": None}})):
                paths.append(folder / f"{name}{suffix}")
                drawn = io.BytesIO()
                figure.savefig(drawn, format=suffix[1:], **how)
                write_atomic(paths[-1], drawn.getvalue())
    return paths


CONCLUSIONS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "verdicts": paired,
    "answer_verdicts": paired_answers,
    "short_context_costs": short_context_cost,
    "usable_lengths": usable_length,
    "context_gains": context_gain,
}
"""File name → what :mod:`extrapolate.analysis` concludes from the rows."""


def conclusions(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Those of :data:`CONCLUSIONS` that the table has rows for: a baseline to pair with, fixed targets."""
    found = {name: concluded(conclude, table) for name, conclude in CONCLUSIONS.items()}
    return {name: frame for name, frame in found.items() if not frame.empty}


def concluded(conclude: Callable[[pd.DataFrame], pd.DataFrame], table: pd.DataFrame) -> pd.DataFrame:
    """One conclusion; empty where the table has no rows for it."""
    try:
        return conclude(table)
    except xt.ResultError:
        return pd.DataFrame()


def figures(table: pd.DataFrame, found_out: dict[str, pd.DataFrame], **options: Any) -> "dict[str, Figure]":
    """File name → the figures that this table and its :func:`conclusions` have rows for."""
    found: dict[str, Figure] = {}
    perplexities = xt.plots.perplexities(table)
    title = title_of(perplexities)
    if not perplexities.empty:
        found["perplexity_by_length"] = xt.plots.perplexity_by_length(table, title=title, **options)
    if (perplexities["protocol"] == "by_position").any():
        found["loss_by_position"] = xt.plots.loss_by_position(table)
    if "verdicts" in found_out:
        found["paired_differences"] = xt.plots.paired_differences(found_out["verdicts"], title=title_of(table))
    fixed = perplexities[perplexities["protocol"] == "last"]  # the cost on the tokens of the usable length
    costs = concluded(short_context_cost, fixed)
    if not costs.empty and found_out["usable_lengths"]["usable_length"].notna().any():
        lengths = found_out["usable_lengths"]
        found["cost_against_usable_length"] = xt.plots.cost_against_usable_length(costs, lengths, title=title)
    answers = xt.plots.answers(table)
    if not answers.empty:
        found["retrieval"] = xt.plots.retrieval(table, title=title_of(answers))
        found["retrieval_loss"] = xt.plots.retrieval(table, value="nll_mean", title=title_of(answers))
    return found


def title_of(rows: pd.DataFrame) -> str:
    """Models and corpora, in words."""
    models, corpora = (", ".join(sorted(rows[column].dropna().unique())) for column in ("model", "data"))
    return f"{models} on {corpora}" if corpora else models
