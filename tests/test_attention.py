"""Attention in bands: every strategy equals the score-by-score reference, cached or not, on any model with the seam."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import LlamaAttention

import extrapolate as xt
from extrapolate.attention import kernels, plan
from extrapolate.attention.cache import BoundedLayer
from extrapolate.attention.seat import Turn, seats
from tests import reference
from tests.conftest import byte_tokenizer, logits, tiny_model, tokens
from tests.strategies import SMALL, TABLE, Row
from tests.test_patch import same, snapshot

SPEC = SMALL[0]
ROWS = [row for row in TABLE if row.relative or row.scale]
BANDED = [row for row in ROWS if row.relative]
# every strategy once: those of positions, and those of frequencies at the setting that is compared at the longest text
EACH = {row.strategy().name: row for row in sorted(TABLE, key=lambda row: row.lengths)}
WORKING = (
    xt.SelfExtend(group=4, window=24),
    xt.ReRoPE(window=16),
    xt.DualChunk(),
    xt.AttentionSinks(sinks=4, window=40),
    xt.compose(xt.YaRN(factor=2), xt.DualChunk(), xt.LogN()),
)


def name_of(strategy: xt.Strategy) -> str:
    return strategy.name


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that tiny texts have many, and pieces of all kinds."""
    monkeypatch.setattr(plan, "BLOCK", 24)
    monkeypatch.setattr(kernels, "KEYS_AT_ONCE", 10)


def expected_logits(model: Any, row: Row, ids: torch.Tensor) -> torch.Tensor:
    n = ids.shape[-1]
    return reference.brute_force_logits(
        model, ids[0], row.frequencies(SPEC), row.factor(SPEC), row.table(SPEC, n), row.scales(SPEC, n)
    )


def close(found: torch.Tensor, expected: torch.Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=atol)


# Against the reference


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_logits_equal_the_brute_force_reference(family: str, row: Row) -> None:
    # case 29: grouped-query heads, here and below; case 30
    check_against_reference(tiny_model(family), row)


@pytest.mark.parametrize("strategy", [xt.SelfExtend(group=4, window=32), xt.ReRoPE(window=17)], ids=name_of)
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_any_number_of_key_and_value_heads_does(family: str, kv_heads: int, strategy: xt.Strategy) -> None:
    row = next(row for row in TABLE if row.strategy() == strategy)
    check_against_reference(tiny_model(family, num_key_value_heads=kv_heads), row)


def check_against_reference(model: Any, row: Row) -> None:
    ids = tokens(row.length(SPEC))
    stock = logits(model, ids)
    with xt.patched(model, row.strategy()):
        found = logits(model, ids)[0]
        assert len(seats(model)) == model.config.num_hidden_layers
    close(found, expected_logits(model, row, ids))
    assert torch.equal(logits(model, ids), stock)


