"""Every strategy equals its independent reference, and the laws its paper promises hold for all inputs."""

import dataclasses
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
from extrapolate.rope import Frequencies, RopeSpec
from tests import reference
from tests.strategies import GOLDEN, TABLE, Row

SPECS = [
    RopeSpec(16, 1e4, 64),
    RopeSpec(64, 1e4, 2048),
    RopeSpec(64, 1e5, 8192),
    RopeSpec(80, 1e4, 2048),
    RopeSpec(96, 5e5, 8192),
    RopeSpec(128, 1e4, 4096),
    RopeSpec(128, 1e6, 32768),
    RopeSpec(256, 1e4, 8192),
]
EVERY = [getattr(strategies, name) for name in strategies.__all__ if name not in {"Band", "Frequencies", "Strategy"}]
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


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_frequencies_equal_the_closed_form(row: Row, spec: RopeSpec) -> None:
    found = row.strategy.frequencies(spec, int(row.lengths * spec.pretrained_length))
    close(found.inv_freq, row.frequencies(spec))
    assert found.attention_factor == pytest.approx(row.attention_factor, rel=1e-9)


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
@pytest.mark.parametrize("row", [row for row in TABLE if row.native], ids=lambda row: row.id)
def test_frequencies_equal_transformers_own(row: Row, spec: RopeSpec) -> None:
    assert row.native is not None
    if row.native["rope_type"] == "default":
        exponent = torch.arange(0, spec.rotary_dim, 2).float() / spec.rotary_dim
        expected, factor = 1.0 / (spec.theta**exponent), 1.0
    else:
        config = LlamaConfig(
            head_dim=spec.rotary_dim,
            # the dynamic type takes its L from here, the others from original_max_position_embeddings
            max_position_embeddings=spec.pretrained_length
            * (1 if row.native["rope_type"] == "dynamic" else int(row.native["factor"])),
            rope_parameters={
                **row.native,
                "rope_theta": spec.theta,
                "original_max_position_embeddings": spec.pretrained_length,
            },
        )
        length = int(row.lengths * spec.pretrained_length)
        expected, factor = ROPE_INIT_FUNCTIONS[row.native["rope_type"]](config, "cpu", seq_len=length)
    found = row.strategy.frequencies(spec, int(row.lengths * spec.pretrained_length))
    close(found.inv_freq, expected)
    assert found.attention_factor == pytest.approx(factor, rel=1e-9)


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
    assert {type(row.strategy) for row in TABLE} == set(EVERY)
    assert {path.stem for path in CONF.glob("*.yaml")} == {kind.name for kind in EVERY}
    for kind in EVERY:
        keys = yaml.safe_load((CONF / f"{kind.name}.yaml").read_text())
        assert keys.pop("_target_") == f"extrapolate.{kind.__name__}"
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        assert keys.pop("factor", "${factor}") == "${factor}"
        assert {**keys, **({"factor": 4.0} if "factor" in fields else {})} == fields
        assert getattr(xt, kind.__name__) is kind


# Laws


@given(spec_of, st.sampled_from([kind for kind in EVERY if "factor" in {f.name for f in dataclasses.fields(kind)}]))
def test_factor_1_is_plain_bit_for_bit(spec: RopeSpec, kind: type[xt.Strategy]) -> None:
    plain = xt.Plain().frequencies(spec, 1)
    assert kind(factor=1).frequencies(spec, 1).equal(plain)  # type: ignore[call-arg]


@given(spec_of)
def test_shipped_is_plain_bit_for_bit_where_the_checkpoint_ships_no_scaling(spec: RopeSpec) -> None:
    assert xt.Shipped().frequencies(spec, 1).equal(xt.Plain().frequencies(spec, 1))


@given(spec_of, factor_of, st.sampled_from([xt.Linear, xt.NTK, xt.YaRN, xt.NTKByParts, xt.Llama3]))
def test_pairs_slow_down_by_1_to_s_and_never_less_at_longer_wavelengths(
    spec: RopeSpec, factor: float, kind: type[Any]
) -> None:
    slower = (
        xt.Plain().frequencies(spec, 1).inv_freq.double() / kind(factor=factor).frequencies(spec, 1).inv_freq.double()
    )
    assert slower.min() >= 1 - 1e-6
    assert slower.max() <= factor * (1 + 2e-6)
    assert (slower.diff() >= -2e-6 * factor).all()


