"""Token losses equal a loop over tokens, whatever the batch, the padding, the head and the size."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import extrapolate as xt
from experiments.families import tiny_config
from extrapolate.evaluation import losses as module
from tests.conftest import logits, tiny_model, tokens


def by_loop(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """One token at a time from the model's own logits, in float64."""
    rows = []
    for row in ids:
        log_probabilities = logits(model, row[None])[0].double().log_softmax(-1)
        rows.append([-log_probabilities[t, row[t + 1]].item() for t in range(len(row) - 1)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("gemma2", {"final_logit_softcapping": 5.0}),  # the head squashes its logits
        ("cohere", {"logit_scale": 0.25}),  # the head scales them
        ("granite", {"logits_scaling": 4.0}),
        ("phi", {}),  # the head has a bias
        ("gpt_neox", {}),  # the body is not called `model`
    ],
)
def test_losses_equal_a_loop_over_tokens(family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 128 * 2 * 7)  # slices of 7 tokens, the last one shorter
    model = tiny_model(family, pad_token_id=0, **changes)
    ids = tokens(40, batch=2)
    found = xt.token_losses(model, ids)
    assert found.shape == (2, 39)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), by_loop(model, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama4Config", "Llama4TextConfig", "MllamaConfig", "Gemma3Config"])
def test_the_head_runs_in_slices_also_where_the_body_is_called_otherwise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = tiny_config(getattr(transformers, name))
    vocabulary = config.get_text_config().vocab_size
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = tokens(40, batch=2, vocabulary=min(vocabulary, 100))
    expected, widths = by_loop(model, ids), list[int]()
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", vocabulary * 2 * 7)
    losses_of = module.losses_of

    def noted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        widths.append(logits.shape[1])
        return losses_of(logits, targets)

    monkeypatch.setattr(module, "losses_of", noted)
    torch.testing.assert_close(xt.token_losses(model, ids).double(), expected, rtol=1e-5, atol=1e-5)
    assert widths == [7, 7, 7, 7, 7, 4]


def test_the_model_is_left_as_it_was(tiny: Any) -> None:
    body, hooks = tiny.model, [len(m._forward_hooks) for m in tiny.modules()]
    xt.token_losses(tiny, tokens(20), progress=lambda _: None)
    assert tiny.model is body
    assert [len(m._forward_hooks) for m in tiny.modules()] == hooks
    with pytest.raises(IndexError):
        xt.token_losses(tiny, torch.tensor([[1, 500]]), progress=lambda _: None)
    assert tiny.model is body
    assert [len(m._forward_hooks) for m in tiny.modules()] == hooks


def test_dropout_is_not_measured_and_the_mode_is_kept(tiny: Any) -> None:
    ids = tokens(30)
    expected = xt.token_losses(tiny, ids)
    tiny.model.layers[1].self_attn.attention_dropout = 0.5
    tiny.train()
    tiny.lm_head.eval()
    assert torch.equal(xt.token_losses(tiny, ids), expected)
    assert tiny.training
    assert tiny.model.layers[1].training
    assert not tiny.lm_head.training


def test_a_model_without_a_separable_head_is_asked_for_all_logits() -> None:
    class Uniform(nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 10)})

    ids = torch.zeros(2, 5, dtype=torch.long)
    for model in (Uniform(), Uniform().forward):  # a module, or any callable
        torch.testing.assert_close(xt.token_losses(model, ids), torch.full((2, 4), 10.0).log())


def test_losses_of_a_prefix_do_not_depend_on_what_follows(tiny: Any) -> None:
    ids = tokens(200)
    whole = xt.token_losses(tiny, ids)
    for length in (2, 63, 150):
        torch.testing.assert_close(xt.token_losses(tiny, ids[:, :length]), whole[:, : length - 1], rtol=1e-5, atol=1e-5)


def test_half_precision_logits_are_summed_in_float32() -> None:
    model = tiny_model().to(torch.bfloat16)
    ids = tokens(30)
    found = xt.token_losses(model, ids)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), by_loop(model, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pad", [0, 2, 127, -100, 100_000], ids=lambda p: f"pad{p}")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_number(tiny: Any, side: str, pad: int) -> None:
    # case 39: any pad id, also one that stands in the text, also one that is no token at all
    texts = [tokens(n, seed=n)[0] for n in (9, 30, 17, 2)]
    texts[1][5:8] = 2
    alone = [xt.token_losses(tiny, text[None])[0] for text in texts]
    batch, mask = torch.full((4, 30), pad), torch.zeros(4, 30, dtype=torch.long)
    for row, text in enumerate(texts):
        where = slice(30 - len(text), None) if side == "left" else slice(0, len(text))
        batch[row, where], mask[row, where] = text, 1
    together = xt.token_losses(tiny, batch, mask)
    for row, expected in enumerate(alone):
        real = ~together[row].isnan()
        assert int(real.sum()) == len(expected)
        torch.testing.assert_close(together[row][real], expected, rtol=1e-5, atol=1e-5)
        first = 30 - len(texts[row]) if side == "left" else 0
        assert real[first : first + len(expected)].all()


def test_padding_scored_would_be_noticed(tiny: Any) -> None:
    ids, mask = tokens(10, batch=2), torch.ones(2, 10, dtype=torch.long)
    mask[0, 6:] = 0
    assert xt.token_losses(tiny, ids, mask).mean().isnan()
    assert torch.equal(xt.token_losses(tiny, ids, torch.ones_like(mask)), xt.token_losses(tiny, ids))


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.zeros(5, dtype=torch.long), None, "must be \\(batch, length\\)"),
        (torch.zeros(1, 1, dtype=torch.long), None, "length at least 2"),
        (torch.zeros(1, 4, dtype=torch.long), torch.tensor([[1, 0, 1, 1]]), "one run of real tokens"),
        (torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0, 0, 0, 0]]), "one run of real tokens"),
    ],
)
def test_input_that_cannot_be_scored_is_refused(tiny: Any, ids: torch.Tensor, mask: Any, message: str) -> None:
    with pytest.raises(xt.EvaluationError, match=message):
        xt.token_losses(tiny, ids, mask)


def test_progress_counts_every_token_once(tiny: Any) -> None:
    done: list[float] = []
    xt.token_losses(tiny, tokens(25, batch=3), progress=done.append)
    assert sum(done) == pytest.approx(75)
    assert len(done) == 2  # one report a layer


MEMORY = """
import resource, torch
from tests.conftest import tiny_model, tokens
import extrapolate as xt
model = tiny_model(vocab_size=151936, num_hidden_layers=1)
xt.token_losses(model, tokens(64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
losses = xt.token_losses(model, tokens(8192, vocabulary=151936))
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
reference = torch.nn.functional.cross_entropy(
    model(tokens(8192, vocabulary=151936)[:, :512]).logits[0, :-1], tokens(8192, vocabulary=151936)[0, 1:512],
    reduction="none")
print(grown, (losses[0, :511] - reference).abs().max().item())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="resource is POSIX only")
def test_memory_does_not_grow_with_length_times_vocabulary() -> None:
    # case 45: 8192 × 151936 logits would take 4.98 GB in float32
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    megabytes, difference = map(float, out.stdout.split())
    assert megabytes < 1000
    assert difference < 1e-5
