"""What heads attend to, against the weights that transformers' own eager attention returns."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import extrapolate as xt
from extrapolate.analysis import attention_statistics, copy_attention, retrieval_distance
from extrapolate.analysis.attention import octaves
from extrapolate.attention.run import OBSERVED
from extrapolate.attention.seat import OBSERVER, Observer
from extrapolate.models.observe import observed
from tests.conftest import logits, tiny_model, tokens

T = OBSERVED + 70  # more than one slice of queries


def eager_weights(model: Any, ids: torch.Tensor) -> np.ndarray[Any, Any]:
    """(layers, heads, T, T) float64, by the model's own code."""
    stock = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(ids, use_cache=False, output_attentions=True).attentions
    model.set_attn_implementation(stock)
    return torch.cat(found).double().numpy()


class Collect(Observer):
    """Every weight, in one array a layer."""

    def __init__(self, length: int, heads: int) -> None:
        self.found: dict[int, torch.Tensor] = {}
        self.shape = (heads, length, length)

    def weights(self, module: Any, weights: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor) -> None:
        whole = self.found.setdefault(module.layer_idx, torch.zeros(self.shape))
        whole[:, queries[:, None], keys[None, :]] += weights[0]


def collected(model: Any, ids: torch.Tensor) -> np.ndarray[Any, Any]:
    collect = Collect(ids.shape[1], model.config.num_attention_heads)
    with observed(model, collect), torch.no_grad():
        model(ids, use_cache=False)
    return torch.stack([collect.found[i] for i in sorted(collect.found)]).double().numpy()


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "glm": {},  # interleaved pairs, half of a head
    "mistral": {"sliding_window": 40},
    "gemma2": {"attn_logit_softcapping": 5.0, "sliding_window": 40},
}


