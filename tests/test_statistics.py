"""Intervals, paired differences and lengths that carry, on tables whose truth is known."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import extrapolate as xt
from extrapolate.analysis import context_gain, intervals, paired, short_context_cost, usable_length


def row(label: str, length: int, losses: Any, weights: Any = None, **changes: Any) -> dict[str, Any]:
    """A result row whose units have these losses and weights."""
    losses = np.asarray(losses, dtype=float)
    weights = np.ones_like(losses) if weights is None else np.asarray(weights, dtype=float)
    mean = losses.sum() / weights.sum()
    return {
        "label": label,
        "key": f"{label}{changes.get('protocol')}",
        "status": "ok",
        "model_digest": "m",
        "dtype": "float32",
        "data": "d",
        "data_digest": "dd",
        "evaluation": "perplexity",
        "protocol": "prefix",
        "start_token": "none",
        "stride": None,
        "targets": None,
        "depth": None,
        "factor": 4.0 if "×4" in label else None,
        "length": length,
        "length_used": length,
        "pretrained_length": 64,
        "nll_mean": mean,
        "perplexity": math.exp(mean),
        "unit": "document",
        "units": json.dumps([[a, b] for a, b in zip(losses.tolist(), weights.tolist(), strict=True)]),
        **changes,
    }


RNG = np.random.default_rng(5)
SPREAD = RNG.normal(3.0, 1.0, 20)  # documents differ much more than strategies


def test_an_interval_holds_the_mean_and_is_as_wide_as_theory_says() -> None:
    found = intervals(pd.DataFrame([row("plain", 64, SPREAD)])).iloc[0]
    assert found["nll_low"] < found["nll_mean"] < found["nll_high"]
    expected = 2 * 1.96 * SPREAD.std() / math.sqrt(len(SPREAD))  # of a normal mean
    assert found["nll_high"] - found["nll_low"] == pytest.approx(expected, rel=0.05)
    assert found["perplexity_low"] == pytest.approx(math.exp(found["nll_low"]))
    assert found["perplexity_high"] == pytest.approx(math.exp(found["nll_high"]))


def test_nine_intervals_in_ten_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame([row("plain", i, rng.normal(2.0, 0.5, 30)) for i in range(200)])
    found = intervals(table, confidence=0.9)
    held = ((found["nll_low"] <= 2.0) & (found["nll_high"] >= 2.0)).mean()
    assert 0.83 <= held <= 0.95


def test_documents_weigh_by_their_tokens() -> None:
    heavy = intervals(pd.DataFrame([row("plain", 64, [1000.0, 3.0], [1000, 1])])).iloc[0]
    assert heavy["nll_mean"] == pytest.approx(1003 / 1001)
    assert (heavy["nll_low"], heavy["nll_high"]) == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize("losses", [[3.0], [3.0, math.nan]])
def test_where_nothing_can_be_said_the_interval_is_nan(losses: list[float]) -> None:
    units = json.dumps([[None if math.isnan(a) else a, 1.0] for a in losses])
    found = intervals(pd.DataFrame([row("plain", 64, [3.0], units=units)])).iloc[0]
    assert math.isnan(found["nll_low"])
    assert math.isnan(found["nll_high"])


@pytest.mark.parametrize(
    ("shift", "noise", "verdict"),
    [(-0.1, 0.02, "better"), (0.1, 0.02, "worse"), (0.0, 0.02, "indistinguishable"), (0.0, 0.0, "identical")],
)
def test_the_verdict_pairs_documents_so_that_their_spread_cancels(shift: float, noise: float, verdict: str) -> None:
    wobble = np.random.default_rng(1).normal(0, noise, 20)
    other = SPREAD + shift + wobble - wobble.mean()
    table = pd.DataFrame([row("plain", 64, SPREAD), row("yarn ×4", 64, other)])
    found = paired(table).iloc[0]
    assert (found["label"], found["baseline"], found["length"]) == ("yarn ×4", "plain", 64)
    assert found["difference"] == pytest.approx(shift, abs=1e-9)
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(math.exp(shift))
    assert (found["unit"], found["units"], found["note"]) == ("document", 20, "")
    assert found["high"] - found["low"] < 0.1 * SPREAD.std()  # unpaired, nothing of this could be told apart


def test_shipped_is_the_baseline_before_plain_and_another_can_be_named() -> None:
    table = pd.DataFrame([row(label, 64, SPREAD + i) for i, label in enumerate(("plain", "shipped", "yarn ×4"))])
    assert dict(zip(*paired(table)[["label", "difference"]].to_numpy().T, strict=True)) == pytest.approx(
        {"plain": -1.0, "yarn ×4": 1.0}
    )
    assert set(paired(table, baseline="yarn ×4")["label"]) == {"plain", "shipped"}
    with pytest.raises(xt.ResultError, match="no results of ntk to compare with; there are plain, shipped, yarn ×4"):
        paired(table, baseline="ntk")


def test_few_units_and_single_documents_are_noted() -> None:
    few = paired(pd.DataFrame([row("plain", 64, [1, 2, 3]), row("yarn ×4", 64, [1, 2, 4])])).iloc[0]
    assert few["note"] == "3 documents only: the interval is rough"
    blocks = [row(label, 64, SPREAD + i, unit="block") for i, label in enumerate(("plain", "yarn ×4"))]
    assert "one document" in paired(pd.DataFrame(blocks)).iloc[0]["note"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_digest": "other"}, "yarn ×4 and plain rest on different documents at length 64"),
        ({"weights": [1, 2, 1]}, "scored different tokens at length 64"),
    ],
)
def test_unlike_tokens_are_not_compared(changes: dict[str, Any], message: str) -> None:
    table = pd.DataFrame([row("plain", 64, [1, 2, 3]), row("yarn ×4", 64, [1, 2, 3], **changes)])
    with pytest.raises(xt.ResultError, match=message):
        paired(table)


def test_protocols_are_not_compared_with_each_other() -> None:
    table = pd.DataFrame([row("plain", 64, SPREAD), row("yarn ×4", 64, SPREAD, protocol="sliding")])
    assert paired(table).empty


def test_short_context_cost_is_taken_at_the_longest_length_within_the_pretrained_one() -> None:
    rows = [
        row(label, n, SPREAD + cost * n) for label, cost in (("plain", 0.0), ("yarn ×4", 0.001)) for n in (32, 48, 128)
    ]
    found = short_context_cost(pd.DataFrame(rows)).iloc[0]
    assert found["length"] == 48
    assert found["difference"] == pytest.approx(0.048)
    with pytest.raises(xt.ResultError, match="no length within the pretrained length"):
        short_context_cost(pd.DataFrame([row("plain", 128, SPREAD)]))


def last(label: str, losses: dict[int, float]) -> list[dict[str, Any]]:
    return [row(label, n, [loss] * 3, protocol="last", targets=16) for n, loss in losses.items()]


def test_usable_length_is_where_the_loss_on_fixed_targets_leaves_the_best_for_the_first_time() -> None:
    table = pd.DataFrame(
        [
            *last("plain", {16: 3.5, 32: 3.2, 64: 3.0, 128: 5.0, 256: 3.0}),  # a later dip does not count
            *last("yarn ×4", {16: 3.4, 32: 3.2, 64: 3.1, 128: 3.15, 256: 3.3}),
            *last("linear ×4", {16: 3.4, 32: 3.2, 64: 3.6, 128: 3.0, 256: 3.0}),  # bad at its own pretrained length
            row("plain", 512, [1.0]),  # of another protocol
        ]
    )
    found = usable_length(table).set_index("label")
    assert found["usable_length"].to_dict() == {"plain": 64, "yarn ×4": 128, "linear ×4": 32}
    assert found.loc["yarn ×4", "claimed_length"] == 256
    assert found.loc["plain", "claimed_length"] is pd.NA
    assert found.loc["plain", "longest"] == 256
    assert usable_length(table, tolerance=0.3).set_index("label").loc["yarn ×4", "usable_length"] == 256
    with pytest.raises(xt.ResultError, match=r"evaluation\.protocol=last"):
        usable_length(pd.DataFrame([row("plain", 64, SPREAD)]))


def test_context_gain_is_the_loss_behind_short_context_minus_that_behind_long() -> None:
    rows = [
        row(label, n, SPREAD - gain * (n > 16), protocol="last", targets=8)
        for label, gain in (("yarn ×4", 0.25), ("attention_sinks", 0.0))
        for n in (16, 64)
    ]
    found = context_gain(pd.DataFrame(rows)).set_index("label")
    assert found.loc["yarn ×4", "gain"] == pytest.approx(0.25)
    assert (found.loc["yarn ×4", "short"], found.loc["yarn ×4", "length"]) == (16, 64)
    assert found.loc["yarn ×4", "low"] == pytest.approx(0.25)
    assert found.loc["attention_sinks", "gain"] == 0
    with pytest.raises(xt.ResultError, match="length 20 was not measured"):
        context_gain(pd.DataFrame(rows), short=20)
