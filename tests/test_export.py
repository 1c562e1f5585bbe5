"""The result leaves the toolkit: rope_parameters, saved checkpoints, options of other engines."""

import copy
import json
import math
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import extrapolate as xt
from extrapolate.models.spec import SAVED
from extrapolate.rope import RopeSpec
from extrapolate.strategies.names import build
from tests import reference
from tests.conftest import byte_tokenizer, logits, tiny_model, tokens
from tests.strategies import TABLE, Row

SPEC = RopeSpec(16, 1e4, 64)
SPECS = (SPEC, RopeSpec(64, 5e5, 8192), RopeSpec(128, 1e6, 32768))
IDS = tokens(200)
EVERY = {row.id: row for row in TABLE if not row.strategy().changes_attention}
REFUSED = {"dynamic_linear", "dynamic_yarn", "dynamic_ntk+resonance"}
"""transformers cannot express these: they follow the length in a way of their own."""
EXPRESSIBLE = {name: row for name, row in EVERY.items() if row.strategy().name not in REFUSED}
FIXED = [row for row in EVERY.values() if not row.strategy().varies_with_length(SPEC)]


class Bent(xt.Strategy):
    """Positions of its own."""

    def bands(self, rope: RopeSpec, length: int) -> tuple[xt.Band, ...]:
        return super().bands(rope, length)


class Own(xt.Strategy):
    """A user's strategy that follows the length."""

    depends_on_length = True

    def frequencies(self, rope: RopeSpec, length: int) -> xt.Frequencies:
        return xt.Frequencies(rope.shipped.inv_freq / max(1, length / 64))


START = xt.LongRoPE(long_factor=(4,) * 8, start_tokens=4)


# rope_parameters


