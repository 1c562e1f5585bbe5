"""Figures come out for every table, and what cannot be drawn is marked, not lost."""

import io
import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.figure import Figure

import extrapolate as xt
from extrapolate.analysis import relative_positions, rotary_pairs
from extrapolate.plots import curve_names, score_table
from extrapolate.results import COLUMNS, SCHEMA
from extrapolate.rope import RopeSpec


def table(**perplexities: list[float]) -> pd.DataFrame:
    """label → perplexity at 64, 128, 256, ..."""
    rows = [
        {
            "key": label,
            "status": "nonfinite" if math.isnan(value) else "ok",
            "model": "m",
            "data": "d",
            "label": label,
            "pretrained_length": 128,
            "length": 64 * 2**i,
            "perplexity": value,
        }
        for label, values in perplexities.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows).reindex(columns=SCHEMA.names)


def rendered(figure: Figure) -> str:
    out = io.StringIO()
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg")
        figure.savefig(io.BytesIO(), format="png")
    return out.getvalue()


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ([20.0, 21.0, 22.0], 0),
        ([20.0, math.inf, 22.0], 1),
        ([20.0, math.nan, 22.0], 1),
        ([math.inf] * 3, 3),
        ([math.nan] * 3, 3),
        ([20.0, 1e300, 1e308], 2),
        ([1e308] * 3, 3),
        ([20.0], 0),
        ([20.0, 20.0, 20.0], 0),
        ([1.0, 1.0], 0),
        ([0.0, 20.0], 1),
    ],
)
def test_a_figure_comes_out_and_marks_what_is_missing(values: list[float], missing: int) -> None:
    # case 59
    figure = xt.plots.perplexity_by_length(table(yarn=values, plain=[18.0] * len(values)))
    axes = figure.axes[0]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert len(crosses) == missing
    svg = rendered(figure)
    assert (f"yarn ({missing} off scale)" in svg) == (missing > 0)
    low, high = axes.get_ylim()
    assert 0 < low < high < 1e7
    left, right = axes.get_xlim()
    assert left < 64
    assert right > 64 * 2 ** (len(values) - 1)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_the_lengths_and_the_pretrained_length_are_on_the_axis() -> None:
    svg = rendered(xt.plots.perplexity_by_length(table(plain=[20.0, 19.0, 30.0, 60.0, 100.0]), title="m on d"))
    for text in ("64", "128", "256", "512", "1,024", "pretrained length 128", "context length L (tokens)", "m on d"):
        assert f">{text}<" in svg, text


def test_labels_of_many_lengths_do_not_overlap() -> None:
    rows = [
        {"key": "k", "status": "ok", "label": "plain", "length": n, "perplexity": 20.0, "pretrained_length": 8192}
        for n in range(512, 32769, 512)
    ]
    figure = xt.plots.perplexity_by_length(pd.DataFrame(rows).reindex(columns=SCHEMA.names))
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_text()]
    boxes.sort(key=lambda box: box.x0)
    assert len(boxes) >= 5
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_failed_cells_are_marked() -> None:
    rows = table(plain=[20.0, 19.0], yarn=[math.nan, math.nan])
    rows.loc[rows["label"] == "yarn", "status"] = "failed"
    assert "yarn (2 off scale)" in rendered(xt.plots.perplexity_by_length(rows))


def test_a_table_without_lengths_is_refused() -> None:
    with pytest.raises(xt.ResultError, match="nothing to plot"):
        xt.plots.perplexity_by_length(table())
    assert score_table(table()).empty


@pytest.mark.parametrize("column", ["model", "dtype"])
def test_curves_that_share_a_label_are_told_apart_by_what_differs(column: str) -> None:
    rows = table(a=[20.0], b=[30.0])
    rows["label"] = "yarn ×4"
    rows[column] = ["first", "second"]
    assert curve_names(rows).tolist() == ["yarn ×4, first", "yarn ×4, second"]
    assert len(score_table(rows)) == 2


def test_curves_of_one_strategy_are_told_apart_by_the_fields_that_differ() -> None:
    rows = table(a=[20.0, 21.0], b=[30.0, 31.0], c=[40.0, 41.0], d=[50.0, 51.0])
    rows["label"] = ["yarn ×4"] * 6 + ["ntk ×4"] * 2
    fields = {"attention_factor": None, "beta_fast": 32.0, "factor": 4.0}
    rows["parameters"] = [
        json.dumps({**fields, "blend": blend, "ramp": ramp})
        for blend, ramp in (("arithmetic", "index"), ("harmonic", "index"), ("harmonic", "rotations"))
        for _ in range(2)
    ] + ['{"factor": 4.0}'] * 2
    assert curve_names(rows).tolist()[::2] == [
        "yarn ×4, blend=arithmetic, ramp=index",
        "yarn ×4, blend=harmonic, ramp=index",
        "yarn ×4, blend=harmonic, ramp=rotations",
        "ntk ×4",
    ]


