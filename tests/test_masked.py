"""Losses of masked tokens, where their value is known, and of RoFormer past the end of its table."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hydra import compose, initialize_config_dir

import extrapolate as xt
from experiments.families import tiny_config
from extrapolate.commands.cell import run_cell
from tests.conftest import byte_tokenizer, tokens

ROOT = Path(__file__).parent.parent

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


def test_a_frame_is_never_masked_and_never_scored() -> None:
    seen: list[torch.Tensor] = []

    class Recorder(Neighbour):
        def forward(self, ids: torch.Tensor) -> Any:
            seen.append(ids.clone())
            return super().forward(ids)

    losses = xt.masked_losses(Recorder(), torch.arange(10, 50)[None], MASK, every=3, frame=True)
    assert all((ids[:, 0] == 10).all() and (ids[:, -1] == 49).all() for ids in seen)
    assert torch.isnan(losses[0, [0, -1]]).all()
    assert torch.isfinite(losses[0, 1:-1]).all()


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


# As an evaluation of a sweep


def encoder_folder(folder: Path) -> Path:
    """A tiny RoFormer with a byte tokenizer that knows [CLS], [SEP] and [MASK]."""
    tokenizer = byte_tokenizer(cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    torch.manual_seed(0)
    config = tiny_config(transformers.RoFormerConfig)
    config.vocab_size = len(tokenizer)
    transformers.RoFormerForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("framed", [True, False])
def test_pseudo_perplexity_is_the_mean_over_the_masked_tokens_of_all_documents(tmp_path: Path, framed: bool) -> None:
    folder = encoder_folder(tmp_path)
    checkpoint = xt.Checkpoint(str(folder), device="cpu", attn_implementation="eager")
    model, tokenizer = checkpoint.model("masked"), checkpoint.tokenizer()
    documents = [xt.Document(str(i), tokens(60, seed=i)[0], torch.arange(1, 61)) for i in (1, 2)]
    evaluation = xt.PseudoPerplexity(lengths=[20, 41], every=50, start_token="first" if framed else "none")
    measured = evaluation.measure(model, documents, tokenizer)
    for score in evaluation.scores(measured):
        total, count = 0.0, 0
        for document in documents:
            ids = document.ids[: score.length - 2 * framed]
            if framed:
                ids = torch.cat((torch.tensor([tokenizer.cls_token_id]), ids, torch.tensor([tokenizer.sep_token_id])))
            for place in range(int(framed), score.length - framed):
                masked = ids.clone()
                masked[place] = tokenizer.mask_token_id
                with torch.no_grad():
                    total -= model(masked[None]).logits[0, place].double().log_softmax(-1)[ids[place]].item()
                count += 1
        assert score.tokens_scored == score.bytes_scored == count
        assert score.nll_sum == pytest.approx(total, rel=1e-5)
        assert score.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)
        assert (score.context_min, score.context_max) == (score.length - 1, score.length - 1)


def test_an_encoder_is_swept_past_its_table_like_any_other_model(tmp_path: Path, own_cache: Path) -> None:
    encoder_folder(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("It is a fact of history. " * 20)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for strategy in ("linear", "ntk", "self_extend"):
            cfg = compose(
                "sweep",
                [
                    *("evaluation=pseudo_perplexity", "evaluation.lengths=[32,64,128]", f"strategy={strategy}"),
                    *(
                        "model=hf",
                        f"model.path={tmp_path / 'model'}",
                        "model.attn_implementation=eager",
                        "data=local",
                        f"data.source.path={tmp_path}/texts",
                    ),
                    *(f"results={tmp_path / 'results'}", "progress=false", "factor=4"),
                ],
            )
            run_cell(cfg)
    table = xt.read_results(tmp_path / "results")
    assert set(table["protocol"]) == {"masked"}
    done = table[table["status"] == "ok"]
    assert {(s, n) for s, n in zip(done["strategy"], done["length"], strict=True)} >= {
        (s, n) for s in ("linear", "ntk") for n in (32, 64, 128)
    }
    assert done["bits_per_byte"].notna().all()
    refused = table[table["status"] == "failed"]
    assert set(refused["strategy"]) == {"self_extend"}  # bands belong to causal attention
    del own_cache


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"start_token": "every"}, "start_token must be 'none' or 'first', got 'every'"),
        ({"lengths": [2, 8]}, "lengths must be at least 3 tokens"),
    ],
)
def test_fields_of_pseudo_perplexity_are_checked_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.EvaluationError, match=message):
        xt.PseudoPerplexity(**fields)


def test_a_tokenizer_without_the_tokens_that_are_needed_is_refused() -> None:
    with pytest.raises(xt.EvaluationError, match="no mask and no cls and no sep token; it needs a masked language"):
        xt.PseudoPerplexity().identity(byte_tokenizer())
    with pytest.raises(xt.EvaluationError, match="no cls and no sep token; use start_token=none"):
        xt.PseudoPerplexity().identity(byte_tokenizer(mask_token="[MASK]"))
