"""Every protocol against a loop written from its definition, and laws of their windows."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import extrapolate as xt
from extrapolate.evaluation.protocols import PROTOCOLS
from tests.conftest import byte_tokenizer, tiny_model, tokens
from tests.test_losses import by_loop
from tests.test_perplexity import Constant

N, L, STRIDE, START = 150, 64, 24, 0
TEXTS = [tokens(N, seed=7)[0], tokens(N, seed=8)[0]]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(vocab_size=257)


def losses(model: Any, ids: list[int]) -> list[float]:
    """Of each token but the first, straight from the model's logits."""
    found: list[float] = by_loop(model, torch.tensor([ids]))[0].tolist()
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# Each returns the mean loss as the tool it is named after computes it, from the whole documents.


def prefix(model: Any, *, start: bool = False) -> float:
    every = []
    for text in TEXTS:
        every += losses(model, [START, *text[: L - 1].tolist()] if start else text[:L].tolist())
    return mean(every)


def last(model: Any) -> float:
    # RR eval_loss.py: only the last tokens are scored
    return mean([x for text in TEXTS for x in losses(model, text[-L:].tolist())[-20:]])


def by_position(model: Any) -> float:
    # the loss of tokens 40 … 63, all from one pass
    return mean([x for text in TEXTS for x in losses(model, text[:N].tolist())[39:63]])


def sliding(model: Any, *, start: str = "none", tail: bool = False, average: str = "tokens") -> float:
    totals, counts, means, weights = 0.0, 0, [], []
    for text in TEXTS:
        previous_end = 0
        for begin in range(0, N, STRIDE):
            has_start = start == "every" or (start == "first" and begin == 0)
            end = min(begin + (L - 1 if has_start else L), N)
            target = end - previous_end
            found = losses(model, ([START] if has_start else []) + text[begin:end].tolist())
            chosen = found[-target:] if len(found) >= target else found
            if tail and begin == 0:
                chosen = chosen[-STRIDE:]
            totals, counts = totals + sum(chosen), counts + len(chosen)
            means.append(mean(chosen))
            weights.append(target - 1)  # the page counts labels and takes one off for the shift
            previous_end = end
            if end == N:
                break
    if average == "windows":
        return mean(means)
    if average == "page":
        return sum(m * w for m, w in zip(means, weights, strict=True)) / sum(weights)
    return totals / counts


def all_tokens(model: Any) -> float:
    windows = [text[begin : begin + L].tolist() for text in TEXTS for begin in range(0, N - L + 1, STRIDE)]
    return mean([mean(losses(model, window)) for window in windows])