def test_a_curve_whose_automatic_parameters_follow_the_length_has_one_name() -> None:
    rows = table(a=[20.0, 21.0], b=[30.0, 31.0])
    rows["label"] = "self_extend"
    rows["parameters"] = [json.dumps({"group": group, "window": 16}) for group in (1, 9, 8, 8)]
    assert curve_names(rows).tolist() == ["self_extend, group=auto"] * 2 + ["self_extend, group=8"] * 2


def test_a_low_ceiling_marks_what_is_above_it() -> None:
    figure = xt.plots.perplexity_by_length(table(plain=[20.0, 500.0], yarn=[21.0, 22.0]), ceiling=30)
    assert "plain (1 off scale)" in rendered(figure)
    assert figure.axes[0].get_ylim()[1] < 40


def test_many_curves_keep_apart_and_get_their_legend_beside_the_axes() -> None:
    labels = [f"s{i}" for i in range(20)]
    figure = xt.plots.perplexity_by_length(table(**{label: [20.0, 21.0 + i] for i, label in enumerate(labels)}))
    (axes,) = figure.axes
    curves = axes.get_lines()[:20]
    assert len({(c.get_color(), c.get_linestyle(), c.get_marker()) for c in curves}) == 20
    assert axes.get_legend() is None
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels[::-1]  # as the curves end, from the top
    figure.savefig(io.BytesIO(), format="png")


def test_curves_on_different_documents_say_so() -> None:
    # case 44: numbers that cannot be compared
    rows = table(plain=[20.0, 19.0], yarn=[21.0, 20.0], ntk=[22.0, 21.0])
    rows["data_digest"], rows["documents"] = "aaaaaa", 2
    assert curve_names(rows).unique().tolist() == ["plain", "yarn", "ntk"]
    rows.loc[rows["label"] == "ntk", "data_digest"] = "bbbbbb"
    rows.loc[rows["label"] == "ntk", "documents"] = 1
    assert curve_names(rows).unique().tolist() == [
        "plain, 2 document(s) aaaa",
        "yarn, 2 document(s) aaaa",
        "ntk, 1 document(s) bbbb",
    ]


def test_the_score_table_is_strategy_by_length_in_order() -> None:
    wide = score_table(table(plain=[20.0, 19.0], ntk=[21.0, math.nan]))
    assert wide.index.tolist() == ["plain", "ntk"]
    assert [int(n) for n in wide.columns] == [64, 128]
    assert wide.to_numpy()[0].tolist() == [20.0, 19.0]
    assert math.isnan(wide.to_numpy()[1, 1])


def test_plotting_leaves_no_figure_open() -> None:
    import matplotlib.pyplot as plt

    before: list[Any] = plt.get_fignums()
    xt.plots.perplexity_by_length(table(plain=[20.0, 19.0]))
    assert plt.get_fignums() == before


def test_relative_positions_are_drawn_for_any_strategy() -> None:
    spec = xt.RopeSpec(16, 1e4, 64)
    strategies: list[xt.Strategy] = [
        xt.Plain(),
        xt.AttentionSinks(sinks=4, window=30),
        xt.compose(xt.YaRN(), xt.ReRoPE()),
    ]
    for strategy in strategies:
        figure = xt.plots.relative_positions(strategy, spec, 100)
        axes, bar = figure.axes
        (image,) = axes.get_images()
        drawn: Any = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        np.testing.assert_array_equal(drawn, relative_positions(strategy, spec, 100).numpy())
        assert axes.get_title() == strategy.label
        assert ("beyond 64" in bar.get_ylabel()) == bool((np.nan_to_num(drawn) > 64).any())
        figure.savefig(io.BytesIO(), format="pdf")
    figure = xt.plots.relative_positions(xt.DualChunk(), spec, 10_000, title="t")
    assert np.asarray(figure.axes[0].get_images()[0].get_array()).shape == (2000, 2000)
    with pytest.raises(xt.StrategyError, match="reach"):
        xt.plots.relative_positions(xt.STRING(shift=40, local=2), spec, 200)


# Uncertainty and retrieval


def units(*means: float) -> str:
    return json.dumps([[mean, 1.0] for mean in means])


