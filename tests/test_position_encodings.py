"""Six position encodings on one body: each is what its paper says, sees no future, and is measured or reported."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir

import extrapolate as xt
from experiments import position_encodings as pe
from tests.conftest import byte_tokenizer, tokens

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
TOKENIZER = byte_tokenizer(eos_token="<s>")
CONF = Path(__file__).parent.parent / "conf"


def built(name: str) -> Any:
    return pe.build(name, SHAPE, TOKENIZER, 32, seed=0).eval()


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids).logits
    return found


@pytest.mark.parametrize("name", pe.ENCODINGS)
def test_no_encoding_sees_the_future(name: str) -> None:
    model, ids = built(name), tokens(32)
    changed = ids.clone()
    changed[0, 20:] = 5
    torch.testing.assert_close(logits(model, ids)[:, :20], logits(model, changed)[:, :20], rtol=0, atol=1e-5)
    assert not torch.allclose(logits(model, ids)[:, 20:], logits(model, changed)[:, 20:])


def test_they_differ_in_nothing_but_the_encoding() -> None:
    bodies = {name: getattr(built(name), "body", built(name)).state_dict() for name in pe.ENCODINGS}
    for name, state in bodies.items():
        assert all(torch.equal(state[key], value) for key, value in bodies["rope"].items()), name
    outputs = [logits(built(name), tokens(32)) for name in pe.ENCODINGS]
    for i, a in enumerate(outputs):
        assert all((a - b).abs().max() > 1e-4 for b in outputs[i + 1 :])


def test_without_a_signal_the_last_token_does_not_know_the_order_of_the_others() -> None:
    model, ids = built("none"), tokens(8)
    model.body.model.layers = model.body.model.layers[:1]  # in one layer nothing but the mask tells positions apart
    shuffled = torch.cat((ids[:, :7].flip(1), ids[:, 7:]), dim=1)
    torch.testing.assert_close(logits(model, ids)[:, -1], logits(model, shuffled)[:, -1], rtol=0, atol=1e-5)


def test_alibis_bias_is_the_papers() -> None:
    bias = pe.ALiBi(4).bias(5)
    for head, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        assert bias[head, 4].tolist() == pytest.approx([-slope * d for d in (4, 3, 2, 1, 0)])
    assert pe.ALiBi(8).slopes.tolist() == pytest.approx([2.0 ** -(i + 1) for i in range(8)])


def test_t5_gives_each_near_distance_a_bias_and_all_far_ones_the_same() -> None:
    bias = pe.T5Bias(4).bias(300)
    last = bias[0, 299].flip(0)  # by distance
    assert len(set(last[:16].tolist())) == 16
    assert len(set(last[128:].tolist())) == 1
    assert bias[0, 10, 3] == bias[0, 250, 243]  # relative


def test_sinusoids_are_vaswanis() -> None:
    found = pe.Sinusoidal(8).added(50)
    for i in range(4):  # in halves, and base 10000^(1/(d/2 - 1)), as tensor2tensor and XGLM have it
        angle = 7 * 10000 ** (-i / 3)
        assert found[7, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert found[7, 4 + i].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_a_table_that_ends_is_reported_and_the_others_are_measured() -> None:
    documents = tokens(128, batch=2)
    rows = pd.DataFrame(pe.measure("learned", built("learned"), documents, 32, [1, 2, 4]))
    assert rows["status"].tolist()[0] == "ok"
    assert rows["status"].tolist()[1:] == ["learned: has 32 positions, cannot run at length 128"] * 2
    assert rows["loss"].notna().tolist() == [True, False, False]


def test_losses_are_those_of_the_library() -> None:
    model, documents = built("rope"), tokens(128, batch=2)
    rows = pd.DataFrame(pe.measure("rope", model, documents, 32, [1, 2, 4]))
    assert rows["encoding"].unique().tolist() == ["rope", "rope, NTK ×4", "rope, YaRN ×4"]
    with xt.patched(model, xt.YaRN(factor=4)):
        nll = xt.token_losses(model, documents).double()
    yarn = rows[rows["encoding"] == "rope, YaRN ×4"].set_index("length")
    assert yarn.loc[128, "loss"] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert yarn.loc[64, "loss_of_last_half"] == pytest.approx(nll[:, 32:63].mean().item(), rel=1e-5)


def test_a_reduced_run_trains_and_measures_all(tmp_path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        shape = [f"model.{k}={v}" for k, v in SHAPE.items() if isinstance(v, int) and not isinstance(v, bool)]
        small = [
            "recipe.steps=6",
            "recipe.evaluate_every=6",
            "recipe.batch_size=4",
            "recipe.length=32",
            "vocabulary=300",
        ]
        cfg = compose(
            "position_encodings", [f"output={tmp_path}", "texts=3", "documents=2", "factors=[1,2,4]", *small, *shape]
        )
    table = pe.run(cfg)
    assert table["encoding"].unique().tolist() == [
        *("learned", "sinusoidal", "t5_bias", "alibi", "rope", "rope, NTK ×4", "rope, YaRN ×4", "none")
    ]
    assert (table["status"] == "ok").sum() == 3 * 8 - 2
    assert table["held_out_loss"].between(3, 6.5).all()
    long = pd.concat(
        pd.DataFrame({"curve": row["encoding"], "position": range(1, 128), "loss": row["losses"].tolist()})
        for row in table.to_dict("records")
        if isinstance(row["losses"], torch.Tensor) and len(row["losses"]) == 127
    )
    figure = xt.plots.loss_by_position(long, trained_length=32)
    assert len(figure.axes[0].get_lines()) == 7 + 1
    figure.savefig(tmp_path / "f.png")
    cfg.encodings = ["rotary"]
    with pytest.raises(SystemExit, match="unknown encodings rotary"):
        pe.run(cfg)


def test_the_readme_and_the_log_show_what_was_measured() -> None:
    table = pd.read_csv(CONF.parent / "docs" / "position_encodings" / "scores.csv")
    assert set(table["encoding"]) == {*pe.ENCODINGS, "rope, NTK ×16", "rope, YaRN ×16"}
    for path in ("README.md", "experiments/LOG.md"):
        text = (CONF.parent / path).read_text(encoding="utf-8")
        for _, rows in table.groupby("encoding"):
            losses = rows.sort_values("length")["loss_of_last_half"]
            assert f"| {' | '.join('cannot run' if math.isnan(x) else f'{x:.3f}' for x in losses)} |" in text