def llamacpp(model: Any, *, start: bool = False) -> float:
    chosen = []
    for text in TEXTS:
        for chunk in range(N // L):
            ids = text[chunk * L : (chunk + 1) * L].tolist()
            if start:
                ids[0] = START
            found = losses(model, ids)  # found[i] is of token i + 1
            chosen += [found[i] for i in range(L // 2, L - 1)]
    return mean(chosen)


def lm_eval(model: Any) -> float:
    total, count = 0.0, 0
    for text in TEXTS:
        ids, done = text.tolist(), 0
        inputs, targets = [START, *ids[: L - 1]], ids[:L]
        while True:
            found = losses(model, [*inputs, targets[-1]])[-len(targets) :]
            total, count, done = total + sum(found), count + len(targets), done + len(targets)
            if done == N:
                break
            end = done + min(N - done, L)
            inputs, targets = ids[end - L - 1 : end - 1], ids[done:end]
    return total / count


# protocol and its fields → the loop, and how many tokens it scores
TABLE: dict[str, tuple[dict[str, Any], Any, int]] = {
    "prefix": ({}, prefix, 2 * (L - 1)),
    "prefix first": ({"start_token": "first"}, lambda m: prefix(m, start=True), 2 * (L - 1)),
    "last": ({"tokens": N, "targets": 20}, last, 2 * 20),
    "by_position": ({"lengths": [40, L, N]}, by_position, 2 * 24),
    "sliding": ({"tokens": N, "stride": STRIDE}, sliding, 2 * (N - 1)),
    "sliding first": (
        {"tokens": N, "stride": STRIDE, "start_token": "first"},
        lambda m: sliding(m, start="first"),
        2 * N,
    ),
    "sliding every": (  # PoSE's src/eval_ppl.py
        {"tokens": N, "stride": STRIDE, "start_token": "every"},
        lambda m: sliding(m, start="every"),
        2 * N,
    ),
    "sliding tail": (
        {"tokens": N, "stride": STRIDE, "first_window": "tail"},
        lambda m: sliding(m, tail=True),
        2 * (N - L + STRIDE),
    ),
    "yarn_sliding": (
        {"tokens": N, "stride": STRIDE},
        lambda m: sliding(m, start="every", average="windows"),
        2 * N,
    ),
    "yarn_truncate": ({}, lambda m: prefix(m, start=True), 2 * (L - 1)),
    "all_tokens": ({"tokens": N, "stride": STRIDE}, all_tokens, 2 * 4 * (L - 1)),
    "llamacpp": ({"tokens": N}, llamacpp, 2 * 2 * (L // 2 - 1)),
    "llamacpp every": ({"tokens": N, "start_token": "every"}, lambda m: llamacpp(m, start=True), 2 * 2 * (L // 2 - 1)),
    "lm_eval": ({"tokens": N}, lm_eval, 2 * N),
    "hf_docs": ({"tokens": N, "stride": STRIDE}, lambda m: sliding(m, average="page"), 2 * (N - 1)),
}


def test_every_protocol_has_its_loop() -> None:
    assert {name.split()[0] for name in TABLE} == set(PROTOCOLS)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", TABLE)
def test_a_protocol_is_the_loop_it_is_named_after(model: Any, name: str, batch_size: int) -> None:
    fields, loop, count = TABLE[name]
    evaluation = xt.Perplexity(**{"lengths": [L], "protocol": name.split()[0], **fields}, batch_size=batch_size)
    texts = [xt.Document(str(i), text) for i, text in enumerate(TEXTS)]
    expected = loop(model)
    for one_pass in (True, False):
        scores = evaluation.scores(evaluation.measure(model, texts, byte_tokenizer(), one_pass=one_pass))
        score = next(s for s in scores if s.length == L)
        assert score.nll_mean == pytest.approx(expected, rel=1e-6)
        assert score.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
        assert (score.tokens_scored, score.documents) == (count, 2)


def test_the_mean_of_window_means_is_another_number(model: Any) -> None:
    # case 36
    assert abs(sliding(model, start="every") - sliding(model, start="every", average="windows")) > 1e-3
    assert abs(sliding(model) - sliding(model, average="page")) > 1e-5


@pytest.mark.parametrize("name", TABLE)
def test_lengths_share_passes_where_they_may_and_no_number_changes(model: Any, name: str) -> None:
    fields, _, _ = TABLE[name]
    lengths = fields.get("lengths", [40, L, 100])
    evaluation = xt.Perplexity(**{"protocol": name.split()[0], **fields, "lengths": lengths})
    texts = [xt.Document(str(i), text) for i, text in enumerate(TEXTS)]
    once, each = (evaluation.measure(model, texts, byte_tokenizer(), one_pass=p) for p in (True, False))
    for shared, own in zip(evaluation.scores(once), evaluation.scores(each), strict=True):
        assert shared.nll_sum == pytest.approx(own.nll_sum, rel=1e-6)
        assert (shared.length_used, shared.tokens_scored) == (own.length_used, own.tokens_scored)

    def size(measured: dict[str, torch.Tensor]) -> int:
        return sum(t.numel() for key, t in measured.items() if key.startswith("window_"))

    if name.startswith(("prefix", "sliding", "yarn", "hf", "all")):
        assert size(once) < size(each)


def scored(name: str, policy: str, length: int, tokens: int, **fields: Any) -> list[int]:
    """Indices of the scored tokens, window by window, after checking what holds for every window that slides."""
    evaluation = xt.Perplexity([length], name, policy, tokens=tokens, **fields)
    windows = list(evaluation.windows(length))
    for window in windows:
        assert window.size <= length + (name == "lm_eval")
        assert 0 <= window.start <= window.first < window.last <= window.stop <= tokens
        assert window.start_token or window.first > window.start  # nothing is predicted from nothing
        if window.start and evaluation.stride:
            assert window.first - window.start + window.start_token >= length - evaluation.stride - (policy == "first")
    return [i for w in windows for i in range(w.first, w.last)]


@given(st.sampled_from([n for n, p in PROTOCOLS.items() if p.every_token]), st.integers(2, 40), st.data())
def test_a_protocol_that_promises_every_token_scores_each_exactly_once(
    name: str, length: int, data: st.DataObject
) -> None:
    rule = PROTOCOLS[name]
    policy = data.draw(st.sampled_from(rule.policies))
    tokens = length + data.draw(st.integers(0, 120))
    fields: dict[str, Any] = {}
    if rule.stride is not None:
        longest = rule.longest_stride(length, policy)
        if longest < 1:
            with pytest.raises(xt.EvaluationError, match="must be shorter than any; take longer lengths"):
                xt.Perplexity([length], name, policy, tokens=tokens)
            return
        fields["stride"] = data.draw(st.integers(1, longest))
        with pytest.raises(xt.EvaluationError, match=f"must be at most {longest}, got {longest + 1}: a longer one"):
            xt.Perplexity([length], name, policy, tokens=tokens, stride=longest + 1)
    found = scored(name, policy, length, tokens, **fields)
    assert found == list(range(policy == "none", tokens))  # N - 1, or N behind a start token
    if rule.first_window:
        of_tail = scored(name, policy, length, tokens, **fields, first_window="tail")
        first = length - (policy != "none")  # tokens of text in the first window
        assert of_tail == list(range(max(policy == "none", first - fields["stride"]), tokens))


def test_the_longest_stride_with_which_nothing_is_lost() -> None:
    # 64 lost a token in each window, 3 of 150, and none says so
    assert len(scored("sliding", "none", 64, 150, stride=63)) == 149
    with pytest.raises(xt.EvaluationError, match="at length 64 must be at most 63, got 64"):
        xt.Perplexity([64], "sliding", tokens=150, stride=64)


def test_the_page_loses_the_first_token_of_each_disjoint_window() -> None:
    assert scored("hf_docs", "none", 64, 150, stride=63) == list(range(1, 150))
    assert set(range(1, 150)) - set(scored("hf_docs", "none", 64, 150, stride=64)) == {64, 128}


@given(st.sampled_from(sorted(PROTOCOLS)), st.lists(st.integers(2, 60), min_size=1, max_size=4), st.integers(0, 60))
def test_what_a_row_says_of_its_context_is_what_the_model_saw(name: str, lengths: list[int], more: int) -> None:
    whole: dict[str, Any] = {"tokens": max(lengths) + more} if PROTOCOLS[name].extent == "tokens" else {}
    if min(lengths) < 3 and name == "llamacpp":
        return  # half of two tokens leaves nothing to score
    evaluation = xt.Perplexity(lengths, name, **whole)
    stub = Constant(50.0)
    text = xt.Document("a", tokens(120, seed=3)[0])
    scores = evaluation.scores(evaluation.measure(stub, [text], byte_tokenizer(), one_pass=False))
    assert {ids.shape[1] for ids in stub.fed} == {w.size for n in evaluation.lengths for w in evaluation.windows(n)}
    for score in scores:
        assert score.nll_mean == pytest.approx(50.0, rel=1e-6)
        assert score.length_used <= score.length + (name == "lm_eval") or name == "by_position"
        assert 1 <= score.context_min <= score.context_max < score.length_used
        assert score.unit == "block"


@pytest.mark.parametrize("policy", ["first", "every"])
def test_windows_have_exactly_the_start_tokens_asked_for(policy: str) -> None:
    # case 38: also after the first window, never scored, never past the length
    evaluation = xt.Perplexity([20], "sliding", policy, tokens=100, stride=10)
    stub, tokenizer = Constant(1.0), byte_tokenizer()
    evaluation.measure(stub, [xt.Document("a", tokens(100)[0])], tokenizer)
    for i, ids in enumerate(stub.fed):
        assert int((ids == tokenizer.bos_token_id).sum()) == (policy == "every" or i == 0)
        assert ids.shape[1] <= 20


def test_lm_eval_takes_the_end_of_text_token_where_there_is_no_other() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token, tokenizer.eos_token = None, "a"
    assert xt.Perplexity([4], "lm_eval").start_token_id(tokenizer) == tokenizer.eos_token_id
    with pytest.raises(xt.EvaluationError, match="no beginning-of-text token"):
        xt.Perplexity([4], "sliding", "every").start_token_id(tokenizer)


def test_bits_per_byte_do_not_depend_on_the_tokenizer_and_perplexity_does() -> None:
    # case 44: one text, two tokenisations, the same probability
    text = "Zwölf Boxkämpfer – 12 €"
    size = len(text.encode())
    fine = xt.Document("bytes", torch.arange(3, size + 4), torch.arange(size + 1))
    coarse = xt.Document("pairs", torch.tensor([3, 4, 5]), torch.tensor([0, 10, size]))
    found = []
    for document in (fine, coarse):
        pieces = document.ids.numel() - 1
        evaluation = xt.Perplexity([pieces + 1])
        found += evaluation.scores(evaluation.measure(Constant(3600.0 / pieces), [document]))
    assert found[0].bits_per_byte == pytest.approx(3600 / math.log(2) / size, rel=1e-6)
    assert found[1].bits_per_byte == pytest.approx(found[0].bits_per_byte, rel=1e-6)
    assert found[0].perplexity < found[1].perplexity / 2