def test_a_band_is_the_interval_of_the_units() -> None:
    rows = table(plain=[math.exp(3), math.exp(3)], ntk=[math.exp(3), math.exp(3)])
    rows["units"] = [units(2.0, 3.0, 4.0)] * 2 + [None] * 2
    figure = xt.plots.perplexity_by_length(rows)
    bands = [c.get_paths()[0].get_extents() for c in figure.axes[0].collections if len(c.get_paths())]
    heights = sorted(band.height for band in bands if np.isfinite(band.height))
    low, high = scipy.stats.t.interval(0.95, 2, 3, 1 / math.sqrt(3))  # Student's t of three units
    assert heights[-1] == pytest.approx(math.exp(high) - math.exp(low), rel=1e-6)
    assert "perplexity of tokens 2…L" in rendered(figure)


def test_curves_of_different_protocols_are_told_apart_and_the_axis_names_what_it_shows() -> None:
    rows = pd.concat([table(plain=[20.0, 19.0]).assign(protocol=p, key=p) for p in ("last", "sliding")])
    assert curve_names(rows).unique().tolist() == ["plain, last", "plain, sliding"]
    text = rendered(xt.plots.perplexity_by_length(rows))
    assert "plain, last" in text
    assert "tokens 2…L" not in text
    assert "perplexity (last)" in rendered(xt.plots.perplexity_by_length(rows[rows["protocol"] == "last"]))


def test_cells_of_an_earlier_release_are_named_by_it() -> None:
    rows = pd.concat([table(plain=[20.0, 19.0]).assign(extrapolate_version=v, key=v) for v in ("0.1.0", "0.2.0")])
    assert curve_names(rows).unique().tolist() == ["plain, extrapolate 0.1.0", "plain, extrapolate 0.2.0"]


def test_loss_by_position_takes_result_rows() -> None:
    rows = table(plain=[20.0, 19.0, 18.0]).assign(protocol="by_position", nll_mean=[3.0, 2.5, 2.7])
    rows["last_scored"] = rows["length"] - 1
    figure = xt.plots.loss_by_position(rows)
    assert figure.axes[0].get_lines()[0].get_ydata() == pytest.approx([3.0, 2.5, 2.7])
    assert "trained length 128" in rendered(figure)
    with pytest.raises(xt.ResultError, match=r"evaluation\.protocol=by_position"):
        xt.plots.loss_by_position(table(plain=[20.0]))


def differences() -> pd.DataFrame:
    return pd.DataFrame(
        [
            ("yarn", "plain", 256, -0.5, -0.6, -0.4, "better"),
            ("linear", "plain", 256, 0.7, 0.5, 0.9, "worse"),
            ("ntk", "plain", 256, 0.01, -0.1, 0.1, "indistinguishable"),
            ("ntk", "plain", 64, 0.3, 0.2, 0.4, "worse"),
        ],
        columns=["label", "baseline", "length", "difference", "low", "high", "verdict"],
    )


def test_the_forest_shows_the_longest_length_the_best_on_top() -> None:
    figure = xt.plots.paired_differences(differences())
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["linear", "ntk", "yarn"]
    spans = [x for x in (np.asarray(line.get_xdata()) for line in axes.get_lines()) if x.size == 2][:3]
    assert np.allclose(np.array(spans, dtype=float), [[0.5, 0.9], [-0.1, 0.1], [-0.6, -0.4]])
    assert "loss minus that of plain at 256 tokens" in rendered(figure)
    assert len(xt.plots.paired_differences(differences(), length=64).axes[0].get_yticklabels()) == 1
    with pytest.raises(xt.ResultError, match="no paired difference at length 99"):
        xt.plots.paired_differences(differences(), length=99)


def test_the_forest_tells_apart_what_one_strategy_was_measured_by() -> None:
    rows = pd.concat([differences().assign(evaluation=e, depth=d) for e, d in (("needle", 0.5), ("perplexity", None))])
    figure = xt.plots.paired_differences(rows[rows["label"] == "yarn"])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["yarn, needle, depth 0.5", "yarn, perplexity"]


