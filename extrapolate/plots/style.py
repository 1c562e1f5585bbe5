"""What all figures share: colours, the axis of lengths, marks."""

import io
import math
from collections.abc import Sequence
from typing import Literal

import matplotlib.figure
import matplotlib.ticker
from matplotlib.axes import Axes

# Okabe and Ito's palette, distinguishable with any colour vision, and a marker of its own for each curve
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


MARKERS = "os^Dv<>P*X"


STYLES = ("-", "--", ":")  # the next one when the colours are used up


class Figure(matplotlib.figure.Figure):
    """A figure that shows itself at the end of a notebook's cell, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def mark(axes: Axes, length: int, what: str) -> None:
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


def length_axis(axes: Axes, lengths: Sequence[int], pretrained: Sequence[int]) -> None:
    """A logarithmic axis of lengths, labelled with as many of them as fit."""
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


def spaced(lengths: Sequence[int]) -> list[int]:
    """Indices of points whose markers do not smear into each other; the line runs through all."""
    kept: list[int] = []
    for i in reversed(range(len(lengths))):
        if not kept or math.log(lengths[kept[-1]] / lengths[i]) >= 0.025 * math.log(lengths[-1] / lengths[0]):
            kept.append(i)
    return kept


def tokens_axis(axes: Axes) -> None:
    """A logarithmic axis of tokens with labels that people read."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.tick_params(axis="x", labelsize=8)


def plain_frame(axes: Axes, *, grid: Literal["both", "x", "y"] = "both") -> None:
    """A light grid, and no frame above and right."""
    axes.grid(True, axis=grid, which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
