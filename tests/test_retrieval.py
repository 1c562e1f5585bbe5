"""Retrieval: exact lengths, the fact where it should be, and scores on models with known answers."""

import json
import math
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import extrapolate as xt
from extrapolate.evaluation.losses import answer_losses
from extrapolate.evaluation.retrieval.base import Retrieval
from tests.conftest import byte_tokenizer, logits, tiny_model, tokens

TASKS: dict[str, type[Retrieval]] = {
    task.name: task for task in (xt.Passkey, xt.Needle, xt.KeyValue, xt.VariableTracking, xt.CommonWords)
}
EVERY_TASK = pytest.mark.parametrize("name", TASKS)
TEXT = "It was a fine day. Nobody knew why! Was it so? They went home, and it rained. " * 200


def documents(tokenizer: Any) -> list[xt.Document]:
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    return [xt.Document("a", ids), xt.Document("b", ids.roll(7))]


def questions(task: Retrieval, length: int, depth: float = 0.5) -> list[tuple[str, str]]:
    """Prompt and answer as text, of the byte tokenizer."""
    tokenizer = byte_tokenizer()
    found = []
    for ids, count in task.prompts(tokenizer, documents(tokenizer), length, depth):
        assert ids.shape == (length,)
        found.append((tokenizer.decode(ids[:-count]), tokenizer.decode(ids[-count:])))
    return found


@EVERY_TASK
@settings(max_examples=15)
@given(length=st.integers(900, 4000), depth=st.floats(0, 1), seed=st.integers(0, 99), start=st.booleans())
def test_prompt_and_answer_have_exactly_the_length(
    name: str, length: int, depth: float, seed: int, start: bool
) -> None:
    tokenizer = byte_tokenizer()
    task = TASKS[name](lengths=[length], seed=seed, start_token="first" if start else "none")
    for ids, count in task.prompts(tokenizer, documents(tokenizer), length, depth):
        assert ids.shape == (length,)
        assert 0 < count < length
        assert int((ids == tokenizer.bos_token_id).sum()) == start
        assert not start or ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", ["passkey", "needle", "key_value"])
def test_the_fact_stands_at_its_depth_after_a_whole_sentence(name: str, depth: float) -> None:
    for prompt, answer in questions(TASKS[name](samples=3), 3000, depth):
        assert prompt.count(answer.strip()) == (2 if name == "passkey" else 1)
        place = prompt.index(answer.strip()) / len(prompt)
        assert place == pytest.approx(depth, abs=0.12)
        if 0 < depth < 1:
            before = prompt[: prompt.index(answer.strip())].rsplit(" The ", 1)[0] if name != "key_value" else "\n"
            assert before.rstrip(" ").endswith((".", "!", "?", "\n"))


def test_several_needles_are_asked_for_in_the_order_of_the_text_among_distractors() -> None:
    for prompt, answer in questions(xt.Needle(needles=3, distractors=4, samples=4), 3000, 0.2):
        numbers = answer.strip().split(", ")
        assert len(numbers) == 3
        assert [prompt.index(n) for n in numbers] == sorted(prompt.index(n) for n in numbers)
        assert prompt.count("The secret number of") == 7
        asked = prompt.rsplit("secret numbers of ", 1)[1].split(", in this order")[0].replace(" and ", ", ").split(", ")
        for place, number in zip(asked, numbers, strict=True):
            assert f"The secret number of {place} is {number}." in prompt


def test_variables_lead_back_to_the_value_step_by_step() -> None:
    for prompt, answer in questions(xt.VariableTracking(hops=3, chains=2, samples=3), 3000):
        assigned = dict(line.split(" = ") for line in __import__("re").findall(r"VAR (\w+ = (?:VAR )?\w+)\.", prompt))
        assert len(assigned) == 3 * 4
        value = prompt.rsplit("hold the value ", 1)[1].split(",")[0]

        def follow(name: str, table: dict[str, str] = assigned) -> str:
            source = table[name].removeprefix("VAR ")
            return follow(source) if source in table else source

        names = answer.strip().split(", ")
        assert {name for name in assigned if follow(name) == value} == set(names)
        assert [prompt.index(f"VAR {n} =") for n in names] == sorted(prompt.index(f"VAR {n} =") for n in names)


def test_common_words_are_the_most_frequent_ones() -> None:
    for prompt, answer in questions(xt.CommonWords(common=4, frequency=9, rare=2, samples=3), 3000):
        words = [w.strip() for w in prompt.split("\n\n")[1].split(",")]
        counts = {w: words.count(w) for w in set(words)}
        common = answer.strip().split(", ")
        assert common == sorted(common)
        assert {w for w, n in counts.items() if n > 2} == set(common)
        assert {counts[w] for w in common} == {9}


def test_questions_come_from_the_seed_alone() -> None:
    one = questions(xt.Needle(samples=2), 1000)
    assert one == questions(xt.Needle(samples=2, lengths=[512, 1000], depths=[0.5], batch_size=7), 1000)
    assert one[0] != one[1]
    assert one != questions(xt.Needle(samples=2, seed=1), 1000)
    assert one[:1] == questions(xt.Needle(samples=1), 1000)  # more questions are more of the same