@pytest.mark.parametrize("strategy", WORKING, ids=name_of)
@pytest.mark.parametrize("block", [1, 7, 64, 1024])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, strategy: xt.Strategy, block: int) -> None:
    model, ids = tiny_model(), tokens(90)
    with xt.patched(model, strategy):
        expected = logits(model, ids)
        monkeypatch.setattr(plan, "BLOCK", block)
        next(iter(seats(model).values())).banded.plans.clear()
        close(logits(model, ids), expected, 2e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_attention_a_model_was_loaded_with_does_not_matter(implementation: str) -> None:
    # case 27
    model, ids = tiny_model(attn_implementation=implementation), tokens(128)
    stock = logits(model, ids)
    with xt.patched(model, xt.SelfExtend(group=4, window=32)):
        found = logits(model, ids)
    close(found[0], expected_logits(model, self_extend(), ids))
    assert (found - stock)[:, :32].abs().max() < 1e-4  # the first window of positions is plain
    assert (found - stock).abs().max() > 1


def self_extend() -> Row:
    return next(row for row in TABLE if row.strategy() == xt.SelfExtend(group=4, window=32))


PLAIN = [xt.SelfExtend(group=1), xt.LeakyReRoPE(k=1), xt.STRING(shift=0, local=0), xt.Temperature(scale=1)]
WITHIN = [xt.DualChunk(chunk=60, local=10), xt.AttentionSinks(), xt.LMInfinite(), xt.ReRoPE(window=64), xt.LogN()]


@pytest.mark.parametrize("strategy", [*PLAIN, *WITHIN], ids=name_of)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_settings_that_are_plain_give_the_stock_logits(family: str, strategy: xt.Strategy) -> None:
    model, ids = tiny_model(family), tokens(100 if strategy in PLAIN else 50)
    stock = logits(model, ids)
    with xt.patched(model, strategy):
        close(logits(model, ids), stock, 2e-5)


# Models

FAMILIES = {
    "llama": "half-split",
    "qwen2": "biases",
    "qwen3": "norms of queries and keys",
    "mistral": "sliding window where configured",
    "mixtral": "experts",
    "phi": "partial rotary",
    "phi3": "fused projections",
    "gpt_neox": "partial rotary, another tree",
    "stablelm": "partial rotary",
    "gemma": "head size",
    "gemma2": "soft-capping, sliding layers, a scale of its own",
    "cohere": "interleaved pairs",
    "glm": "interleaved pairs, partial rotary",
    "glm4": "interleaved pairs, partial rotary",
    "ernie4_5": "interleaved pairs",
    "helium": "interleaved pairs",
    "olmo": "clipping",
    "olmo2": "norms",
    "granite": "multipliers",
    "starcoder2": "biases",
    "smollm3": "layers that do not rotate",
    "gpt_oss": "sinks in the softmax, one table entry a pair",
}
SHAPES: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 40, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 9},
    "mistral": {"sliding_window": 50},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
    "stablelm": {"partial_rotary_factor": 0.5},
    "glm": {"partial_rotary_factor": 0.5},
    "glm4": {"partial_rotary_factor": 0.5},
    "smollm3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "gpt_oss": {"sliding_window": 40, "num_local_experts": 2, "num_experts_per_tok": 1},
}


TWO_BANDS = xt.LeakyReRoPE(window=20, k=1.0000001)
"""Positions of plain RoPE."""


def member(family: str) -> Any:
    return tiny_model(family, sharpen=4, **{"pad_token_id": 0, **SHAPES.get(family, {})})


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_bands_reproduce_the_stock_model(family: str) -> None:
    model, ids = member(family), tokens(100)
    stock = logits(model, ids)
    with xt.patched(model, xt.compose(xt.Shipped(), xt.Temperature(scale=1))):
        assert len(seats(model)) == 2
        close(logits(model, ids), stock, 1e-3 * float(stock.abs().max()))
    with xt.patched(model, TWO_BANDS, pretrained_length=200):
        close(logits(model, ids), logits_of_plain(model, ids), 1e-3 * float(stock.abs().max()))
    with xt.patched(model, xt.ReRoPE(window=8)):
        assert (logits(model, ids) - stock).abs().max() > 1e-3 * stock.abs().max()
    assert torch.equal(logits(model, ids), stock)


