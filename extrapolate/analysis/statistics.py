"""How sure a number is, and which of two is better: from the units that result rows keep.

A row's ``units`` are the weighted losses and weights of its documents, or of blocks of the one document. Every function
takes the table of :func:`extrapolate.read_results`. Strategies are compared on the same tokens only, unit by unit: the
spread between documents, which is larger than most differences, cancels.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from extrapolate.errors import ResultError

RESAMPLES = 9999
BASELINES = ("shipped", "plain")
"""What a strategy is compared with when nothing is said: the checkpoint as it came, or plain RoPE."""

SAME = ["model_digest", "dtype", "evaluation", "protocol", "start_token", "stride", "targets", "length", "depth"]
"""Columns in which two rows must agree to be compared."""


def intervals(table: pd.DataFrame, *, confidence: float = 0.95) -> pd.DataFrame:
    """Add columns ``nll_low``, ``nll_high``, ``perplexity_low`` and ``perplexity_high`` to a table of results.

    Percentile bootstrap over units with a fixed seed. With documents as units the interval says what other documents
    of this kind would give; over blocks of one document it says nothing of other texts. NaN where a row has fewer than
    two units or a loss that is not finite.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        confidence: of the interval, between 0 and 1.
    """
    found = [_interval(_units(text), confidence) for text in table["units"]]
    low, high = (np.array([pair[i] for pair in found], dtype=float) for i in (0, 1))
    with np.errstate(over="ignore"):
        return table.assign(nll_low=low, nll_high=high, perplexity_low=np.exp(low), perplexity_high=np.exp(high))


def paired(table: pd.DataFrame, *, baseline: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """Each strategy against a baseline on the same tokens, at every length.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        baseline: the label of a strategy, such as ``plain`` or ``yarn ×4``; when left out ``shipped``, else ``plain``.
        confidence: of the intervals, between 0 and 1.

    Returns:
        One row for each pair and length: ``label``, ``baseline``, ``length``, ``difference`` (nats a token, below 0
        where the strategy is better), ``low`` and ``high`` (of its bootstrap interval), ``ratio`` (of perplexities),
        ``verdict`` (better, worse, or indistinguishable where the interval holds 0), ``unit`` and ``units`` (what the
        interval is over, and how many), ``note`` (what to mind).

    Raises:
        ResultError: when the baseline is not in the table, or rows it should be compared with rest on other tokens.
    """
    rows = table[table["units"].notna() & table["nll_mean"].notna()]
    name = _baseline(rows, baseline)
    pairs = [
        {
            "label": other["label"],
            "baseline": name,
            **{column: other[column] for column in SAME if column in other},
            **_difference(other, base, confidence),
        }
        for base, others in _beside(rows, name)
        for _, other in others.iterrows()
    ]
    columns = ["label", "baseline", *SAME, "difference", "low", "high", "ratio", "verdict", "unit", "units", "note"]
    frame = pd.DataFrame(pairs, columns=columns)
    return frame.drop(columns=[c for c in SAME if c != "length" and frame[c].nunique(dropna=False) <= 1])


def short_context_cost(table: pd.DataFrame, *, baseline: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """What a strategy costs where none is needed: :func:`paired` at the longest length within the pretrained one.

    Returns:
        As :func:`paired`, one row for each strategy.

    Raises:
        ResultError: as :func:`paired`; also when no length is within the pretrained length.
    """
    inside = table[table["length_used"] <= table["pretrained_length"]]
    if inside.empty:
        raise ResultError("the table has no length within the pretrained length, so no short-context cost")
    longest = inside.groupby("model_digest")["length"].transform("max")
    return paired(inside[inside["length"] == longest], baseline=baseline, confidence=confidence)


def usable_length(table: pd.DataFrame, *, tolerance: float = 0.1) -> pd.DataFrame:
    """How far each strategy carries: the largest length up to which the loss on fixed targets stays near the best.

    From rows of protocol ``last``, whose targets are the same at every length: there a higher loss is due to the
    context. All lengths measured up to the usable one stay within the tolerance.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of other protocols are left out.
        tolerance: nats a token above the strategy's best loss within the pretrained length.

    Returns:
        One row for each strategy: ``label``, ``pretrained_length``, ``usable_length`` (tokens; missing where no length
        qualifies), ``claimed_length`` (factor × pretrained length, missing without a factor), ``longest`` (measured),
        ``best`` (loss within the pretrained length, nats a token).

    Raises:
        ResultError: when there are no rows of protocol ``last``, or none within the pretrained length.
    """
    rows = table[(table["protocol"] == "last") & table["length"].notna()]
    if rows.empty:
        raise ResultError("usable length needs fixed targets: run with evaluation.protocol=last")
    found = []
    for (label, _), curve in rows.groupby(["label", "key"], sort=False):
        curve = curve.sort_values("length")
        trained = int(curve["pretrained_length"].iloc[0])
        best = curve.loc[curve["length"] <= trained, "nll_mean"].min()
        if pd.isna(best):
            raise ResultError(f"{label}: no length within the pretrained {trained:,} tokens to compare with")
        near = (curve["nll_mean"] <= best + tolerance) | (curve["length"] < trained)
        reached = curve["length"][near.cummin() & (curve["nll_mean"] <= best + tolerance)]
        factor = curve["factor"].iloc[0]
        found.append(
            {
                "label": label,
                "pretrained_length": trained,
                "usable_length": reached.max() if len(reached) else pd.NA,
                "claimed_length": pd.NA if pd.isna(factor) else round(factor * trained),
                "longest": curve["length"].max(),
                "best": best,
            }
        )
    whole = ["pretrained_length", "usable_length", "claimed_length", "longest"]
    return pd.DataFrame(found).astype(dict.fromkeys(whole, "Int64"))


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
            pair = _difference(base.iloc[0], other, confidence)
            kept = {name: pair[name] for name in ("low", "high", "unit", "units", "note")}
            found.append(
                {"label": label, "length": other["length"], "short": least, "gain": pair["difference"], **kept}
            )
    return pd.DataFrame(found)


def _beside(rows: pd.DataFrame, name: str) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Each row of the baseline with the rows of other strategies that measured the same."""
    columns = [column for column in SAME if column in rows]
    for values, group in rows.groupby(columns, sort=False, dropna=False):
        for _, texts in group.groupby("data", sort=False, dropna=False):
            base, others = texts[texts["label"] == name], texts[texts["label"] != name]
            if base.empty or others.empty:
                continue
            unlike = others["data_digest"] != base["data_digest"].iloc[0]
            if unlike.any():
                where = dict(zip(columns, values, strict=True))
                raise ResultError(
                    f"{others.loc[unlike, 'label'].iloc[0]} and {name} rest on different documents at length "
                    f"{where.get('length')}: nothing to pair"
                )
            yield base.iloc[0], others


