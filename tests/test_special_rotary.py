"""Rotary embeddings that are more than one ladder: several axes, tables that end, those of checkpoints' own code."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

import extrapolate as xt
from experiments.families import tiny_config, tiny_model
from extrapolate.models.families import find_rotary
from extrapolate.models.spec import read_spec
from tests.conftest import logits, tokens
from tests.test_patch import same, snapshot

# Text, height and width: multi-section rotary

SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def of_images(model_type: str) -> Any:
    config_class = transformers.CONFIG_MAPPING[model_type]
    text = tiny_config(type(config_class().text_config), {"rope_parameters": SECTIONS})
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(tiny_config(config_class, {"text_config": text})).eval()


@torch.no_grad()
def at(model: Any, ids: Tensor, positions: Tensor) -> Tensor:
    found: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return found


@pytest.mark.parametrize(
    ("model_type", "axes"), [("qwen2_5_vl", (0, 0, 1, 1, 1, 2, 2, 2)), ("qwen3_vl", (0, 1, 2, 0, 1, 2, 0, 1))]
)
def test_each_pair_turns_with_its_own_axis(model_type: str, axes: tuple[int, ...]) -> None:
    model, ids = of_images(model_type), tokens(12)
    (seam,) = find_rotary(model)
    assert seam.axes == axes
    line = torch.arange(12)[None]
    picture = torch.stack((line.clamp(max=5), line // 3, line % 3))  # as of an image after five tokens of text
    stock, before = at(model, ids, picture), snapshot(model)
    assert (stock - at(model, ids, line.expand(3, 1, 12))).abs().max() > 1e-4
    with xt.patched(model, xt.Plain()):
        assert torch.equal(at(model, ids, picture), stock)
    with xt.patched(model, xt.Linear(factor=4)):
        found = at(model, ids, picture)
    assert same(snapshot(model), before)
    seam.module.get_buffer("inv_freq").div_(4)
    torch.testing.assert_close(found, at(model, ids, picture), rtol=0, atol=1e-5)


def test_positions_of_images_are_refused_where_they_are_not_understood() -> None:
    model, ids = of_images("qwen3_vl"), tokens(12)
    line = torch.arange(12)[None]
    picture = torch.stack((line, line // 3, line % 3))
    with xt.patched(model, xt.ReRoPE(window=8)):
        at(model, ids, line.expand(3, 1, 12))  # text
        with pytest.raises(xt.ModelError, match="positions of images cannot be changed: bands take texts only"):
            at(model, ids, picture)
    with xt.patched(model, xt.DynamicNTK(factor=2)), pytest.raises(xt.ModelError, match="text, height and width"):
        at(model, ids, picture)


# A factor of its own


@pytest.mark.parametrize("length", [40, 64, 65, 100])
def test_phimoe_ships_a_factor_for_short_texts_and_one_for_long_ones(length: int) -> None:
    factors = {"short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2 + i / 2 for i in range(8)]}
    mscale = {"short_mscale": 1.1, "long_mscale": 1.3, "original_max_position_embeddings": 64}
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, **factors, **mscale}
    model, ids = tiny_model("phimoe", rope_parameters=scaling, max_position_embeddings=256), tokens(length)
    stock = logits(model, ids)
    with xt.patched(model, xt.Shipped()) as handle:
        found = handle.spec.shipped_at
        assert found is not None
        assert found(length).attention_factor == (1.3 if length > 64 else 1.1)
        torch.testing.assert_close(logits(model, ids), stock, rtol=0, atol=1e-6)


# Tables of sinusoids


@pytest.mark.parametrize("strategy", [xt.Plain(), xt.NTK(factor=4), xt.DynamicNTK(factor=2)], ids=lambda s: s.name)
def test_roformer_runs_past_the_end_of_its_table(strategy: xt.Strategy) -> None:
    model, longer = tiny_model("roformer"), tiny_model("roformer", max_position_embeddings=256)
    longer.load_state_dict({n: v for n, v in model.state_dict().items() if "embed_positions" not in n}, strict=False)
    ids = tokens(200)
    with pytest.raises(IndexError):
        logits(model, ids)
    spec = read_spec(model.config)
    assert (spec.rotary_dim, spec.theta, spec.pretrained_length) == (16, 10000.0, 64)
    table = longer.roformer.encoder.embed_positions.weight
    phases = torch.arange(256).double()[:, None] * strategy.frequencies(spec, 200).inv_freq.double()
    table.data.copy_(torch.cat((phases.sin(), phases.cos()), dim=1))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with xt.patched(model, strategy):
        torch.testing.assert_close(logits(model, ids), logits(longer, ids), rtol=0, atol=1e-4)
        assert model.state_dict().keys() == state.keys()  # the table is part of the checkpoint
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())


def test_roformer_as_an_encoder() -> None:
    config = tiny_config(transformers.RoFormerConfig)
    torch.manual_seed(0)
    model, ids = transformers.RoFormerForMaskedLM(config).eval(), tokens(60)
    with torch.no_grad():
        stock = model(ids).logits
        with xt.patched(model, xt.Plain()):
            assert torch.equal(model(ids).logits, stock)
        with xt.patched(model, xt.Linear(factor=4)):
            assert (model(ids).logits - stock).abs().max() > 1e-5
            assert model(tokens(300)).logits.isfinite().all()


@pytest.mark.parametrize("name", ["gptj", "codegen"])
def test_a_table_of_sines_and_cosines_goes_on_past_its_end(name: str) -> None:
    if not hasattr(transformers.models.gptj.modeling_gptj, "GPTJRotaryEmbedding"):
        pytest.skip("until 5.22 each layer had a table of its own")
    model, longer = tiny_model(name), tiny_model(name, n_positions=256)
    longer.load_state_dict(model.state_dict())
    with xt.patched(model, xt.Plain()):
        torch.testing.assert_close(logits(model, tokens(200)), logits(longer, tokens(200)), rtol=0, atol=1e-4)


# Checkpoints that bring their own code, in the two customs that such code follows


class CachedTables(nn.Module):
    """Baichuan, InternLM: ``inv_freq``, and cos and sin kept for the longest text so far."""

    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)
        self.max_seq_len_cached = 0

    def forward(self, x: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
        if seq_len > self.max_seq_len_cached:
            self.max_seq_len_cached = seq_len
            phases = torch.outer(torch.arange(seq_len).float(), self.inv_freq)
            both = torch.cat((phases, phases), dim=-1)
            self.cos_cached, self.sin_cached = both.cos()[None, None], both.sin()[None, None]
        return self.cos_cached[:, :, :seq_len].to(x.dtype), self.sin_cached[:, :, :seq_len].to(x.dtype)


class StackedTable(nn.Module):
    """ChatGLM: called with a length, returns (length, d/2, 2), cosine and sine of each pair side by side."""

    inv_freq: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000.0 ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        phases = torch.outer(torch.arange(offset, offset + max_seq_len).float(), self.inv_freq)
        return torch.stack((phases.cos(), phases.sin()), dim=-1)


class RemoteConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    model_type = "remote"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.hidden_size, self.num_attention_heads, self.num_hidden_layers, self.vocab_size = 32, 2, 2, 128


class RemoteAttention(nn.Module):
    """Computes its attention itself, in the manner of either custom."""

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.rotary_emb = None if stacked else CachedTables(16)

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 2, 16).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.rotary_emb is not None:
            cos, sin = self.rotary_emb(v, seq_len=x.shape[1])

            def turn(y: Tensor) -> Tensor:
                turned: Tensor = y * cos + torch.cat((-y[..., 8:], y[..., :8]), dim=-1) * sin
                return turned
        else:
            assert table is not None
            cos, sin = table[None, None, : x.shape[1]].unbind(-1)

            def turn(y: Tensor) -> Tensor:
                a, b = y[..., :8:2], y[..., 1:8:2]
                return torch.cat((torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2), y[..., 8:]), -1)

        found = nn.functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        result: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


class RemoteModel(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = RemoteConfig

    def __init__(self, config: RemoteConfig, stacked: bool) -> None:
        super().__init__(config)
        self.stacked = stacked
        self.embed = nn.Embedding(128, 32)
        self.layers = nn.ModuleList(RemoteAttention(stacked) for _ in range(2))
        self.head = nn.Linear(32, 128)
        self.rotary_pos_emb = StackedTable(8) if stacked else None

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        table = None if self.rotary_pos_emb is None else self.rotary_pos_emb(64)  # config.seq_length, whatever comes
        hidden = self.embed(input_ids) * 5
        for layer in self.layers:
            hidden = hidden + layer(hidden, table)
        return transformers.modeling_outputs.CausalLMOutput(logits=self.head(hidden))


def remote(stacked: bool) -> Any:
    torch.manual_seed(0)
    words = {"seq_length": 64} if stacked else {"model_max_length": 64}
    return RemoteModel(RemoteConfig(**words), stacked).eval()


@pytest.mark.parametrize("stacked", [False, True], ids=["cached tables", "one stacked table"])
def test_rotary_modules_of_checkpoints_own_code(stacked: bool) -> None:
    model, ids = remote(stacked), tokens(60)
    seams = find_rotary(model)
    assert {(seam.call, seam.form) for seam in seams} == {("count", "stacked") if stacked else ("length", "halves")}
    assert len(seams) == (1 if stacked else 2)
    stock, before = logits(model, ids), snapshot(model)
    with xt.patched(model, xt.Plain()) as handle:
        assert (handle.spec.rotary_dim, handle.spec.theta) == (8 if stacked else 16, 10000.0)
        assert handle.spec.pretrained_length == 64
        assert torch.equal(logits(model, ids), stock)
    with xt.patched(model, xt.Linear(factor=4)):
        found = logits(model, ids)
    with xt.patched(model, xt.Linear(factor=4), length=200):
        longer = logits(model, tokens(200))
    assert same(snapshot(model), before)
    with pytest.raises(xt.ModelError, match="RemoteModel: no layer calls transformers' attention interface"):
        xt.patch(model, xt.ReRoPE(window=16))
    assert torch.equal(logits(model, ids), stock)
    for seam in seams:
        seam.module.get_buffer("inv_freq").div_(4)
        seam.module.__dict__["max_seq_len_cached"] = 0
    torch.testing.assert_close(found, logits(model, ids), rtol=0, atol=1e-5)
    if not stacked:
        torch.testing.assert_close(longer, logits(model, tokens(200)), rtol=0, atol=1e-5)


def test_length_dependent_strategies_on_checkpoints_own_code() -> None:
    cached, stacked, ids = remote(False), remote(True), tokens(100)
    with xt.patched(cached, xt.DynamicNTK(factor=2)) as handle:
        found = logits(cached, ids)
        expected = xt.DynamicNTK(factor=2).frequencies(handle.spec, 100).inv_freq
    for seam in find_rotary(cached):
        seam.module.get_buffer("inv_freq").copy_(expected)
    torch.testing.assert_close(found, logits(cached, ids), rtol=0, atol=1e-5)
    with pytest.raises(xt.ModelError, match=r"is not told; declare it: .*length=\.\.\."):
        xt.patch(stacked, xt.DynamicNTK(factor=2))
    with xt.patched(stacked, xt.DynamicNTK(factor=2), length=100):
        assert logits(stacked, ids).isfinite().all()