def logits_of_plain(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of plain RoPE, which a checkpoint that ships a scaling is not."""
    twin = copy.deepcopy(model)
    with xt.patched(twin, xt.Plain()):
        return logits(twin, ids)


def test_each_layers_way_of_rotating_is_found() -> None:
    found = {}
    for family in ("llama", "cohere", "smollm3"):
        model = member(family)
        with xt.patched(model, xt.ReRoPE(window=8)):
            found[family] = {seat.turn for seat in seats(model).values()}
    half_split, interleaved = Turn("half_split"), Turn("interleaved")
    assert found == {"llama": {half_split}, "cohere": {interleaved}, "smollm3": {half_split, None}}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_seam_is_found_in_half_precision(dtype: torch.dtype) -> None:
    model = tiny_model(sharpen=2).to(dtype)
    ids = tokens(100)
    with xt.patched(tiny_model(sharpen=2), xt.SelfExtend(group=4, window=24)) as handle:
        expected = logits(handle.model, ids)
    stock = logits(model, ids)
    with xt.patched(model, xt.SelfExtend(group=4, window=24)):
        found = logits(model, ids)
        assert found.dtype == dtype
    assert (found.float() - expected).abs().max() < 0.5 * (stock.float() - expected).abs().max()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_gradients_flow_and_are_right(family: str) -> None:
    model = member(family)
    ids = tokens(60)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        torch.autograd.backward(model(ids, use_cache=False).logits.logsumexp(-1).sum())
        found: torch.Tensor = model.model.layers[0].self_attn.k_proj.weight.grad
        return found.clone()

    expected = gradient()
    with xt.patched(model, TWO_BANDS, pretrained_length=200):
        close(gradient(), expected, 1e-3 * float(expected.abs().max()))


# What is refused


class OwnAttention(LlamaAttention):  # type: ignore[misc]
    """Computes its attention by itself, as remote code does."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return self.o_proj(hidden_states), None


def test_a_model_whose_layers_pass_the_seam_by_is_refused_by_name_and_left_alone() -> None:
    # case 27
    model = tiny_model()
    layer = model.model.layers[1]
    layer.self_attn = OwnAttention(model.config, 1)
    before = snapshot(model)
    with pytest.raises(xt.ModelError, match=r"1 layer does not call .* interface \(OwnAttention\)"):
        xt.patch(model, xt.ReRoPE())
    assert same(snapshot(model), before)


def test_a_layer_that_rotates_in_an_unknown_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    def backwards(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos - q.flip(-1) * sin, k * cos - k.flip(-1) * sin

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", backwards)
    model = tiny_model()
    before = snapshot(model)
    with pytest.raises(xt.ModelError, match="LlamaAttention rotates queries and keys in no known way"):
        xt.patch(model, xt.ReRoPE())
    assert same(snapshot(model), before)


def test_attention_that_is_more_than_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    stock = transformers.AttentionInterface()["sdpa"]
    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping,
        "sdpa",
        lambda module, q, k, v, *a, **o: (lambda out: (out[0] * 1.1, out[1]))(stock(module, q, k, v, *a, **o)),
    )
    with pytest.raises(xt.ModelError, match="something in its attention is not understood"):
        xt.patch(model, xt.ReRoPE())


def test_what_bands_cannot_do_is_refused_in_one_line(tiny: Any) -> None:
    ids = tokens(40)
    with xt.patched(tiny, xt.ReRoPE(window=16)):
        packed = torch.cat((torch.arange(20), torch.arange(20)))[None]
        wrong: dict[str, dict[str, Any]] = {
            "packed sequences and custom masks": {"position_ids": packed},
            r"bands take a \(batch, length\) mask": {"attention_mask": torch.zeros(1, 1, 40, 40)},
            "one run of real tokens": {"attention_mask": torch.tensor([[1] * 10 + [0] * 5 + [1] * 25])},
            "output_attentions needs length × length": {"output_attentions": True},
        }
        for message, options in wrong.items():
            with pytest.raises(xt.ModelError, match=message) as error:
                tiny(ids, use_cache=False, **options)
            assert "\n" not in str(error.value)
        tiny.train()
        for layer in tiny.model.layers:
            layer.self_attn.attention_dropout = 0.1
        with pytest.raises(xt.ModelError, match=r"attention dropout 0\.1 is not supported in bands"):
            tiny(ids)


def test_settings_that_do_not_fit_are_refused_when_patching_and_lengths_when_they_come(tiny: Any) -> None:
    before = snapshot(tiny)
    for strategy, message in (
        (xt.SelfExtend(group=4, window=64), "window=64 must be below the pretrained length 64"),
        (xt.DualChunk(chunk=100), "chunk must be above local and at most the pretrained length 64"),
    ):
        with pytest.raises(xt.StrategyError, match=message):
            xt.patch(tiny, strategy)
    with pytest.raises(xt.StrategyError, match=r"reach .* = 160 tokens with L=64, and the text has 161"):
        xt.patch(tiny, xt.SelfExtend(group=4, window=32), length=161)
    assert same(snapshot(tiny), before)
    with xt.patched(tiny, xt.SelfExtend(group=4, window=32)):
        logits(tiny, tokens(160))
        with pytest.raises(xt.StrategyError, match=r"group·\(L - window \+ window//group\) = 160 tokens"):
            logits(tiny, tokens(161))
        logits(tiny, tokens(160))


# Leaving nothing behind


@pytest.mark.parametrize("strategy", WORKING, ids=name_of)
def test_restoring_leaves_no_trace_also_after_an_exception(tiny: Any, strategy: xt.Strategy) -> None:
    # case 24
    ids = tokens(100)
    stock, before = logits(tiny, ids), snapshot(tiny)
    with xt.patched(tiny, strategy):
        assert not torch.equal(logits(tiny, ids), stock)
    assert same(snapshot(tiny), before)
    with pytest.raises(IndexError), xt.patched(tiny, strategy):
        logits(tiny, ids + 1000)
    assert same(snapshot(tiny), before)
    assert torch.equal(logits(tiny, ids), stock)
    handle = xt.patch(tiny, strategy)
    handle.restore()
    handle.restore()
    assert same(snapshot(tiny), before)
    assert tiny.config is tiny.model.config is tiny.model.layers[0].self_attn.config


def test_a_model_that_shares_its_config_is_not_touched(tiny: Any) -> None:
    # case 24
    twin: Any = transformers.AutoModelForCausalLM.from_config(tiny.config)
    twin.load_state_dict(tiny.state_dict())
    twin.config = twin.model.config = tiny.config
    ids = tokens(100)
    stock = logits(twin, ids)
    with xt.patched(tiny, xt.ReRoPE(window=16)):
        assert torch.equal(logits(twin, ids), stock)
        assert tiny.config.to_dict() == twin.config.to_dict()
        assert not torch.equal(logits(tiny, ids), stock)


def test_patches_replace_each_other_and_nest(tiny: Any) -> None:
    ids = tokens(100)
    stock = logits(tiny, ids)
    alone = {}
    order: list[xt.Strategy] = [*WORKING, xt.YaRN(factor=4), xt.NTK(factor=2)]
    for strategy in order:
        with xt.patched(tiny, strategy):
            alone[strategy] = logits(tiny, ids)
    for one in order:
        with xt.patched(tiny, one):
            for other in order:
                with xt.patched(tiny, other):
                    assert torch.equal(logits(tiny, ids), alone[other])
                assert torch.equal(logits(tiny, ids), alone[one])
    for strategy in order:
        xt.patch(tiny, strategy)
    assert torch.equal(logits(tiny, ids), alone[order[-1]])
    xt.unpatch(tiny)
    assert torch.equal(logits(tiny, ids), stock)


def test_a_copy_of_a_patched_model_is_patched_and_independent(tiny: Any) -> None:
    ids = tokens(100)
    stock = logits(tiny, ids)
    xt.patch(tiny, xt.SelfExtend(group=4, window=24))
    found = logits(tiny, ids)
    twin = copy.deepcopy(tiny)
    xt.unpatch(tiny)
    assert torch.equal(logits(tiny, ids), stock)
    assert torch.equal(logits(twin, ids), found)
    xt.unpatch(twin)
    assert torch.equal(logits(twin, ids), stock)


def test_saving_says_that_the_config_cannot_carry_it_and_loading_applies_it_again(tmp_path: Path) -> None:
    # case 22
    tokenizer = byte_tokenizer()
    model, ids = tiny_model(vocab_size=len(tokenizer)), tokens(100)
    tokenizer.save_pretrained(tmp_path)
    with xt.patched(model, xt.compose(xt.SelfExtend(group=4, window=24), xt.YaRN(factor=2))):
        expected = logits(model, ids)
        with pytest.warns(UserWarning, match="does not carry"):
            model.save_pretrained(tmp_path)
    assert "_attn_implementation" not in (tmp_path / "config.json").read_text()
    loaded, _ = xt.load_model(str(tmp_path), dtype="float32", device="cpu")
    close(logits(loaded, ids), expected, 1e-5)
    xt.unpatch(loaded)
    with xt.patched(loaded, xt.Shipped()):
        close(logits(loaded, ids), expected, 1e-5)
    with xt.patched(loaded, xt.Plain()):
        close(logits(loaded, ids), logits(model, ids), 1e-5)


def test_a_module_that_came_after_the_patch_says_so(tiny: Any) -> None:
    with xt.patched(tiny, xt.ReRoPE()):
        tiny.model.layers[1].self_attn = LlamaAttention(tiny.config, 1)
        with pytest.raises(xt.ModelError, match="was not there when the model was patched"):
            logits(tiny, tokens(10))


# Cache and generation


@torch.no_grad()
def by_chunks(model: Any, ids: torch.Tensor, chunks: list[int], cache: Any = None, **options: Any) -> torch.Tensor:
    """Logits of a text that comes in pieces, through a cache."""
    found, start = [], 0
    for size in chunks:
        out = model(ids[:, start : start + size], cache=cache, use_cache=True, **options)
        cache = out.cache
        found.append(out.logits)
        start += size
    assert start == ids.shape[1]
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("row", EACH.values(), ids=EACH)
def test_one_pass_chunks_and_decoding_agree_for_every_strategy(row: Row) -> None:
    # cases 10 and 11: a strategy that depends on the length is told it
    model, ids = tiny_model(), tokens(100)
    strategy = row.strategy()
    length = 100 if strategy.varies_with_length(SPEC) else None
    with xt.patched(model, strategy):
        expected = logits(model, ids)
    with xt.patched(model, strategy, length=length):
        close(by_chunks(model, ids, [50, 27, *[1] * 10, 13]), expected)
        close(by_chunks(model, ids, [100]), expected)


@pytest.mark.parametrize("strategy", [xt.SelfExtend(window=16), xt.DynamicNTK(factor=2), xt.DynamicYaRN()], ids=name_of)
def test_a_cache_that_was_written_for_a_shorter_text_is_refused_unless_the_length_is_declared(
    tiny: Any, strategy: xt.Strategy
) -> None:
    # case 11: hidden states in it were computed with other frequencies or positions, unrotated keys or not
    ids = tokens(100)
    with xt.patched(tiny, strategy), pytest.raises(xt.ModelError, match=r"length of the whole text: .*length=\.\.\."):
        by_chunks(tiny, ids, [80, 20])
    with xt.patched(tiny, strategy, length=100) as handle:
        assert not handle.varies_with_length
        expected = logits(tiny, ids)
        close(by_chunks(tiny, ids, [80, 20]), expected)
        with pytest.raises(xt.ModelError, match="has 101 tokens by now, but the model was patched with length=100"):
            logits(tiny, tokens(101))
    with xt.patched(tiny, strategy):
        assert torch.equal(logits(tiny, ids), expected)


@pytest.mark.parametrize("length", [0, 2.5, True, "100"])
def test_a_length_that_is_no_number_of_tokens_is_refused(tiny: Any, length: Any) -> None:
    with pytest.raises(xt.StrategyError, match="length must be a whole number of tokens of at least 1"):
        xt.patch(tiny, xt.DynamicNTK(), length=length)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def generate(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    torch.manual_seed(0)
    settings = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "pad_token_id": 0, **options}
    found: torch.Tensor = model.generate(ids, attention_mask=mask, **settings)[:, ids.shape[1] :]
    return found


@pytest.mark.parametrize("strategy", WORKING, ids=name_of)
def test_generate_equals_passes_without_a_cache(tiny: Any, strategy: xt.Strategy) -> None:
    ids = tokens(80)
    stock = generate(tiny, ids)
    with xt.patched(tiny, strategy):
        running = ids
        for _ in range(7):
            step = logits(tiny, running)[:, -1]
            step[:, 2] = -math.inf  # no end of text
            running = torch.cat((running, step.argmax(-1)[:, None]), dim=1)
        assert torch.equal(generate(tiny, ids), running[:, 80:])
        assert torch.equal(generate(tiny, ids, use_cache=False), running[:, 80:])
        assert torch.equal(generate(tiny, ids, cache_implementation="static"), running[:, 80:])
        assert torch.equal(generate(tiny, ids, num_beams=2), generate(tiny, ids, num_beams=2, use_cache=False))
        sampled = generate(tiny, ids, do_sample=True)
        assert torch.equal(sampled, generate(tiny, ids, do_sample=True, use_cache=False))
        assert not torch.equal(sampled, running[:, 80:])
    assert torch.equal(generate(tiny, ids), stock)


@pytest.mark.parametrize("strategy", [*WORKING, xt.YaRN(factor=4)], ids=name_of)
def test_a_quantised_cache_rounds_what_it_keeps_and_no_more(tiny: Any, strategy: xt.Strategy) -> None:
    ids, chunks = tokens(100), [50, 27, *[1] * 10, 13]
    exact = logits(tiny, ids)
    rounding = relative(by_chunks(tiny, ids, chunks, transformers.QuantizedCache("fp8", tiny.config)), exact)
    with xt.patched(tiny, strategy):
        expected = logits(tiny, ids)
        found = by_chunks(tiny, ids, chunks, transformers.QuantizedCache("fp8", tiny.config))
    assert 0 < relative(found, expected) < 2 * rounding
    assert relative(exact, expected) > 2 * rounding, "it could not be told from the stock model"


@pytest.mark.parametrize("strategy", [*WORKING, xt.YaRN(factor=4)], ids=name_of)
@pytest.mark.parametrize("implementation", ["dynamic", "static"])
def test_a_row_of_a_batch_with_padding_is_what_it_is_alone(
    tiny: Any, strategy: xt.Strategy, implementation: str
) -> None:
    texts = [tokens(n, seed=n) for n in (90, 57, 73)]
    ids = torch.cat([torch.nn.functional.pad(text, (90 - text.shape[1], 0)) for text in texts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(t), (90 - t.shape[1], 0)) for t in texts])
    options = {} if implementation == "dynamic" else {"cache_implementation": implementation}
    with xt.patched(tiny, strategy):
        together = generate(tiny, ids, mask, **options)
        for row, text in enumerate(texts):
            assert torch.equal(together[row], generate(tiny, text)[0]), row