def test_cost_is_drawn_beside_usable_and_claimed_length_the_farthest_on_top() -> None:
    lengths = pd.DataFrame(
        {
            "label": ["yarn", "ntk", "plain"],
            "pretrained_length": 64,
            "usable_length": [256, 64, 32],
            "claimed_length": [512, None, None],
            "longest": 256,
            "low": [128, 64, None],
            "high": [256, 128, None],
        }
    ).astype(dict.fromkeys(["usable_length", "claimed_length", "low", "high"], "Int64"))
    costs = differences().query("length == 256")
    figure = xt.plots.cost_against_usable_length(costs, lengths)
    reach, price = figure.axes
    assert [t.get_text() for t in reach.get_yticklabels()] == ["plain", "ntk", "yarn"]  # linear: none
    marks = {
        (str(line.get_marker()), float(np.asarray(line.get_xdata())[0])): int(np.asarray(line.get_ydata())[0])
        for line in reach.get_lines()
        if line.get_marker() not in ("None", "")
    }
    assert marks == {
        ("o", 32.0): 0,
        ("o", 64.0): 1,
        (">", 256.0): 2,
        ("|", 512.0): 2,
    }  # yarn: nothing longer was measured
    bands = [np.asarray(line.get_xdata()).tolist() for line in reach.get_lines() if line.get_alpha()]
    assert bands == [[64.0, 128.0], [128.0, 256.0]]  # plain has no interval
    assert [t.get_text() for t in price.texts] == ["+0.000", "+0.010", "-0.500"]
    assert "loss added at 256 tokens" in rendered(figure)
    with pytest.raises(xt.ResultError, match="no strategy has both"):
        xt.plots.cost_against_usable_length(costs, lengths.assign(label="other"))


def answers(**accuracy: list[list[float]]) -> pd.DataFrame:
    """label → [depth][length]."""
    rows = [
        {
            "key": label,
            "status": "ok",
            "model": "m",
            "label": label,
            "evaluation": "passkey",
            "pretrained_length": 64,
            "samples": 2,
            "length": 64 * 2**i,
            "depth": depth / 2,
            "accuracy": value,
            "nll_mean": 5 * (1 - value),
        }
        for label, table in accuracy.items()
        for depth, values in enumerate(table)
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows).reindex(columns=SCHEMA.names)


def test_the_heatmap_has_a_panel_for_each_strategy_and_task_and_the_values_in_its_cells() -> None:
    rows = pd.concat(
        [
            answers(plain=[[1.0, 0.0], [1.0, 0.5]], yarn=[[1.0, 1.0], [1.0, 0.75]]),
            answers(plain=[[0.25, 0.0]]).assign(evaluation="variable_tracking", depth=None, key="vt"),
            table(plain=[20.0, 19.0]),
        ]
    )
    figure = xt.plots.retrieval(rows)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["plain", "yarn", ""]
    assert np.allclose(np.asarray(panels[1].images[0].get_array()), [[1.0, 1.0], [1.0, 0.75]])
    assert [t.get_text() for t in panels[1].texts] == ["1", "1", "1", "0.75"]
    assert [t.get_text() for t in panels[2].get_yticklabels()] == ["any"]
    assert "share of answers right" in rendered(figure)
    assert "nats an answer token" in rendered(xt.plots.retrieval(rows, value="nll_mean"))
    assert len(xt.plots.perplexity_by_length(rows).axes[0].get_lines()) >= 1  # retrieval is left out there
    with pytest.raises(xt.ResultError, match="no retrieval results"):
        xt.plots.retrieval(table(plain=[20.0]))
    with pytest.raises(xt.ResultError, match="value must be 'accuracy' or 'nll_mean'"):
        xt.plots.retrieval(rows, value="perplexity")


BUNDLED = RopeSpec(64, 1e4, 512)


def test_frequencies_are_drawn_as_how_much_each_pair_is_slowed() -> None:
    figure = xt.plots.frequencies([xt.Plain(), xt.Linear(factor=8), xt.FoPE()], BUNDLED, 4096, title="bundled")
    plain, linear, fope, trained = figure.axes[0].get_lines()
    assert np.allclose(np.asarray(plain.get_ydata(), dtype=float), 1)
    assert np.allclose(np.asarray(linear.get_ydata(), dtype=float), 8)
    assert np.isnan(np.asarray(fope.get_ydata(), dtype=float)).sum() == 16  # stand still: no place on the axis
    assert list(np.asarray(trained.get_xdata())) == [15.5, 15.5]
    assert "no full turn in training" in rendered(figure)
    with pytest.raises(xt.StrategyError, match="at least one strategy"):
        xt.plots.frequencies([], BUNDLED, 4096)


