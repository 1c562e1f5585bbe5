"""Results beside the numbers that a paper printed."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from extrapolate.errors import ResultError

COLUMNS = ["model", "label", "length", "published", "perplexity", "difference", "ratio"]


def beside_published(table: pd.DataFrame, published: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Each published perplexity, ours, and the difference.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        published: of each curve the ``model`` (as in the results), the ``strategy``, those of its ``parameters`` that
            tell it apart, and ``perplexity``: length in tokens → number, or a text such as ``">1000"`` where the paper
            has only a bound.

    Returns:
        One row for each published number: ``model``, ``label``, ``length``, ``published`` (text), ``perplexity`` (ours,
        NaN where there is none), ``difference`` (ours minus theirs; of a bound NaN) and ``ratio`` (ours over theirs,
        minus 1; of a bound 0 where ours keeps it, else NaN).

    Raises:
        ResultError: for an entry that lacks a field or has a number that is none.
    """
    rows = []
    for entry in published:
        missing = {"model", "strategy", "perplexity"} - set(entry)
        if missing:
            raise ResultError(f"a published curve needs {', '.join(sorted(missing))}, got {dict(entry)}")
        ours = _of(table, entry)
        told = ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in _parameters(entry).items())
        label = f"{entry['strategy']}, {told}" if told else str(entry["strategy"])
        for length, number in entry["perplexity"].items():
            found = ours.loc[ours["length"] == int(length), "perplexity"].dropna()
            mine = float(found.iloc[0]) if len(found) else math.nan
            theirs, bound = _number(number)
            difference, ratio = (math.nan, math.nan) if bound else (mine - theirs, mine / theirs - 1)
            if bound and mine > theirs:
                ratio = 0.0
            rows.append((entry["model"], label, int(length), str(number), mine, difference, ratio))
    return pd.DataFrame(rows, columns=COLUMNS)


def _of(table: pd.DataFrame, entry: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of the model and strategy that have these parameters."""
    rows = table[(table["model"] == entry["model"]) & (table["strategy"] == entry["strategy"])]
    rows = rows[rows["parameters"].notna()]
    wanted = _parameters(entry)
    fits = [all(json.loads(text).get(name) == value for name, value in wanted.items()) for text in rows["parameters"]]
    found: pd.DataFrame = rows[fits]
    return found


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    return dict(entry.get("parameters") or {})


def _number(value: Any) -> tuple[float, bool]:
    """A number, or the number that a bound such as ``">1000"`` has."""
    text = str(value)
    try:
        return float(text.removeprefix(">")), text.startswith(">")
    except ValueError as error:
        raise ResultError(f"a published perplexity is a number or a bound such as '>1000', got {value!r}") from error
