"""What a strategy does to frequencies and positions, apart from any model."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
import torch

from extrapolate.analysis import cosine_sum, long_term_decay, rotary_pairs
from extrapolate.analysis import relative_positions as positions_of
from extrapolate.errors import StrategyError
from extrapolate.plots.style import COLOURS, STYLES, Figure, mark, plain_frame, tokens_axis
from extrapolate.rope import RopeSpec
from extrapolate.strategies import Strategy


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


def frequencies(
    strategies: Sequence[Strategy],
    spec: RopeSpec,
    length: int,
    *,
    title: str | None = None,
    labels: Sequence[str] | None = None,
) -> Figure:
    """How much each strategy slows each rotary pair for a text of some length.

    Args:
        strategies: any; those that leave frequencies alone lie at 1.
        spec: of the checkpoint.
        length: tokens of the text, for strategies that follow it.
        title: above the axes.
        labels: of the curves, in place of the strategies' own.

    Returns:
        A figure of one axes, 6.4 by 4.2 inches, fastest pair left; wider with a legend beside it for more than eight.
        Right of the dashed line pairs made no full turn in training. A pair that stands still has no place on the axis.

    Raises:
        StrategyError: when a strategy cannot reach the length, or there is none.
    """
    if not strategies:
        raise StrategyError("there is nothing to draw: give at least one strategy")
    crowded = len(strategies) > len(COLOURS)
    figure = Figure(figsize=(8.0, 4.2) if crowded else (6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    named = zip(strategies, labels or [strategy.label for strategy in strategies], strict=True)
    for i, (strategy, label) in enumerate(named):
        table = rotary_pairs(strategy, spec, length)
        slowed = table["slowed"].replace(np.inf, np.nan)
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
        axes.plot(table["pair"], slowed, color=colour, linestyle=style, linewidth=1.5, label=label)
    turning = int(table["finishes"].sum())
    if turning < len(table):
        axes.axvline(turning - 0.5, color="0.35", linewidth=1, linestyle="--", zorder=0)
        axes.annotate(
            "no full turn in training →",
            (turning - 0.2, 1.01),
            xycoords=axes.get_xaxis_transform(),
            fontsize=8,
            color="0.35",
        )
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    axes.set_xlabel("rotary pair (0 turns fastest)")
    axes.set_ylabel("times slower than in training")
    if crowded:
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    else:
        axes.legend(frameon=False, fontsize=8)
    plain_frame(axes)
    if title:
        axes.set_title(title, fontsize=10, pad=16)
    return figure


def decay(strategies: Sequence[Strategy], spec: RopeSpec, length: int, *, title: str | None = None) -> Figure:
    """Long-term decay and the sum of cosines against distance: what frequencies alone say of far keys.

    Args:
        strategies: any; their frequencies for a text of ``length`` tokens count, not their positions.
        spec: of the checkpoint.
        length: tokens; the largest distance drawn.
        title: above the figure.

    Returns:
        A figure of two axes, 7.2 by 3.6 inches: RoFormer's bound, and Men et al.'s sum, both as shares of their value
        at distance 0, the mean of the one and the lowest of the other in each eighth of an octave. Below 0 the latter
        no longer tells a similar key from a random one.

    Raises:
        StrategyError: when a strategy cannot reach the length, or there is none.
    """
    if not strategies:
        raise StrategyError("there is nothing to draw: give at least one strategy")
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    bound, cosines = figure.subplots(1, 2)
    distances = torch.arange(1, length + 1)
    bins = np.floor(np.log2(distances.numpy()) * 8)  # eighths of an octave: one distance and the next differ wildly
    at = 2 ** (np.unique(bins) / 8)
    start = torch.zeros(1)
    for i, strategy in enumerate(strategies):
        found = strategy.frequencies(spec, length)
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}
        for axes, measure, kept in ((bound, long_term_decay, "mean"), (cosines, cosine_sum, "min")):
            share = (measure(found, distances) / measure(found, start)).numpy()
            axes.plot(at, pd.Series(share).groupby(bins).agg(kept), linewidth=1.4, label=strategy.label, **style)
    cosines.axhline(0, color="0.35", linewidth=1, linestyle="--", zorder=0)
    for axes, what in ((bound, "bound on the score, mean"), (cosines, "sum of cosines, lowest")):
        tokens_axis(axes)
        if spec.pretrained_length <= length:
            mark(axes, spec.pretrained_length, "pretrained")
        axes.set_xlabel("distance (tokens)", fontsize=9)
        axes.set_ylabel(f"{what} (share of that at 0)", fontsize=9)
        plain_frame(axes)
    bound.legend(frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def unseen_phases(strategy: Strategy, spec: RopeSpec, lengths: Sequence[int], *, title: str | None = None) -> Figure:
    """The share of a text's relative positions whose phase was never seen in training, pair × length.

    Args:
        strategy: any.
        spec: of the checkpoint.
        lengths: tokens, rising.
        title: above the axes; the strategy's label when left out.

    Returns:
        A figure of one axes and a colour bar, 5.2 by 3.6 inches.

    Raises:
        StrategyError: when the strategy cannot reach a length, or there is none.
    """
    if not lengths:
        raise StrategyError("there is nothing to draw: give at least one length")
    table = np.stack([rotary_pairs(strategy, spec, n)["unseen"].to_numpy(float) for n in lengths], axis=1)
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(table, cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8, rotation=45)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("rotary pair (0 turns fastest)")
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label("share of relative positions at unseen phases", fontsize=8)
    axes.set_title(title or strategy.label, fontsize=10)
    return figure
