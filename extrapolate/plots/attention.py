"""What heads attend to, from the tables of :mod:`extrapolate.analysis.attention`."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from extrapolate.errors import ResultError
from extrapolate.plots.style import COLOURS, MARKERS, Figure, mark, plain_frame, tokens_axis


def attention_by_distance(
    distances: Mapping[str, pd.DataFrame], *, pretrained_length: int | None = None, title: str | None = None
) -> Figure:
    """Mean weight of a key against its distance, over all heads, one curve for each name.

    Args:
        distances: name → ``distances`` of :func:`extrapolate.analysis.attention_statistics`.
        pretrained_length: tokens; marked.
        title: above the axes.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches, both logarithmic.

    Raises:
        ResultError: when there is no table.
    """
    _some(distances)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, table) in enumerate(distances.items()):
        mean = table.groupby("first")["attention"].mean().drop(0, errors="ignore")  # no logarithm of distance 0
        axes.plot(mean.index, mean, color=COLOURS[i % len(COLOURS)], linewidth=1.5, label=name)
    tokens_axis(axes)
    axes.set_yscale("log")
    if pretrained_length is not None:
        mark(axes, pretrained_length, "pretrained length")
    axes.set_xlabel("distance from query to key (tokens)")
    axes.set_ylabel("attention of one key, mean over heads")
    axes.legend(frameon=False, fontsize=9)
    plain_frame(axes)
    if title:
        axes.set_title(title, fontsize=10, pad=16)
    return figure


def pairs_in_use(pairs: pd.DataFrame, *, turning: int | None = None, title: str | None = None) -> Figure:
    """Which rotary pairs each head uses: its share of the products of query and key norms.

    Args:
        pairs: ``pairs`` of :func:`extrapolate.analysis.attention_statistics`.
        turning: how many pairs made a full turn in training; a line behind them.
        title: above the axes.

    Returns:
        A figure of one axes and a colour bar, 6.4 inches wide; heads from top to bottom, layer by layer.

    Raises:
        ResultError: when the table is empty.
    """
    if pairs.empty:
        raise ResultError("there is nothing to plot: no layer rotates")
    wide = pairs.pivot_table(index=["layer", "head"], columns="pair", values="share")
    figure = Figure(figsize=(6.4, min(8.0, 1.6 + 0.08 * len(wide))), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(wide.to_numpy(), cmap="cividis", aspect="auto", interpolation="nearest", vmin=0)
    layers = wide.index.get_level_values("layer").to_numpy()
    starts = np.flatnonzero(np.diff(layers, prepend=layers[0] - 1))
    axes.set_yticks(starts, [str(layers[i]) for i in starts], fontsize=7)
    if turning is not None:
        axes.axvline(turning - 0.5, color="#D55E00", linewidth=1.5, linestyle="--")
    axes.set_xlabel("rotary pair (0 turns fastest)")
    axes.set_ylabel("head, by layer")
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label("share of the head's score in norm", fontsize=8)
    if title:
        axes.set_title(title, fontsize=10)
    return figure


def copying(
    tables: Mapping[str, pd.DataFrame],
    *,
    strongest: int = 4,
    pretrained_length: int | None = None,
    title: str | None = None,
) -> Figure:
    """How much the strongest copying heads attend to what followed the last time, against distance.

    Args:
        tables: name → :func:`extrapolate.analysis.copy_attention`.
        strongest: how many heads of each table, by their greatest mass, are averaged.
        pretrained_length: tokens; marked.
        title: above the axes.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches.

    Raises:
        ResultError: when there is no table.
    """
    _some(tables)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, table) in enumerate(tables.items()):
        wide = table.pivot_table(index=["layer", "head"], columns="distance", values="mass")
        best = wide.loc[wide.max(axis=1).nlargest(strongest).index].mean()
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        axes.plot(best.index, best, color=colour, marker=marker, markersize=4.5, linewidth=1.5, label=name)
    tokens_axis(axes)
    axes.set_ylim(0, None)
    if pretrained_length is not None:
        mark(axes, pretrained_length, "pretrained length")
    axes.set_xlabel("distance to the earlier occurrence (tokens)")
    axes.set_ylabel(f"attention to what followed it, {strongest} strongest heads", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    plain_frame(axes)
    if title:
        axes.set_title(title, fontsize=10, pad=16)
    return figure


def _some(tables: Mapping[str, pd.DataFrame]) -> None:
    if not tables:
        raise ResultError("there is nothing to plot: give at least one table")
