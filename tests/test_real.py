"""The real model on real text: SmolLM2-135M on an annual message. Numbers measured once, kept in docs/ and the LOG."""

import itertools
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import extrapolate as xt
from extrapolate.analysis import measured_breaks, paired, share_interval
from extrapolate.evaluation.protocols import PROTOCOLS

RAW = Path(__file__).parent.parent / "docs" / "smollm2_32k" / "scores.csv"
DOCUMENT = "1981-Carter-1"


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, list[xt.Document]]:
    model, tokenizer = xt.load_model("smollm2", dtype="bfloat16", device="cpu")
    return model, xt.load_documents(xt.Sotu(), tokenizer, names=[DOCUMENT])


def curve(smollm2: tuple[Any, list[xt.Document]], strategy: xt.Strategy, lengths: list[int]) -> list[float]:
    model, documents = smollm2
    evaluation = xt.Perplexity(lengths=lengths)
    with xt.patched(model, strategy):
        return [score.perplexity for score in evaluation.scores(evaluation.measure(model, documents))]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (xt.Plain(), 19.12),
        (xt.Shipped(), 19.12),
        (xt.Linear(factor=2), 36.50),
        (xt.NTK(factor=2), 19.65),
        (xt.YaRN(factor=2), 19.49),
        (xt.YaRN(factor=4), 20.42),
    ],
    ids=lambda v: getattr(v, "label", None),
)
def test_perplexity_of_1024_tokens(
    smollm2: tuple[Any, list[xt.Document]], strategy: xt.Strategy, expected: float
) -> None:
    assert curve(smollm2, strategy, [1024]) == pytest.approx([expected], rel=0.01)  # bfloat16 kernels differ by machine


@pytest.mark.slow
def test_after_12000_tokens_plain_talks_nonsense_and_self_extend_goes_on(
    smollm2: tuple[Any, list[xt.Document]],
) -> None:
    model, (document,) = smollm2
    _, tokenizer = xt.load_model("smollm2", dtype="bfloat16", device="cpu")
    prompt = document.ids[None, :12000]
    text, judged = {}, {}
    for strategy in (xt.Plain(), xt.SelfExtend(group=5)):
        torch.manual_seed(0)
        with xt.patched(model, strategy):
            new = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                temperature=0.7,
                top_p=0.9,
                max_new_tokens=80,
                min_new_tokens=80,
                pad_token_id=0,
            )[0, 12000:]
        text[strategy.name] = tokenizer.decode(new)
        # the unpatched model, inside its length, on the continuation after the end of the context
        losses = xt.token_losses(model, torch.cat((prompt[0, -2000:], new))[None])
        judged[strategy.name] = float(losses[0, -80:].mean())
    assert judged["self_extend"] < judged["plain"] - 0.4, (judged, text)
    assert "transport" in text["self_extend"].lower()  # what the context is about
    assert "transport" not in text["plain"].lower()


@pytest.mark.slow
def test_plain_breaks_past_the_pretrained_length_and_yarn_does_not(smollm2: tuple[Any, list[xt.Document]]) -> None:
    plain, yarn = (curve(smollm2, strategy, [8192, 16384]) for strategy in (xt.Plain(), xt.YaRN(factor=4)))
    assert plain == pytest.approx([17.39, 40.50], rel=0.02)
    assert yarn == pytest.approx([18.85, 20.14], rel=0.02)


def test_the_readmes_figure_is_the_picture_of_the_field() -> None:
    table = pd.read_csv(RAW)
    at = {
        (label, length): ppl for label, length, ppl in table[["label", "length", "perplexity"]].itertuples(index=False)
    }
    # an independent script measured these on another machine; see experiments/LOG.md
    assert at["plain", 8192] == pytest.approx(17.05, rel=0.02)
    assert at["plain", 16384] == pytest.approx(40.2, rel=0.02)
    assert at["plain", 32768] == pytest.approx(302, rel=0.02)
    assert at["yarn ×4", 8192] == pytest.approx(18.53, rel=0.02)
    assert at["yarn ×4", 16384] == pytest.approx(19.66, rel=0.02)
    assert at["yarn ×4", 32768] == pytest.approx(20.8, rel=0.02)
    assert at["linear ×4", 8192] > 2 * at["plain", 8192]  # position interpolation without fine-tuning
    assert at["ntk ×4", 24576] < 1.2 * at["ntk ×4", 8192]  # holds until shortly before 4 L
    assert len(table) == 4 * 64
    assert set(table["documents"]) == {2}


