"""A patch on models that are offloaded, compiled, wrapped, quantised, in training, or moved afterwards."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import extrapolate as xt
from tests.conftest import logits, tiny_model, tokens
from tests.test_patch import same, snapshot

BOTH = pytest.mark.parametrize("strategy", [xt.YaRN(factor=4), xt.ReRoPE(window=16)], ids=["frequencies", "positions"])


def under(model: Any, strategy: xt.Strategy, ids: torch.Tensor) -> torch.Tensor:
    with xt.patched(model, strategy):
        return logits(model, ids)


@BOTH
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_layers_that_accelerate_keeps_elsewhere(tmp_path: Path, strategy: xt.Strategy, place: str) -> None:
    accelerate = importlib.import_module("accelerate")

    expected, ids = under(tiny_model(), strategy, tokens(100)), tokens(100)
    model = tiny_model()
    if place == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=True)
    else:
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    assert next(model.parameters()).is_meta
    stock = logits(model, ids)
    torch.testing.assert_close(under(model, strategy, ids), expected, rtol=0, atol=1e-5)
    assert torch.equal(logits(model, ids), stock)


@BOTH
def test_a_model_loaded_with_a_device_map_that_spills_to_disk(tmp_path: Path, strategy: xt.Strategy) -> None:
    tiny_model().save_pretrained(tmp_path / "checkpoint")
    ids = tokens(100)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint",
        device_map={**places, "model.layers.0": "cpu", "model.layers.1": "disk"},
        offload_folder=tmp_path / "offload",
    )
    torch.testing.assert_close(under(model, strategy, ids), under(tiny_model(), strategy, ids), rtol=0, atol=1e-5)


@BOTH
def test_a_model_compiled_before_or_after(strategy: xt.Strategy) -> None:
    ids = tokens(40)
    expected = under(tiny_model(), strategy, ids)
    after = tiny_model()
    xt.patch(after, strategy)
    compiled = torch.compile(after, backend="eager")
    torch.testing.assert_close(logits(compiled, ids), expected, rtol=0, atol=1e-5)
    model = tiny_model()
    stock = logits(model, ids)
    compiled = torch.compile(model, backend="eager")
    logits(compiled, ids)
    with xt.patched(model, strategy):
        torch.testing.assert_close(logits(compiled, ids), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(compiled, ids), stock, rtol=0, atol=1e-5)


@BOTH
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_an_adapter_around_a_patched_model_and_a_patch_on_an_adapted_one(strategy: xt.Strategy) -> None:
    peft = pytest.importorskip("peft")
    ids, config = tokens(100), peft.LoraConfig(target_modules=["q_proj", "k_proj"], init_lora_weights=False, r=2)

    def adapted(model: Any) -> Any:
        torch.manual_seed(3)
        return peft.get_peft_model(model, config).eval()

    one = tiny_model()
    xt.patch(one, strategy)
    found = logits(adapted(one), ids)
    other = adapted(tiny_model())
    stock = logits(other, ids)
    torch.testing.assert_close(under(other, strategy, ids), found, rtol=0, atol=1e-5)
    assert torch.equal(logits(other, ids), stock)
    merged = adapted(tiny_model()).merge_and_unload()
    torch.testing.assert_close(under(merged, strategy, ids), found, rtol=0, atol=1e-3)
    assert (found - under(tiny_model(), strategy, ids)).abs().max() > 1e-2


@BOTH
def test_gradient_checkpointing_gives_the_gradients_of_a_model_without(strategy: xt.Strategy) -> None:
    ids, gradients = tokens(60), []
    for checkpointed in (False, True):
        model = tiny_model(sharpen=2).train()
        if checkpointed:
            enable = getattr(model, "activation_checkpointing_enable", None)  # the newer name
            (enable or model.gradient_checkpointing_enable)()
        with xt.patched(model, strategy):
            assert model.training
            model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(list(tiny_model().parameters()))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@BOTH
def test_training_a_patched_model_lowers_its_loss_and_leaves_a_plain_checkpoint(strategy: xt.Strategy) -> None:
    model, ids = tiny_model(sharpen=2).train(), tokens(60)
    keys = snapshot(model)["state"].keys()
    losses = []
    with xt.patched(model, strategy):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(8):
            loss = model(ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert model.state_dict().keys() == keys


@BOTH
def test_weights_quantised_on_load(strategy: xt.Strategy) -> None:
    # not among the development packages: it writes to stderr wherever transformers is imported
    torchao = pytest.importorskip("torchao.quantization")
    ids = tokens(100)
    model = tiny_model()
    before = snapshot(model)
    exact = under(model, strategy, ids)
    assert same(snapshot(model), before)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    stock = logits(model, ids)
    found = under(model, strategy, ids)
    assert torch.equal(logits(model, ids), stock)
    assert 0 < (found - exact).norm() < 0.2 * exact.norm()


@BOTH
def test_a_model_cast_after_patching_is_the_one_cast_before(strategy: xt.Strategy) -> None:
    ids, first, then = tokens(100), tiny_model(sharpen=2), tiny_model(sharpen=2)
    xt.patch(first, strategy)
    first.to(torch.bfloat16)
    then.to(torch.bfloat16)
    xt.patch(then, strategy)
    assert torch.equal(logits(first, ids), logits(then, ids))


@BOTH
def test_a_checkpoint_with_layers_on_disk_is_a_field_of_the_configuration(
    tmp_path: Path, checkpoint_folder: Path, strategy: xt.Strategy
) -> None:
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    spilt = xt.Checkpoint(
        str(checkpoint_folder),
        device="cpu",
        device_map={**places, "model.layers.0": "cpu", "model.layers.1": "disk"},
        offload_folder=str(tmp_path / "offload"),
    )
    whole = xt.Checkpoint(str(checkpoint_folder), device="cpu")
    assert {spilt: 1}[spilt] == 1  # hashable: it names the model that a sweep holds
    assert spilt.digest() == whole.digest()
    model, ids = spilt.model(), tokens(100)
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(under(model, strategy, ids), under(whole.model(), strategy, ids), rtol=0, atol=1e-5)