def test_a_row_of_a_batch_of_a_strategy_that_depends_on_the_length_has_a_length_of_its_own(tiny: Any) -> None:
    long, short = tokens(100), tokens(70, seed=5)
    ids = torch.cat((long, torch.nn.functional.pad(short, (30, 0))))
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    for strategy in (xt.SelfExtend(window=16), xt.compose(xt.DynamicNTK(factor=2), xt.LogN())):
        with xt.patched(tiny, strategy), torch.no_grad():
            together = tiny(ids, attention_mask=mask, use_cache=False).logits
            close(together[:1], logits(tiny, long), 2e-5)
            close(together[1:, 30:], logits(tiny, short), 2e-5)


def test_token_losses_of_rows_of_different_length_are_those_of_each_alone(tiny: Any) -> None:
    long, short = tokens(100), tokens(70, seed=5)
    ids = torch.cat((long, torch.nn.functional.pad(short, (0, 30))))
    mask = torch.ones_like(ids)
    mask[1, 70:] = 0
    for strategy in (xt.SelfExtend(window=16), xt.DualChunk(), xt.DynamicNTK(factor=2)):
        with xt.patched(tiny, strategy):
            together = xt.token_losses(tiny, ids, mask)
            close(together[0], xt.token_losses(tiny, long)[0], 2e-5)
            close(together[1, :69], xt.token_losses(tiny, short)[0], 2e-5)


