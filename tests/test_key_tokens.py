"""Key tokens on a model that knows what only far text can tell."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import extrapolate as xt
from tests.conftest import tiny_model, tokens
from tests.test_losses import by_loop


class Rememberer(nn.Module):
    """Knows token t if it stands ``gap`` tokens before, otherwise finds all 200 equally likely."""

    def __init__(self, gap: int) -> None:
        super().__init__()
        self.gap = gap

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        scores = torch.zeros(*input_ids.shape, 200)
        for place in range(self.gap - 1, input_ids.shape[1]):
            scores[:, place].scatter_(-1, input_ids[:, place - self.gap + 1, None], 12.0)
        return SimpleNamespace(logits=scores)


def repeating(gap: int, length: int, seed: int) -> xt.Document:
    """Every tenth token from ``gap`` on is the one that stood ``gap`` tokens before."""
    ids = tokens(length, vocabulary=200, seed=seed)[0]
    for place in range(gap + (-gap) % 10, length, 10):
        ids[place] = ids[place - gap]
    return xt.Document(str(seed), ids)


def test_key_tokens_are_those_that_only_long_context_tells() -> None:
    evaluation = xt.KeyTokens(lengths=[80, 120], short=30, stride=10)
    measured = evaluation.measure(Rememberer(50), [repeating(50, 120, seed) for seed in (1, 2)])
    short, long = evaluation.scores(measured)
    assert (short.tokens_scored, long.tokens_scored) >= (2 * 3, 2 * 7)  # 50, 60, 70, and on to 110
    assert (short.tokens_scored, long.tokens_scored) <= (2 * 3 + 2, 2 * 7 + 3)  # and a chance repetition
    assert long.nll_mean == pytest.approx(math.log1p(199 * math.exp(-12)), rel=1e-2)
    assert (long.first_scored, long.documents, long.unit) == (50, 2, "document")
    assert long.context_min >= 50


def test_against_two_loops_over_tokens() -> None:
    model, ids = tiny_model(), tokens(120)
    evaluation = xt.KeyTokens(lengths=[120], short=30, stride=10, alpha=0.3, beta=6.0)
    (score,) = evaluation.scores(evaluation.measure(model, [xt.Document("a", ids[0])]))
    whole, chosen = by_loop(model, ids)[0], []
    for start in range(0, 90, 10):
        window = by_loop(model, ids[:, start : start + 40])[0][-10:]
        for token in range(start + 30, start + 40):
            before, after = window[token - start - 30].item(), whole[token - 1].item()
            if before - after > 0.3 and after < 6.0:
                chosen.append(after)
    assert score.tokens_scored == len(chosen) > 3
    assert score.nll_mean == pytest.approx(sum(chosen) / len(chosen), rel=1e-5)


def test_without_a_key_token_there_is_no_number_and_nothing_is_broken() -> None:
    evaluation = xt.KeyTokens(lengths=[100], short=30, stride=10)
    (score,) = evaluation.scores(evaluation.measure(Rememberer(20), [repeating(20, 100, 1)]))
    assert (score.tokens_scored, score.nonfinite, score.documents) == (0, 0, 1)
    assert math.isnan(score.perplexity)


def test_a_loss_that_is_not_finite_is_never_averaged_away() -> None:
    evaluation = xt.KeyTokens(lengths=[100], short=30, stride=10)
    measured = evaluation.measure(Rememberer(50), [repeating(50, 100, 1)])
    measured["window_100"][0, 77] = math.nan
    (score,) = evaluation.scores(measured)
    assert score.nonfinite == 1
    assert math.isnan(score.nll_mean)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": [4096]}, r"lengths must be at least short \+ stride = 5,120 tokens, got 4,096"),
        ({"short": 0}, "short must be a whole number of at least 1, got 0"),
        ({"stride": 1.5}, r"stride must be a whole number of at least 1, got 1\.5"),
        ({"alpha": math.nan}, "alpha must be a number of nats, got nan"),
    ],
)
def test_fields_are_checked_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.EvaluationError, match=message):
        xt.KeyTokens(**fields)
