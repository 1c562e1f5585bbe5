"""Which layers run a strategy: by default the global ones, by choice all, a type, or single ones."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import extrapolate as xt
from experiments.families import tiny_model as family
from extrapolate.models.spec import is_local
from tests.conftest import logits, tiny_model, tokens
from tests.test_patch import same, snapshot

TYPED = ("gemma3_text", "olmo3", "modernbert-decoder", "gemma4_text", "mimo_v2_flash", "zaya")
"""Architectures whose layer types have frequencies of their own."""


@contextlib.contextmanager
def stretched(model: Any, indices: set[int], factor: float) -> Iterator[None]:
    """Position interpolation of single layers of a Llama-like model, done to the tables that they are handed."""
    rotary = model.model.rotary_emb

    def change(_: Any, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hidden = arguments[0] if arguments else options["hidden_states"]
        positions = torch.arange(hidden.shape[1])[None] / factor
        return arguments, {**options, "position_embeddings": rotary(hidden, positions)}

    layers = [layer for i, layer in enumerate(model.model.layers) if i in indices]
    hooks = [layer.self_attn.register_forward_pre_hook(change, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("name", TYPED)
def test_by_default_the_frequencies_of_global_layers_change_and_of_local_ones_do_not(name: str) -> None:
    model, ids = family(name), tokens(40)
    with xt.patched(model, xt.Linear(factor=4)) as handle:
        found = logits(model, ids)
        kinds = handle.layers.split(",")
    rotary = next(m for m in model.modules() if any(b.endswith("_inv_freq") for b in m._buffers))
    own = [b.removesuffix("_inv_freq") for b in rotary._buffers if "original" not in b]
    assert kinds == ["all"] or (kinds == [k for k in own if not is_local(k)] and 0 < len(kinds) < len(own))
    for kind in own if kinds == ["all"] else kinds:
        rotary.get_buffer(f"{kind}_inv_freq").div_(4)
    if "proportional" not in str(model.config.rope_parameters):  # which the strategy replaces
        torch.testing.assert_close(found, logits(model, ids), rtol=0, atol=1e-4)


def test_all_and_a_type_choose_among_the_frequencies() -> None:
    model, ids = family("gemma3_text"), tokens(40)
    stock, before = logits(model, ids), snapshot(model)
    found = {}
    for layers in (None, "full_attention", "sliding_attention", "all"):
        with xt.patched(model, xt.Linear(factor=4), layers=layers) as handle:
            found[layers] = logits(model, ids)
            assert handle.layers == (layers or "full_attention")
            assert handle.spec.theta == (10000.0 if layers == "sliding_attention" else 1000000.0)
    assert torch.equal(found[None], found["full_attention"])
    others = [stock, found[None], found["sliding_attention"], found["all"]]
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(others) for b in others[:i])
    assert same(snapshot(model), before)


@pytest.mark.parametrize("indices", [[0], [1], [0, 1]], ids=str)
def test_single_layers_run_it_and_the_others_stay_as_shipped(tiny: Any, indices: list[int]) -> None:
    ids = tokens(100)
    with stretched(tiny, set(indices), 4):
        expected = logits(tiny, ids)
    with xt.patched(tiny, xt.Linear(factor=4), layers=indices) as handle:
        torch.testing.assert_close(logits(tiny, ids), expected, rtol=0, atol=1e-4)
        assert handle.layers == ",".join(map(str, indices))


def test_a_layer_type_that_shares_its_frequencies_is_the_layers_of_that_type() -> None:
    model = tiny_model("gemma2", pad_token_id=0, sliding_window=40, layer_types=["sliding_attention", "full_attention"])
    ids = tokens(60)
    with stretched(model, {1}, 4):
        expected = logits(model, ids)
    with xt.patched(model, xt.Linear(factor=4), layers="full_attention"):
        torch.testing.assert_close(logits(model, ids), expected, rtol=0, atol=1e-3)


def test_positions_change_in_the_chosen_layers_only(tiny: Any) -> None:
    ids = tokens(100)
    stock = logits(tiny, ids)
    with xt.patched(tiny, xt.ReRoPE(window=16)):
        everywhere = logits(tiny, ids)
    with xt.patched(tiny, xt.ReRoPE(window=16), layers=[0, 1]):
        torch.testing.assert_close(logits(tiny, ids), everywhere, rtol=0, atol=1e-5)
    with xt.patched(tiny, xt.ReRoPE(window=16), layers=[1]):
        one = logits(tiny, ids)
    assert (one - stock).abs().max() > 0.1
    assert (one - everywhere).abs().max() > 0.1


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("global", "no layer type 'global'; its layer types: none"),
        ([2], "layers must be indices from 0 to 1, got 2"),
        ([-1], "got -1"),
        ([True], "got True"),
        (["0"], "got '0'"),
        ([], r"got \[\]"),
    ],
)
def test_layers_that_a_model_does_not_have_are_refused(tiny: Any, layers: Any, message: str) -> None:
    before = snapshot(tiny)
    with pytest.raises(xt.ModelError, match=message):
        xt.patch(tiny, xt.Linear(factor=4), layers=layers)
    assert same(snapshot(tiny), before)


def test_saving_a_model_with_layer_types_says_how_to_apply_the_strategy_again(tmp_path: Any) -> None:
    model, ids = family("gemma3_text"), tokens(40)
    stock = logits(model, ids)
    xt.patch(model, xt.Linear(factor=4))
    with pytest.warns(UserWarning, match="its layer types have frequencies of their own"):
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, ids), stock)