@given(spec_of, factor_of)
def test_the_first_pair_of_ntk_is_plain_and_the_last_is_interpolated(spec: RopeSpec, factor: float) -> None:
    plain, found = xt.Plain().frequencies(spec, 1).inv_freq, xt.NTK(factor=factor).frequencies(spec, 1).inv_freq
    assert found[0] == plain[0]
    close(found[-1], plain[-1].double() / factor)


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
    first = kind().frequencies(spec, 8192)
    kind().frequencies(spec, 1_000_000)
    assert kind().frequencies(spec, 8192).equal(first)
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
    for strategy in (xt.DynamicNTK(factor=factor), xt.DynamicLinear()):
        for length in (1, spec.pretrained_length // 2, spec.pretrained_length):
            assert strategy.frequencies(spec, length).equal(plain)
    length = int(times * spec.pretrained_length)
    exact = length / spec.pretrained_length
    assert xt.DynamicNTK(factor=1).frequencies(spec, length).equal(xt.NTK(factor=exact).frequencies(spec, 1))
    assert xt.DynamicLinear().frequencies(spec, length).equal(xt.Linear(factor=exact).frequencies(spec, 1))


# Fields


SETTINGS: dict[str, tuple[Any, Any]] = {
    "linear.factor": (2, 3),
    "ntk.factor": (2, 3),
    "yarn.factor": (2, 3),
    "yarn.beta_fast": (32, 16),
    "yarn.beta_slow": (1, 2),
    "yarn.truncate": (True, False),
    "yarn.attention_factor": (None, 1.0),
    "yarn.mscale": (1.0, 0.5),
    "yarn.mscale_all_dim": (0.7, 0.5),
    "abf.base": (5e5, 1e6),
    "ntk_by_parts.factor": (2, 3),
    "ntk_by_parts.alpha": (1, 2),
    "ntk_by_parts.beta": (32, 16),
    "llama3.factor": (2, 3),
    "llama3.low_freq_factor": (1, 2),
    "llama3.high_freq_factor": (4, 8),
    "dynamic_ntk.factor": (2, 3),
}


def test_every_field_changes_something() -> None:
    # case 23: no setting is accepted and dropped
    spec = RopeSpec(128, 1e4, 4096)
    fields = {f"{kind.name}.{f.name}": kind for kind in EVERY for f in dataclasses.fields(kind)}
    assert set(SETTINGS) == set(fields)
    for name, values in SETTINGS.items():
        field = name.partition(".")[2]
        others = {"mscale": 1.0, "mscale_all_dim": 0.7} if field.startswith("mscale") else {}
        a, b = (fields[name](**{**others, field: value}).frequencies(spec, 4 * 4096) for value in values)
        assert not a.equal(b), name


@pytest.mark.parametrize("kind", [xt.Linear, xt.NTK, xt.YaRN, xt.NTKByParts, xt.Llama3, xt.DynamicNTK])
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
    ],
)
def test_settings_that_cannot_act_are_refused(kind: type[Any], fields: dict[str, Any], message: str) -> None:
    # case 8: low == high would divide by zero
    with pytest.raises(xt.StrategyError, match=message):
        kind(**fields)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="beta_fst"):
        xt.YaRN(beta_fst=32)  # type: ignore[call-arg]


def test_4_and_4_0_and_defaults_spelled_out_are_one_setting() -> None:
    assert xt.YaRN(factor=4) == xt.YaRN(factor=4.0) == xt.YaRN(factor=4.0, beta_fast=32, truncate=True)
    assert xt.YaRN(factor=4).parameters() == xt.YaRN().parameters()


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


def test_closed_forms_differ_where_the_methods_do() -> None:
    # a guard on the references themselves: no test above is run at a setting where the method does nothing
    spec = RopeSpec(128, 1e4, 4096)
    forms = [reference.plain(spec), reference.linear(spec, 8), reference.ntk(spec, 8), reference.yarn(spec, 8)]
    for i, a in enumerate(forms):
        for b in forms[i + 1 :]:
            assert max(abs(x / y - 1) for x, y in zip(a, b, strict=True)) > 0.5
