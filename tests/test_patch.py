"""A patch takes effect, proves it, touches nothing else, and leaves nothing behind."""

import copy
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers

import extrapolate as xt
from extrapolate.models.families import find_rotary
from extrapolate.models.rotary import PatchedRotary
from extrapolate.models.spec import read_spec
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from tests import reference
from tests.conftest import logits, tiny_model, tokens
from tests.strategies import TABLE, Row

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
# other stock architectures that the structure search finds, by what is special about them
OTHERS = {
    "phi": "partial rotary",
    "gpt_neox": "partial rotary, another module tree",
    "cohere": "interleaved pairs, tables repeated in place",
    "glm": "interleaved pairs, partial rotary",
    "gemma": "head size of its own",
    "olmo2": "float32 tables",
    "mixtral": "mixture of experts",
    "gpt_oss": "one table entry a pair, ships YaRN",
}
STRATEGIES = (xt.Plain(), xt.Linear(factor=4), xt.NTK(factor=4), xt.YaRN(factor=4))
MOVING = STRATEGIES[1:]
LONG, SHORT = tuple(1 + i / 2 for i in range(8)), tuple(1 + i / 16 for i in range(8))
# of each strategy the setting that is compared at the longest text
# (those of positions are compared in test_attention.py)
ROWS = {
    row.strategy().name: row
    for row in sorted(TABLE, key=lambda row: row.lengths)
    if not row.strategy().changes_attention
}


def closed_form(strategy: xt.Strategy, spec: RopeSpec) -> list[float]:
    if isinstance(strategy, xt.Linear):
        return reference.linear(spec, strategy.factor)
    if isinstance(strategy, xt.NTK):
        return reference.ntk(spec, strategy.factor)
    if isinstance(strategy, xt.YaRN):
        return reference.yarn(spec, strategy.factor)
    return reference.plain(spec)


def rotary(model: Any) -> Any:
    return model.model.rotary_emb


def snapshot(model: Any) -> dict[str, Any]:
    """Everything a patch might leave behind."""
    return {
        "modules": {name: id(module) for name, module in model.named_modules()},
        "forwards": {n: type(m).forward for n, m in model.named_modules()} | {"own": sorted(vars(model))},
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "buffers": {name: value.clone() for name, value in model.named_buffers()},
        "config": copy.deepcopy(model.config.to_dict()),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tensors = all(
        a[kind].keys() == b[kind].keys() and all(torch.equal(a[kind][n], b[kind][n]) for n in a[kind])
        for kind in ("state", "buffers")
    )
    return tensors and all(a[kind] == b[kind] for kind in ("modules", "forwards", "config"))


# Taking effect


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_brute_force_reference(family: str, strategy: xt.Strategy) -> None:
    model = tiny_model(family)
    ids = tokens(100)
    with xt.patched(model, strategy) as handle:
        found = logits(model, ids)[0]
        factor = strategy.frequencies(handle.spec, 64).attention_factor
    expected = reference.brute_force_logits(model, ids[0], closed_form(strategy, handle.spec), factor)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_of_every_strategy_equal_the_brute_force_reference(family: str, row: Row) -> None:
    model, spec = tiny_model(family), RopeSpec(16, 1e4, 64)
    ids = tokens(max(100, row.length(spec)) if row.lengths <= 1 else row.length(spec))
    with xt.patched(model, row.strategy()):
        found = logits(model, ids)[0]
    expected = reference.brute_force_logits(model, ids[0], row.frequencies(spec), row.factor(spec))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [63, 64, 65, 100])
def test_longrope_follows_each_text(tiny: Any, length: int) -> None:
    # case 9
    with xt.patched(tiny, xt.LongRoPE(short_factor=(1,) * 8, long_factor=(4,) * 8, factor=1)):
        expected = reference.brute_force_logits(
            tiny, tokens(length)[0], [f / (4 if length > 64 else 1) for f in reference.plain(RopeSpec(16, 1e4, 64))]
        )
        torch.testing.assert_close(logits(tiny, tokens(length))[0].double(), expected, rtol=0, atol=1e-4)


