"""Intervals, paired differences and lengths that carry, on tables whose truth is known."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import extrapolate as xt
from extrapolate.analysis import (
    context_gain,
    exact_pair_test,
    holm,
    intervals,
    measured_breaks,
    of_blocks,
    of_documents,
    paired,
    paired_answers,
    share_interval,
    short_context_cost,
    usable_length,
)


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
        "samples": None,
        "accuracy": None,
        "nll_mean": mean,
        "perplexity": math.exp(mean),
        "unit": "document",
        "units": json.dumps([[a, b] for a, b in zip(losses.tolist(), weights.tolist(), strict=True)]),
        **changes,
    }


RNG = np.random.default_rng(5)
SPREAD = RNG.normal(3.0, 1.0, 20)  # documents differ much more than strategies


def test_an_interval_is_students_t_where_all_weigh_the_same() -> None:
    found = intervals(pd.DataFrame([row("plain", 64, SPREAD)])).iloc[0]
    low, high = scipy.stats.t.interval(0.95, 19, SPREAD.mean(), SPREAD.std(ddof=1) / math.sqrt(20))
    assert (found["nll_low"], found["nll_high"]) == pytest.approx((low, high), rel=1e-9)
    assert (found["perplexity_low"], found["perplexity_high"]) == pytest.approx((math.exp(low), math.exp(high)))
    assert of_documents(SPREAD, np.ones(20)).p == pytest.approx(scipy.stats.ttest_1samp(SPREAD, 0).pvalue, rel=1e-6)


UNITS = (2, 3, 4, 6, 8, 12, 24)
RUNS = 3000


def coverage(draw: Any, weigh: Any, count: int, estimate: Any = of_documents) -> float:
    """Share of 95 % intervals that hold the true mean 0."""
    rng, held = np.random.default_rng(8), 0
    for _ in range(RUNS):
        weights = weigh(rng, count)
        low, high = estimate(weights * draw(rng, count), weights).interval()
        held += low <= 0 <= high
    return held / RUNS


def normal(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_normal(count)


def heavy_tailed(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_t(4, count)


def alike(_: np.random.Generator, count: int) -> Any:
    return np.ones(count)


def unlike(rng: np.random.Generator, count: int) -> Any:
    return rng.lognormal(0, 1, count)


def neighbours(rho: float) -> Any:
    """Blocks of one text: autoregressive, started in its own distribution."""

    def draw(rng: np.random.Generator, count: int) -> Any:
        found = [rng.normal() / math.sqrt(1 - rho**2)]
        while len(found) < count:
            found.append(rho * found[-1] + rng.normal())
        return np.array(found)

    return draw


@pytest.mark.parametrize("count", UNITS)
@pytest.mark.parametrize(
    ("draw", "weigh", "least", "most"),
    [
        (normal, alike, 0.93, 0.97),  # a percentile bootstrap: 0.52 for 2, 0.81 for 4, 0.93 for 24
        (heavy_tailed, alike, 0.92, 1.0),
        (normal, unlike, 0.92, 1.0),
        (heavy_tailed, unlike, 0.92, 1.0),
    ],
    ids=["normal", "t(4)", "log-normal weights", "both"],
)
def test_an_interval_holds_the_truth_as_often_as_it_says(
    draw: Any, weigh: Any, least: float, most: float, count: int
) -> None:
    assert least <= coverage(draw, weigh, count) <= most


@pytest.mark.parametrize("count", [8, 16, 64])
@pytest.mark.parametrize(("rho", "least", "most"), [(0.0, 0.93, 0.97), (0.5, 0.92, 0.97)])
def test_an_interval_over_blocks_holds_although_neighbours_are_alike(
    rho: float, least: float, most: float, count: int
) -> None:
    assert least <= coverage(neighbours(rho), alike, count, of_blocks) <= most


def test_a_break_that_every_text_has_is_no_chance() -> None:
    def breaking(rng: np.random.Generator, count: int) -> Any:
        return np.where(np.arange(count) < count / 2, 1.5, -1.5) + neighbours(0.3)(rng, count)

    assert 0.93 <= coverage(breaking, alike, 64, of_blocks) <= 0.995
    rng = np.random.default_rng(1)
    half = [np.ptp(of_blocks(breaking(rng, 64), np.ones(64)).interval()) / 2 for _ in range(200)]
    assert np.median(half) < 0.7  # taken for chance, 3.0


def test_blocks_of_one_text_count_for_less_than_as_many_documents() -> None:
    assert coverage(neighbours(0.5), alike, 64) < 0.8  # as if they were independent
    rng = np.random.default_rng(1)
    twice = [np.repeat(rng.standard_normal(32), 2) for _ in range(500)]  # 32 blocks, each told as two
    one, other = ([estimate(x, np.ones(64)) for x in twice] for estimate in (of_blocks, of_documents))
    variances = [np.mean([each.error**2 for each in side]) for side in (one, other)]
    assert variances[0] == pytest.approx(2 * variances[1], rel=0.1)
    assert {each.freedom for each in one} == {6}
    assert other[0].freedom == pytest.approx(63)


def test_documents_weigh_by_their_tokens() -> None:
    heavy = of_documents(np.array([1000.0, 3.0, 2.5]), np.array([1000.0, 1.0, 1.0]))
    assert heavy.value == pytest.approx(1005.5 / 1002)
    assert 1 <= heavy.freedom < 1.1  # the rest tells almost nothing
    even = of_documents(np.array([1.0, 3.0, 2.5]), np.ones(3))
    assert even.freedom == pytest.approx(2)
    nothing = of_documents(np.array([1.0, 0.0, 3.0]), np.array([1.0, 0.0, 1.0]))  # a document without a scored token
    assert nothing == of_documents(np.array([1.0, 3.0]), np.ones(2))


def test_over_a_table_of_differences_that_are_none_one_in_twenty_has_a_false_verdict() -> None:
    rng, false, alone, tables = np.random.default_rng(4), 0, 0, 300
    for _ in range(tables):
        base = rng.normal(3, 1, 4)
        rows = [row("plain", n, base) for n in (16, 32, 64)]
        rows += [row(f"s{i}", n, base + rng.normal(0, 0.1, 4)) for i in range(8) for n in (16, 32, 64)]
        found = paired(pd.DataFrame(rows))
        assert set(found["comparisons"]) == {24}
        false += bool(found["verdict"].isin(["better", "worse"]).any())
        alone += bool((found["p"] < 0.05).any())
    assert false / tables <= 0.08
    assert alone / tables > 0.5  # without Holm most tables have one


def test_holm_against_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03, math.nan]) == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(0, 10, 0.0, 0.27753), (8, 10, 0.49016, 0.94331), (10, 10, 0.72247, 1.0), (1, 3, 0.06149, 0.79234)],
)
def test_a_share_has_wilsons_interval(right: int, count: int, low: float, high: float) -> None:
    z = 1.959963985
    middle, half = (
        right / count + z * z / 2 / count,
        z * math.sqrt(right * (count - right) / count**3 + (z / 2 / count) ** 2),
    )
    assert (low, high) == pytest.approx(
        ((middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)), abs=1e-5
    )
    assert share_interval(right, count) == pytest.approx((low, high), abs=1e-5)
    rows = pd.DataFrame([row("plain", 64, SPREAD, accuracy=right / count, samples=count), row("plain", 64, SPREAD)])
    found = intervals(rows)
    assert found["accuracy_low"].tolist() == pytest.approx([low, math.nan], abs=1e-5, nan_ok=True)
    assert found["accuracy_high"].iloc[0] == pytest.approx(high, abs=1e-5)


def answers(label: str, depth: float, right: list[int], *, told: bool = True, **changes: Any) -> dict[str, Any]:
    units = json.dumps([[1.0, 4.0, hit] if told else [1.0, 4.0] for hit in right])
    share = {"accuracy": sum(right) / len(right), "samples": len(right), "depth": depth, "evaluation": "needle"}
    return row(label, 64, [1.0] * len(right), units=units, protocol="answer", unit="sample", **share, **changes)


def test_answers_are_paired_by_question_over_all_depths() -> None:
    rows = [
        answers("plain", 0.1, [0, 0, 0, 0, 1]),
        answers("plain", 0.9, [0, 0, 0, 1, 1]),
        answers("yarn ×4", 0.1, [1, 1, 1, 1, 0]),
        answers("yarn ×4", 0.9, [1, 1, 1, 1, 1]),
        answers("ntk ×4", 0.1, [0, 0, 0, 0, 1]),
        answers("ntk ×4", 0.9, [0, 0, 1, 1, 1]),
    ]
    found = paired_answers(pd.DataFrame(rows)).set_index("label")
    yarn = found.loc["yarn ×4"]
    assert (yarn["questions"], yarn["accuracy"], yarn["baseline_accuracy"]) == (10, 0.9, 0.3)
    assert (yarn["only_this"], yarn["only_baseline"], yarn["comparisons"]) == (7, 1, 2)
    assert yarn["p"] == pytest.approx(2 * (1 + 8) / 2**8)  # 7 or 8 of 8 of one side
    assert yarn["p_holm"] == pytest.approx(2 * yarn["p"])
    assert (yarn["low"], yarn["high"]) == pytest.approx(share_interval(9, 10))
    assert list(found["verdict"]) == ["indistinguishable", "indistinguishable"]
    sure = [answers("plain", 0.1, [0] * 9), answers("yarn ×4", 0.1, [1] * 9)]
    assert list(paired_answers(pd.DataFrame(sure))["verdict"]) == ["better"]
    assert list(paired_answers(pd.DataFrame(sure), baseline="yarn ×4")["verdict"]) == ["worse"]


def test_rows_that_do_not_tell_which_answers_were_right() -> None:
    # of 0.2.0: all right or none right tells it all the same
    rows = [answers(name, 0.1, right, told=False) for name, right in (("plain", [0] * 7), ("yarn ×4", [1] * 7))]
    assert paired_answers(pd.DataFrame(rows)).iloc[0]["verdict"] == "better"
    rows[1] = answers("yarn ×4", 0.1, [1, 0, 1, 1, 1, 1, 1], told=False)
    found = paired_answers(pd.DataFrame(rows)).iloc[0]
    assert (found["verdict"], found["accuracy"]) == ("unknown", pytest.approx(6 / 7))
    assert math.isnan(found["p"])


def test_the_exact_test_of_pairs() -> None:
    assert exact_pair_test(0, 0) == 1
    assert exact_pair_test(5, 0) == pytest.approx(2 / 32)
    assert exact_pair_test(3, 3) == 1


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


def test_single_documents_and_what_chance_gives_are_noted() -> None:
    blocks = [row(label, 64, SPREAD + i, unit="block") for i, label in enumerate(("plain", "yarn ×4"))]
    assert "one document" in paired(pd.DataFrame(blocks)).iloc[0]["note"]
    near = SPREAD + 0.05 + np.random.default_rng(2).normal(0, 0.085, 20)
    rows = [row("plain", 64, SPREAD), row("yarn ×4", 64, near)]
    assert paired(pd.DataFrame(rows)).iloc[0][["verdict", "note"]].tolist() == ["worse", ""]
    rows += [row(f"s{i}", 64, SPREAD + np.random.default_rng(i).normal(0, 0.5, 20)) for i in range(40)]
    found = paired(pd.DataFrame(rows)).set_index("label").loc["yarn ×4"]
    assert found["low"] > 0
    assert found["verdict"] == "indistinguishable"
    assert found["note"] == "the interval leaves out 0, but of 41 comparisons some do so by chance"


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


def on_targets(label: str, losses: dict[int, Any]) -> list[dict[str, Any]]:
    return [row(label, n, each, protocol="last", targets=16) for n, each in losses.items()]


def test_the_interval_of_a_usable_length_and_of_a_break_is_where_the_ends_leave_the_tolerance() -> None:
    base = np.array([3.0, 3.4, 2.6, 3.0])
    wobble = np.array([-1.0, 1.0, -1.0, 1.0])  # of a standard error of 0.577 times its size
    curve = {
        64: base,
        128: base + 0.05 + 0.01 * wobble,
        256: base + 0.09 + 0.02 * wobble,
        512: base + 0.2 + 0.1 * wobble,
    }
    table = pd.DataFrame(
        [*on_targets("yarn ×4", curve), *on_targets("plain", {64: base, 128: base, 256: base, 512: base})]
    )
    found = usable_length(table).set_index("label")
    half = {n: scipy.stats.t.ppf(0.975, 3) * size / math.sqrt(3) for n, size in ((128, 0.01), (256, 0.02), (512, 0.1))}
    assert 0.05 + half[128] < 0.1 < 0.09 + half[256]
    assert 0.2 - half[512] < 0.1
    assert list(found.loc["yarn ×4", ["usable_length", "low", "high"]]) == [256, 128, 512]
    assert list(found.loc["plain", ["usable_length", "low", "high"]]) == [512, 512, 512]
    broken: dict[Any, Any] = {each["label"]: each for each in measured_breaks(table).to_dict("records")}
    assert broken["yarn ×4"]["break_length"] == pytest.approx(2 ** (8 + (0.1 - 0.09) / (0.2 - 0.09)))
    upper = {128: 0.05 + half[128], 256: 0.09 + half[256]}
    assert broken["yarn ×4"]["low"] == pytest.approx(2 ** (7 + (0.1 - upper[128]) / (upper[256] - upper[128])))
    assert math.isnan(broken["yarn ×4"]["high"])  # perhaps not by 512
    assert all(math.isnan(broken["plain"][name]) for name in ("break_length", "low", "high"))


def test_a_failed_cell_takes_no_other_with_it() -> None:
    failed = row("ntk ×4", 64, [1.0], protocol="last", status="failed", units=None, nll_mean=None)
    table = pd.DataFrame([*last("plain", {16: 3.5, 64: 3.0, 128: 5.0}), failed])
    assert usable_length(table)["label"].tolist() == ["plain"]
    assert measured_breaks(table)["label"].tolist() == ["plain"]


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
