"""Every RoPE architecture of transformers: which seams it has, and that a patch there does what it says."""

import contextlib
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import extrapolate as xt
from experiments.families import NOT_BUILT, OWN, architectures, length_of, tiny_config, tiny_model
from extrapolate.attention.seat import seats
from extrapolate.models.families import RotarySeam, find_rotary
from extrapolate.models.spec import layer_types, read_spec
from extrapolate.rope import base_frequencies
from tests.conftest import logits, tokens
from tests.conftest import tiny_model as llama_like
from tests.test_attention import EACH
from tests.test_patch import same, snapshot

PAGE = Path(__file__).parent.parent / "docs" / "families.md"
DOZEN = {
    "llama": "",
    "qwen3": "head_dim that is not hidden/heads",
    "phi": "partial rotary",
    "cohere2": "interleaved pairs, global layers without rotation",
    "gemma3_text": "frequencies of their own for global and sliding layers",
    "deepseek_v3": "decoupled part of multi-head latent attention",
    "llama4_text": "one complex number a pair",
    "qwen3_5_text": "multi-section rotary, layers of linear attention",
    "gptj": "a table of sinusoids",
    "roformer": "a table of sinusoids that ends",
    "nanochat": "turns backwards",
    "phimoe": "computes its frequencies in every call",
    "granite_swa": "one rotary module for each theta",
}
"""Of the default test run, by what is special about them."""

EVERY = [
    pytest.param(name, marks=() if name in DOZEN else pytest.mark.families)
    for name in architectures()
    if name not in NOT_BUILT
]


def stretched(seams: list[RotarySeam], factor: float) -> None:
    """Position interpolation done to the model's own modules, without a line of the package: m becomes m / factor."""
    for seam in seams:
        module: Any = seam.module
        if seam.buffer is not None:
            if "rope_init_fn" in vars(module):  # computes in every call
                own = module.rope_init_fn
                module.rope_init_fn = lambda config, own=own: (own(config)[0] / factor, own(config)[1])
            seam.buffer.div_(factor)
            continue
        table = module.weight if seam.form == "sinusoid" else module.embed_positions
        angles = torch.arange(len(table)).double()[:, None] / factor
        angles = angles * 10000.0 ** -(torch.arange(0, table.shape[1], 2).double() / table.shape[1])
        table.data.copy_(torch.cat((angles.sin(), angles.cos()), dim=1))