def test_decay_and_cosines_are_drawn_as_shares_of_their_value_at_distance_0() -> None:
    figure = xt.plots.decay([xt.Plain(), xt.Linear(factor=8)], BUNDLED, 4096)
    bound, cosines = figure.axes
    for axes in (bound, cosines):
        for line in axes.get_lines()[:2]:
            values = np.asarray(line.get_ydata(), dtype=float)
            assert values.max() <= 1
            assert values[0] > 0.9 > values[-1]
    plain = np.asarray(cosines.get_lines()[0].get_ydata(), dtype=float)
    assert plain.min() < 0  # 725 tokens are what theta 10,000 supports at d = 64
    text = rendered(figure)
    assert "pretrained 512" in text
    with pytest.raises(xt.StrategyError, match="at least one strategy"):
        xt.plots.decay([], BUNDLED, 4096)


def test_unseen_phases_are_drawn_by_pair_and_length() -> None:
    lengths = [256, 512, 1024, 4096]
    figure = xt.plots.unseen_phases(xt.NTK(factor=8), BUNDLED, lengths)
    drawn = np.asarray(figure.axes[0].images[0].get_array())
    assert drawn.shape == (32, 4)
    assert drawn[:, :3].max() == 0  # below 1,499 tokens nothing is new
    assert np.allclose(drawn[:, 3], rotary_pairs(xt.NTK(factor=8), BUNDLED, 4096)["unseen"])
    assert figure.axes[0].get_title() == "ntk ×8"
    with pytest.raises(xt.StrategyError, match="at least one length"):
        xt.plots.unseen_phases(xt.Plain(), BUNDLED, [])


def heads(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 0, 0, 0], **columns})


def test_attention_is_drawn_by_distance_as_a_mean_over_heads() -> None:
    rows = heads(first=[0, 1, 0, 1], attention=[0.9, 0.1, 0.5, 0.3])
    figure = xt.plots.attention_by_distance({"plain": rows}, pretrained_length=1)
    line = figure.axes[0].get_lines()[0]
    assert list(np.asarray(line.get_xdata())) == [1]  # distance 0 has no place on the axis
    assert np.asarray(line.get_ydata(), dtype=float) == pytest.approx([0.2])
    assert "attention of one key" in rendered(figure)
    with pytest.raises(xt.ResultError, match="at least one table"):
        xt.plots.attention_by_distance({})


def test_pairs_in_use_are_a_heatmap_of_heads_by_pair() -> None:
    figure = xt.plots.pairs_in_use(heads(pair=[0, 1, 0, 1], share=[0.25, 0.75, 1.0, 0.0]), turning=1, title="t")
    assert np.allclose(np.asarray(figure.axes[0].images[0].get_array()), [[0.25, 0.75], [1.0, 0.0]])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["0", "1"]
    assert "share of the head" in rendered(figure)
    with pytest.raises(xt.ResultError, match="no layer rotates"):
        xt.plots.pairs_in_use(heads(pair=[0, 1, 0, 1], share=1.0).iloc[:0])


def test_copying_is_drawn_for_the_strongest_heads() -> None:
    rows = heads(distance=[64, 128, 64, 128], mass=[0.8, 0.2, 0.1, 0.1])
    figure = xt.plots.copying({"yarn": rows}, strongest=1, pretrained_length=64)
    assert np.asarray(figure.axes[0].get_lines()[0].get_ydata(), dtype=float) == pytest.approx([0.8, 0.2])
    assert "distance to the earlier occurrence" in rendered(figure)
    with pytest.raises(xt.ResultError, match="at least one table"):
        xt.plots.copying({})


def test_a_figure_shows_itself_in_a_notebook_without_pyplot() -> None:
    figure = xt.plots.frequencies([xt.Plain()], BUNDLED, 512)
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


def test_cells_of_one_label_are_told_apart_by_what_differs() -> None:
    rows = []
    for key, ramp, blend in (("a", "index", 0.12345678), ("b", "rotations", 0.5), ("c", "index", 0.5)):
        label = "plain" if key == "c" else "yarn ×4"
        rows += [
            {**dict.fromkeys([name for name, _, _ in COLUMNS]), "key": key, "status": "ok", "label": label, "length": n}
            | {"parameters": json.dumps({"ramp": ramp, "blend": blend, "factor": 4.0}), "protocol": "last"}
            for n in (64, 128)
        ]
    rows.append({**rows[0], "key": "d", "status": "failed", "parameters": None})
    found = xt.plots.told_apart(pd.DataFrame(rows))["label"].tolist()
    yarn = [f"yarn ×4, blend={blend}, ramp={ramp}" for blend, ramp in (("0.1235", "index"), ("0.5", "rotations"))]
    assert found == [yarn[0], yarn[0], yarn[1], yarn[1], "plain", "plain", "yarn ×4"]