def test_a_call_does_not_depend_on_earlier_calls(tiny: Any) -> None:
    # case 10
    for strategy in (xt.SelfExtend(window=16), xt.DynamicNTK(factor=2)):
        with xt.patched(tiny, strategy):
            first = {n: logits(tiny, tokens(n)) for n in (32, 64, 150)}
            for n in (150, 64, 32, 65, 64, 150, 32):
                assert n == 65 or torch.equal(logits(tiny, tokens(n)), first[n])


@pytest.mark.parametrize(
    ("strategy", "slots"),
    [(xt.AttentionSinks(sinks=4, window=20), 23), (xt.LMInfinite(first=6, local=30), 35)],
    ids=str,
)
@pytest.mark.parametrize("chunks", [[130], [50, 50, 30], [10, *[1] * 40, 80]], ids=len)
def test_a_strategy_that_forgets_bounds_its_cache(
    tiny: Any, strategy: xt.Strategy, slots: int, chunks: list[int]
) -> None:
    ids = tokens(130)
    with xt.patched(tiny, strategy) as handle:
        expected = logits(tiny, ids)
        cache = handle.cache()
        close(by_chunks(tiny, ids, chunks, cache), expected)
        assert [layer.keys.shape[-2] for layer in cache.layers] == [slots, slots]
        assert cache.get_seq_length() == 130
        prompt = tokens(70)
        assert torch.equal(generate(tiny, prompt, cache=handle.cache()), generate(tiny, prompt))
        both = torch.cat((prompt, tokens(70, seed=9)))
        assert torch.equal(generate(tiny, both, cache=handle.cache()), generate(tiny, both))
        mask = torch.ones_like(both)
        mask[1, :5] = 0
        with pytest.raises(xt.ModelError, match="a cache of bounded size takes rows of one length"):
            generate(tiny, both, mask, cache=handle.cache())
    with xt.patched(tiny, xt.ReRoPE()) as handle:
        assert isinstance(handle.cache(), transformers.DynamicCache)


