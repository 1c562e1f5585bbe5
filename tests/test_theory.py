"""What frequencies and positions alone say: against loops over Python's complex numbers, and published values."""

import cmath
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import extrapolate as xt
from extrapolate.analysis import (
    break_length,
    break_lengths,
    cosine_sum,
    critical_dimension,
    long_term_decay,
    rotary_pairs,
    smallest_base,
    supported_length,
    supporting_bases,
)
from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec

BUNDLED = RopeSpec(64, 1e4, 512)
SPECS = [BUNDLED, RopeSpec(128, 1e4, 4096), RopeSpec(64, 1e5, 8192), RopeSpec(128, 5e5, 8192)]


def ladder(spec: RopeSpec) -> list[float]:
    return [spec.theta ** (-2 * i / spec.rotary_dim) for i in range(spec.rotary_dim // 2)]


@pytest.mark.parametrize("spec", SPECS[:3])
def test_decay_is_the_mean_of_partial_sums_of_unit_vectors(spec: RopeSpec) -> None:
    distances = [0, 1, 2, 7, 100, 5000]
    used = xt.YaRN(factor=4).frequencies(spec, 1)
    expected = []
    for m in distances:
        total, sums = 0j, []
        for f in used.inv_freq.tolist():
            total += cmath.exp(1j * m * f)
            sums.append(abs(total))
        expected.append(sum(sums) / len(sums))
    found = long_term_decay(used, torch.tensor(distances))
    assert found.numpy() == pytest.approx(expected, rel=1e-9)
    assert float(found[0]) == (spec.rotary_dim / 2 + 1) / 2


def test_decay_falls_with_distance_as_in_roformers_figure_2() -> None:
    found = long_term_decay(xt.Plain().frequencies(RopeSpec(128, 1e4, 512), 1), torch.arange(257))
    assert float(found[0]) == 32.5
    halves = found[1:].reshape(8, 32).mean(dim=1)
    assert (halves[1:] < halves[:-1]).all()
    assert 8 < float(found[50]) < 14
    assert 5 < float(found[250]) < 10


@pytest.mark.parametrize("spec", SPECS)
def test_the_sum_of_cosines_is_that_of_its_definition(spec: RopeSpec) -> None:
    distances = [0, 1, 3, 64, 1000]
    used = xt.YaRN(factor=4).frequencies(spec, 1)
    expected = [sum(math.cos(m * f) for f in used.inv_freq.tolist()) for m in distances]
    assert cosine_sum(used, torch.tensor(distances)).numpy() == pytest.approx(expected, rel=1e-9)


def test_a_length_is_supported_up_to_the_first_negative_sum() -> None:
    frequencies = xt.Plain().frequencies(BUNDLED, 1)
    first = supported_length(frequencies, 4096)
    assert first is not None
    sums = [sum(math.cos(m * f) for f in ladder(BUNDLED)) for m in range(first + 1)]
    assert min(sums[:-1]) >= 0 > sums[-1]
    assert supported_length(frequencies, first - 1) is None
    assert supported_length(frequencies, first) == first


@pytest.mark.parametrize(
    ("length", "rotary_dim", "supports", "fails"),
    [
        (1024, 128, 4329, 5977),
        (2048, 128, 14514, 22749),
        (4096, 128, 28645, 58520),
        (1024, 64, 7791, 7700),
        (2048, 64, 29652, 29000),
    ],
)
def test_the_base_that_supports_a_length_has_larger_ones_above_it_that_do_not(
    length: int, rotary_dim: int, supports: int, fails: int
) -> None:
    assert supporting_bases(length, rotary_dim, [supports, fails, 1e9]).tolist() == [True, False, True]


def test_the_smallest_base_is_the_first_of_all_that_supports_the_length() -> None:
    assert smallest_base(1024, 128) == 4294  # 4.3e3 in Table 2 of the paper
    bases = range(4000, 4295)
    assert supporting_bases(1024, 128, list(bases)).tolist() == [False] * 294 + [True]
    assert smallest_base(256, 64) == next(b for b in range(2, 10**5) if supporting_bases(256, 64, [b])[0])


@pytest.mark.parametrize(
    ("rotary_dim", "theta", "length", "expected"),
    [
        (128, 1e4, 2048, 82),
        (128, 1e4, 4096, 92),
        (128, 1e6, 32768, 80),
        (128, 5e5, 8192, 70),
        (64, 5e5, 8192, 36),
        (128, 1e6, 40960, 82),
        (64, 1e4, 4, 0),
        (64, 10.0, 10**6, 64),
    ],
)
def test_critical_dimension(rotary_dim: int, theta: float, length: int, expected: int) -> None:
    assert critical_dimension(rotary_dim, theta, length) == expected


@pytest.mark.parametrize("spec", SPECS)
def test_as_many_pairs_finish_a_turn_as_the_critical_dimension_says(spec: RopeSpec) -> None:
    table = rotary_pairs(xt.Plain(), spec, spec.pretrained_length)
    found = 2 * int(table["finishes"].sum())
    assert found == critical_dimension(spec.rotary_dim, spec.theta, spec.pretrained_length)
    assert table["turns_trained"].to_numpy() == pytest.approx(
        [spec.pretrained_length * f / (2 * math.pi) for f in ladder(spec)], rel=1e-6
    )


@pytest.mark.parametrize(
    ("rotary_dim", "theta", "length", "of_32_turns", "of_one_turn"),
    [
        (128, 1e4, 2048, 16.128, 40.210),
        (128, 1e4, 4096, 20.944, 45.027),
        (128, 1e6, 32768, 23.596, 39.651),
        (128, 5e5, 8192, 18.081, 34.984),
        (64, 1e4, 2048, 8.064, 20.105),
        (64, 5e5, 8192, 9.041, 17.492),
    ],
)
def test_turns_in_training_cross_32_and_1_where_yarn_puts_the_ends_of_its_ramp(
    rotary_dim: int, theta: float, length: int, of_32_turns: float, of_one_turn: float
) -> None:
    turns = rotary_pairs(xt.Plain(), RopeSpec(rotary_dim, theta, length), length)["turns_trained"].to_numpy()
    pairs = np.arange(turns.size)
    for count, expected in ((32, of_32_turns), (1, of_one_turn)):
        found = np.interp(-math.log(count), -np.log(turns), pairs)  # the ladder is geometric: exact between pairs
        assert found == pytest.approx(expected, abs=6e-4)


def test_fope_stops_the_pairs_that_are_told_not_to_finish() -> None:
    for length, stopped in ((2048, 23), (4096, 18)):
        table = rotary_pairs(xt.FoPE(), RopeSpec(128, 1e4, length), length)
        assert np.isinf(table["wavelength"]).sum() == stopped
        assert (np.isinf(table["wavelength"]) == ~table["finishes"]).all()


def test_pairs_tell_wavelength_slowing_and_lost_resolution() -> None:
    table = rotary_pairs(xt.Linear(factor=4), BUNDLED, 2048)
    assert table["slowed"].to_numpy() == pytest.approx([4.0] * 32)
    assert table["resolution_lost"].to_numpy() == pytest.approx([0.75] * 32)
    assert table["wavelength"].to_numpy() == pytest.approx([8 * math.pi / f for f in ladder(BUNDLED)], rel=1e-6)


@pytest.mark.parametrize("length", [512, 513, 700, 2048])
def test_unseen_phases_are_those_past_the_end_of_training(length: int) -> None:
    table = rotary_pairs(xt.Plain(), BUNDLED, length)
    for i, f in enumerate(ladder(BUNDLED)):
        arc = 512 * f
        unseen = 0 if arc >= 2 * math.pi else sum((t * f) % (2 * math.pi) >= arc * (1 - 1e-6) for t in range(length))
        assert table["unseen"][i] == pytest.approx(unseen / length, abs=1.5 / length)
    assert (table["unseen"] > 0).any() == (length > 512)


def test_strategies_of_positions_see_nothing_unseen_at_any_length() -> None:
    for strategy in (xt.ReRoPE(), xt.DualChunk(), xt.SelfExtend(), xt.AttentionSinks()):
        assert rotary_pairs(strategy, BUNDLED, 4096)["unseen"].max() == 0


@settings(max_examples=25, deadline=None)
@given(
    factor=st.integers(2, 16),
    theta=st.sampled_from([1e4, 1e5, 1e6]),
    rotary_dim=st.sampled_from([16, 64, 128]),
    length=st.integers(100, 5000),
)
def test_breaks_follow_the_slowest_slowing_of_a_pair_that_never_turned(
    factor: int, theta: float, rotary_dim: int, length: int
) -> None:
    spec = RopeSpec(rotary_dim, theta, length)
    assert break_length(xt.Plain(), spec) == length + 1
    assert break_length(xt.Linear(factor=factor), spec, limit=32 * length) == pytest.approx(
        factor * length + 1, abs=0.0001 * factor * length
    )
    first = next((i for i, f in enumerate(ladder(spec)) if length * f < 2 * math.pi), None)
    if first is None:
        return
    slowed = factor ** (2 * first / (rotary_dim - 2))
    found = break_length(xt.NTK(factor=factor), spec, limit=32 * length)
    assert found == pytest.approx(length * slowed + 1, abs=1 + 0.0001 * length * slowed)


def test_break_lengths_of_the_bundled_model() -> None:
    strategies = [
        xt.Plain(),
        xt.Linear(factor=8),
        xt.NTK(factor=8),
        xt.YaRN(factor=8),
        xt.DynamicYaRN(),
        xt.ReRoPE(),
        xt.STRING(shift=384, local=16),
    ]
    table = break_lengths(strategies, BUNDLED, limit=65536).set_index("label")
    assert table["break_length"].astype(object).where(table["break_length"].notna(), None).tolist() == [
        *(513, 4097, 1499, 4097),
        *(None, None),
        (xt.STRING(shift=384, local=16).reach(BUNDLED) or 0) + 1,
    ]
    assert table["claimed_length"].isna().tolist() == [True, False, False, False, True, True, True]
    assert table.loc["plain", "cosine_length"] == supported_length(xt.Plain().frequencies(BUNDLED, 1), 4096)
    assert table["cosine_length"].isna().tolist() == [False] * 4 + [True] * 3
    with pytest.raises(StrategyError, match="limit must be above the pretrained length 512, got 512"):
        break_length(xt.Plain(), BUNDLED, limit=512)
