"""Result tables as matplotlib figures. Knows no model: rows in, figure out."""

import json
import math
from collections.abc import Sequence

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from extrapolate.analysis import relative_positions as positions_of
from extrapolate.errors import ResultError
from extrapolate.rope import RopeSpec
from extrapolate.strategies import Strategy

# Okabe and Ito's palette, distinguishable with any colour vision, and a marker of its own for each curve
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "os^Dv<>P*X"
STYLES = ("-", "--", ":")  # the next one when the colours are used up
CEILING = 1e6
"""Perplexities above this are drawn on the upper edge as missing: nothing is left to compare there."""


def perplexity_by_length(table: pd.DataFrame, *, title: str | None = None, ceiling: float = CEILING) -> Figure:
    """Perplexity against context length, both logarithmic, one curve for each strategy.

    The pretrained length is marked. A point that is infinite, not a number, above the ceiling or failed has no place on
    the axis: it is drawn as a cross on the upper edge and counted in the legend. With more curves than colours the
    legend stands beside the axes, in the order in which the curves end.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        title: above the axes.
        ceiling: the largest perplexity drawn; a low one shows what close curves do.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches; 8.4 by 5 with a legend beside it.

    Raises:
        ResultError: when the table has no rows with a length.
    """
    rows = table[table["length"].notna()]
    if rows.empty:
        raise ResultError("there is nothing to plot: the table has no row with a length")
    names = curve_names(rows)
    crowded = names.nunique() > len(COLOURS)
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
            markevery=_spaced([int(n) for n in length[drawn]]),
            linewidth=1.5,
            linestyle=STYLES[i // len(COLOURS) % len(STYLES)],
            label=f"{name} ({absent} off scale)" if absent else str(name),
        )
        missing += [(x, colour) for x in length[~drawn]]
        last.append(value[drawn][-1] if drawn.any() and drawn[-1] else math.inf)
    trained_at = sorted(int(n) for n in rows["pretrained_length"].dropna().unique())
    _length_axis(axes, sorted(int(n) for n in rows["length"].unique()), trained_at)
    _perplexity_axis(axes)
    for x, colour in missing:
        axes.plot([x], [0.985], "x", color=colour, transform=axes.get_xaxis_transform(), markersize=7, clip_on=False)
    for pretrained in trained_at:
        if not axes.get_xlim()[0] <= pretrained <= axes.get_xlim()[1]:
            continue
        _mark(axes, pretrained, "pretrained length")
    axes.set_xlabel("context length L (tokens)")
    axes.set_ylabel("perplexity of tokens 2…L")
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


def curve_names(rows: pd.DataFrame) -> pd.Series:
    """A legend entry for each row: the strategy's label, and whatever else tells this table's curves apart."""
    names = rows["label"].fillna("failed").astype(str)
    if unlike_documents(rows):
        of_each = rows["documents"].astype(str) + " document(s) " + rows["data_digest"].str[:4]
        names = names.where(rows["data_digest"].isna(), names + ", " + of_each)
    for column in ("model", "data", "dtype", "start_token", "parameters", "data_digest", "key"):
        if rows.groupby(names)["key"].nunique().le(1).all():
            break
        clashing = rows.groupby(names)[column].transform("nunique") > 1
        if column == "parameters":
            text = pd.concat([_differing(_of_cells(found)) for _, found in rows.groupby(names)])
        else:
            text = rows[column].map(lambda value: str(value)[:60])
        names = names.where(~clashing, names + ", " + text)
    return names.rename("curve")


def _of_cells(rows: pd.DataFrame) -> pd.Series:
    """Parameters of each row as a dictionary, ``auto`` where a cell's own differ by length: a curve has one name."""
    fields = rows["parameters"].map(lambda text: json.loads(text) if isinstance(text, str) else {})
    for _, cell in fields.groupby(rows["key"]):
        changing = {name for row in cell for name, value in row.items() if value != cell.iloc[0].get(name)}
        for row in cell:
            row.update(dict.fromkeys(changing, "auto"))
    return fields


def _differing(fields: pd.Series) -> pd.Series:
    """Of dictionaries the fields that are not the same in all rows, such as ``blend=harmonic, ramp=index``."""
    names = sorted({name for row in fields for name in row})
    differing = [name for name in names if len({json.dumps(row.get(name)) for row in fields}) > 1]
    return fields.map(lambda row: ", ".join(f"{name}={str(row.get(name))[:20]}" for name in differing))