def test_a_strategy_that_forgets_in_some_layers_bounds_no_cache(tiny: Any) -> None:
    ids = tokens(100)
    with xt.patched(tiny, xt.AttentionSinks(sinks=4, window=20), layers=[1]) as handle:
        expected, cache = logits(tiny, ids), handle.cache()
        found = by_chunks(tiny, ids, [60, 30, *[1] * 10], cache)
        assert cache.get_seq_length() == 100
        assert cache.layers[0].keys.shape[2] == cache.layers[1].keys.shape[2] == 100
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_bounded_layer_keeps_the_beginning_and_the_latest() -> None:
    for first, last in ((2, 3), (0, 3), (2, 1), (0, 1)):
        layer, seen = BoundedLayer(first, last), torch.arange(10.0).view(1, 1, 10, 1)
        for start, stop in ((0, 4), (4, 5), (5, 10)):
            kept = [i for i in range(start) if i < first or i > start - last]
            assert layer.get_mask_sizes(stop - start) == (len(kept) + stop - start, start - len(kept))
            keys, _ = layer.update(seen[:, :, start:stop], seen[:, :, start:stop])
            assert keys.flatten().tolist() == [*kept, *range(start, stop)]
            assert layer.get_seq_length() == stop


def test_layers_with_a_sliding_window_keep_theirs_cached_or_not() -> None:
    for family in ("gemma2", "mistral", "gpt_oss"):
        model, ids = member(family), tokens(100)
        with xt.patched(model, xt.ReRoPE(window=16)):
            expected = logits(model, ids)
            close(by_chunks(model, ids, [60, *[1] * 40]), expected, 1e-3)
            prompt = tokens(70)
            assert torch.equal(generate(model, prompt), generate(model, prompt, use_cache=False))


