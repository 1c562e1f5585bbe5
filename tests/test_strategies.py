"""Every strategy equals its independent reference, and the laws its paper promises hold for all inputs."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import extrapolate as xt
from extrapolate import strategies
from extrapolate.analysis import relative_positions
from extrapolate.rope import Frequencies, RopeSpec, cos_sin, unit_circle
from tests import reference
from tests.strategies import GOLDEN, SPECS, TABLE, Row, pairs_of, positions_off

EVERY: list[type[xt.Strategy]] = [
    kind
    for kind in (getattr(strategies, name) for name in strategies.__all__)
    if isinstance(kind, type) and issubclass(kind, xt.Strategy) and kind not in {xt.Strategy, xt.Transform, xt.Composed}
]
CONF = Path(__file__).parent.parent / "conf" / "strategy"

spec_of = st.builds(
    RopeSpec,
    rotary_dim=st.sampled_from([8, 16, 32, 64, 80, 96, 128, 256]),
    theta=st.sampled_from([1e3, 1e4, 1e5, 5e5, 1e6]),
    pretrained_length=st.integers(32, 131072),
)
factor_of = st.floats(1, 64)


def spec_id(spec: RopeSpec) -> str:
    return f"d{spec.rotary_dim}-theta{spec.theta:g}-L{spec.pretrained_length}"


def close(found: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        found.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0, check_dtype=False
    )


@pytest.mark.parametrize(
    ("row", "spec"), [pytest.param(row, spec, id=f"{row.id}-{spec_id(spec)}") for row in TABLE for spec in row.specs]
)
def test_frequencies_equal_the_closed_form(row: Row, spec: RopeSpec) -> None:
    found = row.strategy(spec.rotary_dim // 2).frequencies(spec, row.length(spec))
    close(found.inv_freq, row.frequencies(spec))
    assert found.attention_factor == pytest.approx(row.factor(spec), rel=1e-9)


@pytest.mark.parametrize("row", [row for row in TABLE if row.relative or row.scale], ids=lambda row: row.id)
def test_positions_and_query_factors_equal_the_definition_pair_by_pair(row: Row) -> None:
    for spec in row.specs:
        assert positions_off(row, row.strategy(), spec) < 1e-6
    spec = SPECS[0]  # every pair
    found = relative_positions(row.strategy(), spec, row.length(spec))
    torch.testing.assert_close(found.double(), row.table(spec, row.length(spec)), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
@pytest.mark.parametrize("row", [row for row in TABLE if row.native], ids=lambda row: row.id)
def test_frequencies_equal_transformers_own(row: Row, spec: RopeSpec) -> None:
    native = row.transformers(spec)
    assert native is not None
    found = row.strategy(spec.rotary_dim // 2).frequencies(spec, row.length(spec))
    close(found.inv_freq, native[0])
    assert found.attention_factor == pytest.approx(native[1], rel=1e-9)


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
@pytest.mark.parametrize("factor", [2, 3.5, 8])
def test_ntk_equals_transformers_dynamic_form_of_factor_1_at_the_target_length(spec: RopeSpec, factor: float) -> None:
    config = LlamaConfig(
        head_dim=spec.rotary_dim,
        max_position_embeddings=spec.pretrained_length,
        rope_parameters={"rope_type": "dynamic", "factor": 1.0, "rope_theta": spec.theta},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=int(factor * spec.pretrained_length))
    close(xt.NTK(factor=factor).frequencies(spec, 1).inv_freq, expected)


@pytest.mark.parametrize(("strategy", "spec", "values", "total"), GOLDEN, ids=lambda v: getattr(v, "label", None))
def test_frequencies_equal_published_vectors(
    strategy: xt.Strategy, spec: RopeSpec, values: dict[int, float], total: float
) -> None:
    found = strategy.frequencies(spec, 1).inv_freq.double()
    for pair, value in values.items():
        assert found[pair].item() == pytest.approx(value, rel=1e-6), pair
    assert found.sum().item() == pytest.approx(total, rel=1e-6)


def test_every_strategy_has_a_row_and_a_yaml_that_spells_out_every_field() -> None:
    assert {type(row.strategy()) for row in TABLE} == {*EVERY, xt.Composed}
    assert {path.stem for path in CONF.glob("*.yaml")} == {kind.name for kind in EVERY} | {xt.Composed.name}
    for kind in EVERY:
        keys = yaml.safe_load((CONF / f"{kind.name}.yaml").read_text())
        assert keys.pop("_target_") == f"extrapolate.{kind.__name__}"
        fields = {f.name: "???" if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(kind)}
        assert keys.pop("factor", "${factor}") == "${factor}"
        assert {**keys, **({"factor": 4.0} if "factor" in fields else {})} == fields
        assert getattr(xt, kind.__name__) is kind


# Laws


# LongRoPE's factor sets its attention factor only; the slowing down is in its lists
SCALED = [kind for kind in EVERY if "factor" in {f.name for f in dataclasses.fields(kind)} and kind is not xt.LongRoPE]


@given(spec_of, st.sampled_from(SCALED))
def test_factor_1_is_plain_bit_for_bit(spec: RopeSpec, kind: type[Any]) -> None:
    plain = xt.Plain().frequencies(spec, 1)
    assert kind(factor=1).frequencies(spec, 1).equal(plain)


@given(spec_of, st.sampled_from(["index", "rotations"]), st.sampled_from(["arithmetic", "harmonic", "geometric"]))
def test_factor_1_is_plain_for_every_variant_of_yarn(spec: RopeSpec, ramp: Any, blend: Any) -> None:
    assert xt.YaRN(factor=1, ramp=ramp, blend=blend).frequencies(spec, 1).equal(xt.Plain().frequencies(spec, 1))


@given(spec_of)
def test_proportional_of_all_pairs_is_plain_and_longrope_of_ones_is_too(spec: RopeSpec) -> None:
    plain, ones = xt.Plain().frequencies(spec, 1), (1.0,) * (spec.rotary_dim // 2)
    assert xt.Proportional(p=1).frequencies(spec, 1).equal(plain)
    for length in (1, spec.pretrained_length, 2 * spec.pretrained_length):
        assert xt.LongRoPE(long_factor=ones, factor=1).frequencies(spec, length).equal(plain)


@given(spec_of)
def test_shipped_is_plain_bit_for_bit_where_the_checkpoint_ships_no_scaling(spec: RopeSpec) -> None:
    assert xt.Shipped().frequencies(spec, 1).equal(xt.Plain().frequencies(spec, 1))


PROMISED: dict[str, Any] = {
    **{kind.name: kind for kind in SCALED if not kind.depends_on_length},
    "ntk_mixed, b 0.5": functools.partial(xt.NTKMixed, mixed_b=0.5),
    "mrrope, uni": functools.partial(xt.MrRoPE, variant="uni"),
    **{
        f"yarn, {ramp}, {blend}": functools.partial(xt.YaRN, ramp=ramp, blend=blend)
        for ramp in ("index", "rotations")
        for blend in ("arithmetic", "harmonic", "geometric")
    },
}


@given(spec_of, factor_of, st.sampled_from(sorted(PROMISED)))
def test_pairs_slow_down_by_1_to_s_and_never_less_at_longer_wavelengths(
    spec: RopeSpec, factor: float, kind: str
) -> None:
    found = PROMISED[kind](factor=factor).frequencies(spec, 1).inv_freq.double()
    slower = xt.Plain().frequencies(spec, 1).inv_freq.double() / found
    assert slower.min() >= 1 - 1e-6
    assert slower.max() <= factor * (1 + 2e-6)
    assert (slower.diff() >= -2e-6 * factor).all()


@given(spec_of, factor_of)
def test_the_first_pair_of_ntk_is_plain_and_the_last_is_interpolated(spec: RopeSpec, factor: float) -> None:
    plain, found = xt.Plain().frequencies(spec, 1).inv_freq, xt.NTK(factor=factor).frequencies(spec, 1).inv_freq
    assert found[0] == plain[0]
    close(found[-1], plain[-1].double() / factor)


@given(spec_of, factor_of, st.floats(0.1, 3))
def test_the_last_pair_of_fixed_and_mixed_ntk_is_interpolated(spec: RopeSpec, factor: float, b: float) -> None:
    plain = xt.Plain().frequencies(spec, 1).inv_freq.double()
    for strategy in (xt.NTKFixed(factor=factor), xt.NTKMixed(factor=factor, mixed_b=b)):
        close(strategy.frequencies(spec, 1).inv_freq[-1], plain[-1] / factor)


@given(spec_of, factor_of)
def test_mrrope_uni_is_yarn_with_a_geometric_blend_and_pro_keeps_more(spec: RopeSpec, factor: float) -> None:
    uni, pro = (xt.MrRoPE(factor=factor, variant=v).frequencies(spec, 1) for v in ("uni", "pro"))
    assert uni.equal(xt.YaRN(factor=factor, blend="geometric").frequencies(spec, 1))
    assert (pro.inv_freq >= uni.inv_freq * (1 - 1e-6)).all()


@given(spec_of, factor_of)
def test_the_blends_are_ordered_as_means_are(spec: RopeSpec, factor: float) -> None:
    harmonic, geometric, arithmetic = (
        xt.YaRN(factor=factor, blend=blend).frequencies(spec, 1).inv_freq
        for blend in ("harmonic", "geometric", "arithmetic")
    )
    assert (harmonic <= geometric * (1 + 1e-6)).all()
    assert (geometric <= arithmetic * (1 + 1e-6)).all()


@given(spec_of, factor_of)
def test_yarn_over_rotations_is_ntk_by_parts_with_a_temperature(spec: RopeSpec, factor: float) -> None:
    yarn = xt.YaRN(factor=factor, ramp="rotations", attention_factor=1.0)
    assert yarn.frequencies(spec, 1).equal(xt.NTKByParts(factor=factor).frequencies(spec, 1))


@given(spec_of)
def test_pairs_that_never_finish_a_turn_stand_still(spec: RopeSpec) -> None:
    plain = xt.Plain().frequencies(spec, 1).inv_freq
    turns = plain.double() * spec.pretrained_length / (2 * math.pi)
    fope, giraffe = xt.FoPE().frequencies(spec, 1).inv_freq, xt.GiraffeTruncate().frequencies(spec, 1).inv_freq
    slow = turns < 1 - 1e-6
    assert (fope[slow] == 0).all()
    assert torch.equal(fope[turns > 1 + 1e-6], plain[turns > 1 + 1e-6])
    assert torch.equal(giraffe[turns > 1 + 1e-6], plain[turns > 1 + 1e-6])
    assert (giraffe[turns < 0.125 - 1e-6] == 0).all()
    assert (xt.NoPE().frequencies(spec, 1).inv_freq == 0).all()


@pytest.mark.parametrize(("length", "still"), [(2048, 23), (4096, 18)])
def test_fope_stops_as_many_pairs_as_published(length: int, still: int) -> None:
    assert int((xt.FoPE().frequencies(RopeSpec(128, 1e4, length), 1).inv_freq == 0).sum()) == still


def test_giraffe_keeps_stops_and_sets_as_many_pairs_as_published() -> None:
    spec = RopeSpec(128, 1e4, 2048)
    found, plain = xt.GiraffeTruncate().frequencies(spec, 1).inv_freq, xt.Plain().frequencies(spec, 1).inv_freq
    assert [int((found == plain).sum()), int(((found > 0) & (found != plain)).sum()), int((found == 0).sum())] == [
        41,
        14,
        9,
    ]


@given(spec_of, factor_of, st.sampled_from([xt.YaRN, xt.NTK, xt.Linear, xt.FoPE, xt.NTKByParts]))
def test_resonance_makes_every_wavelength_whole_and_changes_it_by_at_most_a_half(
    spec: RopeSpec, factor: float, kind: type[Any]
) -> None:
    base = kind() if kind is xt.FoPE else kind(factor=factor)
    before = base.frequencies(spec, 1)
    after = xt.compose(base, xt.Resonance()).frequencies(spec, 1)
    moving = before.inv_freq > 0
    assert (after.inv_freq[~moving] == 0).all()
    old, new = (2 * math.pi / f.inv_freq[moving].double() for f in (before, after))
    assert ((new - new.round()).abs() <= 1e-6 * new).all()
    assert ((new - old).abs() <= 0.5 + 1e-6 * old).all()
    assert after.attention_factor == before.attention_factor


def test_resonance_rounds_wavelengths_as_published() -> None:
    found = xt.Resonance().frequencies(RopeSpec(128, 1e4, 4096), 1).inv_freq
    assert (2 * math.pi / found[:8]).round().tolist() == [6, 7, 8, 10, 11, 13, 15, 17]


@given(spec_of, factor_of)
def test_longrope_with_a_methods_own_divisors_is_that_method(spec: RopeSpec, factor: float) -> None:
    plain = xt.Plain().frequencies(spec, 1).inv_freq.double()
    for other in (xt.Linear(factor=factor), xt.NTK(factor=factor), xt.NTKFixed(factor=factor)):
        divisors = tuple((plain / other.frequencies(spec, 1).inv_freq.double()).tolist())
        found = xt.LongRoPE(long_factor=divisors, attention_factor=1.0).frequencies(spec, spec.pretrained_length + 1)
        close(found.inv_freq, other.frequencies(spec, 1).inv_freq)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 256])
def test_longrope_switches_lists_beyond_the_trained_length_and_not_at_it(length: int) -> None:
    # case 9
    spec = RopeSpec(16, 1e4, 64)
    strategy = xt.LongRoPE(short_factor=(1,) * 8, long_factor=(4,) * 8)
    slower = xt.Plain().frequencies(spec, 1).inv_freq / strategy.frequencies(spec, length).inv_freq
    close(slower, [4.0 if length > 64 else 1.0] * 8)
    assert strategy.varies_with_length(spec)


def test_longrope_can_switch_elsewhere_never_or_not_at_all() -> None:
    spec = RopeSpec(16, 1e4, 64)
    long, plain = [f / 4 for f in reference.plain(spec)], reference.plain(spec)
    late = xt.LongRoPE(long_factor=(4,) * 8, switch_length=100)
    close(late.frequencies(spec, 100).inv_freq, plain)
    close(late.frequencies(spec, 101).inv_freq, long)
    for always in (
        xt.LongRoPE(long_factor=(4,) * 8, switch_length=0),
        xt.LongRoPE(long_factor=(4,) * 8, short_factor=(4,) * 8),
    ):
        close(always.frequencies(spec, 1).inv_freq, long)
        assert not always.varies_with_length(spec)


@pytest.mark.parametrize(("factor", "su"), [(2, 1.04083), (4, 1.08012), (8, 1.11803), (16, 1.15470), (32, 1.19024)])
def test_the_su_attention_factor_is_the_published_one(factor: float, su: float) -> None:
    spec = RopeSpec(128, 1e4, 4096)
    found = xt.LongRoPE(long_factor=(1,) * 64, factor=factor).frequencies(spec, 1)
    assert found.attention_factor == pytest.approx(su, rel=1e-5)


def test_the_first_tokens_of_longrope_rotate_as_plain() -> None:
    spec = RopeSpec(16, 1e4, 64)
    strategy = xt.LongRoPE(long_factor=(4,) * 8, start_tokens=5)
    frequencies = strategy.frequencies(spec, 200)
    cos, sin = cos_sin(frequencies, torch.arange(200))
    a = frequencies.attention_factor
    assert a > 1
    for m in (0, 1, 4, 5, 6, 199):
        divisor, radius = (1, 1.0) if m < 5 else (4, a)
        expected = [radius * math.cos(m * f / divisor) for f in reference.plain(spec)]
        torch.testing.assert_close(cos[m].double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)
        assert float((cos[m] ** 2 + sin[m] ** 2).sqrt().mean()) == pytest.approx(radius, rel=1e-6)
    table = unit_circle(frequencies, torch.arange(200))
    torch.testing.assert_close(table, torch.complex(cos, sin), rtol=0, atol=1e-6)


@given(spec_of, factor_of)
def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones_bit_for_bit(spec: RopeSpec, factor: float) -> None:
    # case 5: built on plain theta, not on an NTK-changed base
    yarn = xt.YaRN(factor=factor)
    low, high = yarn.ramp_bounds(spec)
    plain, found = xt.Plain().frequencies(spec, 1).inv_freq, yarn.frequencies(spec, 1).inv_freq
    pair = torch.arange(plain.numel())
    assert torch.equal(found[pair <= low], plain[pair <= low])
    slow = (pair >= high) & (pair > low)
    assert torch.equal(found[slow], plain[slow] / torch.tensor(factor, dtype=torch.float64).float()) or torch.equal(
        found[slow], (plain[slow].double() / factor).float()
    )


def test_yarn_of_a_qwen_like_checkpoint_slows_pairs_as_published() -> None:
    # case 5: plain/yarn for theta 1e6, d 64, s 4, L 32768
    spec = RopeSpec(64, 1e6, 32768)
    slower = xt.Plain().frequencies(spec, 1).inv_freq / xt.YaRN(factor=4).frequencies(spec, 1).inv_freq
    expected = [1.0] * 12 + [12 / 11, 1.2, 4 / 3, 1.5, 12 / 7, 2, 2.4, 3] + [4.0] * 12
    close(slower, expected)


@pytest.mark.parametrize(("alpha", "base"), [(2, 22081.790), (4, 48760.546), (8, 107672.015)])
def test_ntk_alpha_is_the_exponent_formula(alpha: float, base: float) -> None:
    # case 7
    spec = RopeSpec(16, 1e4, 64)
    found = xt.NTK(factor=alpha).frequencies(spec, 1).inv_freq
    close(found, [base ** (-2 * i / 16) for i in range(8)])


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_a_strategy_is_a_pure_function_of_spec_and_length(kind: type[xt.Strategy]) -> None:
    spec = RopeSpec(64, 1e5, 8192)
    (row, *_) = [row for row in TABLE if type(row.strategy()) is kind]
    strategy = row.strategy(32)
    first = strategy.frequencies(spec, 8192)
    strategy.frequencies(spec, 1_000_000)
    assert row.strategy(32).frequencies(spec, 8192).equal(first)
    assert first.inv_freq.dtype == torch.float32


@given(spec_of, factor_of)
def test_llama3_is_by_parts_between_1_and_4_turns(spec: RopeSpec, factor: float) -> None:
    by_parts = xt.NTKByParts(factor=factor, alpha=1, beta=4)
    assert xt.Llama3(factor=factor).frequencies(spec, 1).equal(by_parts.frequencies(spec, 1))


def test_llama_3_2_slows_pairs_as_published() -> None:
    # case 8: theta 5e5, d 64, s 32, L 8192
    spec = RopeSpec(64, 5e5, 8192)
    slower = xt.Plain().frequencies(spec, 1).inv_freq / xt.Llama3(factor=32).frequencies(spec, 1).inv_freq
    torch.testing.assert_close(slower[15:18], torch.tensor([1.651, 3.292, 9.667]), rtol=3e-4, atol=0)
    assert (slower[:15] == 1).all()
    close(slower[18:], [32.0] * 14)


@pytest.mark.parametrize(("length", "base"), [(65, 10357.933), (96, 22081.790), (128, 35097.924), (256, 92432.847)])
def test_the_dynamic_base_is_the_published_one(length: int, base: float) -> None:
    # case 6: d 16, theta 1e4, L 64, s 2
    found = xt.DynamicNTK(factor=2).frequencies(RopeSpec(16, 1e4, 64), length).inv_freq
    close(found, [base ** (-2 * i / 16) for i in range(8)])


@given(spec_of, factor_of, st.floats(1, 32))
def test_dynamic_forms_are_plain_up_to_the_pretrained_length_and_meet_the_fixed_ones_at_the_target(
    spec: RopeSpec, factor: float, times: float
) -> None:
    plain = xt.Plain().frequencies(spec, 1)
    for strategy in (xt.DynamicNTK(factor=factor), xt.DynamicLinear(), xt.DynamicYaRN()):
        for length in (1, spec.pretrained_length // 2, spec.pretrained_length):
            assert strategy.frequencies(spec, length).equal(plain)
    length = int(times * spec.pretrained_length)
    exact = length / spec.pretrained_length
    assert xt.DynamicNTK(factor=1).frequencies(spec, length).equal(xt.NTK(factor=exact).frequencies(spec, 1))
    assert xt.DynamicLinear().frequencies(spec, length).equal(xt.Linear(factor=exact).frequencies(spec, 1))
    assert xt.DynamicYaRN().frequencies(spec, length).equal(xt.YaRN(factor=exact).frequencies(spec, 1))


# Laws of positions


POSITIONS: list[type[Any]] = [kind for kind in EVERY if kind.bands is not xt.Strategy.bands]
SEES_ALL = [kind for kind in POSITIONS if kind not in {xt.LMInfinite, xt.AttentionSinks}]


@st.composite
def _setting(draw: st.DrawFn, kinds: list[type[Any]]) -> tuple[xt.Strategy, RopeSpec, int]:
    """A strategy of positions with settings that fit a spec, and a text of any length it may reach."""
    spec = RopeSpec(16, 1e4, draw(st.integers(8, 96)))
    trained = spec.pretrained_length
    kind = draw(st.sampled_from(kinds))

    def up_to(most: int, least: int = 1) -> int:
        return draw(st.integers(least, max(least, most)))

    shift = up_to(trained, 0)
    chunk, sinks = up_to(trained), up_to(trained - 1, 0)
    local = up_to(trained)
    fields: dict[type[Any], dict[str, Any]] = {
        xt.SelfExtend: {"group": draw(st.none() | st.integers(1, 9)), "window": up_to(2 * trained // 3 - 1)},
        xt.ReRoPE: {"window": local},
        xt.LeakyReRoPE: {"window": up_to(trained - 1), "k": draw(st.floats(1, 20))},
        xt.DualChunk: {"chunk": chunk, "local": up_to(chunk - 1, 0)},
        xt.STRING: {"shift": shift, "local": up_to(shift, 0)},
        xt.LMInfinite: {"first": sinks, "local": local, "limit": up_to(trained, local)},
        xt.AttentionSinks: {"sinks": sinks, "window": up_to(trained - sinks)},
    }
    return kind(**fields[kind]), spec, draw(st.integers(1, 300))


def _table(strategy: xt.Strategy, spec: RopeSpec, length: int) -> torch.Tensor | None:
    """Relative positions; None where the strategy says that it does not reach so far."""
    reach = strategy.reach(spec)
    if reach is not None and length > reach:
        with pytest.raises(xt.StrategyError, match=rf" reach .* = {reach} tokens .* the text has {length}"):
            strategy.bands(spec, length)
        return None
    return relative_positions(strategy, spec, length)


@given(_setting(POSITIONS))
def test_bands_are_disjoint_causal_and_within_the_trained_length(setting: tuple[xt.Strategy, RopeSpec, int]) -> None:
    strategy, spec, length = setting
    table = _table(strategy, spec, length)
    if table is None:
        return
    seen = ~table.isnan()
    assert seen.diagonal().all(), "a query sees itself"
    assert (table.diagonal() == 0).all()
    assert table[seen].min() >= 0
    if torch.equal(table.nan_to_num(-1), relative_positions(xt.Plain(), spec, length).nan_to_num(-1)):
        return  # a setting that is plain goes on beyond L as plain does
    # LM-Infinite's and ReRoPE's own ceiling may be L itself, one more than any pair of a text of L tokens
    most = spec.pretrained_length - 1 + isinstance(strategy, xt.LMInfinite | xt.ReRoPE | xt.DualChunk)
    assert table[seen].max() <= most


@given(_setting(SEES_ALL))
def test_those_that_promise_it_cover_the_whole_triangle(setting: tuple[xt.Strategy, RopeSpec, int]) -> None:
    strategy, spec, length = setting
    table = _table(strategy, spec, length)
    if table is not None:
        assert torch.equal(~table.isnan(), torch.ones(length, length, dtype=torch.bool).tril())


@given(_setting([xt.SelfExtend, xt.LeakyReRoPE, xt.STRING]))
def test_the_reach_is_exact(setting: tuple[xt.Strategy, RopeSpec, int]) -> None:
    """One token more than a strategy reaches would be seen further away than any in training."""
    strategy, spec, _ = setting
    reach = strategy.reach(spec)
    if reach is None:
        return
    (far,) = [band for band in strategy.bands(spec, reach) if band.covers(torch.tensor(reach - 1), torch.tensor(0))]
    first = far.key_position(torch.tensor([0])).double()
    last, beyond = (far.query_position(torch.tensor([n])).double() - first for n in (reach - 1, reach))
    assert last <= spec.pretrained_length - 1 + 1e-5
    assert beyond > spec.pretrained_length - 1 - 1e-5


PLAIN_AT: list[tuple[xt.Strategy, int]] = [
    (xt.SelfExtend(group=1), 10**6),
    (xt.SelfExtend(group=8, window=40), 40),
    (xt.SelfExtend(), 64),
    (xt.ReRoPE(window=64), 64),
    (xt.LeakyReRoPE(k=1), 10**6),
    (xt.DualChunk(chunk=48, local=8), 40),
    (xt.STRING(shift=0, local=0), 10**6),
    (xt.STRING(shift=30, local=30), 10**6),
    (xt.LMInfinite(), 64),
    (xt.AttentionSinks(), 64),
    (xt.AttentionSinks(sinks=4, window=30), 34),
]


@pytest.mark.parametrize(("strategy", "length"), PLAIN_AT, ids=lambda v: getattr(v, "name", v))
def test_settings_that_equal_plain_do_and_only_up_to_where_they_do(strategy: xt.Strategy, length: int) -> None:
    spec = RopeSpec(16, 1e4, 64)
    n = min(length, 200)
    plain = relative_positions(xt.Plain(), spec, n)
    torch.testing.assert_close(relative_positions(strategy, spec, n), plain, rtol=0, atol=0, equal_nan=True)
    if length < 10**6:
        beyond = relative_positions(strategy, spec, n + 20), relative_positions(xt.Plain(), spec, n + 20)
        assert not torch.equal(*(x.nan_to_num(-1) for x in beyond))


def test_self_extends_published_reach() -> None:
    # Llama-2: L 4096, W 1024, G 8 -> 25600; G 64 -> 197632; the tests' tiny model: 160, and 161 is refused
    for trained, window, group, reach in ((4096, 1024, 8, 25600), (4096, 1024, 64, 197632), (64, 32, 4, 160)):
        spec, strategy = RopeSpec(16, 1e4, trained), xt.SelfExtend(group=group, window=window)
        (_, far) = strategy.bands(spec, reach)
        last = torch.tensor(reach - 1)
        assert far.query_position(last) - far.key_position(torch.tensor(0)) == trained - 1
        with pytest.raises(xt.StrategyError, match=rf"reach group·\(L - window \+ window//group\) = {reach} tokens"):
            strategy.bands(spec, reach + 1)
    with pytest.raises(xt.StrategyError, match="window=64 must be below the pretrained length 64"):
        xt.SelfExtend(group=4, window=64).bands(RopeSpec(16, 1e4, 64), 64)


def test_automatic_parameters_follow_the_target_length_and_are_told() -> None:
    spec = RopeSpec(128, 1e4, 4096)
    assert xt.SelfExtend().at(spec, 4096) == xt.SelfExtend(group=1, window=1024)
    for length in (5000, 8192, 16384, 32768, 131072):
        told = xt.SelfExtend().at(spec, length)
        assert isinstance(told, xt.SelfExtend)
        assert told.window == 1024
        group = told.group or 0
        # the paper's rule of thumb: between a half and two thirds of L are used, and no smaller group does it
        assert 1024 + (length - 1024) / group <= 4096 * 2 / 3 + 1e-9 < 1024 + (length - 1024) / (group - 1)
        assert len(told.bands(spec, length)) == 2
    assert xt.SelfExtend().varies_with_length(spec)
    assert not xt.SelfExtend(group=8).varies_with_length(spec)
    assert xt.DualChunk().at(spec, 1) == xt.DualChunk(chunk=3072, local=512)  # the authors' for L 4096
    assert xt.STRING().at(spec, 1) == xt.STRING(shift=1365, local=128)
    assert xt.ReRoPE().at(spec, 1) == xt.ReRoPE(window=1024)
    assert xt.LeakyReRoPE().at(spec, 1) == xt.LeakyReRoPE(window=1024, k=16)
    assert xt.AttentionSinks().at(spec, 1) == xt.AttentionSinks(sinks=4, window=4092)
    assert xt.LMInfinite().at(spec, 1) == xt.LMInfinite(first=10, local=4096, limit=4096)
    both = xt.compose(xt.YaRN(factor=2), xt.DualChunk()).at(spec, 1)
    assert both == xt.compose(xt.YaRN(factor=2), xt.DualChunk(chunk=6144, local=1024))
    with pytest.raises(xt.StrategyError, match="window=3000 leaves no room for an automatic group"):
        xt.SelfExtend(window=3000).bands(spec, 8192)


def test_log_n_at_published_lengths() -> None:
    spec = RopeSpec(128, 1e4, 4096)
    scale = xt.LogN().query_scale(spec, torch.tensor([0, 100, 4095, 8191, 16383]))
    assert scale.tolist() == pytest.approx([1, 1, 1, 1.083333, 1.166667], rel=1e-6)


# Fields


SETTINGS: dict[str, tuple[Any, Any]] = {
    "linear.factor": (2, 3),
    "ntk.factor": (2, 3),
    "yarn.factor": (2, 3),
    "yarn.beta_fast": (32, 16),
    "yarn.beta_slow": (1, 2),
    "yarn.ramp": ("index", "rotations"),
    "yarn.blend": ("harmonic", "geometric"),
    "yarn.truncate": (True, False),
    "yarn.attention_factor": (None, 1.0),
    "yarn.mscale": (1.0, 0.5),
    "yarn.mscale_all_dim": (0.7, 0.5),
    "dynamic_yarn.beta_fast": (32, 16),
    "dynamic_yarn.beta_slow": (1, 2),
    "dynamic_yarn.ramp": ("index", "rotations"),
    "dynamic_yarn.blend": ("arithmetic", "harmonic"),
    "dynamic_yarn.truncate": (True, False),
    "mrrope.factor": (2, 3),
    "mrrope.variant": ("uni", "pro"),
    "mrrope.beta_fast": (32, 16),
    "mrrope.beta_slow": (1, 2),
    "mrrope.attention_factor": (None, 1.0),
    "abf.base": (5e5, 1e6),
    "ntk_by_parts.factor": (2, 3),
    "ntk_by_parts.alpha": (1, 2),
    "ntk_by_parts.beta": (32, 16),
    "llama3.factor": (2, 3),
    "llama3.low_freq_factor": (1, 2),
    "llama3.high_freq_factor": (4, 8),
    "dynamic_ntk.factor": (2, 3),
    "ntk_fixed.factor": (2, 3),
    "ntk_mixed.factor": (2, 3),
    "ntk_mixed.mixed_b": (0.75, 1),
    "giraffe_power.power": (0.5, 1),
    "giraffe_truncate.a": (0.125, 0.25),
    "giraffe_truncate.b": (1, 2),
    "giraffe_truncate.rho": (0.0625, 0.05),
    "proportional.p": (0.75, 0.5),
    "longrope.long_factor": ((4,) * 64, (3,) * 64),
    "longrope.short_factor": (None, (1.5,) * 64),  # at a length up to the switch
    "longrope.factor": (2, 3),
    "longrope.attention_factor": (None, 1.0),
    "longrope.switch_length": (None, 100_000),
    "longrope.start_tokens": (0, 4),
    "self_extend.group": (None, 32),
    "self_extend.window": (None, 512),
    "rerope.window": (None, 512),
    "leaky_rerope.window": (None, 512),
    "leaky_rerope.k": (16, 8),
    "dual_chunk.chunk": (None, 2048),
    "dual_chunk.local": (None, 256),
    "string.shift": (4096, 4000),
    "string.local": (None, 512),
    "lm_infinite.first": (10, 20),
    "lm_infinite.local": (None, 2048),
    "lm_infinite.limit": (2048, 4096),
    "attention_sinks.sinks": (4, 8),
    "attention_sinks.window": (None, 1020),
    "temperature.scale": (1.1, 1.2),
}
NEEDED: dict[str, dict[str, Any]] = {
    "yarn.mscale": {"mscale_all_dim": 0.7},
    "yarn.mscale_all_dim": {"mscale": 1.0},
    "longrope.short_factor": {"switch_length": 100_000},
    "string.local": {"shift": 4096},
    "lm_infinite.limit": {"local": 1024},
}
"""Without these another field decides."""


def effect(strategy: xt.Strategy, spec: RopeSpec) -> tuple[Any, ...]:
    """Everything a strategy does to a text: its frequencies, the position of some pairs, factors on some queries."""
    length = int(1.8 * spec.pretrained_length) if isinstance(strategy, xt.STRING) else 4 * spec.pretrained_length
    f = strategy.frequencies(spec, length)
    query, key = torch.tensor(pairs_of(length, 1000)).T
    pairs = [
        (band.covers(query, key) * (band.query_position(query) - band.key_position(key))).tolist()
        for band in strategy.bands(spec, length)
    ]
    scale = strategy.query_scale(spec, query)
    start = None if f.start_inv_freq is None else f.start_inv_freq.tolist()
    return f.inv_freq.tolist(), f.attention_factor, f.start_tokens, start, pairs, scale is not None and scale.tolist()


def test_every_field_changes_something() -> None:
    # case 23: no setting is accepted and dropped
    spec = RopeSpec(128, 1e4, 4096)
    fields = {f"{kind.name}.{f.name}": kind for kind in EVERY for f in dataclasses.fields(kind)}
    assert set(SETTINGS) == set(fields)
    for name, values in SETTINGS.items():
        kind, field = fields[name], name.partition(".")[2]
        given = {"long_factor": (4,) * 64} if kind is xt.LongRoPE else {}
        a, b = (kind(**{**given, **NEEDED.get(name, {}), field: value}) for value in values)
        assert effect(a, spec) != effect(b, spec), name


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("value", [0.5, 0, -1, "4", math.nan, math.inf, None, True, [4]])
def test_a_factor_that_is_no_number_of_at_least_1_is_refused_by_name(kind: type[Any], value: Any) -> None:
    with pytest.raises(xt.StrategyError, match="factor must be a number of at least 1, got ") as error:
        kind(factor=value)
    assert repr(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta_fast": 1, "beta_slow": 1}, "beta_fast must be above beta_slow"),
        ({"beta_slow": 0}, "beta_slow must be a number above 0"),
        ({"truncate": "yes"}, "truncate must be a boolean"),
        ({"truncate": False, "ramp": "rotations"}, "truncate=False has no effect with ramp=rotations"),
        ({"ramp": "indx"}, "ramp must be one of index, rotations, got 'indx'"),
        ({"blend": None}, "blend must be one of arithmetic, harmonic, geometric, got None"),
        ({"attention_factor": 0}, "attention_factor must be a number above 0"),
        ({"mscale": 1.0}, "act together"),
        ({"attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}, "would override"),
    ],
)
def test_yarn_refuses_settings_that_cannot_act(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        xt.YaRN(**fields)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (xt.Llama3, {"low_freq_factor": 4, "high_freq_factor": 4}, "high_freq_factor must be above low_freq_factor"),
        (xt.NTKByParts, {"alpha": 32, "beta": 32}, "beta must be above alpha"),
        (xt.ABF, {"base": 1}, "base must be a number above 1"),
        (xt.ABF, {"base": math.nan}, "base must be a number above 1"),
        (xt.DynamicYaRN, {"beta_slow": 40}, "dynamic_yarn: beta_fast must be above beta_slow"),
        (xt.MrRoPE, {"variant": "profi"}, "variant must be one of uni, pro, got 'profi'"),
        (xt.MrRoPE, {"attention_factor": -1}, "attention_factor must be a number above 0, got -1"),
        (xt.NTKMixed, {"mixed_b": 0}, "mixed_b must be a number above 0"),
        (xt.GiraffePower, {"power": 0}, "power must be a number above 0"),
        (xt.GiraffeTruncate, {"a": 1}, "b must be above a"),
        (xt.GiraffeTruncate, {"rho": 0}, "rho must be a number above 0"),
        (xt.Proportional, {"p": 1.5}, "p must be a number above 0 and at most 1, got 1.5"),
        (xt.Proportional, {"p": 0}, "p must be a number above 0 and at most 1, got 0"),
        (xt.LongRoPE, {"long_factor": []}, "long_factor must be a list of d/2 factors or a file with them"),
        (xt.LongRoPE, {"long_factor": 4}, "long_factor must be a list of d/2 factors"),
        (xt.LongRoPE, {"long_factor": [1, 0]}, r"long_factor\[1\] must be a number above 0, got 0"),
        (xt.LongRoPE, {"long_factor": [1, math.nan]}, r"long_factor\[1\] must be a number above 0, got nan"),
        (xt.LongRoPE, {"long_factor": [1], "short_factor": ["1"]}, r"short_factor\[0\] must be a number above 0"),
        (xt.LongRoPE, {"long_factor": "no/such.json"}, "cannot read long_factor from 'no/such.json'"),
        (xt.LongRoPE, {"long_factor": [1], "start_tokens": -1}, "start_tokens must be a whole number of tokens"),
        (xt.LongRoPE, {"long_factor": [1], "switch_length": 2.5}, "switch_length must be a whole number of tokens"),
        (xt.LongRoPE, {"long_factor": [1], "factor": 0.5}, "factor must be a number of at least 1, got 0.5"),
        (xt.LongRoPE, {"long_factor": [1], "attention_factor": 0}, "attention_factor must be a number above 0"),
        (xt.SelfExtend, {"group": 0}, "group must be a whole number of at least 1, got 0"),
        (xt.SelfExtend, {"window": 2.5}, "window must be a whole number of at least 1, got 2.5"),
        (xt.LeakyReRoPE, {"k": 0.5}, "k must be a number of at least 1, got 0.5"),
        (xt.LMInfinite, {"first": None}, "first must be a whole number of at least 0, got None"),
        (xt.AttentionSinks, {"sinks": -1}, "sinks must be a whole number of at least 0, got -1"),
        (xt.AttentionSinks, {"sinks": None}, "sinks must be a whole number of at least 0, got None"),
        (xt.Temperature, {"scale": 0}, "scale must be a number above 0, got 0"),
    ],
)
def test_settings_that_cannot_act_are_refused(kind: type[Any], fields: dict[str, Any], message: str) -> None:
    # case 8: low == high would divide by zero
    with pytest.raises(xt.StrategyError, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (xt.ReRoPE(window=65), "window=65 must be at most the pretrained length 64"),
        (xt.LeakyReRoPE(window=64), "window=64 must be below the pretrained length 64"),
        (xt.DualChunk(chunk=65), "chunk must be above local and at most the pretrained length 64, got chunk=65"),
        (xt.DualChunk(chunk=20, local=20), "chunk must be above local"),
        (xt.STRING(shift=65), "shift must be at least local and at most the pretrained length 64, got shift=65"),
        (xt.STRING(shift=10, local=11), "shift must be at least local"),
        (xt.LMInfinite(local=40, limit=30), "limit must be at least local and at most the pretrained length 64"),
        (xt.LMInfinite(local=65), "limit must be at least local and at most the pretrained length 64, got local=65"),
        (xt.AttentionSinks(sinks=4, window=61), "together must be at most the pretrained length 64"),
        (xt.AttentionSinks(sinks=64), "together must be at most the pretrained length 64"),
    ],
)
def test_positions_that_do_not_fit_the_pretrained_length_are_refused(strategy: xt.Strategy, message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        strategy.bands(RopeSpec(16, 1e4, 64), 64)


@pytest.mark.parametrize("count", [5, 1])
def test_a_list_of_the_wrong_size_is_refused_with_both_numbers(count: int) -> None:
    # case 9
    spec = RopeSpec(16, 1e4, 64)
    for fields in ({"long_factor": [1.0] * count}, {"long_factor": [1.0] * 8, "short_factor": [1.0] * count}):
        with pytest.raises(xt.StrategyError, match=f"holds {count} factors, rotary_dim 16 needs 8"):
            xt.LongRoPE(**fields).frequencies(spec, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("factors.txt", "1\n1.5\n2"),
        ("factors.csv", "1, 1.5, 2\n"),
        ("factors.json", "[1, 1.5, 2]"),
        ("config.json", '{"rope_theta": 1e4, "rope_scaling": {"type": "longrope", "long_factor": [1, 1.5, 2]}}'),
        ("config.json", '{"rope_parameters": {"rope_type": "longrope", "long_factor": [1, 1.5, 2]}}'),
    ],
)
def test_factors_are_read_from_a_file_and_kept_as_numbers(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    for path in (tmp_path / name, str(tmp_path / name)):
        strategy = xt.LongRoPE(long_factor=path)  # type: ignore[arg-type]
        assert strategy == xt.LongRoPE(long_factor=(1, 1.5, 2))
        assert strategy.parameters()["long_factor"] == (1.0, 1.5, 2.0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("factors.txt", "1\nx", "could not convert string to float: 'x'"),
        ("factors.json", "[1,", "cannot read long_factor"),
        ("config.json", '{"rope_scaling": {"short_factor": [1]}}', "has no 'long_factor'"),
        ("factors.json", '"[1]"', "must be a list of d/2 factors"),
    ],
)
def test_a_file_without_factors_is_refused_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(xt.StrategyError, match=message) as error:
        xt.LongRoPE(long_factor=str(tmp_path / name))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


# Composition


class Bent(xt.Strategy):
    """Positions of its own, frequencies left alone."""

    def bands(self, rope: RopeSpec, length: int) -> tuple[xt.Band, ...]:
        return (*super().bands(rope, length), *super().bands(rope, length))


@dataclasses.dataclass(frozen=True)
class Halve(xt.Transform):
    """The simplest transform."""

    def transform(self, frequencies: Frequencies, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        return dataclasses.replace(frequencies, inv_freq=frequencies.inv_freq / 2)


@given(spec_of, factor_of)
def test_a_composition_is_its_parts_one_after_the_other(spec: RopeSpec, factor: float) -> None:
    yarn, resonance = xt.YaRN(factor=factor), xt.Resonance()
    expected = resonance.transform(yarn.frequencies(spec, 1), spec, 1)
    both = xt.compose(yarn, resonance)
    assert both.frequencies(spec, 1).equal(expected)
    assert xt.compose(resonance, yarn) == both == xt.compose(first=yarn, then=resonance)
    assert xt.compose(both, Halve()).frequencies(spec, 1).equal(Halve().transform(expected, spec, 1))
    assert xt.compose(yarn) is yarn
    assert xt.compose(xt.Plain(), resonance).frequencies(spec, 1).equal(resonance.frequencies(spec, 1))


def test_transforms_act_in_the_order_given() -> None:
    spec = RopeSpec(16, 1e4, 64)
    one, other = (
        xt.compose(*parts).frequencies(spec, 1) for parts in ((xt.Resonance(), Halve()), (Halve(), xt.Resonance()))
    )
    assert not one.equal(other)
    close(one.inv_freq, [f / 2 for f in reference.resonance(reference.plain(spec))])
    close(other.inv_freq, reference.resonance([f / 2 for f in reference.plain(spec)]))


def test_positions_compose_with_frequencies() -> None:
    spec = RopeSpec(16, 1e4, 64)
    both = xt.compose(Bent(), xt.YaRN(factor=4), xt.Resonance())
    assert len(both.bands(spec, 64)) == 2
    assert both.frequencies(spec, 64).equal(xt.compose(xt.YaRN(factor=4), xt.Resonance()).frequencies(spec, 64))
    assert len(xt.compose(xt.YaRN(factor=4), xt.Resonance()).bands(spec, 64)) == 1


def test_a_composition_says_what_it_is() -> None:
    both = xt.compose(xt.DynamicYaRN(), xt.Resonance())
    assert (both.name, both.label) == ("dynamic_yarn+resonance", "dynamic_yarn+resonance")
    assert both.depends_on_length
    assert both.varies_with_length(RopeSpec(16, 1e4, 64))
    yarn = xt.compose(xt.YaRN(factor=2), xt.Resonance())
    assert yarn.label == "yarn+resonance ×2"
    assert not yarn.depends_on_length
    assert yarn.parameters()["factor"] == 2.0
    assert [part["strategy"] for part in yarn.parameters()["parts"]] == ["yarn", "resonance"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "needs at least one strategy"),
        ((xt.YaRN(), xt.Linear()), "yarn ×4 and linear ×4 both set the frequencies, and strategies never stack"),
        ((xt.Plain(), xt.NTK(), xt.Resonance()), "plain and ntk ×4 both set the frequencies"),
        ((Bent(), Bent()), "bent and bent both set the positions"),
        ((xt.Resonance(), xt.Resonance()), "resonance is given 2 times"),
        ((xt.YaRN(), "resonance"), "every part must be a Strategy"),
        ((xt.compose(xt.YaRN(), xt.Resonance()), xt.NTK()), "yarn ×4 and ntk ×4 both set the frequencies"),
    ],
)
def test_parts_that_conflict_are_refused_with_the_reason(parts: tuple[Any, ...], message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        xt.compose(*parts)


def test_a_transform_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(xt.StrategyError, match=r"nope\+resonance: resonance changes nothing"):
        xt.compose(xt.NoPE(), xt.Resonance()).frequencies(RopeSpec(16, 1e4, 64), 1)


def test_a_transform_must_say_what_it_does() -> None:
    class Empty(xt.Transform):
        pass

    with pytest.raises(NotImplementedError, match="Empty must define transform"):
        Empty().frequencies(RopeSpec(16, 1e4, 64), 1)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="beta_fst"):
        xt.YaRN(beta_fst=32)  # type: ignore[call-arg]


def test_4_and_4_0_and_defaults_spelled_out_are_one_setting() -> None:
    assert xt.YaRN(factor=4) == xt.YaRN(factor=4.0) == xt.YaRN(factor=4.0, beta_fast=32, truncate=True)
    assert xt.YaRN(factor=4).parameters() == xt.YaRN().parameters()


def test_proportional_must_leave_a_pair() -> None:
    with pytest.raises(xt.StrategyError, match=r"p=0\.1 leaves none of 8 pairs; use nope"):
        xt.Proportional(p=0.1).frequencies(RopeSpec(16, 1e4, 64), 1)


def test_ntk_needs_more_than_one_pair() -> None:
    with pytest.raises(xt.StrategyError, match="rotary dimension above 2"):
        xt.NTK(factor=2).frequencies(RopeSpec(2, 1e4, 64), 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rotary_dim": 3}, "rotary_dim must be an even number"),
        ({"theta": math.nan}, "theta must be a finite number above 1"),
        ({"pretrained_length": 0}, "pretrained_length must be at least 1"),
        ({"shipped": Frequencies(torch.ones(3))}, "3 frequencies"),
    ],
)
def test_a_spec_is_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        RopeSpec(**{"rotary_dim": 8, "theta": 1e4, "pretrained_length": 64, **fields})


@pytest.mark.parametrize(
    "inv_freq", [torch.ones(2, 2), torch.ones(2).double(), torch.tensor([1.0, math.nan]), torch.tensor([-1.0])]
)
def test_frequencies_are_checked(inv_freq: torch.Tensor) -> None:
    with pytest.raises(xt.StrategyError, match="inv_freq must be"):
        Frequencies(inv_freq)


@pytest.mark.parametrize("fields", [{"start_tokens": 4}, {"start_inv_freq": torch.ones(2)}])
def test_start_tokens_and_their_frequencies_go_together(fields: dict[str, Any]) -> None:
    with pytest.raises(xt.StrategyError, match="start_inv_freq belongs to start_tokens"):
        Frequencies(torch.ones(2), **fields)


def test_closed_forms_differ_where_the_methods_do() -> None:
    # a guard on the references themselves: no test above is run at a setting where the method does nothing
    spec = RopeSpec(128, 1e4, 4096)
    forms = [reference.plain(spec), reference.linear(spec, 8), reference.ntk(spec, 8), reference.yarn(spec, 8)]
    for i, a in enumerate(forms):
        for b in forms[i + 1 :]:
            assert max(abs(x / y - 1) for x, y in zip(a, b, strict=True)) > 0.5
