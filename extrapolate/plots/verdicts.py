"""Which strategy is better, how surely, and at what price."""

import textwrap

import matplotlib.ticker
import numpy as np
import pandas as pd

from extrapolate.analysis.statistics import SAME
from extrapolate.errors import ResultError
from extrapolate.plots.style import COLOURS, Figure


def paired_differences(differences: pd.DataFrame, *, length: int | None = None, title: str | None = None) -> Figure:
    """A forest of differences of loss: each strategy against the baseline on the same tokens, with its interval.

    Args:
        differences: rows of :func:`extrapolate.analysis.paired`.
        length: the length drawn; the longest when left out.
        title: above the axes.

    Returns:
        A figure of one axes, 6.4 inches wide, a row for each strategy: filled where the verdict is sure, over all
        comparisons of the table together.

    Raises:
        ResultError: when there is nothing at that length.
    """
    chosen = int(differences["length"].max()) if length is None and len(differences) else length
    rows = differences[differences["length"] == chosen].sort_values("difference", ascending=False)
    if rows.empty:
        raise ResultError(f"there is no paired difference at length {chosen}")
    figure = Figure(figsize=(6.4, 1.3 + 0.32 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, (_, row) in enumerate(rows.iterrows()):
        sure = row["verdict"] in ("better", "worse")
        colour = {"better": COLOURS[0], "worse": COLOURS[1]}.get(row["verdict"], "0.4")
        axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=1.6)
        axes.plot(row["difference"], y, "o", color=colour, markerfacecolor=colour if sure else "white", markersize=6)
    axes.axvline(0, color="0.35", linewidth=1, linestyle="--", zorder=0)
    axes.set_yticks(range(len(rows)), [textwrap.fill(name, 34) for name in pair_names(rows)], fontsize=9)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(
        f"loss minus that of {rows['baseline'].iloc[0]} at {chosen:,} tokens\n(nats a token; left is better)",
        fontsize=9,
    )
    axes.grid(True, axis="x", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=10)
    return figure


def pair_names(differences: pd.DataFrame) -> pd.Series:
    """A name for each row of :func:`extrapolate.analysis.paired` at one length: its strategy, and what else differs."""
    names = differences["label"].astype(str)
    for column in [c for c in SAME if c not in ("length", "model_digest") and c in differences]:
        values = differences[column]
        if values.nunique(dropna=False) > 1:
            told = f", {column} " if column in ("depth", "stride", "targets") else ", "
            names = names + (told + values.astype(str)).where(values.notna(), "")
    return names


def cost_against_usable_length(costs: pd.DataFrame, lengths: pd.DataFrame, *, title: str | None = None) -> Figure:
    """How far each strategy carries beside what it costs within the pretrained length, the farthest on top.

    Args:
        costs: rows of :func:`extrapolate.analysis.short_context_cost`.
        lengths: rows of :func:`extrapolate.analysis.usable_length`.
        title: above the figure.

    Returns:
        A figure of two axes, 7.2 inches wide, a row for each strategy in both tables and for the baseline. Left the
        usable length with its interval as a broad band, a tick at what the factor claims, an arrow where nothing longer
        was measured; right the cost with its interval.

    Raises:
        ResultError: when no strategy is in both.
    """
    itself = costs.drop_duplicates("baseline").assign(label=lambda rows: rows["baseline"], difference=0.0)
    itself[["low", "high"]] = np.nan
    of_length = lengths.rename(columns={"low": "surely", "high": "perhaps"})
    both = pd.concat([costs, itself]).merge(of_length, on="label").dropna(subset=["usable_length"])
    if both.empty:
        raise ResultError("no strategy has both a short-context cost and a usable length")
    both = both.sort_values(["usable_length", "difference"], ascending=[True, False])
    figure = Figure(figsize=(7.2, 1.4 + 0.28 * len(both)), layout="constrained")
    reach, price = figure.subplots(1, 2, sharey=True)
    for y, (_, row) in enumerate(both.iterrows()):
        usable, cost = float(row["usable_length"]), float(row["difference"])
        reach.plot([float(row["pretrained_length"]), usable], [y, y], color=COLOURS[0], linewidth=1.6)
        if not (pd.isna(row["surely"]) or pd.isna(row["perhaps"])):
            band = [float(row["surely"]), float(row["perhaps"])]
            reach.plot(band, [y, y], color=COLOURS[0], linewidth=6, alpha=0.25, solid_capstyle="butt")
        reach.plot(usable, y, ">" if usable == row["longest"] else "o", color=COLOURS[0], markersize=6)
        if not pd.isna(row["claimed_length"]):
            reach.plot(float(row["claimed_length"]), y, "|", color=COLOURS[1], markersize=13, markeredgewidth=2)
        price.plot([row["low"], row["high"]], [y, y], color=COLOURS[0], linewidth=1.6)
        price.plot(cost, y, "o", color=COLOURS[0], markersize=5)
        right = max(cost, 0.0 if pd.isna(row["high"]) else float(row["high"]))
        price.annotate(f"{cost:+.3f}", (right, y), (6, 0), textcoords="offset points", va="center", fontsize=8)
    trained = sorted(int(n) for n in both["pretrained_length"].unique())
    for length in trained:
        reach.axvline(length, color="0.35", linewidth=1, linestyle="--", zorder=0)
    reach.set_xscale("log", base=2)
    reach.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    reach.tick_params(axis="x", labelsize=8)
    reach.set_yticks(range(len(both)), both["label"].tolist(), fontsize=9)
    reach.set_ylim(-0.6, len(both) - 0.4)
    reach.set_xlabel("usable length (tokens)\ndashed: pretrained, tick: claimed", fontsize=9)
    price.axvline(0, color="0.35", linewidth=1, linestyle="--", zorder=0)
    price.margins(x=0.22)
    price.tick_params(axis="x", labelsize=8)
    price.set_xlabel(f"loss added at {_thousands(both['length'])} tokens\n(nats a token)", fontsize=9)
    for axes in (reach, price):
        axes.grid(True, axis="x", which="major", color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _thousands(values: pd.Series) -> str:
    return ", ".join(f"{int(n):,}" for n in sorted(values.unique()))
