"""Perplexity by length: which tokens, which mean, and what happens when a number is not finite."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import extrapolate as xt
from tests.conftest import byte_tokenizer, tokens
from tests.test_losses import by_loop


def documents(*lengths: int) -> list[xt.Document]:
    return [xt.Document(f"d{n}", tokens(n, seed=n)[0]) for n in lengths]


class Constant(nn.Module):
    """Gives every token the same loss, and keeps what it was fed."""

    def __init__(self, loss: float) -> None:
        super().__init__()
        self.loss = loss
        self.fed: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.fed.append(input_ids.clone())
        # one other token takes all the probability: log-softmax of the target is -loss (up to 1e-43)
        scores = torch.full((*input_ids.shape, 130), -1e30)
        scores[..., 129] = 0.0
        scores.scatter_(-1, input_ids.roll(-1, dims=1)[..., None], -self.loss)
        return type("Output", (), {"logits": scores})


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_prefix_perplexity_is_one_sum_over_one_count(tiny: Any, batch_size: int) -> None:
    # case 36: no mean of means; against a plain loop over tokens
    texts = documents(150, 160, 170)
    evaluation = xt.Perplexity(lengths=[2, 64, 100, 150], batch_size=batch_size)
    scores = evaluation.scores(evaluation.measure(tiny, texts))
    assert [score.length for score in scores] == [2, 64, 100, 150]
    for score in scores:
        loop = torch.cat([by_loop(tiny, text.ids[None, : score.length]).flatten() for text in texts])
        assert score.tokens_scored == loop.numel() == 3 * (score.length - 1)
        assert score.nll_sum == pytest.approx(loop.sum().item(), rel=1e-6)
        assert score.nll_mean == pytest.approx(loop.mean().item(), rel=1e-6)
        assert score.perplexity == pytest.approx(math.exp(loop.mean().item()), rel=1e-5)
        assert (score.documents, score.first_scored, score.last_scored) == (3, 1, score.length - 1)
        assert (score.length_used, score.nonfinite) == (score.length, 0)


def test_documents_weigh_by_their_tokens_in_float64() -> None:
    losses = torch.tensor([[1e8, 1.0, 1.0], [1.0, 1.0, 1.0]])  # float32 sums would lose the ones
    score = xt.prefix_score(losses, 4)
    assert score.nll_sum == 1e8 + 5
    assert score.nll_mean == (1e8 + 5) / 6


def test_one_pass_gives_what_a_pass_for_each_length_gives(tiny: Any) -> None:
    texts = documents(150, 160)
    evaluation = xt.Perplexity(lengths=[20, 70, 150])
    once, each = evaluation.measure(tiny, texts), evaluation.measure(tiny, texts, one_pass=False)
    assert [name for name in once if name.startswith("window")] == ["window_150"]
    assert [name for name in each if name.startswith("window")] == ["window_150", "window_70", "window_20"]
    for a, b in zip(evaluation.scores(once), evaluation.scores(each), strict=True):
        assert a.nll_sum == pytest.approx(b.nll_sum, rel=1e-6)


def test_one_pass_runs_the_model_once() -> None:
    stub = Constant(1.0)
    evaluation = xt.Perplexity(lengths=list(range(2, 66)))
    evaluation.measure(stub, documents(65))
    assert [ids.shape[1] for ids in stub.fed] == [65]


@pytest.mark.parametrize(("loss", "expected"), [(100.0, math.exp(100)), (800.0, math.inf), (math.nan, math.nan)])
def test_perplexity_past_the_range_of_a_float_is_inf_and_nan_is_marked(loss: float, expected: float) -> None:
    # case 42: exp raises above 709.78, float32 is inf above 88.7
    evaluation = xt.Perplexity(lengths=[4, 8])
    for score in evaluation.scores(evaluation.measure(Constant(loss), documents(20, 30))):
        assert score.perplexity == pytest.approx(expected, rel=1e-6, nan_ok=True)
        assert score.nll_mean == pytest.approx(loss, rel=1e-6, nan_ok=True)
        assert score.nonfinite == (score.tokens_scored if math.isnan(loss) else 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_counted_and_never_averaged_away(bad: float) -> None:
    losses = torch.ones(2, 99)
    losses[1, 50] = bad
    before, after = xt.prefix_score(losses, 51), xt.prefix_score(losses, 52)
    assert (before.nll_mean, before.nonfinite) == (1.0, 0)
    assert math.isnan(after.nll_sum)
    assert math.isnan(after.perplexity)
    assert after.nonfinite == 1


@pytest.mark.parametrize("policy", ["none", "first"])
def test_each_model_input_has_exactly_the_start_tokens_asked_for(policy: str) -> None:
    # case 38: exactly one or none, never scored, and the window stays at the length asked for
    tokenizer, stub = byte_tokenizer(), Constant(1.0)
    evaluation = xt.Perplexity(lengths=[10, 20], start_token=policy)
    texts = documents(40, 50, 60)
    assert not any((text.ids == tokenizer.bos_token_id).any() for text in texts)
    for one_pass in (True, False):
        stub.fed.clear()
        scores = evaluation.scores(evaluation.measure(stub, texts, tokenizer, one_pass=one_pass))
        assert sorted({ids.shape[1] for ids in stub.fed}) == ([20] if one_pass else [10, 20])
        for ids in stub.fed:
            assert int((ids == tokenizer.bos_token_id).sum()) == (policy == "first")
            assert policy == "none" or ids[0, 0] == tokenizer.bos_token_id
        for score in scores:
            assert score.tokens_scored == 3 * (score.length - 1)
            assert (score.first_scored, score.last_scored) == (
                (1, score.length - 1) if policy == "none" else (0, score.length - 2)
            )


def test_a_tokenizer_that_adds_a_start_token_by_itself_adds_none() -> None:
    # case 38
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert tokenizer("a")["input_ids"][0] == 0
    from extrapolate.data import encode

    assert len(encode(tokenizer, "abc")[0]) == 3


def test_a_start_token_that_does_not_exist_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(xt.EvaluationError, match="no beginning-of-text token"):
        xt.Perplexity(lengths=[4], start_token="first").start_token_id(tokenizer)


def test_a_document_shorter_than_the_length_is_refused_and_not_cut(tiny: Any) -> None:
    # case 40
    with pytest.raises(xt.EvaluationError, match="d50 has 50 tokens, the longest length needs 64"):
        xt.Perplexity(lengths=[64]).measure(tiny, documents(80, 50))
    with pytest.raises(xt.EvaluationError, match="no documents"):
        xt.Perplexity(lengths=[64]).measure(tiny, [])
    with pytest.raises(xt.EvaluationError, match="needs 63 losses"):
        xt.prefix_score(torch.ones(1, 10), 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": 512}, r"evaluation\.lengths=512 is one value; give a list in brackets"),  # case 52
        ({"lengths": []}, "lengths must be whole numbers of at least 2"),
        ({"lengths": [1, 2]}, "lengths must be whole numbers of at least 2"),
        ({"lengths": [64.5]}, "lengths must be whole numbers"),
        ({"protocol": "slide"}, "protocol must be one of prefix, by_position, last, sliding, .*, got 'slide'"),
        ({"start_token": True}, "start_token must be one of none, first, every, got True"),
        ({"start_token": "every"}, "start_token of protocol 'prefix' must be none or first, got 'every'"),
        ({"stride": 8}, "stride means nothing to protocol 'prefix'"),
        ({"tokens": 9000}, "tokens means nothing to protocol 'prefix'"),
        ({"first_window": "tail"}, "first_window means nothing to protocol 'prefix'"),
        ({"protocol": "sliding", "first_window": "half"}, "first_window must be 'whole' or 'tail', got 'half'"),
        ({"protocol": "sliding", "stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"protocol": "sliding", "stride": 1024}, "start_token=none at length 1024 must be at most 1023, got 1024"),
        ({"protocol": "sliding", "tokens": 100}, "tokens must be a whole number of at least 8192, got 100"),
        ({"protocol": "last", "targets": 1024}, "targets must be a whole number of at least 1 and at most 1023"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
    ],
)
def test_fields_are_checked_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.EvaluationError, match=message):
        xt.Perplexity(**fields)


def test_the_order_of_lengths_and_the_batch_are_no_part_of_the_identity() -> None:
    a, b = xt.Perplexity(lengths=[64, 32, 64], batch_size=4), xt.Perplexity(lengths=[32, 64])
    assert a.identity(None) == b.identity(None)
    other = xt.Perplexity(lengths=[32, 64], start_token="first")
    assert a.identity(None) != other.identity(byte_tokenizer())


def test_a_default_spelled_out_is_the_same_cell() -> None:
    lengths = [32, 64]
    left_out = xt.Perplexity(lengths=lengths, protocol="sliding")
    told: dict[str, Any] = {"start_token": "none", "tokens": 64, "stride": 16, "first_window": "whole"}
    assert left_out.identity(None) == xt.Perplexity(lengths=lengths, protocol="sliding", **told).identity(None)
    for change in ({"tokens": 70}, {"stride": 8}, {"first_window": "tail"}, {"start_token": "every"}):
        other = xt.Perplexity(lengths=lengths, protocol="sliding", **{**told, **change})
        assert other.identity(byte_tokenizer()) != left_out.identity(None)