def verdicts() -> dict[str, list[str]]:
    """What docs/families.md says of each architecture with rotary embeddings."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("name", EVERY)
def test_an_architecture(name: str) -> None:
    if name == "gptj" and not hasattr(transformers.models.gptj.modeling_gptj, "GPTJRotaryEmbedding"):
        pytest.skip("until 5.22 each of its layers had a table of its own; refused by name there")
    torch.set_num_threads(1)
    model = tiny_model(name)
    if name not in verdicts():
        with pytest.raises(xt.ModelError, match="has no rotary embedding that can be patched"):
            find_rotary(model)
        return
    if verdicts()[name][4] != "yes":
        with pytest.raises(xt.ModelError) as refusal:
            xt.patch(model, xt.Plain())
        assert str(refusal.value).endswith(verdicts()[name][4])
        return
    seams, config, given = find_rotary(model), model.config.get_text_config(), length_of(model)
    ids = tokens(48)
    stock, before = logits(model, ids), snapshot(model)

    with xt.patched(model, xt.Shipped(), pretrained_length=given):
        assert torch.equal(logits(model, ids), stock), "shipped"
    with xt.patched(model, xt.Plain(), pretrained_length=given) as handle:
        spec = handle.spec
        default = spec.shipped_type == "default"
        assert torch.equal(logits(model, ids), stock) or not default, "plain"
    assert spec.pretrained_length == (getattr(config, "max_position_embeddings", None) or 64) or not default
    changed = [s for s in seams if handle.layers == "all" or s.layer_type in handle.layers.split(",")]
    assert spec.rotary_dim == 2 * changed[0].pairs
    if default and changed[0].buffer is not None:
        torch.testing.assert_close(changed[0].buffer, base_frequencies(spec.theta, spec.rotary_dim), rtol=1e-6, atol=0)

    with xt.patched(model, xt.Linear(factor=4), pretrained_length=given):
        found = logits(model, ids)
    assert (found - stock).abs().max() > 0
    assert same(snapshot(model), before)
    assert torch.equal(logits(model, ids), stock), "restored"
    if default:
        other = copy.deepcopy(model)
        stretched([s for s in find_rotary(other) if s.layer_type in {c.layer_type for c in changed}], 4)
        torch.testing.assert_close(found, logits(other, ids), rtol=0, atol=2e-4 * float(stock.abs().max()))

    everywhere = xt.ReRoPE(window=1000)  # true positions, through the other seam
    if verdicts()[name][5] == "yes":
        with xt.patched(model, xt.Plain(), pretrained_length=given):
            plain = logits(model, ids)
        with xt.patched(model, everywhere, pretrained_length=2000):
            torch.testing.assert_close(logits(model, ids), plain, rtol=0, atol=2e-4 * float(stock.abs().max()))
    else:
        with pytest.raises(xt.ModelError) as error:
            xt.patch(model, everywhere, pretrained_length=2000)
        assert verdicts()[name][5] in str(error.value)
    assert same(snapshot(model), before)


OF_LENGTH_64 = {"original_max_position_embeddings": 64}
SHIPPED: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic with alpha": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},  # as HunYuan publishes it
    "yarn": {"rope_type": "yarn", "factor": 4.0, **OF_LENGTH_64},
    "yarn with mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0, **OF_LENGTH_64},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **OF_LENGTH_64},
    "longrope": {"rope_type": "longrope", "factor": 4.0, **OF_LENGTH_64},  # and two lists
}
"""Scalings that a checkpoint may ship."""

ONLY_LONGROPE = {*SHIPPED} - {"default", "longrope"}
NOT_SHIPPED: dict[str, set[str]] = {
    **{name: {*SHIPPED} for name in ("codegen", "gptj", "roformer")},  # no settings of RoPE in their configs
    **{f"{name}{part}": {"longrope"} for name in ("dots3_note", "gemma4", "gemma4_unified") for part in ("", "_text")},
    **dict.fromkeys(("phi3", "phi4_multimodal", "phimoe"), ONLY_LONGROPE),
    "recurrent_gemma": {*SHIPPED} - {"default"},
}
"""What cannot be shipped with an architecture, because its config or its own code refuses it; of others nothing."""


def shipping(name: str, scaling: str, base: Any = None) -> Any:
    """A tiny model of an architecture whose config names a scaling.

    Raises:
        Exception: of the architecture's own, when it takes none such.
    """
    base = tiny_model(name) if base is None else base
    pairs = {seam.layer_type: seam.pairs for seam in find_rotary(base)}
    text = base.config.get_text_config()

    def changed(parameters: dict[str, Any], count: int) -> dict[str, Any]:
        lists: dict[str, Any] = {"short_factor": [1 + i / 8 for i in range(count)]}
        lists["long_factor"] = [2 + i / 2 for i in range(count)]
        lists |= {"short_mscale": 1.1, "long_mscale": 1.3} if name == "phimoe" else {}
        kept = {key: value for key, value in parameters.items() if key != "type" or not SHIPPED[scaling]}
        if kept.get("rope_type") == "proportional" and SHIPPED[scaling]:
            kept["partial_rotary_factor"] = 1.0  # there the share of pairs that rotate, elsewhere the share of the head
        return {**kept, **SHIPPED[scaling], **(lists if scaling == "longrope" else {})}

    own, kinds = text.rope_parameters, layer_types(text)
    count = next(iter(pairs.values()))
    new = {**own, **{k: changed(own[k], pairs.get(k, count)) for k in kinds}} if kinds else changed(own, count)
    whole = transformers.CONFIG_MAPPING[name]
    if isinstance(text, whole):
        return tiny_model(name, rope_parameters=new)
    part = next(field for field, value in vars(whole()).items() if type(value) is type(text))
    of_text = {**OWN.get(text.model_type, {}), "rope_parameters": new}
    return tiny_model(name, **{part: tiny_config(type(text), of_text)})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("llama", "hunyuan_v1_dense", "zamba2") else pytest.mark.families)
        for name in architectures()
        if name not in NOT_BUILT
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
def test_what_a_checkpoint_ships_is_what_its_own_code_makes_of_it(name: str) -> None:
    torch.set_num_threads(1)
    if verdicts().get(name, ["no"] * 5)[4] != "yes":
        return  # refused by name, which test_an_architecture tells
    refused, base = set(), tiny_model(name)
    for scaling in SHIPPED:
        try:
            model = shipping(name, scaling, base)
            logits(model, tokens(48))
        except Exception:  # the architecture's own
            refused.add(scaling)
            continue
        for length in (48, 64, 65, 200, 48):  # transformers' own dynamic stays stretched at 64 after 200
            ids = tokens(length)
            stock = logits(model, ids)
            with xt.patched(model, xt.Shipped(), pretrained_length=length_of(model)):
                assert torch.equal(logits(model, ids), stock), f"{scaling} at {length}"
    assert refused == NOT_SHIPPED.get(name, set())


def test_the_base_that_hunyuan_means_by_alpha() -> None:
    model = shipping("hunyuan_v1_dense", "dynamic with alpha")
    spec = read_spec(model.config)
    assert (spec.shipped_type, spec.theta, spec.pretrained_length) == ("ntk_alpha", 10000.0, 64)
    assert spec.shipped_at is None
    expected = (10000.0 * 1000.0 ** (16 / 14)) ** -(torch.arange(0, 16, 2).double() / 16)
    torch.testing.assert_close(spec.shipped.inv_freq.double(), expected, rtol=1e-6, atol=0)
    assert not xt.Shipped().varies_with_length(spec)


def test_a_rule_of_its_own_that_is_not_known_is_refused_by_name() -> None:
    model = llama_like(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})

    class Own(type(model.model.rotary_emb)):  # type: ignore[misc]
        """Takes ``linear`` for something else, as HunYuan's takes ``dynamic``."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.inv_freq.mul_(2)

    model.model.rotary_emb = Own(model.config)
    match = r"LlamaForCausalLM: Own does not do what rope_parameters=\{.*'linear'.*\} says: for a text of 4 tokens"
    for strategy in (xt.Shipped(), xt.YaRN(factor=4), xt.ReRoPE(window=8)):
        with pytest.raises(xt.ModelError, match=match):
            xt.patch(model, strategy)
    assert isinstance(model.model.rotary_emb, Own)


