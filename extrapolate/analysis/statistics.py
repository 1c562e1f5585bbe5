"""How sure a number is, and which of two is better: from the units that result rows keep.

A row's ``units`` are the weighted losses and weights of its documents, or of blocks of the one document. Every function
takes the table of :func:`extrapolate.read_results`. Strategies are compared on the same tokens only, unit by unit: the
spread between documents, which is larger than most differences, cancels. Intervals are Student's t
(:mod:`extrapolate.analysis.estimates`): they hold the truth as often as they say for two documents, too.
"""

import json
from collections.abc import Iterator
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
            **difference_of(other, base, confidence),
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


def compared(one: pd.Series, other: pd.Series) -> tuple[Estimate, bool]:
    """Loss of one row minus that of another on the same tokens; and whether the two are the same, unit by unit.

    Raises:
        ResultError: when they scored other tokens.
    """
    a, b = _units(one["units"]), _units(other["units"])
    if a.shape != b.shape or not np.array_equal(a[:, 1], b[:, 1]):
        raise ResultError(f"{one['label']} and {other['label']} scored different tokens at length {one['length']}")
    between = estimate(a[:, 0] - b[:, 0], a[:, 1], str(one["unit"]))
    return between, np.array_equal(a, b)


def difference_of(one: pd.Series, other: pd.Series, confidence: float) -> dict[str, Any]:
    """Loss of one row minus that of another on the same tokens, its interval, and what it says by itself."""
    between, same = compared(one, other)
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
