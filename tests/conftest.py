"""Models made anew for each test, so that no test sees what another one did to them."""

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import transformers

transformers.utils.logging.set_verbosity_error()
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores
hypothesis.settings.register_profile("untimed", deadline=None)  # machines are noisy
hypothesis.settings.load_profile("untimed")

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(model_type: str = "llama", *, seed: int = 0, sharpen: float = 8.0, **changes: Any) -> Any:
    """A tiny random model of 64 tokens' pretrained length and theta 10000, in evaluation mode.

    Every 2-D weight is multiplied by 8: with small weights attention is almost uniform, and a wrong rotation would
    change the logits so little that a test passes by accident.
    """
    config = transformers.CONFIG_MAPPING[model_type](**{**TINY, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= sharpen
    return model.eval()


def tokens(length: int, *, batch: int = 1, vocabulary: int = 128, seed: int = 1) -> torch.Tensor:
    """Random token ids, (batch, length)."""
    return torch.randint(3, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """(batch, length, vocabulary), no cache."""
    out: torch.Tensor = model(ids, use_cache=False).logits
    return out


@pytest.fixture
def tiny() -> Any:
    return tiny_model()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EXTRAPOLATE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama and a byte-level tokenizer, saved the way a checkpoint is."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = byte_tokenizer()
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer(**options: Any) -> Any:
    """One token a byte, a beginning-of-text token, and no padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", **options)