class Reader(nn.Module):
    """Answers from what stands after the last words of the question elsewhere in the text, if it looks back so far."""

    def __init__(self, sees: int, cue: int) -> None:
        super().__init__()
        self.sees, self.cue = sees, cue

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        scores = torch.zeros(*input_ids.shape, 300)
        for row, ids in enumerate(input_ids.tolist()):
            for end in range(len(ids) - 12, len(ids) + 1):
                for back in range(end - self.cue - 1, max(0, end - self.sees), -1):
                    if ids[back : back + self.cue] == ids[end - self.cue : end]:
                        scores[row, end - 1, ids[back + self.cue]] = 20.0
                        break
        return SimpleNamespace(logits=scores)


def test_a_model_that_looks_back_finds_what_is_within_its_reach_and_nothing_else() -> None:
    tokenizer = byte_tokenizer()
    task = xt.Passkey(lengths=[800, 1200], depths=[0.0, 1.0], samples=2)
    scores = task.scores(task.measure(Reader(sees=500, cue=8), [], tokenizer))
    assert [(s.length, s.depth, s.accuracy) for s in scores] == [
        (800, 0.0, 0.0),
        (800, 1.0, 1.0),
        (1200, 0.0, 0.0),
        (1200, 1.0, 1.0),
    ]
    for score in scores:
        assert score.tokens_scored == 2 * 6  # a blank and five digits
        if score.accuracy:
            assert score.answer_rank == 0
            assert score.nll_mean == pytest.approx(math.log1p(299 * math.exp(-20)), abs=1e-7)
        else:
            assert score.answer_rank > 1
            assert score.nll_mean > 4
        assert [n for _, n, _ in json.loads(score.units)] == [6, 6]
        assert sum(hit for *_, hit in json.loads(score.units)) == score.accuracy * score.samples


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rank_0_throughout_is_what_greedy_decoding_gives() -> None:
    model, ids = tiny_model(), tokens(60)
    with torch.no_grad():
        decoded = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    losses, ranks = answer_losses(model, decoded, 6)
    assert ranks.tolist() == [[0] * 6]
    expected = logits(model, decoded)[0, 59:65].double().log_softmax(-1)
    torch.testing.assert_close(losses[0].double(), -expected[range(6), decoded[0, 60:]], rtol=1e-5, atol=1e-5)
    other = decoded.clone()
    other[0, 62] = (other[0, 62] + 1) % 128
    assert answer_losses(model, other, 6)[1][0, :3].tolist()[:2] == [0, 0]
    assert answer_losses(model, other, 6)[1][0, 2] > 0


def test_of_equal_logits_the_smallest_id_is_first_as_in_decoding() -> None:
    class Flat(nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 10))

    assert answer_losses(Flat(), torch.tensor([[5, 0, 3, 9]]), 3)[1].tolist() == [[0, 3, 9]]


@pytest.mark.parametrize(
    "strategy", [xt.Plain(), xt.YaRN(factor=4), xt.SelfExtend(group=4, window=16), xt.ReRoPE(window=16)]
)
@pytest.mark.parametrize("chunk", [7, 50, 99])
def test_chunks_of_a_prompt_change_no_number(strategy: xt.Strategy, chunk: int) -> None:
    model, ids = tiny_model(), tokens(120, batch=2)
    with xt.patched(model, strategy):
        whole, parts = answer_losses(model, ids, 9), answer_losses(model, ids, 9, chunk=chunk)
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(parts[1], whole[1])


def test_answers_of_different_length_share_a_batch() -> None:
    tokenizer, model = byte_tokenizer(), tiny_model(vocab_size=300)
    task = xt.CommonWords(lengths=[1500], common=1, frequency=4, samples=5, seed=3)
    single = task.measure(model, [], tokenizer)
    batch = xt.CommonWords(lengths=[1500], common=1, frequency=4, samples=5, seed=3, batch_size=4).measure(
        model, [], tokenizer
    )
    torch.testing.assert_close(batch["losses_1500"], single["losses_1500"], rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depths": []}, "depths must be numbers from 0 to 1"),
        ({"depths": [0.5, 1.5]}, r"depths must be numbers from 0 to 1, got \[0.5, 1.5\]"),
        ({"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"haystack": "grass"}, "haystack must be documents or filler, got 'grass'"),
        ({"start_token": "every"}, "start_token must be 'none' or 'first'"),
        ({"chunk": 0}, "chunk must be a whole number of at least 1"),
        ({"lengths": 100}, "is one value"),
        ({"needles": 0}, "needles must be a whole number"),
        ({"needles": 20, "distractors": 20}, "needles and distractors must be at most 24 together, got 40"),
    ],
)
def test_fields_are_checked_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.EvaluationError, match=message):
        xt.Needle(**fields)


def test_what_cannot_be_asked_is_refused() -> None:
    tokenizer = byte_tokenizer()
    with pytest.raises(xt.EvaluationError, match="length 50 is too short for passkey: its question takes"):
        next(xt.Passkey(lengths=[50]).prompts(tokenizer, [], 50, 0.5))
    with pytest.raises(xt.EvaluationError, match="a has 15,600 tokens"):
        xt.Needle(lengths=[20_000]).measure(tiny_model(), documents(tokenizer), tokenizer)
    with pytest.raises(xt.EvaluationError, match="haystack must be filler, got 'documents'"):
        xt.KeyValue(haystack="documents")
    with pytest.raises(xt.EvaluationError, match="depths mean nothing to variable_tracking"):
        xt.VariableTracking(depths=[0.5])
    with pytest.raises(xt.EvaluationError, match="frequency must be above rare=3, got 3"):
        xt.CommonWords(frequency=3)
