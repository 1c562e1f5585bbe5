"""The bundled model: it loads offline, it is small, and it shows the field's picture on documents it never saw."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import extrapolate as xt
from extrapolate.models.load import BUNDLED

ROOT = Path(__file__).parent.parent
FOLDER = BUNDLED["bundled"]
# of the documents held out in training (years ending in 5)
DOCUMENTS = ["1905-Roosevelt-1", "1885-Cleveland-1", "1845-Polk-1"]


@pytest.fixture(scope="module")
def bundled() -> tuple[Any, list[xt.Document]]:
    model, tokenizer = xt.load_model("bundled", dtype="float32", device="cpu")
    return model, xt.load_documents(xt.Sotu(), tokenizer, names=DOCUMENTS)


def test_what_ships_is_small_and_says_how_it_was_made() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16 * 2**20
    assert not [file.name for file in FOLDER.iterdir() if file.suffix in {".bin", ".pt", ".pkl"}]
    made = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    assert set(DOCUMENTS) <= set(made["held_out_documents"])
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{made['held_out_loss']:.3f}" in card
    assert f"{made['training_tokens']:,}" in card


def test_readme_and_card_show_what_was_measured() -> None:
    table = pd.read_csv(ROOT / "docs" / "smoke" / "scores.csv")
    lines = [
        f"| {label} | {' | '.join(f'{x:.2f}' for x in rows.sort_values('length')['perplexity'])} |"
        for label, rows in table.groupby("label")
    ]
    assert len(lines) == 4
    for path in (ROOT / "README.md", FOLDER / "README.md"):
        text = path.read_text(encoding="utf-8")
        assert all(line in text for line in lines), path


def test_its_rope_is_the_textbooks(bundled: tuple[Any, list[xt.Document]]) -> None:
    spec = xt.read_spec(bundled[0].config)
    assert (spec.theta, spec.rotary_dim, spec.pretrained_length, spec.shipped_type) == (10_000.0, 64, 512, "default")


def test_it_shows_the_fields_picture(bundled: tuple[Any, list[xt.Document]]) -> None:
    model, documents = bundled
    loss: dict[str, torch.Tensor] = {}
    for strategy in (xt.Plain(), xt.Linear(factor=8), xt.NTK(factor=8), xt.YaRN(factor=8)):
        with xt.patched(model, strategy):
            of_each = [xt.token_losses(model, document.ids[None, :4096])[0] for document in documents]
        loss[strategy.name] = torch.stack(of_each).mean(dim=0)
    inside, far = slice(0, 511), slice(3071, 4095)
    at = {name: (values[inside].mean().item(), values[far].mean().item()) for name, values in loss.items()}
    # margins that another machine or seed of documents does not cross
    assert at["plain"][1] > at["plain"][0] + 0.2, "plain breaks past the trained length"
    assert at["linear"][0] > at["plain"][0] + 0.2, "position interpolation hurts at once"
    assert at["yarn"][1] < at["plain"][1] - 0.2, "YaRN holds"
    assert at["yarn"][1] < at["ntk"][1] < at["plain"][1], "NTK runs out before its factor, YaRN does not"
    assert at["yarn"][1] < at["linear"][1]
    assert at["ntk"][0] < at["plain"][0] + 0.15
    near = slice(1023, 2047)
    assert loss["ntk"][near].mean() < loss["plain"][near].mean() - 0.1, "NTK holds to near its factor"


def test_strategies_of_positions_hold_where_plain_breaks(bundled: tuple[Any, list[xt.Document]]) -> None:
    model, documents = bundled
    loss: dict[str, torch.Tensor] = {}
    strategies = (xt.Plain(), xt.SelfExtend(group=16), xt.ReRoPE(), xt.DualChunk(), xt.AttentionSinks())
    for strategy in strategies:
        with xt.patched(model, strategy):
            loss[strategy.name] = torch.stack([xt.token_losses(model, d.ids[None, :2048])[0] for d in documents]).mean(
                0
            )
    inside, far = slice(0, 127), slice(1535, 2047)
    plain = loss.pop("plain")
    for name, values in loss.items():
        assert values[inside].mean().item() == pytest.approx(plain[inside].mean().item(), abs=1e-4), name
        assert values[far].mean() < plain[far].mean() - 0.2, name


def test_it_is_found_by_name_whatever_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundled").mkdir()
    assert xt.Checkpoint("bundled").spec().pretrained_length == 512
