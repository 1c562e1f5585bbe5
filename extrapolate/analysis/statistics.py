"""How sure a number is, and which of two is better: from the units that result rows keep.

A row's ``units`` are the weighted losses and weights of its documents, or of blocks of the one document. Every function
takes the table of :func:`extrapolate.read_results`. Strategies are compared on the same tokens only, unit by unit: the
spread between documents, which is larger than most differences, cancels. Intervals are Student's t
(:mod:`extrapolate.analysis.estimates`): they hold the truth as often as they say for two documents, too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from extrapolate.analysis.estimates import Estimate, estimate, exact_pair_test, holm, share_interval
from extrapolate.errors import ResultError

BASELINES = ("shipped", "plain")
"""What a strategy is compared with when nothing is said: the checkpoint as it came, or plain RoPE."""

SAME = ["model_digest", "dtype", "evaluation", "protocol", "start_token", "stride", "targets", "length", "depth"]
"""Columns in which two rows must agree to be compared."""


def intervals(table: pd.DataFrame, *, confidence: float = 0.95) -> pd.DataFrame:
    """Add the ends of each row's intervals to a table of results.

    ``nll_low``, ``nll_high``, ``perplexity_low`` and ``perplexity_high``: Student's t over units. With documents as
    units the interval says what other documents of this kind would give; over blocks of one document, which are taken
    for correlated, it says nothing of other texts. ``accuracy_low`` and ``accuracy_high``: Wilson's interval of the
    share of answers that are right. NaN where a row has fewer than two units, or a loss that is not finite.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        confidence: of the interval, between 0 and 1.

    Raises:
        ResultError: for a confidence that is none.
    """
    units = [_units(text) for text in table["units"]]
    found = [_estimate(each, unit).interval(confidence) for each, unit in zip(units, table["unit"], strict=True)]
    low, high = (np.array([pair[i] for pair in found], dtype=float) for i in (0, 1))
    with np.errstate(over="ignore"):
        added = {"nll_low": low, "nll_high": high, "perplexity_low": np.exp(low), "perplexity_high": np.exp(high)}
    if "accuracy" in table:
        shares = [
            (np.nan, np.nan) if pd.isna(right) else share_interval(round(right * count), int(count), confidence)
            for right, count in zip(table["accuracy"], table["samples"], strict=True)
        ]
        added |= {"accuracy_low": np.array([a for a, _ in shares]), "accuracy_high": np.array([b for _, b in shares])}
    return table.assign(**added)


def paired(table: pd.DataFrame, *, baseline: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """Each strategy against a baseline on the same tokens, at every length.

    An interval is that of its own row. A verdict holds over all rows: with 24 comparisons at 95 % one would be a false
    one in most tables, so it is given by Holm's adjusted p, and in 19 tables of 20 none is false.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        baseline: the label of a strategy, such as ``plain`` or ``yarn ×4``; when left out ``shipped``, else ``plain``.
        confidence: of the intervals, and of all verdicts together, between 0 and 1.

    Returns:
        One row for each pair and length: ``label``, ``baseline``, ``length``, ``difference`` (nats a token, below 0
        where the strategy is better), ``low`` and ``high`` (of its interval), ``ratio`` (of perplexities), ``verdict``
        (better, worse, indistinguishable; identical where every unit is; unknown without an interval), ``p`` (of its
        own), ``p_holm`` (over all rows), ``comparisons`` (how many those are), ``unit`` and ``units`` (what the
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
    columns = [
        *("label", "baseline", *SAME, "difference", "low", "high", "ratio", "verdict", "p", "p_holm", "comparisons"),
        *("unit", "units", "note"),
    ]
    frame = _judged(pd.DataFrame(pairs, columns=columns), confidence)
    return frame.drop(columns=[c for c in SAME if c != "length" and frame[c].nunique(dropna=False) <= 1])


def _judged(frame: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """With verdicts that hold over all rows together."""
    if frame.empty:
        return frame
    adjusted, compared = holm(frame["p"].tolist()), int(frame["p"].notna().sum())
    verdicts, notes = [], []
    for (_, row), p in zip(frame.iterrows(), adjusted, strict=True):
        verdict, note = row["verdict"], row["note"]
        if verdict not in ("identical", "unknown"):
            sure = p < 1 - confidence
            verdict = ("better" if row["difference"] < 0 else "worse") if sure else "indistinguishable"
            if not sure and row["p"] < 1 - confidence:
                chance = f"the interval leaves out 0, but of {compared} comparisons some do so by chance"
                note = f"{note}; {chance}" if note else chance
        verdicts.append(verdict)
        notes.append(note)
    return frame.assign(verdict=verdicts, p_holm=adjusted, comparisons=compared, note=notes)


def paired_answers(table: pd.DataFrame, *, baseline: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """Each strategy against a baseline on the same questions, over all depths: which answers more of them right.

    Args:
        table: rows of :func:`extrapolate.read_results`; those of retrieval are used.
        baseline: as in :func:`paired`.
        confidence: of the intervals, and of all verdicts together, between 0 and 1.

    Returns:
        One row for each pair, task and length: ``label``, ``baseline``, ``evaluation``, ``length``, ``questions``,
        ``accuracy`` with ``low`` and ``high`` (Wilson's interval), ``baseline_accuracy``, ``only_this`` and
        ``only_baseline`` (questions that one alone answers right), ``p`` (exact, of these two), ``p_holm``,
        ``comparisons``, ``verdict`` (better, worse, indistinguishable, or unknown where rows of an earlier release do
        not tell which answers were right).

    Raises:
        ResultError: when the baseline is not in the table, or rows it should be compared with rest on other questions.
    """
    rows = table[table["accuracy"].notna()] if "accuracy" in table else table.iloc[:0]
    name = _baseline(rows, baseline)
    same = [column for column in SAME if column in rows and column != "depth"]
    found = []
    pairs = [(base, other) for base, others in _beside(rows, name) for _, other in others.iterrows()]
    groups: dict[tuple[Any, ...], list[tuple[pd.Series, pd.Series]]] = {}
    for base, other in pairs:
        groups.setdefault((other["label"], *(str(other[c]) for c in same)), []).append((base, other))
    for each in groups.values():
        this, that = (
            [_right(row) for row in side] for side in ([other for _, other in each], [base for base, _ in each])
        )
        other = each[0][1]
        count = int(sum(row["samples"] for _, row in each))
        right = round(sum(row["accuracy"] * row["samples"] for _, row in each))
        of_base = sum(base["accuracy"] * base["samples"] for base, _ in each)
        low, high = share_interval(right, count, confidence)
        told = {
            "label": other["label"],
            "baseline": name,
            **{column: other[column] for column in same},
            "questions": count,
            "accuracy": right / count,
            "low": low,
            "high": high,
            "baseline_accuracy": of_base / count,
        }
        if any(x is None for x in (*this, *that)):
            found.append({**told, "only_this": np.nan, "only_baseline": np.nan, "p": np.nan, "verdict": "unknown"})
            continue
        one, two = (np.concatenate([x for x in side if x is not None]) for side in (this, that))
        only, others_only = int((one & ~two).sum()), int((two & ~one).sum())
        p = exact_pair_test(only, others_only)
        found.append({**told, "only_this": only, "only_baseline": others_only, "p": p, "verdict": ""})
    frame = pd.DataFrame(found)
    if frame.empty:
        return frame
    adjusted = holm(frame["p"].tolist())
    better = frame["only_this"] > frame["only_baseline"]
    words = [
        verdict or ("indistinguishable" if not q < 1 - confidence else "better" if more else "worse")
        for verdict, q, more in zip(frame["verdict"], adjusted, better, strict=True)
    ]
    frame = frame.assign(p_holm=adjusted, comparisons=int(frame["p"].notna().sum()), verdict=words)
    gone = [c for c in same if c not in ("length", "evaluation") and frame[c].nunique(dropna=False) <= 1]
    return frame.drop(columns=gone)


def _right(row: pd.Series) -> NDArray[np.bool_] | None:
    """Which answers of a row are right; None where it does not tell (a row of 0.2.0 that has some of each)."""
    told = json.loads(row["units"])
    if told and all(len(unit) > 2 for unit in told):
        return np.array([bool(unit[2]) for unit in told])
    return np.full(int(row["samples"]), bool(row["accuracy"])) if row["accuracy"] in (0.0, 1.0) else None


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
        ends = [_compared(row, self.best)[0].interval(confidence) for _, row in self.rows.iterrows()]
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
    return np.array([[np.nan if a is None else a, b] for a, b, *_ in json.loads(text)], dtype=float).reshape(-1, 2)


def _estimate(units: NDArray[np.float64], unit: Any) -> Estimate:
    return estimate(units[:, 0], units[:, 1], str(unit))


def _compared(one: pd.Series, other: pd.Series) -> tuple[Estimate, bool]:
    """Loss of one row minus that of another on the same tokens; and whether the two are the same, unit by unit.

    Raises:
        ResultError: when they scored other tokens.
    """
    a, b = _units(one["units"]), _units(other["units"])
    if a.shape != b.shape or not np.array_equal(a[:, 1], b[:, 1]):
        raise ResultError(f"{one['label']} and {other['label']} scored different tokens at length {one['length']}")
    between = estimate(a[:, 0] - b[:, 0], a[:, 1], str(one["unit"]))
    return between, np.array_equal(a, b)


def _difference(one: pd.Series, other: pd.Series, confidence: float) -> dict[str, Any]:
    """Loss of one row minus that of another on the same tokens, its interval, and what it says by itself."""
    between, same = _compared(one, other)
    difference = float(one["nll_mean"] - other["nll_mean"])
    low, high = between.interval(confidence)
    return {
        "difference": difference,
        "low": low,
        "high": high,
        "ratio": float(np.exp(min(difference, 700.0))),
        "verdict": "identical" if same else "unknown" if np.isnan(low) else "",
        "p": between.p,
        "unit": one["unit"],
        "units": len(_units(one["units"])),
        "note": BLOCKS_NOTE if one["unit"] == "block" else "",
    }


BLOCKS_NOTE = "one document: the interval is over its blocks and says nothing of other texts"