@pytest.mark.parametrize(
    "strategy", [None, xt.YaRN(factor=4), xt.DynamicNTK(factor=2)], ids=["bare", "yarn", "dynamic"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_eager_attention(family: str, strategy: xt.Strategy | None) -> None:
    model = tiny_model(family, **FAMILIES[family])
    ids = tokens(T)
    if strategy is not None:
        xt.patch(model, strategy)
    expected = eager_weights(model, ids)
    found = collected(model, ids)
    assert np.abs(found - expected).max() < 2e-5
    assert np.abs(expected - np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]).max() > 0.1  # not uniform


def test_weights_leave_to_a_sink_what_it_takes() -> None:
    model = tiny_model("gpt_oss", num_local_experts=2, num_experts_per_tok=1)
    found = collected(model, tokens(T)).sum(axis=-1)
    assert found.max() < 1 + 1e-5
    assert found.min() < 0.999


@pytest.mark.parametrize("strategy", [xt.ReRoPE(window=32), xt.SelfExtend(group=8, window=32), xt.LogN()], ids=str)
def test_weights_of_a_strategy_of_positions_are_the_softmax_of_its_scores(strategy: xt.Strategy) -> None:
    from extrapolate.analysis import relative_positions
    from extrapolate.rope import cos_sin, rotate

    model = tiny_model()
    ids = tokens(T)
    caught: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Heads(Collect):
        def heads(self, module: Any, seat: Any, query: torch.Tensor, key: torch.Tensor) -> None:  # noqa: ARG002
            caught.append((query, key))

    with xt.patched(model, strategy) as handle:
        collect = Heads(T, model.config.num_attention_heads)
        with observed(model, collect), torch.no_grad():
            model(ids, use_cache=False)
        spec = handle.spec
    query, key = (x[0].double() for x in caught[0])
    key = key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    scale = strategy.query_scale(spec, torch.arange(T))
    if scale is not None:
        query = query * scale.double()[None, :, None]
    apart = relative_positions(strategy, spec, T)
    scores = torch.full((query.shape[0], T, T), -math.inf, dtype=torch.float64)
    for position in sorted(set(apart[~apart.isnan()].tolist())):
        at = (apart == position).nonzero()
        cos, sin = (x.double() for x in cos_sin(strategy.frequencies(spec, T), torch.tensor([position])))
        turned = rotate(query[:, at[:, 0]], cos, sin)
        scores[:, at[:, 0], at[:, 1]] = (turned * key[:, at[:, 1]]).sum(-1) * query.shape[-1] ** -0.5
    expected = scores.softmax(dim=-1)
    assert float((collect.found[0].double() - expected).abs().max()) < 2e-4


def test_statistics_are_sums_of_the_weights() -> None:
    model = tiny_model()
    ids = tokens(T)
    weights = eager_weights(model, ids)
    found = attention_statistics(model, ids, sinks=4, first_query=20)
    apart = np.arange(T)[:, None] - np.arange(T)[None, :]
    for layer in range(weights.shape[0]):
        for head in range(weights.shape[1]):
            w = weights[layer, head, 20:]
            row = found.heads.query("layer == @layer and head == @head").iloc[0]
            assert row["sink_mass"] == pytest.approx(w[:, :4].sum(axis=1).mean(), abs=1e-5)
            entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(axis=1)
            assert row["entropy"] == pytest.approx(entropy.mean(), abs=1e-4)
            far = (w * apart[20:])[:, 4:].sum() / w[:, 4:].sum()
            assert row["mean_distance"] == pytest.approx(far, rel=1e-4)
            by = found.distances.query("layer == @layer and head == @head")
            assert by["mass"].sum() == pytest.approx(1, abs=1e-5)
            for _, each in by.iterrows():
                chosen = (apart[20:] >= each["first"]) & (apart[20:] <= each["last"])
                assert each["attention"] == pytest.approx(w[chosen].mean(), abs=1e-6)
            at = found.positions.query("layer == @layer and head == @head")
            first = at.iloc[-1]
            assert first["entropy"] == pytest.approx(entropy[int(first["first"]) - 20 :].mean(), abs=1e-4)
    assert found.positions["last"].max() == T - 1


@pytest.mark.parametrize("family", ["llama", "glm"])
def test_pairs_are_measured_before_rotation_in_the_layout_of_the_model(family: str) -> None:
    model = tiny_model(family)
    ids = tokens(40)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        hidden = model.model.layers[0].input_layernorm(model.model.embed_tokens(ids))
        query = attention.q_proj(hidden).view(40, -1, attention.head_dim).double()
        key = attention.k_proj(hidden).view(40, -1, attention.head_dim).double()
    heads, kv_heads = query.shape[1], key.shape[1]
    assert heads > kv_heads > 1, "grouped queries"
    found = attention_statistics(model, ids).pairs.query("layer == 0")
    width = xt.read_spec(model.config).rotary_dim

    def norms(x: torch.Tensor) -> np.ndarray[Any, Any]:
        pairs = (
            (x[:, : width // 2], x[:, width // 2 : width]) if family == "llama" else (x[:, :width:2], x[:, 1:width:2])
        )
        return (pairs[0] ** 2 + pairs[1] ** 2).sqrt().mean(dim=0).numpy()

    for head in range(heads):
        rows = found.query("head == @head")
        q, k = norms(query[:, head]), norms(key[:, head // (heads // kv_heads)])
        assert rows["query_norm"].to_numpy() == pytest.approx(q, rel=1e-5)
        assert rows["key_norm"].to_numpy() == pytest.approx(k, rel=1e-5)
        assert rows["share"].to_numpy() == pytest.approx(q * k / (q * k).sum(), rel=1e-5)


def test_a_forgetting_strategy_attends_to_nothing_in_the_middle() -> None:
    model = tiny_model()
    with xt.patched(model, xt.AttentionSinks(sinks=4, window=16)):
        found = attention_statistics(model, tokens(T), first_query=T - 1)
    seen = found.distances.groupby(["first", "last"])["mass"].sum()
    assert seen[[last < 16 for _, last in seen.index]].sum() + found.heads["sink_mass"].sum() == pytest.approx(
        len(found.heads), rel=1e-4
    )


def state(model: Any) -> tuple[Any, ...]:
    return (
        [(name, id(module)) for name, module in model.named_modules()],
        [sorted(module.__dict__) for module in model.modules()],
        id(model.config),
        model.config.to_dict(),
        [id(module.__dict__.get("config")) for module in model.modules()],
    )


@pytest.mark.parametrize("strategy", [None, xt.YaRN(factor=4), xt.ReRoPE()], ids=["bare", "yarn", "rerope"])
def test_looking_leaves_nothing_behind(strategy: xt.Strategy | None) -> None:
    model = tiny_model()
    if strategy is not None:
        xt.patch(model, strategy)
    ids = tokens(T)
    before, expected = state(model), logits(model, ids)
    attention_statistics(model, ids)
    copy_attention(model, ids, [64], span=8)

    class Broken(Observer):
        def weights(self, *_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), observed(model, Broken()):
        model(ids, use_cache=False)
    assert state(model) == before
    assert torch.equal(logits(model, ids), expected)
    assert OBSERVER.get() is None


def test_a_model_that_cannot_be_observed_is_refused_and_left_as_it_was() -> None:
    model = tiny_model("doge")
    before = state(model)
    with pytest.raises(xt.ModelError, match="asks for a whole mask"):
        attention_statistics(model, tokens(20))
    assert state(model) == before


def test_copying_is_the_weight_of_the_key_after_the_last_occurrence() -> None:
    model = tiny_model()
    ids = tokens(T)
    found = copy_attention(model, ids, [16, 100], span=8)
    for distance in (16, 100):
        repeated = ids.clone()
        for j in range(8):
            repeated[0, T - 8 + j] = ids[0, T - 8 - distance + j]
        weights = eager_weights(model, repeated)
        expected = np.mean([weights[:, :, T - 8 + j, T - 8 + j - distance + 1] for j in range(8)], axis=0)
        rows = found[found["distance"] == distance].sort_values(["layer", "head"])
        assert rows["mass"].to_numpy() == pytest.approx(expected.flatten(), abs=1e-6)


def test_retrieval_distance_is_the_farthest_above_the_threshold() -> None:
    table = pd.DataFrame(
        {
            "layer": [0] * 3 + [1] * 3,
            "head": 0,
            "distance": [64, 128, 256] * 2,
            "mass": [0.9, 0.4, 0.05, 0.02, 0.03, 0.01],
        }
    )
    found = retrieval_distance(table)
    assert found.to_dict("records") == [{"layer": 0, "head": 0, "retrieval_distance": 128, "mass": 0.9}]


def test_octaves_partition_the_distances() -> None:
    for length in (2, 3, 17, 1000):
        bins = octaves(length)
        assert [n for a, b in bins for n in range(a, b + 1)] == list(range(length))
    assert [a for a, _ in octaves(2000)][-4:] == [1024, 1218, 1448, 1722]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinks": 40}, "sinks must be between 0 and 39, got 40"),
        ({"first_query": -1}, "first_query must be between 0 and 39, got -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(xt.ModelError, match=message):
        attention_statistics(tiny_model(), tokens(40), **options)


def test_bad_input_is_refused() -> None:
    model = tiny_model()
    with pytest.raises(xt.ModelError, match=r"input_ids must be \(1, T\)"):
        attention_statistics(model, tokens(40, batch=2))
    with pytest.raises(xt.ModelError, match="distances must be between span = 8 and T - span = 32 tokens, got 33"):
        copy_attention(model, tokens(40), [33], span=8)
    with pytest.raises(xt.ModelError, match="span must be at least 2"):
        copy_attention(model, tokens(40), [33], span=1)
    with pytest.raises(xt.ModelError, match="at least one distance"):
        copy_attention(model, tokens(40), [], span=8)
