"""The training loop: it learns, resumes to the same weights, and says what it held out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

import extrapolate as xt
from experiments import training
from experiments.pretrain import run
from tests.conftest import tiny_model

CONF = Path(__file__).parent.parent / "conf"

RECIPE = training.Recipe(
    steps=12,
    batch_size=4,
    length=32,
    learning_rate=0.01,
    warmup=2,
    weight_decay=0.1,
    clip=1.0,
    seed=0,
    evaluate_every=4,
    autocast=False,
)
TEXT = torch.arange(3, 103).repeat(40)  # a text that can be learned: each token tells the next
HELD_OUT = TEXT[: 8 * 32].view(8, 32)


def fresh() -> Any:
    return tiny_model(sharpen=1)


def test_it_learns(tmp_path: Path) -> None:
    model = fresh()
    before = training.evaluate(model, HELD_OUT, autocast=False)
    records = training.fit(model, TEXT, HELD_OUT, RECIPE, tmp_path, "t")
    assert [record["step"] for record in records] == list(range(1, 13))
    assert [record["step"] for record in records if "held_out" in record] == [4, 8, 12]
    assert records[-1]["held_out"] < before - 1
    assert records[-1]["held_out"] == pytest.approx(training.evaluate(model, HELD_OUT, autocast=False))
    assert not model.training


def test_a_killed_run_goes_on_to_the_very_weights_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed, resumed = fresh(), fresh(), fresh()
    expected = training.fit(whole, TEXT, HELD_OUT, RECIPE, tmp_path / "whole", "t")
    windows = training.windows

    def until_ten(text: torch.Tensor, recipe: training.Recipe, step: int) -> torch.Tensor:
        if step == 10:
            raise KeyboardInterrupt
        return windows(text, recipe, step)

    monkeypatch.setattr(training, "windows", until_ten)
    with pytest.raises(KeyboardInterrupt):
        training.fit(killed, TEXT, HELD_OUT, RECIPE, tmp_path / "killed", "t")
    monkeypatch.setattr(training, "windows", windows)
    records = training.fit(resumed, TEXT, HELD_OUT, RECIPE, tmp_path / "killed", "t")
    assert [record["loss"] for record in records] == [record["loss"] for record in expected]
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize("change", [{"seed": 1}, {"learning_rate": 0.02}])
def test_a_checkpoint_of_another_recipe_is_not_gone_on_from(
    tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    training.fit(fresh(), TEXT, HELD_OUT, dataclasses.replace(RECIPE, steps=4), tmp_path, "t")
    records = training.fit(fresh(), TEXT, HELD_OUT, dataclasses.replace(RECIPE, steps=4, **change), tmp_path, "t")
    assert "of another recipe" in caplog.text
    assert len(records) == 4


def test_a_finished_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = training.fit(fresh(), TEXT, HELD_OUT, RECIPE, tmp_path, "t")
    monkeypatch.setattr(training, "windows", None)  # a step would fail
    assert training.fit(fresh(), TEXT, HELD_OUT, RECIPE, tmp_path, "t") == first


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    model = fresh()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(SystemExit, match="the loss of step 1 is nan; lower learning_rate"):
        training.fit(model, TEXT, HELD_OUT, RECIPE, tmp_path, "t")


def test_the_schedule_warms_up_and_ends_at_a_tenth() -> None:
    recipe = dataclasses.replace(RECIPE, steps=100, warmup=10, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55)
    assert rates[99] == pytest.approx(0.1, abs=1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    a, b = (training.windows(TEXT, RECIPE, 5) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape == (4, 32)
    assert not torch.equal(a, training.windows(TEXT, RECIPE, 6))
    assert not torch.equal(a, training.windows(TEXT, dataclasses.replace(RECIPE, seed=1), 5))


def test_whole_years_are_held_out_and_windows_are_shared_out() -> None:
    texts, held_out = training.split(5)
    assert len(texts) + len(held_out) == 237
    assert {name[3] for name, _ in held_out} == {"5"}
    assert not set(texts) & {text for _, text in held_out}
    windows = training.held_out_windows([torch.arange(100), torch.arange(1000, 1045)], 20, most=5)
    assert windows[:, 0].tolist() == [0, 1000, 20, 1020, 40]


def test_the_tokenizer_represents_any_text_and_ends_documents() -> None:
    tokenizer = training.train_tokenizer(["the quick brown fox jumps over the lazy dog " * 20], 300)
    assert 257 < len(tokenizer) <= 300  # every byte, the special token, and what the text has merges for
    for text in ("the fox", "Größe 漢字 \n\t🙂"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    ids = training.stream(["the fox", "dog"], tokenizer)
    assert int((ids == tokenizer.eos_token_id).sum()) == 2
    assert ids[-1] == tokenizer.eos_token_id


def test_the_log_is_stored_with_each_checkpoint(tmp_path: Path) -> None:
    records = training.fit(fresh(), TEXT, HELD_OUT, RECIPE, tmp_path, "t")
    lines = (tmp_path / training.CHECKPOINT / training.LOG).read_text().splitlines()
    assert [json.loads(line) for line in lines] == records


def test_pretraining_leaves_a_folder_that_loads_and_says_how_it_was_made(tmp_path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(
            "pretrain",
            [
                *(f"output={tmp_path}", "texts=3", "vocabulary=300"),
                *("recipe.steps=4", "recipe.evaluate_every=4", "recipe.batch_size=2", "recipe.length=32"),
                *("model.hidden_size=32", "model.intermediate_size=32", "model.num_hidden_layers=1"),
                *("model.head_dim=8", "model.max_position_embeddings=32"),
            ],
        )
    model, tokenizer = xt.load_model(str(run(cfg)), dtype="float32", device="cpu")
    made = json.loads((tmp_path / "model" / "training.json").read_text(encoding="utf-8"))
    assert (len(tokenizer), xt.read_spec(model.config).pretrained_length) == (300, 32)
    assert made["training_tokens"] == 4 * 2 * 32
    assert made["recipe"] == {"output": str(tmp_path), **{k: cfg[k] for k in made["recipe"] if k != "output"}}
    assert {name[3] for name in made["held_out_documents"]} == {"5"}
    # the stored weights, rounded to bfloat16, are those whose loss is told
    held_out = list(training.texts_of(training.split(5)[1], tokenizer))
    windows = training.held_out_windows(held_out, 32)
    assert training.evaluate(model, windows, autocast=True) == pytest.approx(made["held_out_loss"], abs=0.01)