def test_the_layers_of_a_pass_share_the_plan_of_each_row(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, made = tokens(40, batch=12), []
    mask = torch.ones_like(ids)
    for row in range(12):
        mask[row, :row] = 0
    planned = plan.Banded._planned

    def counted(*args: Any) -> Any:
        made.append(args[1:3])
        return planned(*args)

    monkeypatch.setattr(plan.Banded, "_planned", counted)
    with xt.patched(tiny, xt.ReRoPE(window=16)), torch.no_grad():
        made.clear()
        tiny(ids, attention_mask=mask, use_cache=False)
    assert sorted(made) == sorted((0, 40 - row) for row in range(12))


# Memory and meta


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // max(1, value.element_size()))
        return out


@pytest.mark.parametrize("strategy", WORKING, ids=name_of)
def test_no_tensor_of_length_by_length_is_ever_made(
    tiny: Any, strategy: xt.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "BLOCK", 128)
    strategy = xt.SelfExtend(group=64, window=24) if isinstance(strategy, xt.SelfExtend) else strategy
    ids = tokens(1200)
    with xt.patched(tiny, strategy), Largest() as largest:  # type: ignore[no-untyped-call]
        logits(tiny, ids)
    assert largest.elements < 1200 * 1200 / 4


def test_the_kernel_for_cuda_is_called_as_it_wants_to_be() -> None:
    # no GPU here: shapes and signature through the meta device, the wrapper's arithmetic through the other kernel
    query, key = (torch.empty(2, heads, 24, 16, device="meta") for heads in (4, 2))
    mask = torch.ones(24, 24, dtype=torch.bool).tril(-1)
    piece = plan.Piece(0, 24, mask, empty=~mask.any(dim=1))
    on_meta = plan._on(piece, torch.device("meta"))
    out, lse = kernels.efficient_on_cuda(query, key, key, 0.25, on_meta)
    assert (out.shape, lse.shape, lse.dtype) == ((2, 4, 24, 16), (2, 4, 24), torch.float32)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_kernels_agree_on_output_and_log_sum_exp(causal: bool, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 24, 16, generator=generator) for heads in (4, 2, 2))
    mask = torch.rand(24, 24, generator=generator) > 0.5 if masked and not causal else None
    if mask is not None:
        mask[5] = False
    piece = plan.Piece(0, 24, mask, causal, None if mask is None else ~mask.any(dim=1))
    fused = kernels.flash_on_cpu(query, key, value, 0.3, piece)
    scores = kernels.by_scores(query, key, value, 0.3, piece, None)
    for a, b in zip(fused, scores, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    if mask is not None:
        assert (fused[1][:, :, 5] == -math.inf).all()
        assert (fused[0][:, :, 5] == 0).all()


def test_merging_keeps_what_is_not_a_number() -> None:
    out, lse = torch.ones(1, 1, 3, 2), torch.tensor([[[0.0, -math.inf, math.nan]]])
    merged, total = kernels.merge((out, lse), (out * 3, torch.tensor([[[0.0, -math.inf, 0.0]]])))
    assert merged[0, 0, 0].tolist() == [2, 2]
    assert merged[0, 0, 1].tolist() == [0, 0]
    assert merged[0, 0, 2].isnan().all()
    assert total[0, 0, 1] == -math.inf