def unlike_documents(table: pd.DataFrame) -> bool:
    """Whether curves of one corpus rest on different documents, so that their perplexities do not compare."""
    return bool((table.groupby("data")["data_digest"].nunique() > 1).any())


def score_table(table: pd.DataFrame) -> pd.DataFrame:
    """Perplexity as a table of strategy × length, in the order of the rows; NaN where there is no number."""
    rows = table[table["length"].notna()]
    if rows.empty:
        return pd.DataFrame()
    wide = rows.assign(curve=curve_names(rows)).pivot_table(
        index="curve", columns="length", values="perplexity", aggfunc="last", dropna=False, sort=False
    )
    return wide.sort_index(axis="columns").rename_axis(index="strategy")


def _mark(axes: Axes, length: int, what: str) -> None:
    """A dashed line at a length, named above the axes."""
    axes.axvline(length, color="0.35", linewidth=1, linestyle="--", zorder=0)
    axes.annotate(
        f"{what} {length:,}",
        (length, 1.01),
        xycoords=axes.get_xaxis_transform(),
        ha="center",
        fontsize=8,
        color="0.35",
    )


def _length_axis(axes: Axes, lengths: Sequence[int], pretrained: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    low, high = lengths[0], lengths[-1]
    axes.set_xlim(low / 1.15, high * 1.15)
    # labels are measured lengths: the ends and the pretrained length first, then as many as do not overlap
    room = 0.09 * math.log(high / low)
    ticks: list[int] = []
    powers = [n for n in reversed(lengths) if n & (n - 1) == 0]
    for length in [high, low, *(n for n in pretrained if n in lengths), *powers, *reversed(lengths)]:
        if all(abs(math.log(length / tick)) >= room for tick in ticks):
            ticks.append(length)
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([float(t) for t in sorted(ticks)]))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.tick_params(axis="x", labelsize=8)


def _spaced(lengths: Sequence[int]) -> list[int]:
    """Indices of points whose markers do not smear into each other; the line runs through all."""
    kept: list[int] = []
    for i in reversed(range(len(lengths))):
        if not kept or math.log(lengths[kept[-1]] / lengths[i]) >= 0.025 * math.log(lengths[-1] / lengths[0]):
            kept.append(i)
    return kept


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


def loss_by_position(table: pd.DataFrame, *, trained_length: int, first: int = 1, bins_an_octave: int = 4) -> Figure:
    """Loss against position, one curve for each name, averaged in bins of equal width on the logarithmic axis.

    Args:
        table: columns ``curve``, ``position`` (tokens before the predicted one) and ``loss`` (nats).
        trained_length: tokens; marked.
        first: smallest position drawn; a corpus whose documents all begin alike has little to say before.
        bins_an_octave: points for each doubling of the position.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches.
    """
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
    _mark(axes, trained_length, "trained length")
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("loss (nats a token)")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def relative_positions(strategy: Strategy, spec: RopeSpec, length: int, *, title: str | None = None) -> Figure:
    """The relative position at which each query sees each key: what a strategy of positions does to the triangle.

    Args:
        strategy: any.
        spec: of the checkpoint, from :func:`extrapolate.read_spec`.
        length: tokens of the text; above 2,048 every so many tokens are drawn.
        title: above the axes; the strategy's label when left out.

    Returns:
        A figure of one axes and a colour bar, 5.2 by 4.2 inches. What is not seen is white; from the pretrained length
        on, where no relative position was seen in training, the colour changes.

    Raises:
        StrategyError: when the strategy refuses the length.
    """
    step = -(-length // 2048)
    table = positions_of(strategy, spec, length, step=step).numpy()
    trained = spec.pretrained_length
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    colours = matplotlib.colormaps["viridis"].with_extremes(over="#D55E00")
    image = axes.imshow(
        table,
        cmap=colours,
        vmin=0,
        vmax=trained,
        extent=(0, length, length, 0),
        interpolation="nearest",
        rasterized=True,
    )
    beyond = bool((np.nan_to_num(table) > trained).any())
    bar = figure.colorbar(image, ax=axes, extend="max" if beyond else "neither", shrink=0.85)
    bar.set_label("relative position" + (f" (orange: beyond {trained:,})" if beyond else ""), fontsize=8)
    axes.set_title(title or strategy.label, fontsize=10)
    axes.set_xlabel("key (tokens)")
    axes.set_ylabel("query (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
