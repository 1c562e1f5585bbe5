"""Losses of masked tokens, where their value is known, and of RoFormer past the end of its table."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import extrapolate as xt
from experiments.families import tiny_config
from tests.conftest import tokens

MASK = 127


class Neighbour(torch.nn.Module):
    """Knows that token t is one more than the token before, if it sees that; then it gives it 3/4, else all 1/128."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, ids: torch.Tensor) -> Any:
        self.calls.append(len(ids))
        logits = torch.zeros(*ids.shape, 128)
        before = ids.roll(1, dims=1)
        seen = (before != MASK) & (torch.arange(ids.shape[1]) > 0)
        rows, places = seen.nonzero(as_tuple=True)
        logits[rows, places, before[rows, places] + 1] = math.log(3 * 127)
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("every", [2, 3, 8, 40, 1000])
def test_each_token_is_scored_once_and_sees_the_tokens_that_are_not_masked_with_it(every: int) -> None:
    model, ids = Neighbour(), torch.arange(10, 50)[None].repeat(2, 1)
    losses = xt.masked_losses(model, ids, MASK, every=every, batch_size=3)
    expected = torch.full((2, 40), -math.log(3 / 4))
    expected[:, 0] = math.log(128)
    torch.testing.assert_close(losses, expected)
    assert sum(model.calls) == 2 * min(every, 40)
    assert max(model.calls) <= 3


def test_with_all_masked_at_once_nothing_is_seen() -> None:
    losses = xt.masked_losses(Neighbour(), torch.arange(10, 50)[None], MASK, every=1)
    torch.testing.assert_close(losses, torch.full((1, 40), math.log(128)))


def roformer() -> Any:
    torch.manual_seed(0)
    model = transformers.RoFormerForMaskedLM(tiny_config(transformers.RoFormerConfig)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:
                parameter *= 8
    return model


@torch.no_grad()
def test_one_mask_at_a_time_is_the_pseudo_log_likelihood_also_past_the_table() -> None:
    model, ids = roformer().train(), tokens(100, vocabulary=120)
    with pytest.raises(IndexError):
        xt.masked_losses(model, ids, MASK)
    with xt.patched(model, xt.Linear(factor=2)):
        found = xt.masked_losses(model, ids, MASK, every=100, batch_size=7)
        assert model.training
        model.eval()
        for place in (0, 37, 63, 64, 99):
            masked = ids.clone()
            masked[0, place] = MASK
            expected = -model(masked).logits[0, place].double().log_softmax(-1)[ids[0, place]]
            assert found[0, place].item() == pytest.approx(expected.item(), rel=1e-4)
        torch.testing.assert_close(
            found, xt.masked_losses(model, ids, MASK, every=100, batch_size=100), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": True}, "every must be a whole number"),
        ({"batch_size": 1.5}, r"batch_size must be a whole number of at least 1, got 1\.5"),
        ({"mask_token_id": 12}, "input_ids hold mask_token_id 12 already"),
        ({"input_ids": torch.zeros(3, dtype=torch.long)}, r"must be \(batch, length\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    given = {"input_ids": torch.arange(10, 20)[None], "mask_token_id": MASK, **options}
    with pytest.raises(xt.EvaluationError, match=message):
        xt.masked_losses(Neighbour(), **given)