@pytest.mark.parametrize(
    ("corner", "raw", "labels"),
    [
        ("strategy ×4 of 8,192", RAW, 4),
        ("strategy of positions", RAW.parents[1] / "positions_32k" / "scores.csv", 8),
    ],
)
def test_the_readme_shows_what_was_measured(corner: str, raw: Path, labels: int) -> None:
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in readme.splitlines() if line.startswith("|")
    ]
    head = next(i for i, row in enumerate(rows) if row[0] == corner)
    lengths = [int(cell.replace(",", "")) for cell in rows[head][1:]]
    table = pd.read_csv(raw)
    at = {
        (label, length): f"{ppl:.2f}"
        for label, length, ppl in table[["label", "length", "perplexity"]].itertuples(index=False)
    }
    shown = rows[head + 2 : head + 2 + labels]
    assert {row[0] for row in shown} == set(table["label"])
    for label, *numbers in shown:
        assert numbers == [at.get((label, length), "–") for length in lengths], label


def test_the_readme_shows_the_verdicts_that_were_measured() -> None:
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    lines = readme[readme.index("| against plain |") :].splitlines()
    lengths = [int(cell.replace(",", "")) for cell in lines[0].strip("|").split("|")[1:]]
    found = paired(pd.read_csv(RAW.parents[1] / "verdicts_16k" / "scores.csv")).set_index(["label", "length"])
    for line in lines[2:5]:
        label, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for length, cell in zip(lengths, cells, strict=True):
            row = found.loc[[(label, length)]].iloc[0]
            assert cell == f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"


def test_the_readme_shows_what_each_protocol_measured() -> None:
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    table = pd.read_csv(RAW.parents[1] / "protocols_4k" / "scores.csv").query("length == 4096")
    measured = {str(name): f"{value:.2f}" for name, value in zip(table["protocol"], table["perplexity"], strict=True)}
    lines = readme[readme.index("| protocol | windows of model input") :].splitlines()[2 : 2 + len(measured)]
    shown = {line.split("`")[1]: line.strip("| ").split("|")[-1].strip() for line in lines}
    assert shown == measured
    assert set(measured) == set(PROTOCOLS)
    assert table["document_names"].nunique() == 1


def test_the_readme_shows_the_answers_that_were_found() -> None:
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    lines = readme[readme.index("| answers right, and their loss |") :].splitlines()
    lengths = [int(cell.replace(",", "")) for cell in lines[0].strip("|").split("|")[1:]]
    table = pd.read_csv(RAW.parents[1] / "retrieval_16k" / "scores.csv")
    found = table.groupby(["evaluation", "label", "length"])[["accuracy", "nll_mean"]].mean()
    for line in lines[2:8]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        task, label = name.split(", ")
        for length, cell in zip(lengths, cells, strict=True):
            right, loss = found.loc[[(task, label, length)]].to_numpy(float)[0]
            low, high = share_interval(round(3 * right), 3)
            assert cell == f"{right:.0%} [{100 * low:.0f}, {100 * high:.0f}] {loss:.2f}"


def test_the_readme_shows_the_breaks_that_were_measured() -> None:
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    lines = readme[readme.index("| ×8 of 512 | claimed |") :].splitlines()[2:]
    found = measured_breaks(xt.read_results(RAW.parents[1] / "usable_4k" / "scores.csv")).set_index("label")
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines):
        names, *_, cell = [cell.strip() for cell in line.strip("|").split("|")]
        for name in names.split(", "):
            row = found.loc[[name if name in found.index else f"{name} ×8"]].iloc[0]
            if pd.isna(row["break_length"]):
                assert cell == "not by 4,096"
                continue
            low, high = ("–" if pd.isna(row[end]) else f"{row[end]:,.0f}" for end in ("low", "high"))
            assert cell == f"{row['break_length']:,.0f} [{low}, {high}]"


def test_the_readmes_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_ledger import store

    store(xt.Ledger(tmp_path / "results" / "quickstart"))
    (tmp_path / "docs").symlink_to(RAW.parents[1])
    monkeypatch.chdir(tmp_path)
    readme = (RAW.parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["nll"].shape == (1, names["input_ids"].shape[1] - 1)
    assert len(names["table"]) == 2