def _baseline(rows: pd.DataFrame, wanted: str | None) -> str:
    labels = list(dict.fromkeys(rows["label"]))
    candidates = BASELINES if wanted is None else (wanted,)
    for name in candidates:
        if name in labels:
            return name
    known = ", ".join(labels) or "none"
    raise ResultError(f"no results of {' or '.join(candidates)} to compare with; there are {known}")


def _units(text: Any) -> NDArray[np.float64]:
    """(units, 2) weighted losses and weights; NaN for a loss that is not finite."""
    if not isinstance(text, str):
        return np.empty((0, 2))
    return np.array([[np.nan if a is None else a, b] for a, b in json.loads(text)], dtype=float).reshape(-1, 2)


def _interval(units: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    return _bootstrap((units[:, 0], units[:, 1]), _mean, confidence)


def _mean(losses: NDArray[np.float64], weights: NDArray[np.float64], axis: int = -1) -> Any:
    return losses.sum(axis=axis) / weights.sum(axis=axis)


def _bootstrap(
    data: Sequence[NDArray[np.float64]], statistic: Callable[..., Any], confidence: float
) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ResultError(f"confidence must be between 0 and 1, got {confidence}")
    if data[0].size < 2 or not all(np.isfinite(values).all() for values in data):
        return np.nan, np.nan
    import scipy.stats  # a second that a sweep's start need not pay

    found = scipy.stats.bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _difference(one: pd.Series, other: pd.Series, confidence: float) -> dict[str, Any]:
    """Loss of one row minus that of another on the same tokens, its interval, and what it says."""
    a, b = _units(one["units"]), _units(other["units"])
    if a.shape != b.shape or not np.array_equal(a[:, 1], b[:, 1]):
        raise ResultError(f"{one['label']} and {other['label']} scored different tokens at length {one['length']}")
    difference = float(one["nll_mean"] - other["nll_mean"])
    low, high = _bootstrap((a[:, 0] - b[:, 0], a[:, 1]), _mean, confidence)
    if np.array_equal(a, b):
        verdict = "identical"
    elif np.isnan(low):
        verdict = "unknown"
    else:
        verdict = "better" if high < 0 else "worse" if low > 0 else "indistinguishable"
    return {
        "difference": difference,
        "low": low,
        "high": high,
        "ratio": float(np.exp(min(difference, 700.0))),
        "verdict": verdict,
        "unit": one["unit"],
        "units": len(a),
        "note": _note(str(one["unit"]), len(a)),
    }


def _note(unit: str, count: int) -> str:
    if unit == "block":
        return "one document: the interval is over its blocks and says nothing of other texts"
    return f"{count} {unit}s only: the interval is rough" if count < 10 else ""
