"""Heatmaps of depth and length."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from extrapolate.errors import ResultError
from extrapolate.plots.style import Figure
from extrapolate.plots.tables import answers, curve_names


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
