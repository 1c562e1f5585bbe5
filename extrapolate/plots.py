"""Result tables as matplotlib figures. Knows no model: rows in, figure out."""

import json
import math
from collections.abc import Sequence

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from extrapolate.analysis import intervals
from extrapolate.analysis import relative_positions as positions_of
from extrapolate.analysis.statistics import SAME
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

    A band is the 95 % bootstrap interval, where a cell tells more than one unit; with many curves there are none. The
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
            markevery=_spaced([int(n) for n in length[drawn]]),
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
    _length_axis(axes, sorted(int(n) for n in rows["length"].unique()), trained_at)
    _perplexity_axis(axes)
    for x, colour in missing:
        axes.plot([x], [0.985], "x", color=colour, transform=axes.get_xaxis_transform(), markersize=7, clip_on=False)
    for pretrained in trained_at:
        if not axes.get_xlim()[0] <= pretrained <= axes.get_xlim()[1]:
            continue
        _mark(axes, pretrained, "pretrained length")
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


def perplexities(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with a length that are not of retrieval."""
    return table[table["length"].notna() & table["samples"].isna()]


def answers(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of retrieval that have a result."""
    return table[table["accuracy"].notna()]


def _perplexity_label(rows: pd.DataFrame) -> str:
    protocols = set(rows["protocol"].dropna())
    if protocols <= {"prefix"}:
        return "perplexity of tokens 2…L"
    if protocols == {"masked"}:
        return "pseudo-perplexity"
    return "perplexity" + (f" ({protocols.pop()})" if len(protocols) == 1 else "")


def curve_names(rows: pd.DataFrame) -> pd.Series:
    """A legend entry for each row: the strategy's label, and whatever else tells this table's curves apart."""
    names = rows["label"].fillna("failed").astype(str)
    if unlike_documents(rows):
        of_each = rows["documents"].astype(str) + " document(s) " + rows["data_digest"].str[:4]
        names = names.where(rows["data_digest"].isna(), names + ", " + of_each)
    for column in CURVES:
        if rows.groupby(names)["key"].nunique().le(1).all():
            break
        clashing = rows.groupby(names)[column].transform("nunique") > 1
        if column == "parameters":
            text = pd.concat([_differing(_of_cells(found)) for _, found in rows.groupby(names)])
        else:
            told = column in ("stride", "targets") or column.endswith("_version")
            prefix = f"{column.replace('_version', '')} " if told else ""
            text = prefix + rows[column].map(lambda value: str(value)[:60])
        names = names.where(~clashing, names + ", " + text)
    return names.rename("curve")


CURVES = (
    *("model", "data", "evaluation", "protocol", "dtype", "start_token", "stride", "targets"),
    *("parameters", "data_digest", "extrapolate_version", "torch_version", "transformers_version", "key"),
)
"""What tells curves of one label apart, in this order, as far as it is needed."""


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
    rows = perplexities(table)
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
    if trained_length:
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


def paired_differences(differences: pd.DataFrame, *, length: int | None = None, title: str | None = None) -> Figure:
    """A forest of differences of loss: each strategy against the baseline on the same tokens, with its interval.

    Args:
        differences: rows of :func:`extrapolate.analysis.paired`.
        length: the length drawn; the longest when left out.
        title: above the axes.

    Returns:
        A figure of one axes, 6.4 inches wide, a row for each strategy: filled where the interval leaves out 0.

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
    axes.set_yticks(range(len(rows)), pair_names(rows).tolist(), fontsize=9)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(
        f"loss minus that of {rows['baseline'].iloc[0]} at {chosen:,} tokens (nats a token; left is better)"
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
        A figure of two axes, 7.2 inches wide, a row for each strategy in both tables and for the baseline. Left the usable length, a tick
        at what the factor claims, an arrow where nothing longer was measured; right the cost with its interval.

    Raises:
        ResultError: when no strategy is in both.
    """
    itself = costs.drop_duplicates("baseline").assign(label=lambda rows: rows["baseline"], difference=0.0)
    itself[["low", "high"]] = np.nan
    both = pd.concat([costs, itself]).merge(lengths, on="label").dropna(subset=["usable_length"])
    if both.empty:
        raise ResultError("no strategy has both a short-context cost and a usable length")
    both = both.sort_values(["usable_length", "difference"], ascending=[True, False])
    figure = Figure(figsize=(7.2, 1.4 + 0.28 * len(both)), layout="constrained")
    reach, price = figure.subplots(1, 2, sharey=True)
    for y, (_, row) in enumerate(both.iterrows()):
        usable, cost = float(row["usable_length"]), float(row["difference"])
        reach.plot([float(row["pretrained_length"]), usable], [y, y], color=COLOURS[0], linewidth=1.6)
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


def retrieval(table: pd.DataFrame, *, value: str = "accuracy", title: str | None = None) -> Figure:
    """Heatmaps of depth × length, one for each strategy, tasks below each other.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of retrieval are drawn.
        value: ``accuracy`` (share of answers that are right), or ``nll_mean`` (loss, nats an answer token).
        title: above the figure.

    Returns:
        A figure with one axes for each strategy and task, lengths from left to right, depths from top to bottom; the
        values stand in the cells.

    Raises:
        ResultError: when there are no such rows, or for another value.
    """
    if value not in ("accuracy", "nll_mean"):
        raise ResultError(f"value must be 'accuracy' or 'nll_mean', got {value!r}")
    rows = answers(table)
    if rows.empty:
        raise ResultError("there is nothing to plot: the table has no retrieval results")
    tasks, names = list(dict.fromkeys(rows["evaluation"])), rows.groupby("evaluation", group_keys=False, sort=False)
    rows = rows.assign(curve=pd.concat([curve_names(group) for _, group in names]))
    curves = list(dict.fromkeys(rows["curve"]))
    height = sum(0.8 + 0.3 * max(1, rows.loc[rows["evaluation"] == t, "depth"].nunique()) for t in tasks)
    figure = Figure(figsize=(1.2 + 2.1 * len(curves), 0.6 + height), layout="constrained")
    axes = figure.subplots(len(tasks), len(curves), squeeze=False)
    top = 1.0 if value == "accuracy" else float(np.nanmax(rows["nll_mean"].to_numpy(float)))
    scale = Normalize(0, top or 1.0)
    shade = ScalarMappable(scale, "cividis" if value == "accuracy" else "cividis_r")
    for i, task in enumerate(tasks):
        for j, curve in enumerate(curves):
            chosen = rows[(rows["evaluation"] == task) & (rows["curve"] == curve)]
            _heatmap(axes[i][j], chosen, value, shade, scale)
            axes[i][j].set_title(curve if i == 0 else "", fontsize=9)
            if j == 0:
                axes[i][j].set_ylabel(f"{task}\ndepth", fontsize=9)
            if i == len(tasks) - 1:
                axes[i][j].set_xlabel("length (tokens)", fontsize=9)
    label = "share of answers right" if value == "accuracy" else "loss (nats an answer token)"
    bar = figure.colorbar(shade, ax=axes, shrink=0.8)
    bar.set_label(label, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _heatmap(axes: Axes, rows: pd.DataFrame, value: str, shade: ScalarMappable, scale: Normalize) -> None:
    """Depth × length of one strategy and task; nothing where there are no rows."""
    if rows.empty:
        axes.set_axis_off()
        return
    wide = rows.assign(depth=rows["depth"].astype(float).fillna(-1)).pivot_table(
        index="depth", columns="length", values=value, aggfunc="last"
    )
    cells = wide.to_numpy(float)
    axes.imshow(cells, cmap=shade.cmap, norm=scale, aspect="auto")
    for (y, x), number in np.ndenumerate(cells):
        red, green, blue = np.asarray(shade.to_rgba(np.array([number])))[0, :3]
        ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
        axes.text(x, y, f"{number:.2g}", ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(wide.shape[1]), [f"{int(n):,}" for n in wide.columns], fontsize=7, rotation=30)
    axes.set_yticks(range(wide.shape[0]), ["any" if d < 0 else f"{d:g}" for d in wide.index], fontsize=8)
    trained = rows["pretrained_length"].iloc[0]
    inside = [i for i, n in enumerate(wide.columns) if n <= trained]
    if inside and len(inside) < wide.shape[1]:
        axes.axvline(inside[-1] + 0.5, color="#D55E00", linewidth=1.5, linestyle="--")
