"""Perplexity by length, loss by position."""

import math

import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from extrapolate.analysis import intervals
from extrapolate.errors import ResultError
from extrapolate.plots.style import COLOURS, MARKERS, STYLES, Figure, length_axis, mark, spaced
from extrapolate.plots.tables import curve_names, perplexities

CEILING = 1e6
"""Perplexities above this are drawn on the upper edge as missing: nothing is left to compare there."""


def perplexity_by_length(table: pd.DataFrame, *, title: str | None = None, ceiling: float = CEILING) -> Figure:
    """Perplexity against context length, both logarithmic, one curve for each strategy.

    A band is the 95 % interval, where a cell tells more than one unit; with many curves there are none. The
    pretrained length is marked. A point that is infinite, not a number, above the ceiling or failed has no place on
    the axis: it is drawn as a cross on the upper edge and counted in the legend. With more curves than colours the
    legend stands beside the axes, in the order in which the curves end.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of retrieval are left out.
        title: above the axes.
        ceiling: the largest perplexity drawn; a low one shows what close curves do.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches; 8.4 by 5 with a legend beside it.

    Raises:
        ResultError: when the table has no rows with a length.
    """
    rows = perplexities(table)
    if rows.empty:
        raise ResultError("there is nothing to plot: the table has no perplexity with a length")
    names = curve_names(rows)
    crowded = names.nunique() > len(COLOURS)
    if not crowded:
        rows = intervals(rows)
    figure = Figure(figsize=(8.4, 5.0) if crowded else (6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    last: list[float] = []  # where each curve ends, in the order of the legend
    missing: list[tuple[float, str]] = []
    for i, (name, curve) in enumerate(rows.groupby(names, sort=False)):
        curve = curve.sort_values("length")
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        length = curve["length"].to_numpy(float)
        value = curve["perplexity"].to_numpy(float)
        drawn = np.isfinite(value) & (value > 0) & (value <= ceiling) & (curve["status"] == "ok").to_numpy()
        absent = int((~drawn).sum())
        axes.plot(
            length[drawn],
            value[drawn],
            color=colour,
            marker=marker,
            markersize=4.5,
            markevery=spaced([int(n) for n in length[drawn]]),
            linewidth=1.5,
            linestyle=STYLES[i // len(COLOURS) % len(STYLES)],
            label=f"{name} ({absent} off scale)" if absent else str(name),
        )
        if not crowded:
            low, high = (curve[f"perplexity_{side}"].to_numpy(float)[drawn] for side in ("low", "high"))
            axes.fill_between(length[drawn], low, high, color=colour, alpha=0.15, linewidth=0)
        missing += [(x, colour) for x in length[~drawn]]
        last.append(value[drawn][-1] if drawn.any() and drawn[-1] else math.inf)
    trained_at = sorted(int(n) for n in rows["pretrained_length"].dropna().unique())
    length_axis(axes, sorted(int(n) for n in rows["length"].unique()), trained_at)
    _perplexity_axis(axes)
    for x, colour in missing:
        axes.plot([x], [0.985], "x", color=colour, transform=axes.get_xaxis_transform(), markersize=7, clip_on=False)
    for pretrained in trained_at:
        if not axes.get_xlim()[0] <= pretrained <= axes.get_xlim()[1]:
            continue
        mark(axes, pretrained, "pretrained length")
    axes.set_xlabel("context length L (tokens)")
    axes.set_ylabel(_perplexity_label(rows))
    handles, labels = axes.get_legend_handles_labels()
    if crowded:
        order = sorted(range(len(last)), key=lambda i: -last[i])
        entries = [handles[i] for i in order], [labels[i] for i in order]
        figure.legend(*entries, loc="outside right center", frameon=False, fontsize=8, handlelength=3)
    else:
        axes.legend(handles, labels, frameon=False, fontsize=9)
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=10, pad=16)
    return figure


def _perplexity_label(rows: pd.DataFrame) -> str:
    protocols = set(rows["protocol"].dropna())
    if protocols <= {"prefix"}:
        return "perplexity of tokens 2…L"
    if protocols == {"masked"}:
        return "pseudo-perplexity"
    return "perplexity" + (f" ({protocols.pop()})" if len(protocols) == 1 else "")


def _perplexity_axis(axes: Axes) -> None:
    values = [y for line in axes.get_lines() for y in np.asarray(line.get_ydata(), dtype=float)]
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    axes.set_yscale("log")
    axes.set_ylim(low / 1.1, max(high * 1.25, low * 1.5))
    span = high / low
    subs = (1.0,) if span > 300 else (1.0, 2.0, 5.0) if span > 6 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=subs))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def loss_by_position(
    table: pd.DataFrame, *, trained_length: int | None = None, first: int = 1, bins_an_octave: int = 4
) -> Figure:
    """Loss against position, one curve for each name, averaged in bins of equal width on the logarithmic axis.

    Args:
        table: rows of :func:`extrapolate.read_results` under protocol ``by_position``; or columns ``curve``,
            ``position`` (tokens before the predicted one) and ``loss`` (nats).
        trained_length: tokens; marked. That of the rows when left out.
        first: smallest position drawn; a corpus whose documents all begin alike has little to say before.
        bins_an_octave: points for each doubling of the position.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches.

    Raises:
        ResultError: when result rows have none of that protocol.
    """
    if "position" not in table:
        rows = table[(table["protocol"] == "by_position") & table["nll_mean"].notna()]
        if rows.empty:
            raise ResultError("loss by position needs its bins: run with evaluation.protocol=by_position")
        trained_length = trained_length or int(rows["pretrained_length"].iloc[0])
        names = curve_names(rows)
        table = rows.assign(curve=names, position=rows["last_scored"].astype(float), loss=rows["nll_mean"])
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, curve) in enumerate(table[table["position"] >= first].groupby("curve", sort=False)):
        octave = (np.log2(curve["position"].to_numpy(float)) * bins_an_octave).round() / bins_an_octave
        mean = curve.groupby(octave)["loss"].mean()
        axes.plot(
            2.0 ** mean.index.to_numpy(float),
            mean.to_numpy(float),
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=3.5,
            linewidth=1.3,
            label=str(name),
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    if trained_length and trained_length <= table["position"].max():
        mark(axes, trained_length, "trained length")
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("loss (nats a token)")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