def test_partial_rotary_counts_its_own_dimensions() -> None:
    # case 33: hidden 64, 4 heads, half of each head rotates
    model = llama_like("phi", partial_rotary_factor=0.5, pad_token_id=0)
    handle = xt.patch(model, xt.Plain())
    assert handle.spec.rotary_dim == 8
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    for row in EACH.values():
        strategy = row.strategy()
        with contextlib.suppress(xt.StrategyError):  # factors or reach for another width
            assert strategy.frequencies(handle.spec, 64).inv_freq.shape == (4,)
    ntk = xt.NTK(factor=4).frequencies(handle.spec, 64).inv_freq
    torch.testing.assert_close(ntk, (1e4 * 4 ** (8 / 6)) ** -(torch.arange(0, 8, 2) / 8), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["cohere", "glm", "helium", "ernie4_5"])
def test_interleaved_pairs_are_rotated_as_such(name: str) -> None:
    # case 34: tables and attention disagree on the layout only where one is misread
    model, ids = tiny_model(name), tokens(48)
    with xt.patched(model, xt.Linear(factor=4)):
        tables = logits(model, ids)
    with xt.patched(model, xt.Linear(factor=4), layers=[0, 1, 2, 3]):  # one by one: through the attention function
        assert {seat.turn.layout for seat in seats(model).values() if seat.turn} == {"interleaved"}
        torch.testing.assert_close(logits(model, ids), tables, rtol=0, atol=2e-4 * float(tables.abs().max()))
    (seam,) = find_rotary(model)
    seam.module.get_buffer("inv_freq").div_(4)
    torch.testing.assert_close(tables, logits(model, ids), rtol=0, atol=1e-5 * float(tables.abs().max()))


def test_every_architecture_of_this_release_was_looked_at() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made_with = re.search(r"with transformers (\d+)\.(\d+)", text)
    assert made_with is not None
    if tuple(map(int, transformers.__version__.split(".")[:2])) < tuple(map(int, made_with.groups())):
        pytest.skip("an older release, which may have other architectures")  # make test-oldest
    missing = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if f"`{name}`" not in text]
    assert not missing, f"run `python -m experiments.families` and look at {', '.join(missing)}"
    found = verdicts()
    assert set(found) <= set(architectures())
    assert set(NOT_BUILT) <= set(found)


def test_the_counts_are_those_of_the_table() -> None:
    found = verdicts()
    frequencies, positions = (sum(row[i] == "yes" for row in found.values()) for i in (4, 5))
    page = PAGE.read_text(encoding="utf-8")
    assert f"**{len(found)} architectures with rotary embeddings: frequencies can be changed in {frequencies}, " in page
    assert f"positions in {positions}.**" in page
    assert frequencies >= len(found) - len(NOT_BUILT) - 1  # BLT
    assert positions >= 0.85 * len(found)
    readme = (PAGE.parent.parent / "README.md").read_text(encoding="utf-8")
    assert f"{len(found)} architectures" in readme
    assert f"frequencies in {frequencies}, positions in {positions}" in readme