@pytest.mark.parametrize("row", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
def test_a_model_made_from_rope_parameters_gives_the_patched_logits(row: Row) -> None:
    strategy = row.strategy()
    parameters = xt.to_rope_parameters(strategy, SPEC)
    assert json.loads(json.dumps(parameters, allow_nan=False)) == parameters
    native = tiny_model(rope_parameters=copy.deepcopy(parameters), sharpen=4)
    model = tiny_model(sharpen=4)
    with xt.patched(model, strategy):
        torch.testing.assert_close(logits(model, IDS), logits(native, IDS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "phi", "gpt_neox", "cohere"])
@pytest.mark.parametrize(
    "strategy",
    [xt.YaRN(factor=4), xt.NTK(factor=4), xt.MrRoPE(factor=4), xt.Proportional(p=0.5), xt.DynamicNTK(factor=2)],
    ids=lambda s: s.name,
)
def test_rope_parameters_hold_on_other_families(family: str, strategy: xt.Strategy) -> None:
    model = tiny_model(family, pad_token_id=0, sharpen=4)
    stock = logits(model, IDS)
    with xt.patched(model, strategy) as handle:
        parameters = xt.to_rope_parameters(strategy, handle.spec)
        found = logits(model, IDS)
    native = tiny_model(family, pad_token_id=0, sharpen=4, rope_parameters=parameters)
    torch.testing.assert_close(found, logits(native, IDS), rtol=1e-5, atol=1e-5)
    assert (found - stock).abs().max() > 50 * 1e-5  # Cohere's logits are small


@pytest.mark.parametrize("row", [r for r in TABLE if r.native], ids=lambda row: row.id)
def test_a_method_that_transformers_has_goes_by_its_name(row: Row) -> None:
    native = row.native(8) if callable(row.native) else row.native
    assert native is not None
    expected = "longrope" if row.strategy().name == "longrope" else native["rope_type"]
    assert xt.to_rope_parameters(row.strategy(), SPEC)["rope_type"] == expected


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            xt.DynamicLinear(),
            "dynamic_linear: it follows each text's length in a way transformers has no rope_type for",
        ),
        (xt.DynamicYaRN(), "dynamic_yarn: it follows each text's length"),
        (xt.compose(xt.DynamicNTK(), xt.Resonance()), "it follows each text's length"),
        (START, "no rope_type of transformers leaves the first tokens' rotation alone"),
        (Bent(), "it changes positions or scales queries, which transformers has no option for"),
        (xt.SelfExtend(), "it changes positions or scales queries"),
        (xt.compose(xt.YaRN(factor=4), xt.LogN()), "it changes positions or scales queries"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_what_transformers_cannot_express_is_refused_with_the_reason(strategy: xt.Strategy, message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        xt.to_rope_parameters(strategy, SPEC)


def test_every_strategy_is_expressible_or_refused() -> None:
    for row in TABLE:
        try:
            xt.to_rope_parameters(row.strategy(), SPEC)
        except xt.StrategyError:
            assert row.strategy().name in REFUSED or row.strategy().changes_attention, row.id
        else:
            assert row.strategy().name not in REFUSED, row.id
            assert not row.strategy().changes_attention, row.id


# Saving


def reload(folder: Path) -> Any:
    """As someone without this toolkit does."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi", "phi3"])
@pytest.mark.parametrize(
    "strategy",
    [
        xt.Linear(factor=4),
        xt.YaRN(factor=4),
        xt.YaRN(factor=4, attention_factor=0.9),
        xt.Llama3(factor=8),
        xt.NTK(factor=4),
        xt.DynamicNTK(factor=2),
        xt.LongRoPE(long_factor=tuple(1 + i / 2 for i in range(8)), short_factor=(1.2,) * 8),
        xt.compose(xt.MrRoPE(factor=4), xt.Resonance()),
        xt.FoPE(),
    ],
    ids=lambda s: s.label,
)
def test_what_is_saved_under_a_patch_is_loaded_with_it(tmp_path: Path, family: str, strategy: xt.Strategy) -> None:
    # case 22: without the toolkit
    changes: dict[str, Any] = {"partial_rotary_factor": 1.0} if family == "phi" else {}
    changes |= {"original_max_position_embeddings": 64} if family == "phi3" else {}
    model = tiny_model(family, sharpen=4, pad_token_id=0, **changes)
    config = copy.deepcopy(model.config.to_dict())
    stock = logits(model, IDS)
    handle = xt.patch(model, strategy)
    found = logits(model, IDS)
    assert (found - stock).abs().max() > 0.05
    if family == "phi3" and isinstance(strategy, xt.DynamicNTK):  # Phi-3's config class takes longrope only
        with pytest.warns(UserWarning, match="Phi3Config takes no rope_parameters that imply it"):
            model.save_pretrained(tmp_path)
        torch.testing.assert_close(logits(reload(tmp_path), IDS), stock, rtol=0, atol=1e-5)
    else:
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(logits(reload(tmp_path), IDS), found, rtol=1e-5, atol=1e-5)
    assert {**model.config.to_dict(), "dtype": None, "architectures": None} == {
        **config,
        "dtype": None,
        "architectures": None,
    }
    handle.restore()
    assert torch.equal(logits(model, IDS), stock)


@pytest.mark.parametrize("strategy", [xt.DynamicYaRN(), START, xt.compose(xt.DynamicNTK(factor=2), xt.Resonance())])
def test_what_transformers_cannot_express_is_said_and_applied_again_by_load_model(
    tmp_path: Path, strategy: xt.Strategy
) -> None:
    model = tiny_model(vocab_size=300)
    stock = logits(model, IDS)
    xt.patch(model, strategy)
    found = logits(model, IDS)
    message = r"does not carry .* \(.*\): xt\.load_model applies it again by itself; after another loader, call "
    with pytest.warns(UserWarning, match=message) as caught:
        model.save_pretrained(tmp_path)
    assert f"extrapolate.patch(model, {strategy!r})" in str(caught[0].message)
    byte_tokenizer().save_pretrained(tmp_path)
    assert torch.equal(logits(reload(tmp_path), IDS), stock)  # another loader
    again, _ = xt.load_model(str(tmp_path))
    assert torch.equal(logits(again, IDS), found)
    spec = xt.Checkpoint(str(tmp_path)).spec()
    assert spec.shipped_type == strategy.name
    with xt.patched(again, xt.Plain()):
        assert torch.equal(logits(again, IDS), stock)
    assert torch.equal(logits(again, IDS), found)
    xt.unpatch(again)
    assert torch.equal(logits(again, IDS), stock)


def test_a_strategy_of_the_users_own_is_saved_only_when_it_is_frequencies(tmp_path: Path) -> None:
    class Half(xt.Strategy):
        def frequencies(self, rope: RopeSpec, length: int) -> xt.Frequencies:
            return xt.Frequencies(super().frequencies(rope, length).inv_freq / 2)

    model = tiny_model(sharpen=4)
    with xt.patched(model, Half()):
        found = logits(model, IDS)
        model.save_pretrained(tmp_path / "half")
    torch.testing.assert_close(logits(reload(tmp_path / "half"), IDS), found, rtol=0, atol=1e-5)
    with xt.patched(model, Own()), pytest.warns(UserWarning, match=r": after loading, call extrapolate\.patch"):
        model.save_pretrained(tmp_path / "own")
    assert SAVED not in json.loads((tmp_path / "own" / "config.json").read_text())


def test_a_saved_strategy_is_replaced_and_never_stacked_on(tmp_path: Path) -> None:
    # case 26 across a save: NTK is saved as another theta, and the next strategy starts from the checkpoint's own
    model = tiny_model()
    plain = logits(model, IDS)
    with xt.patched(model, xt.YaRN(factor=4)):
        yarn = logits(model, IDS)
    with xt.patched(model, xt.NTK(factor=4)):
        ntk = logits(model, IDS)
        model.save_pretrained(tmp_path)
    loaded = reload(tmp_path)
    spec = xt.read_spec(loaded.config)
    assert (spec.theta, spec.pretrained_length, spec.shipped_type) == (1e4, 64, "ntk")
    for strategy, expected in ((xt.Plain(), plain), (xt.YaRN(factor=4), yarn), (xt.Shipped(), ntk)):
        with xt.patched(loaded, strategy):
            assert torch.equal(logits(loaded, IDS), expected), strategy
    with xt.patched(loaded, xt.Plain()):
        loaded.save_pretrained(tmp_path / "plain")
    assert xt.read_spec(reload(tmp_path / "plain").config).shipped_type == "default"
    assert torch.equal(logits(reload(tmp_path / "plain"), IDS), plain)


def test_the_pretrained_length_given_to_the_patch_is_saved(tmp_path: Path) -> None:
    model = tiny_model(sharpen=4)
    for strategy in (xt.YaRN(factor=4), xt.DynamicNTK(factor=2), xt.NTK(factor=2)):
        with xt.patched(model, strategy, pretrained_length=32):
            found = logits(model, IDS)
            model.save_pretrained(tmp_path)
        torch.testing.assert_close(logits(reload(tmp_path), IDS), found, rtol=0, atol=1e-5)
        assert xt.read_spec(reload(tmp_path).config).pretrained_length == 32


def test_after_restoring_the_saved_config_is_the_original_file(tmp_path: Path) -> None:
    # case 22
    model = tiny_model()
    model.save_pretrained(tmp_path / "before")
    before = (tmp_path / "before" / "config.json").read_bytes()
    own = vars(model).keys() - {"save_pretrained"}
    with xt.patched(model, xt.YaRN(factor=4)):
        model.save_pretrained(tmp_path / "during")
        with xt.patched(model, xt.Linear(factor=2)):
            model.save_pretrained(tmp_path / "nested")
        model.save_pretrained(tmp_path / "again")
    model.save_pretrained(tmp_path / "after")
    assert vars(model).keys() == own
    assert (tmp_path / "after" / "config.json").read_bytes() == before
    config = {
        name: json.loads((tmp_path / name / "config.json").read_text())["rope_parameters"]["rope_type"]
        for name in ("during", "nested", "again")
    }
    assert config == {"during": "yarn", "nested": "linear", "again": "yarn"}
    assert (tmp_path / "during" / "model.safetensors").read_bytes() == (
        tmp_path / "before" / "model.safetensors"
    ).read_bytes()


def test_shipped_is_saved_as_it_came(tmp_path: Path) -> None:
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
    model = tiny_model(rope_parameters=parameters, max_position_embeddings=256)
    model.save_pretrained(tmp_path / "before")
    with xt.patched(model, xt.Shipped()):
        model.save_pretrained(tmp_path / "shipped")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "shipped" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


def test_a_copy_of_a_patched_model_saves_itself(tmp_path: Path) -> None:
    model = tiny_model(sharpen=4)
    xt.patch(model, xt.YaRN(factor=4))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.lm_head.weight += 1
    found = logits(copied, IDS)
    xt.unpatch(model)
    copied.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(reload(tmp_path), IDS), found, rtol=1e-5, atol=1e-5)
    assert "save_pretrained" not in vars(model)


def test_a_save_that_fails_leaves_the_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    config = model.config

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with xt.patched(model, xt.YaRN(factor=4)):
        monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", full)
        with pytest.raises(OSError, match="No space"):
            model.save_pretrained(tmp_path)
        assert model.config is config
    assert model.config.rope_parameters["rope_type"] == "default"


def test_a_save_pretrained_of_the_users_own_is_left_alone() -> None:
    model = tiny_model()
    seen: list[str] = []
    model.save_pretrained = seen.append
    with xt.patched(model, xt.YaRN(factor=4)):
        model.save_pretrained("here")
    assert seen == ["here"]
    assert model.save_pretrained == seen.append


def test_a_config_saved_by_a_later_release_is_refused_by_name() -> None:
    model = tiny_model()
    entry = {"strategy": {"strategy": "warp", "drive": 9}, "in_rope_parameters": False}
    setattr(model.config, SAVED, {**entry, "rope_theta": 1e4, "pretrained_length": 64})
    with pytest.raises(xt.StrategyError, match=r"this release has no strategy such as .*warp"):
        xt.patch(model, xt.Plain())
    model.config.extrapolate["strategy"] = {"strategy": "os.system"}
    with pytest.raises(xt.StrategyError, match="this release has no strategy"):
        xt.patch(model, xt.Plain())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"strategy": "yran", "factor": 4}, r"; did you mean yarn\? there are abf, .*, yarn$"),
        ({"strategy": "ntk", "facto": 4}, "; its fields are factor"),
        ({"strategy": "plain", "factor": 4}, "; its fields are none"),
    ],
)
def test_a_strategy_by_name_that_is_none_is_told_near_ones(description: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        build(description)


def test_saving_warns_at_the_users_line(tmp_path: Path) -> None:
    model = tiny_model()
    with xt.patched(model, xt.DynamicLinear()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.save_pretrained(tmp_path)
    assert [w.filename for w in caught] == [__file__]


# Options of other engines: their formulas, written here from their sources


def as_vllm(options: str, spec: RopeSpec) -> tuple[list[float], float, int]:
    """Frequencies, factor on cos and sin, and longest length that vLLM makes of ``--hf-overrides``."""
    words = shlex.split(options)
    assert [words[0], words[2]] == ["--hf-overrides", "--max-model-len"]
    overrides = json.loads(words[1])
    assert overrides["max_position_embeddings"] == int(words[3])
    p = overrides["rope_parameters"]
    theta, kind = p["rope_theta"], p["rope_type"]
    rope = RopeSpec(spec.rotary_dim, theta, p.get("original_max_position_embeddings", 1))
    plain, factor = reference.plain(rope), 1.0
    if kind == "linear":
        found = [f / p["factor"] for f in plain]
    elif kind == "ntk" and "mixed_b" in p:
        found = reference.ntk_mixed(rope, p["factor"], p["mixed_b"])
    elif kind == "ntk":
        found = reference.ntk_fixed(rope, p["factor"])
    elif kind == "yarn":
        assert not {"attention_factor", "attn_factor", "mscale", "extrapolation_factor"} & set(p)
        found = reference.yarn(rope, p["factor"], p["beta_fast"], p["beta_slow"], p["truncate"])
        factor = 0.1 * math.log(p["factor"]) + 1
    elif kind == "llama3":
        found = reference.by_turns(rope, p["factor"], p["low_freq_factor"], p["high_freq_factor"])
    elif kind == "longrope":
        divisors = p["long_factor"] if int(words[3]) > rope.pretrained_length else p["short_factor"]
        found = [f / x for f, x in zip(plain, divisors, strict=True)]
        factor = p["long_mscale"]
        assert factor == p["short_mscale"]
    else:
        assert kind == "default"
        found = plain
    return found, factor, int(words[3])


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"d{s.rotary_dim}")
@pytest.mark.parametrize(
    "row", [r for r in EVERY.values() if not r.strategy().varies_with_length(SPEC)], ids=lambda r: r.id
)
def test_vllm_gets_the_same_frequencies(row: Row, spec: RopeSpec) -> None:
    strategy = row.strategy(spec.rotary_dim // 2)
    length = 4 * spec.pretrained_length
    found, factor, longest = as_vllm(xt.to_vllm_options(strategy, spec, length), spec)
    expected = strategy.frequencies(spec, length)
    torch.testing.assert_close(torch.tensor(found).double(), expected.inv_freq.double(), rtol=1e-6, atol=1e-19)
    assert factor == pytest.approx(expected.attention_factor, rel=1e-9)
    assert longest == length


def test_vllm_options_are_as_its_documentation_has_them() -> None:
    spec = RopeSpec(128, 1e6, 32768)
    options = xt.to_vllm_options(xt.YaRN(factor=4), spec, 131072)
    assert re.fullmatch(r"--hf-overrides '\{.*\}' --max-model-len 131072", options)
    parameters = json.loads(shlex.split(options)[1])["rope_parameters"]
    assert parameters == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
    }


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (xt.DynamicNTK(), "vLLM computes one table for all texts"),
        (xt.LongRoPE(long_factor=(4,) * 8), "vLLM computes one table for all texts"),
        (xt.LongRoPE(long_factor=(4,) * 8, switch_length=0, start_tokens=2), "no rope_type of vLLM leaves the first"),
        (Bent(), "which vLLM has no option for"),
        (xt.DualChunk(), "which vLLM has no option for"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_what_vllm_cannot_express_is_refused_with_the_reason(strategy: xt.Strategy, message: str) -> None:
    with pytest.raises(xt.StrategyError, match=message):
        xt.to_vllm_options(strategy, SPEC, 256)


def as_llama_cpp(options: str, spec: RopeSpec) -> tuple[list[float], float]:
    """Frequencies and factor that llama.cpp makes of its options (ggml's rope_yarn)."""
    words = shlex.split(options)
    o = dict(zip(words[::2], words[1::2], strict=True))
    kind, base, d = o["--rope-scaling"], float(o["--rope-freq-base"]), spec.rotary_dim
    scale = 1 / float(o["--rope-scale"]) if kind != "none" else 1.0
    ext = float(o["--yarn-ext-factor"]) if kind == "yarn" else 0.0
    found, factor = [], 1.0
    for i in range(d // 2):
        extrapolated = base ** (-2 * i / d)
        theta = extrapolated * scale
        if ext:
            low, high = (
                d * math.log(int(o["--yarn-orig-ctx"]) / (float(o[b]) * 2 * math.pi)) / (2 * math.log(base))
                for b in ("--yarn-beta-fast", "--yarn-beta-slow")
            )
            low, high = max(0, math.floor(low)), min(d - 1, math.ceil(high))
            mix = (1 - min(1, max(0, (i - low) / max(0.001, high - low)))) * ext
            theta = theta * (1 - mix) + extrapolated * mix
            factor = float(o["--yarn-attn-factor"]) * (1 + 0.1 * math.log(1 / scale))
        found.append(theta)
    return found, factor


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"d{s.rotary_dim}")
@pytest.mark.parametrize(
    "strategy",
    [
        xt.Plain(),
        xt.Shipped(),
        xt.Linear(factor=3.5),
        xt.NTK(factor=4),
        xt.ABF(base=5e5),
        xt.YaRN(factor=4),
        xt.YaRN(factor=16, beta_fast=16, beta_slow=2),
    ],
    ids=lambda s: s.label,
)
def test_llama_cpp_gets_the_same_frequencies(strategy: xt.Strategy, spec: RopeSpec) -> None:
    options = xt.to_llama_cpp_options(strategy, spec, 4 * spec.pretrained_length)
    assert options.startswith(f"--ctx-size {4 * spec.pretrained_length} --rope-scaling ")
    found, factor = as_llama_cpp(options, spec)
    expected = strategy.frequencies(spec, 1)
    torch.testing.assert_close(torch.tensor(found).double(), expected.inv_freq.double(), rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected.attention_factor, rel=1e-9)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (xt.YaRN(factor=4, attention_factor=1.0), "differ in what --yarn-attn-factor multiplies"),
        (xt.YaRN(factor=4, mscale=1.0, mscale_all_dim=0.7), "differ in what --yarn-attn-factor multiplies"),
        (xt.YaRN(factor=4, ramp="rotations"), "the index ramp, arithmetic blend and truncated ends"),
        (xt.YaRN(factor=4, truncate=False), "the index ramp, arithmetic blend and truncated ends"),
        (xt.NTKByParts(), "other frequencies need factors written into the GGUF file"),
        (xt.DynamicNTK(), "llama.cpp's options know another base"),
        (Bent(), "which llama.cpp has no option for"),
    ],
    ids=lambda v: getattr(v, "label", ""),
)
def test_what_llama_cpp_cannot_express_is_refused_with_the_reason(strategy: xt.Strategy, message: str) -> None:
    with pytest.raises(xt.StrategyError, match=re.escape(message)):
        xt.to_llama_cpp_options(strategy, SPEC, 256)


def test_llama_cpp_is_not_made_to_stack_on_factors_in_the_file() -> None:
    spec = RopeSpec(16, 1e4, 64, shipped_type="llama3")
    with pytest.raises(xt.StrategyError, match=r"which llama\.cpp applies on top of every option"):
        xt.to_llama_cpp_options(xt.YaRN(factor=4), spec, 256)


@pytest.mark.parametrize("length", [0, 2.5, "4096", True])
def test_a_length_that_is_no_number_of_tokens_is_refused(length: Any) -> None:
    for export in (xt.to_vllm_options, xt.to_llama_cpp_options):
        with pytest.raises(xt.StrategyError, match="length must be a whole number of tokens of at least 1, got"):
            export(xt.YaRN(factor=4), SPEC, length)


class Odd(xt.Linear):
    """A subclass is no longer the method it is named after."""

    def frequencies(self, rope: RopeSpec, length: int) -> xt.Frequencies:
        return xt.NTK(factor=self.factor).frequencies(rope, length)


def test_a_subclass_is_exported_by_what_it_does() -> None:
    assert xt.to_rope_parameters(Odd(factor=4), SPEC)["rope_type"] == "longrope"
    found, _, _ = as_vllm(xt.to_vllm_options(Odd(factor=4), SPEC, 256), SPEC)
    torch.testing.assert_close(torch.tensor(found), xt.NTK(factor=4).frequencies(SPEC, 1).inv_freq)
    with pytest.raises(xt.StrategyError, match="options know another base"):
        xt.to_llama_cpp_options(Odd(factor=4), SPEC, 256)