def test_the_first_tokens_of_longrope_see_each_other_as_in_the_plain_model(tiny: Any) -> None:
    ids = tokens(128)
    stock = logits(tiny, ids)
    with xt.patched(tiny, xt.LongRoPE(long_factor=(4,) * 8, start_tokens=10)):
        found = logits(tiny, ids)
    torch.testing.assert_close(found[:, :10], stock[:, :10], rtol=0, atol=1e-5)
    assert (found[:, 10:] - stock[:, 10:]).abs().max() > 0.3


@pytest.mark.parametrize("count", [5, 1])
def test_longrope_lists_of_the_wrong_size_are_refused_when_patching(tiny: Any, count: int) -> None:
    # case 9
    before = snapshot(tiny)
    with pytest.raises(xt.StrategyError, match=f"long_factor holds {count} factors, rotary_dim 16 needs 8"):
        xt.patch(tiny, xt.LongRoPE(long_factor=(4.0,) * count))
    assert same(snapshot(tiny), before)


@pytest.mark.parametrize(
    ("strategy", "native"),
    [
        (xt.Linear(factor=4), {"rope_type": "linear", "factor": 4.0}),
        (xt.YaRN(factor=4), {"rope_type": "yarn", "factor": 4.0}),
        (xt.YaRN(factor=4, attention_factor=0.9), {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9}),
        (xt.YaRN(factor=4, truncate=False), {"rope_type": "yarn", "factor": 4.0, "truncate": False}),
        (
            xt.Llama3(factor=8),
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        (xt.DynamicNTK(factor=2), {"rope_type": "dynamic", "factor": 2.0}),
        (
            xt.LongRoPE(factor=4, long_factor=LONG, short_factor=SHORT),
            {"rope_type": "longrope", "factor": 4.0, "long_factor": [*LONG], "short_factor": [*SHORT]},
        ),
        (xt.Proportional(p=0.5), {"rope_type": "proportional", "partial_rotary_factor": 0.5}),
    ],
    ids=[
        "linear",
        "yarn",
        "yarn-attention_factor",
        "yarn-truncate",
        "llama3",
        "dynamic_ntk",
        "longrope",
        "proportional",
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_own_scaling(family: str, strategy: xt.Strategy, native: dict[str, Any]) -> None:
    parameters = {**native, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    ids = tokens(200)
    # half as sharp as elsewhere: at 8 both are 2e-5 from the float64 reference, which is float32 and not a difference
    declared = 64 if native["rope_type"] == "dynamic" else 256  # where the dynamic type takes its L from
    native_model = tiny_model(family, rope_parameters=parameters, max_position_embeddings=declared, sharpen=4)
    model = tiny_model(family, sharpen=4)
    expected, stock = logits(native_model, ids), logits(model, ids)
    with xt.patched(model, strategy):
        torch.testing.assert_close(logits(model, ids), expected, rtol=0, atol=1e-5)
    assert (expected - stock).abs().max() > 0.3


@pytest.mark.parametrize("family", [*FAMILIES, *(f for f in OTHERS if f != "gpt_oss")])
def test_plain_and_shipped_are_bit_equal_to_the_unpatched_model(family: str) -> None:
    model = tiny_model(family, pad_token_id=0)
    ids = tokens(150)
    stock = logits(model, ids)
    for strategy in (xt.Plain(), xt.Shipped()):
        with xt.patched(model, strategy):
            assert torch.equal(logits(model, ids), stock), strategy
    with xt.patched(model, xt.YaRN(factor=4)):
        assert (logits(model, ids) - stock).abs().max() > 0.05


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_shipped_is_bit_equal_where_the_checkpoint_ships_a_scaling_and_plain_replaces_it(
    scaling: dict[str, Any],
) -> None:
    model = tiny_model(rope_parameters={**scaling, "rope_theta": 10000.0}, max_position_embeddings=256)
    bare = tiny_model()
    ids = tokens(200)
    stock = logits(model, ids)
    with xt.patched(model, xt.Shipped()):
        assert torch.equal(logits(model, ids), stock)
    with xt.patched(model, xt.Plain()) as handle:
        assert torch.equal(logits(model, ids), logits(bare, ids))
        assert not torch.equal(logits(model, ids), stock)
        assert handle.spec.pretrained_length == 64
        assert handle.spec.shipped_type == scaling["rope_type"]


def test_generate_runs_under_a_patch_and_uses_it() -> None:
    model = tiny_model()
    ids = tokens(100)

    def generate() -> list[int]:
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        return list(out[0, 100:].tolist())

    before = generate()
    with xt.patched(model, xt.YaRN(factor=4)):
        cached = generate()
        uncached, running = [], ids
        for _ in range(8):  # the same, token by token without a cache
            running = torch.cat((running, logits(model, running)[:, -1:].argmax(-1)), dim=1)
            uncached.append(int(running[0, -1]))
    assert cached == uncached[: len(cached)]
    assert cached != before
    assert generate() == before


@pytest.mark.parametrize(
    ("fields", "a"),
    [({}, 0.1 * math.log(4) + 1), ({"attention_factor": 1.0}, 1.0), ({"attention_factor": 0.9}, 0.9)],
)
def test_an_explicit_attention_factor_replaces_the_default(tiny: Any, fields: dict[str, float], a: float) -> None:
    # case 1: neither dropped nor multiplied on top
    with xt.patched(tiny, xt.YaRN(factor=4, **fields)):  # type: ignore[arg-type]
        cos, sin = rotary(tiny)(torch.zeros(1, 1, 1), torch.arange(300)[None])
    torch.testing.assert_close(cos**2 + sin**2, torch.full_like(cos, a * a))


def test_yarn_of_factor_1_is_plain(tiny: Any) -> None:
    # case 1
    ids = tokens(200)
    with xt.patched(tiny, xt.YaRN(factor=1)):
        assert torch.equal(logits(tiny, ids), logits(tiny_model(), ids))


@pytest.mark.parametrize("declared", [64, 80, 256, 1024])
def test_the_factor_given_is_used_whatever_length_the_config_declares(declared: int) -> None:
    # case 3: frequencies and attention factor depend on the factor and the original length only
    strategy, expected = xt.YaRN(factor=4), reference.yarn(RopeSpec(16, 1e4, 64), 4)
    by_argument = tiny_model(max_position_embeddings=declared)
    parameters = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    by_config = tiny_model(max_position_embeddings=declared, rope_parameters=parameters)
    for model, given in ((by_argument, 64), (by_config, None)):
        handle = xt.patch(model, strategy, pretrained_length=given)
        torch.testing.assert_close(rotary(model).inv_freq.double(), torch.tensor(expected).double(), rtol=1e-6, atol=0)
        assert rotary(model).attention_scaling == pytest.approx(1.1386294361)
        assert handle.spec.pretrained_length == 64


def test_ntk_is_the_same_before_and_after_a_long_text(tiny: Any) -> None:
    # case 7: no state
    with xt.patched(tiny, xt.NTK(factor=4)):
        ids = tokens(50)
        first, frequencies = logits(tiny, ids), rotary(tiny).inv_freq.clone()
        logits(tiny, tokens(600))
        assert torch.equal(logits(tiny, ids), first)
        assert torch.equal(rotary(tiny).inv_freq, frequencies)


def test_heads_whose_size_is_not_hidden_over_heads() -> None:
    # case 32: hidden 64, 4 heads, head_dim 32
    model = tiny_model("qwen3", head_dim=32)
    for strategy in STRATEGIES:
        with xt.patched(model, strategy) as handle:
            assert handle.spec.rotary_dim == 32
            expected = torch.tensor(closed_form(strategy, RopeSpec(32, 1e4, 64))).double()
            torch.testing.assert_close(rotary(model).inv_freq.double(), expected, rtol=1e-6, atol=0)


def test_partial_rotary_counts_the_rotated_dimensions_only() -> None:
    model = tiny_model("phi", partial_rotary_factor=0.5)
    spec = read_spec(model.config)
    assert spec.rotary_dim == 8
    torch.testing.assert_close(spec.shipped.inv_freq, torch.tensor([1, 0.1, 0.01, 0.001]))


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_no_cast_rounds_the_frequencies(tmp_path: Path, strategy: xt.Strategy, dtype: torch.dtype) -> None:
    # case 14: cast then patch, patch then cast, load in half precision then patch
    tiny_model().save_pretrained(tmp_path)
    cast_first = tiny_model().to(dtype)
    xt.patch(cast_first, strategy)
    cast_last = tiny_model()
    xt.patch(cast_last, strategy)
    cast_last.half() if dtype == torch.float16 else cast_last.to(dtype)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    xt.patch(loaded, strategy)

    spec = RopeSpec(16, 1e4, 64)
    frequencies = strategy.frequencies(spec, 64)
    positions = torch.arange(0, 32768, 11)
    phases = positions[:, None].float().double() * frequencies.inv_freq.double()
    for model in (cast_first, cast_last, loaded):
        module = rotary(model)
        assert module.inv_freq.dtype == torch.float32
        cos, sin = module(torch.zeros(1, 1, 1, dtype=dtype), positions[None])
        assert cos.dtype == dtype
        for table, exact in ((cos, phases.cos()), (sin, phases.sin())):
            expected = (exact * frequencies.attention_factor).repeat(1, 2)
            # rounded once: half a unit in the last place, and the float32 phase's own 2e-3 rad at 32k
            assert (table[0].double() - expected).abs().max() < torch.finfo(dtype).eps * 0.6 + 2e-3
    assert torch.equal(rotary(cast_first).inv_freq, rotary(loaded).inv_freq)
    ids = tokens(64)
    assert torch.equal(logits(cast_first, ids), logits(cast_last, ids))
    assert torch.equal(logits(cast_first, ids), logits(loaded, ids))


def test_rubbish_in_the_buffers_changes_nothing_and_is_reported() -> None:
    # case 16: frequencies come from theta, dimensions and length in the config
    ids = tokens(150)
    for rubbish in (123.0, math.nan):
        clean, dirty = tiny_model(), tiny_model()
        rotary(dirty).inv_freq.fill_(rubbish)
        rotary(dirty).original_inv_freq.fill_(rubbish)
        xt.patch(clean, xt.YaRN(factor=4))
        with pytest.warns(UserWarning, match=r"model\.rotary_emb\.inv_freq is up to .* off what the config implies"):
            xt.patch(dirty, xt.YaRN(factor=4))
        assert torch.equal(logits(dirty, ids), logits(clean, ids))


def test_a_model_on_the_meta_device_is_patched_and_then_materialised() -> None:
    # case 16: the buffers are in no checkpoint
    source = tiny_model()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(source.config).eval()
    xt.patch(model, xt.YaRN(factor=4))
    model.to_empty(device="cpu")
    model.load_state_dict(source.state_dict())
    ids = tokens(100)
    with xt.patched(source, xt.YaRN(factor=4)):
        assert torch.equal(logits(model, ids), logits(source, ids))


# Configuration


def test_theta_of_both_config_layouts_is_used(tmp_path: Path) -> None:
    # case 19: 5.x keeps theta in rope_parameters, 4.x at the top level
    v5, v4 = tmp_path / "v5", tmp_path / "v4"
    model = tiny_model(rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    for folder in (v5, v4):
        model.save_pretrained(folder)
    config = json.loads((v4 / "config.json").read_text())
    assert config.pop("rope_parameters")["rope_theta"] == 500000.0
    (v4 / "config.json").write_text(json.dumps({**config, "rope_theta": 500000.0, "rope_scaling": None}))
    ids = tokens(100)
    seen = []
    for folder in (v5, v4):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        handle = xt.patch(loaded, xt.NTK(factor=4))
        assert handle.spec.theta == 500000.0
        expected = torch.tensor(reference.ntk(RopeSpec(16, 5e5, 64), 4)).double()
        torch.testing.assert_close(rotary(loaded).inv_freq.double(), expected, rtol=1e-6, atol=0)
        seen.append(logits(loaded, ids))
    assert torch.equal(*seen)


def test_a_v4_scaling_entry_is_read_as_what_the_checkpoint_ships(tmp_path: Path) -> None:
    model = tiny_model(max_position_embeddings=256)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 20000.0, "rope_scaling": scaling}))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    spec = read_spec(loaded.config)
    assert (spec.theta, spec.pretrained_length, spec.shipped_type) == (20000.0, 64, "yarn")
    ids = tokens(100)
    stock = logits(loaded, ids)
    with xt.patched(loaded, xt.Shipped()):
        assert torch.equal(logits(loaded, ids), stock)


def test_a_config_object_in_the_v4_layout_is_understood() -> None:
    class Config(transformers.PreTrainedConfig):  # type: ignore[misc]  # such as remote code brings
        rope_theta: ClassVar[float] = 20000.0
        rope_scaling: ClassVar[None] = None
        hidden_size, num_attention_heads, max_position_embeddings = 64, 4, 128

    spec = read_spec(Config())
    assert (spec.theta, spec.rotary_dim, spec.pretrained_length, spec.shipped_type) == (20000.0, 16, 128, "default")


def test_a_config_edited_after_loading_cannot_lose_theta_silently(tiny: Any) -> None:
    # cases 18 and 19
    tiny.config.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": None}
    with pytest.raises(xt.ModelError, match="names no rope_theta"):
        xt.patch(tiny, xt.Linear(factor=2))


@pytest.mark.parametrize("strategy", MOVING, ids=lambda s: s.name)
def test_a_patch_is_what_editing_the_config_is_not(tiny: Any, strategy: xt.Strategy) -> None:
    # case 18: logits at four times the length differ, frequencies equal the closed form
    ids = tokens(256)
    stock = logits(tiny, ids)
    with xt.patched(tiny, strategy) as handle:
        expected = torch.tensor(closed_form(strategy, handle.spec)).double()
        torch.testing.assert_close(rotary(tiny).inv_freq.double(), expected, rtol=1e-6, atol=0)
        assert (logits(tiny, ids) - stock).abs().max() > 1


class Idle(xt.Strategy):
    """Claims a factor and does nothing with it."""

    def parameters(self) -> dict[str, object]:
        return {"factor": 4.0}


class Unruly(xt.Strategy):
    """Another answer each time it is asked: what is installed is not what it says it is."""

    calls: ClassVar[list[int]] = []

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        self.calls.append(length)
        return Frequencies(base_frequencies(rope.theta, rope.rotary_dim) / len(self.calls))


def test_a_patch_that_does_not_take_effect_is_refused_and_undone(tiny: Any) -> None:
    # case 18: the tool verifies itself
    before = snapshot(tiny)
    with pytest.raises(xt.StrategyError, match="idle ×4 changes nothing on this model"):
        xt.patch(tiny, Idle())
    with pytest.raises(xt.ModelError, match="off its closed form"):
        xt.patch(tiny, Unruly())
    assert same(snapshot(tiny), before)


class Constant(torch.nn.Module):
    """A rotary embedding that no structure tells."""

    def __init__(self, tables: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tables


def test_a_rotary_module_that_the_forward_never_asks_is_refused(tiny: Any) -> None:
    tiny.model.decoy = tiny.model.rotary_emb
    tiny.model.rotary_emb = Constant(tiny.model.decoy(torch.zeros(1, 2, 1), torch.arange(2)[None]))
    before = snapshot(tiny)
    with pytest.raises(xt.ModelError, match=r"never asks model\.decoy"):
        xt.patch(tiny, xt.Linear(factor=2))
    assert same(snapshot(tiny), before)


def test_an_idle_rotary_module_beside_one_that_is_asked_does_no_harm(tiny: Any) -> None:
    with xt.patched(tiny, xt.Linear(factor=2)):
        expected = logits(tiny, tokens(100))
    tiny.model.decoy = copy.deepcopy(tiny.model.rotary_emb)  # Granite SWA keeps such a one
    with xt.patched(tiny, xt.Linear(factor=2)):
        assert torch.equal(logits(tiny, tokens(100)), expected)


# Leaving nothing behind


@pytest.mark.parametrize("family", [*FAMILIES, "phi", "gpt_neox"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_restore_returns_the_model_bit_for_bit(family: str, strategy: xt.Strategy) -> None:
    # case 24
    model = tiny_model(family, pad_token_id=0)
    ids = tokens(150)
    before, stock = snapshot(model), logits(model, ids)
    handle = xt.patch(model, strategy)
    logits(model, ids)
    assert model.state_dict().keys() == before["state"].keys()
    assert model.config.to_dict() == before["config"]
    handle.restore()
    assert same(snapshot(model), before)
    assert torch.equal(logits(model, ids), stock)
    handle.restore()  # harmless
    assert same(snapshot(model), before)


def test_an_exception_inside_leaves_nothing_behind(tiny: Any) -> None:
    before = snapshot(tiny)
    with pytest.raises(RuntimeError, match="boom"), xt.patched(tiny, xt.YaRN(factor=4)):
        raise RuntimeError("boom")
    assert same(snapshot(tiny), before)


def test_an_exception_inside_the_patched_forward_leaves_nothing_behind(tiny: Any) -> None:
    before = snapshot(tiny)
    with pytest.raises(IndexError), xt.patched(tiny, xt.YaRN(factor=4)):
        logits(tiny, torch.tensor([[500]]))  # no such token
    assert same(snapshot(tiny), before)


def test_another_model_of_the_same_config_object_is_untouched() -> None:
    # case 24
    first = tiny_model()
    second = transformers.AutoModelForCausalLM.from_config(first.config).eval()
    second.load_state_dict(first.state_dict())
    assert second.config is first.config or second.config.to_dict() == first.config.to_dict()
    ids = tokens(150)
    stock = logits(second, ids)
    with xt.patched(first, xt.YaRN(factor=4)):
        assert torch.equal(logits(second, ids), stock)
        assert not torch.equal(logits(first, ids), stock)
    assert torch.equal(logits(first, ids), stock)


@pytest.mark.parametrize("strategy", MOVING, ids=lambda s: s.name)
def test_plain_is_bit_equal_before_and_after_any_strategy(tiny: Any, strategy: xt.Strategy) -> None:
    # case 24: the jobs of a sweep share one model
    ids = tokens(150)

    def run(which: xt.Strategy) -> torch.Tensor:
        with xt.patched(tiny, which):
            return xt.token_losses(tiny, ids)

    first = run(xt.Plain())
    assert not torch.equal(run(strategy), first)
    assert torch.equal(run(xt.Plain()), first)


def test_patching_twice_replaces_and_never_stacks(tiny: Any) -> None:
    # case 26: linear 2 then linear 4 is plain/4, and one restore returns to the start
    before, plain = snapshot(tiny), rotary(tiny).inv_freq.clone()
    xt.patch(tiny, xt.Linear(factor=2))
    handle = xt.patch(tiny, xt.Linear(factor=4))
    assert torch.equal(rotary(tiny).inv_freq, plain / 4)
    handle.restore()
    assert same(snapshot(tiny), before)


def test_contexts_nest_and_each_returns_to_what_it_found(tiny: Any) -> None:
    before, plain = snapshot(tiny), rotary(tiny).inv_freq.clone()
    with xt.patched(tiny, xt.Linear(factor=2)):
        with xt.patched(tiny, xt.Linear(factor=4)):
            assert torch.equal(rotary(tiny).inv_freq, plain / 4)
        assert torch.equal(rotary(tiny).inv_freq, plain / 2)
    assert same(snapshot(tiny), before)


def test_unpatching_a_model_that_is_not_patched_is_harmless(tiny: Any) -> None:
    before = snapshot(tiny)
    xt.unpatch(tiny)
    assert same(snapshot(tiny), before)


def test_deep_copies_are_independent(tiny: Any) -> None:
    ids = tokens(150)
    stock = logits(tiny, ids)
    handle = xt.patch(tiny, xt.YaRN(factor=4))
    yarn = logits(tiny, ids)
    copied = copy.deepcopy(tiny)
    handle.restore()
    assert torch.equal(logits(copied, ids), yarn)
    assert torch.equal(logits(tiny, ids), stock)
    xt.patch(copied, xt.Linear(factor=2)).restore()
    assert torch.equal(logits(copied, ids), stock)


def test_training_mode_and_random_numbers_are_left_alone(tiny: Any) -> None:
    tiny.train()
    tiny.config.attention_dropout = 0.5
    state = torch.get_rng_state()
    with xt.patched(tiny, xt.YaRN(factor=4)):
        assert tiny.training
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_flow_through_a_patched_model(tiny: Any) -> None:
    with xt.patched(tiny, xt.YaRN(factor=4)):
        tiny(tokens(20)).logits.sum().backward()
    assert tiny.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


# Refusals


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gpt2", {}, "GPT2LMHeadModel has no rotary embedding that can be patched: looked for a module with"),
        ("bloom", {}, "BloomForCausalLM has no rotary embedding"),
        ("xglm", {}, "XGLMForCausalLM has no rotary embedding"),  # a table of sinusoids, added to the embedding
    ],
)
def test_a_model_whose_seam_is_not_understood_is_refused_by_name_and_untouched(
    model_type: str, changes: dict[str, Any], message: str
) -> None:
    model = tiny_model(model_type, pad_token_id=0, **changes)
    before = snapshot(model)
    with pytest.raises(xt.ModelError, match=message) as error:
        xt.patch(model, xt.Linear(factor=2))
    assert "\n" not in str(error.value)
    with pytest.raises(xt.ModelError, match=message), xt.patched(model, xt.Linear(factor=2)):
        pass
    assert same(snapshot(model), before)


def test_a_width_that_contradicts_the_config_is_refused(tiny: Any) -> None:
    tiny.config.head_dim = 32
    with pytest.raises(xt.ModelError, match="holds 8 frequencies, but the config implies rotary_dim 32"):
        xt.patch(tiny, xt.Linear(factor=2))


@pytest.mark.parametrize("length", [0, -5, 2.5, True, "64"])
def test_a_pretrained_length_that_is_no_number_of_tokens_is_refused(tiny: Any, length: Any) -> None:
    with pytest.raises(xt.ModelError, match="pretrained_length must be a whole number"):
        xt.patch(tiny, xt.Linear(factor=2), pretrained_length=length)


@pytest.mark.parametrize("strategy", ["yarn", xt.YaRN, None])
def test_what_is_no_strategy_is_refused(tiny: Any, strategy: Any) -> None:
    with pytest.raises(xt.StrategyError, match="strategy must be a Strategy"):
        xt.patch(tiny, strategy)


# Length


class Stretch(xt.Strategy):
    """The simplest length-dependent strategy: interpolate by as much as the text exceeds L."""

    depends_on_length = True

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        return Frequencies(base_frequencies(rope.theta, rope.rotary_dim) / max(1.0, length / rope.pretrained_length))


def test_a_length_dependent_strategy_follows_each_call_and_each_row(tiny: Any) -> None:
    spec = RopeSpec(16, 1e4, 64)
    # case 10: whatever was computed before, a call's frequencies follow its own length alone
    for strategy, closed in (
        (Stretch(), lambda n: [f / max(1, n / 64) for f in reference.plain(spec)]),
        (xt.DynamicNTK(factor=2), lambda n: reference.dynamic_ntk(spec, 2, n)),
    ):
        with xt.patched(tiny, strategy) as handle:
            assert handle.varies_with_length
            for length in (32, 64, 256, 128, 65, 64, 63, 100):
                ids = tokens(length)
                brute = reference.brute_force_logits(tiny, ids[0], closed(length))
                torch.testing.assert_close(logits(tiny, ids)[0].double(), brute, rtol=0, atol=1e-4)
    with xt.patched(tiny, Stretch()):
        positions = torch.stack([torch.arange(128), torch.arange(128).clamp(max=63)])
        cos, _ = rotary(tiny)(torch.zeros(2, 1, 1), positions)
        assert torch.allclose(cos[0, 100, :8], (100 * spec.shipped.inv_freq / 2).cos())
        assert torch.allclose(cos[1, 50, :8], (50 * spec.shipped.inv_freq).cos())


def test_a_long_text_changes_nothing_for_the_short_one_after_it(tiny: Any) -> None:
    # case 10
    with xt.patched(tiny, xt.DynamicNTK(factor=2)):
        first, _, again = (xt.token_losses(tiny, tokens(n)) for n in (65, 256, 65))
    assert torch.equal(first, again)


def test_a_length_dependent_strategy_refuses_keys_cached_at_another_length(tiny: Any) -> None:
    with xt.patched(tiny, Stretch()), pytest.raises(xt.ModelError, match="pass use_cache=False"):
        tiny.generate(tokens(80), max_new_tokens=2, do_sample=False, pad_token_id=0)


FOLLOWING = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": [1.0 + i / 16 for i in range(8)],
        "long_factor": [1.0 + i / 2 for i in range(8)],
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("scaling", FOLLOWING.values(), ids=FOLLOWING)
def test_shipped_follows_a_checkpoint_whose_own_scaling_follows_the_length(scaling: dict[str, Any]) -> None:
    declared = 64 if scaling["rope_type"] == "dynamic" else 256
    config: dict[str, Any] = {"rope_parameters": {**scaling, "rope_theta": 1e4}, "max_position_embeddings": declared}
    model, bare = tiny_model(**config), tiny_model()
    with xt.patched(model, xt.Shipped()) as handle:
        assert handle.varies_with_length
        assert handle.spec.shipped_type == scaling["rope_type"]
        assert handle.spec.pretrained_length == 64
        for length in (64, 200, 65, 64, 63):  # transformers itself is made anew for each: it carries state
            ids = tokens(length)
            expected = logits(tiny_model(**copy.deepcopy(config)), ids)
            torch.testing.assert_close(logits(model, ids), expected, rtol=0, atol=1e-4)
            if length > 64:
                assert (expected - logits(bare, ids)).abs().max() > 0.3
    logits(model, tokens(200))  # now the model's own buffer holds what a long text needs: no reason to warn
    with xt.patched(model, xt.Plain()):
        assert torch.equal(logits(model, tokens(200)), logits(bare, tokens(200)))


def test_shipped_longrope_with_equal_lists_does_not_follow_the_length() -> None:
    scaling = {**FOLLOWING["longrope"], "short_factor": FOLLOWING["longrope"]["long_factor"], "rope_theta": 1e4}
    model = tiny_model(rope_parameters=scaling, max_position_embeddings=256)
    with xt.patched(model, xt.Shipped()) as handle:
        assert not handle.varies_with_length


def test_the_seam_is_found_by_structure() -> None:
    seam = find_rotary(tiny_model())[0]
    assert (seam.name, seam.pairs, seam.form, seam.casts) == ("model.rotary_emb", 8, "halves", True)
    assert find_rotary(tiny_model("cohere", pad_token_id=0))[0].form == "pairs"
    assert find_rotary(tiny_model("gpt_oss", pad_token_id=0))[0].form == "single"


def test_the_patched_module_prints_its_strategy(tiny: Any) -> None:
    xt.patch(tiny, xt.YaRN(factor=4))
    assert isinstance(rotary(tiny), PatchedRotary)
    assert "YaRN(factor=4.0" in repr(tiny)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_config_that_names_two_scalings_is_warned_of_with_both_and_which_counts(key: str) -> None:
    both = {"type": "linear", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    changes: dict[str, Any] = {key: {**both, "rope_theta": 10000.0}}
    model = tiny_model(**changes)
    message = "LlamaConfig names two scaling types: type='linear' and rope_type='yarn'; rope_type counts"
    with pytest.warns(UserWarning, match=message):
        assert read_spec(model.config).shipped_type == "yarn"
    stock = logits(model, tokens(100))
    with pytest.warns(UserWarning, match=message), xt.patched(model, xt.Shipped()):
        assert torch.equal(logits(model, tokens(100)), stock)  # what transformers makes of it


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        ({"type": "linear", "rope_type": "linear", "factor": 2.0}, "linear"),
        ({"type": "mrope", "rope_type": "default"}, "default"),  # Qwen2-VL's, both its own
        (
            {"type": "su", "rope_type": "longrope", "factor": 2.0, "short_factor": [1] * 8, "long_factor": [2] * 8},
            "longrope",
        ),
    ],
    ids=["the same twice", "mrope", "su"],
)
def test_older_and_newer_names_of_one_scaling_are_no_two(names: dict[str, Any], counts: str) -> None:
    config = tiny_model().config
    config.rope_parameters = {**names, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    assert read_spec(config).shipped_type == counts
