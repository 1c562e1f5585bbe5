"""How far a strategy carries, where it breaks, and what longer context is worth: from losses on fixed targets.

Of rows of protocol ``last``, whose targets are the same at every length: there a higher loss is due to the context.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from extrapolate.analysis.statistics import compared, difference_of
from extrapolate.errors import ResultError


def usable_length(table: pd.DataFrame, *, tolerance: float = 0.1, confidence: float = 0.95) -> pd.DataFrame:
    """How far each strategy carries: the largest length up to which the loss on fixed targets stays near the best.

    From rows of protocol ``last``, whose targets are the same at every length: there a higher loss is due to the
    context. All lengths measured up to the usable one stay within the tolerance.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of other protocols are left out.
        tolerance: nats a token above the strategy's best loss within the pretrained length.
        confidence: of the interval, between 0 and 1.

    Returns:
        One row for each strategy: ``label``, ``pretrained_length``, ``usable_length`` (tokens; missing where no length
        qualifies), ``low`` and ``high`` (the same with the upper and the lower end of each loss's interval above the
        best: surely that far, and perhaps; missing where no length qualifies, or a length has no interval),
        ``claimed_length`` (factor × pretrained length, missing without a factor), ``longest`` (measured), ``best``
        (loss within the pretrained length, nats a token).

    Raises:
        ResultError: when there are no rows of protocol ``last``, or none within the pretrained length.
    """
    found = []
    for curve in _fixed_targets(table, "usable length"):
        reached = [_reached(curve, bound, tolerance) for bound in curve.excess(confidence)]
        factor = curve.rows["factor"].iloc[0]
        found.append(
            {
                "label": curve.label,
                "pretrained_length": curve.trained,
                "usable_length": reached[0],
                "low": reached[2],
                "high": reached[1],
                "claimed_length": pd.NA if pd.isna(factor) else round(factor * curve.trained),
                "longest": curve.rows["length"].max(),
                "best": curve.best["nll_mean"],
            }
        )
    whole = ["pretrained_length", "usable_length", "low", "high", "claimed_length", "longest"]
    return pd.DataFrame(found).astype(dict.fromkeys(whole, "Int64"))


def measured_breaks(table: pd.DataFrame, *, tolerance: float = 0.1, confidence: float = 0.95) -> pd.DataFrame:
    """Where each strategy breaks: past the pretrained length, where the loss on fixed targets leaves its best.

    On a straight line between two measured lengths, over the logarithm of the length.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of other protocols are left out.
        tolerance: nats a token above the strategy's best loss within the pretrained length.
        confidence: of the interval, between 0 and 1.

    Returns:
        One row for each strategy: ``label``, ``break_length`` (tokens), ``low`` and ``high`` (where the upper and the
        lower end of each loss's interval leave it; both NaN where a length has no interval), ``longest`` (measured).
        NaN is no break up to there.

    Raises:
        ResultError: as :func:`usable_length`.
    """
    found = []
    for curve in _fixed_targets(table, "a break"):
        value, lower, upper = (_crossing(curve, bound, tolerance) for bound in curve.excess(confidence))
        found.append(
            {"label": curve.label, "break_length": value, "low": upper, "high": lower, "longest": curve.lengths[-1]}
        )
    return pd.DataFrame(found)


@dataclass(frozen=True)
class _Curve:
    """The losses of one cell on fixed targets, by rising length."""

    label: str
    trained: int
    rows: pd.DataFrame
    best: pd.Series

    @property
    def lengths(self) -> NDArray[np.float64]:
        return self.rows["length"].to_numpy(float)

    def excess(self, confidence: float) -> tuple[NDArray[np.float64], ...]:
        """Loss above the best of each length, and the lower and the upper end of its interval."""
        value = (self.rows["nll_mean"] - self.best["nll_mean"]).to_numpy(float)
        ends = [compared(row, self.best)[0].interval(confidence) for _, row in self.rows.iterrows()]
        return value, np.array([a for a, _ in ends]), np.array([b for _, b in ends])


def _fixed_targets(table: pd.DataFrame, what: str) -> Iterator[_Curve]:
    rows = table[(table["protocol"] == "last") & table["units"].notna()]
    if rows.empty:
        raise ResultError(f"{what} needs fixed targets: run with evaluation.protocol=last")
    for (label, _), curve in rows.groupby(["label", "key"], sort=False):
        curve = curve.sort_values("length")
        trained = int(curve["pretrained_length"].iloc[0])
        inside = curve[(curve["length"] <= trained) & curve["nll_mean"].notna()]
        if inside.empty:
            raise ResultError(f"{label}: no length within the pretrained {trained:,} tokens to compare with")
        yield _Curve(str(label), trained, curve, inside.iloc[int(inside["nll_mean"].to_numpy(float).argmin())])


def _reached(curve: _Curve, excess: NDArray[np.float64], tolerance: float) -> Any:
    """The largest length up to which all stay within the tolerance, from the pretrained one on."""
    if np.isnan(excess).all():
        return pd.NA
    near = excess <= tolerance
    on_the_way = np.logical_and.accumulate(near | (curve.lengths < curve.trained))
    lengths = curve.lengths[on_the_way & near]
    return int(lengths.max()) if lengths.size else pd.NA


def _crossing(curve: _Curve, excess: NDArray[np.float64], tolerance: float) -> float:
    """Length past the pretrained one at which a line through the excess first leaves the tolerance."""
    logs = np.log2(curve.lengths)
    for i in range(1, len(logs)):
        if curve.lengths[i] > curve.trained and excess[i] > tolerance:
            share = (tolerance - excess[i - 1]) / (excess[i] - excess[i - 1])
            return float(2 ** (logs[i - 1] + (logs[i] - logs[i - 1]) * min(1.0, max(0.0, share))))
    return np.nan


def context_gain(table: pd.DataFrame, *, short: int | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """What longer context is worth: loss behind a short context minus loss behind each longer one, on the same tokens.

    From rows of protocol ``last``. A strategy that only forgets has a low perplexity and no gain.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of other protocols are left out.
        short: the length to compare with; the shortest measured when left out.
        confidence: of the intervals, between 0 and 1.

    Returns:
        One row for each strategy and longer length: ``label``, ``length``, ``short``, ``gain`` (nats a token, above 0
        where the longer context helps), ``low``, ``high``, ``unit``, ``units``, ``note``.

    Raises:
        ResultError: when there are no rows of protocol ``last``, or none of the short length.
    """
    rows = table[(table["protocol"] == "last") & table["units"].notna()]
    if rows.empty:
        raise ResultError("context gain needs fixed targets: run with evaluation.protocol=last")
    found = []
    for (label, _), curve in rows.groupby(["label", "key"], sort=False):
        least = int(curve["length"].min()) if short is None else short
        base = curve[curve["length"] == least]
        if base.empty:
            raise ResultError(f"{label}: length {least:,} was not measured")
        for _, other in curve[curve["length"] > least].sort_values("length").iterrows():
            pair = difference_of(base.iloc[0], other, confidence)
            kept = {name: pair[name] for name in ("low", "high", "unit", "units", "note")}
            found.append(
                {"label": label, "length": other["length"], "short": least, "gain": pair["difference"], **kept}
            )
    return pd.DataFrame(found)
