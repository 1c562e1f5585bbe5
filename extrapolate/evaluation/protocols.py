"""Which tokens of a document a perplexity scores, behind which context, and which mean: every protocol, by name.

A protocol turns a document of N tokens and a length L into windows. A window is what the model sees at once; of its
tokens some are scored, and each window weighs something in the mean. All that follows (perplexity, bits per byte,
intervals) is the same for all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from extrapolate.errors import EvaluationError

START_TOKENS = ("none", "first", "every")


@dataclass(frozen=True)
class Window:
    """Tokens ``start`` to ``stop`` of a document as one model input; those from ``first`` to ``last`` are scored.

    Attributes:
        start: index in its document of the first token.
        stop: one past the last.
        first: index of the first scored token.
        last: one past the last scored.
        start_token: whether the start token stands before them; it is never scored.
        weight: of the mean over its scored tokens; None for their number, which makes a mean over tokens.
    """

    start: int
    stop: int
    first: int
    last: int
    start_token: bool = False
    weight: float | None = None

    @property
    def size(self) -> int:
        """Tokens of model input."""
        return self.stop - self.start + self.start_token

    @property
    def scored(self) -> int:
        """Scored tokens."""
        return self.last - self.first


@dataclass(frozen=True)
class Request:
    """What a protocol is asked for.

    Attributes:
        tokens: N, of the document; more are not looked at.
        length: L.
        lengths: all lengths of the evaluation, ascending.
        start_token: none, first (before the first token of a document) or every (window).
        stride: tokens from one window to the next.
        targets: tokens scored at the end of the document.
        first_window: ``whole`` or ``tail``.
    """

    tokens: int
    length: int
    lengths: tuple[int, ...]
    start_token: str
    stride: int = 0
    targets: int = 0
    first_window: str = "whole"

    def start_token_at(self, start: int) -> bool:
        """Whether the window at this index of the document has the start token before it."""
        return self.start_token == "every" or (self.start_token == "first" and start == 0)


@dataclass(frozen=True)
class Protocol:
    """A named way to score documents.

    Attributes:
        windows: of one document.
        start_token: the default policy.
        policies: the ones that make sense.
        stride: its default, tokens; None where it has no stride.
        extent: which tokens of a document it needs: ``length`` for the longest length alone, ``tokens`` for a field.
        targets: whether it has a number of targets.
        first_window: whether the first window may be scored in part.
        scores: what is scored, for the axis of a figure.
        every_token: whether it promises to score every token once, for which its windows must overlap by one.
        mean: over ``tokens``, or over ``windows``.
    """

    windows: Callable[[Request], Iterator[Window]]
    scores: str
    start_token: str = "none"
    policies: tuple[str, ...] = START_TOKENS
    stride: int | None = None
    extent: str = "tokens"
    targets: bool = False
    first_window: bool = False
    every_token: bool = False
    mean: str = "tokens"

    def longest_stride(self, length: int, start_token: str) -> int:
        """Tokens from one window of ``length`` to the next, at most.

        A token that is first in its window has nothing before it, and a start token takes the place of one. So where
        every token is to be scored, each window begins with a token that the one before has scored.
        """
        text = length - (start_token != "none")  # of the first window
        return text - (start_token != "every") if self.every_token else text


def prefix(ask: Request) -> Iterator[Window]:
    """The first L tokens in one window, all but the first scored, each behind all that precede it."""
    with_token = ask.start_token_at(0)
    stop = ask.length - with_token
    yield Window(0, stop, 0 if with_token else 1, stop, with_token)


def by_position(ask: Request) -> Iterator[Window]:
    """The longest length in one window; the row of L scores the tokens between the next shorter length and L.

    Loss by position in bins: a token's context is all that precedes it, so L is where it stands.
    """
    with_token = ask.start_token_at(0)
    shorter = max((n for n in ask.lengths if n < ask.length), default=1)
    yield Window(0, ask.lengths[-1] - with_token, shorter - with_token, ask.length - with_token, with_token)


def last(ask: Request) -> Iterator[Window]:
    """The last ``targets`` tokens of the N behind as much context as fits into L: the same tokens at every length.

    As ReRoPE's eval_loss.py does with 4,096 targets. What changes with L is the context alone.
    """
    with_token = ask.start_token == "every"
    yield Window(ask.tokens - ask.length + with_token, ask.tokens, ask.tokens - ask.targets, ask.tokens, with_token)


def sliding(ask: Request) -> Iterator[Window]:
    """Windows of L at every ``stride``; each scores what no earlier one did, behind at least L - stride tokens.

    Windows overlap, so that no token is the first of its window and lost; only the first of the text is, unless a start
    token stands before it. The first window scores all its tokens (``whole``, little context for its first) or its last
    ``stride`` (``tail``, which leaves every scored token at least L - stride tokens of context). The last ends with the
    document.
    """
    done = 0
    for start in range(0, ask.tokens, ask.stride):
        with_token = ask.start_token_at(start)
        stop = min(start + ask.length - with_token, ask.tokens)
        first = done if with_token else max(done, start + 1)
        if start == 0 and ask.first_window == "tail":
            first = max(first, stop - ask.stride)
        if first < stop:
            yield Window(start, stop, first, stop, with_token)
        done = stop
        if stop == ask.tokens:
            return


def yarn_sliding(ask: Request) -> Iterator[Window]:
    """``sliding`` with the start token in every window, and the mean of window means: YaRN's eval/perplexity.py.

    A short last window weighs as much as a full one.
    """
    for window in sliding(ask):
        yield _weighing(window, 1.0)


def yarn_truncate(ask: Request) -> Iterator[Window]:
    """YaRN's eval/perplexity.py with ``--truncate``, which made the curves of the paper: one window, mean of means.

    With documents of at least L tokens it is ``prefix`` with a start token.
    """
    for window in prefix(ask):
        yield _weighing(window, 1.0)


def all_tokens(ask: Request) -> Iterator[Window]:
    """Whole windows of L at every ``stride``, all their tokens scored, mean of window means: LCEG's eval_*.py.

    A token is scored in each window that holds it, L / stride times, mostly behind less than L tokens of context.
    LongLoRA's eval.py also predicts the token after each window, and leaves the last whole window out.
    """
    for start in range(0, ask.tokens - ask.length + 1, ask.stride):
        with_token = ask.start_token_at(start)
        stop = start + ask.length - with_token
        yield Window(start, stop, start + (not with_token), stop, with_token, 1.0)


def llamacpp(ask: Request) -> Iterator[Window]:
    """Disjoint chunks of L; of each the second half is scored: llama.cpp's perplexity tool.

    A start token takes the place of the first token of its chunk. What is left after the last whole chunk is dropped.
    """
    for start in range(0, ask.tokens - ask.length + 1, ask.length):
        stop = start + ask.length
        with_token = ask.start_token_at(start)
        yield Window(start + with_token, stop, start + ask.length // 2 + 1, stop, with_token)


def lm_eval(ask: Request) -> Iterator[Window]:
    """Disjoint targets of L tokens behind one token: loglikelihood_rolling of lm-evaluation-harness.

    The start token stands before the document's first token, so that every token is scored once. The last window, with
    fewer targets, is filled up with earlier tokens. The model is fed L tokens and predicts one for each, so a window
    here has one token more.
    """
    for done in range(0, ask.tokens, ask.length):
        stop = min(done + ask.length, ask.tokens)
        yield Window(stop - ask.length - 1 if done else 0, stop, done, stop, start_token=done == 0)


def hf_docs(ask: Request) -> Iterator[Window]:
    """``sliding`` as in transformers' page on perplexity of fixed-length models.

    Its mean weighs a window by one less than its targets: the page takes one label for lost in the shift, which holds
    in the first window only. With a stride of L, which the page allows, the first token of each window is not scored.
    """
    for window in sliding(ask):
        weight = window.scored - (window.start > 0)
        if weight:
            yield _weighing(window, float(weight))


def _weighing(window: Window, weight: float) -> Window:
    return Window(window.start, window.stop, window.first, window.last, window.start_token, weight)


PROTOCOLS = {
    "prefix": Protocol(prefix, "tokens 2…L", policies=("none", "first"), extent="length"),
    "by_position": Protocol(by_position, "tokens up to L", policies=("none", "first"), extent="length"),
    "last": Protocol(last, "the last tokens behind L", policies=("none", "every"), targets=True),
    "sliding": Protocol(sliding, "all tokens, windows of L", stride=256, first_window=True, every_token=True),
    "yarn_sliding": Protocol(
        yarn_sliding, "all tokens, windows of L", "every", ("every",), stride=256, every_token=True, mean="windows"
    ),
    "yarn_truncate": Protocol(
        yarn_truncate, "the first L tokens", "first", ("first",), extent="length", mean="windows"
    ),
    "all_tokens": Protocol(
        all_tokens, "windows of L, overlaps again", policies=("none", "every"), stride=256, mean="windows"
    ),
    "llamacpp": Protocol(llamacpp, "second halves of chunks of L", policies=("none", "every")),
    "lm_eval": Protocol(lm_eval, "all tokens, disjoint windows of L", "first", ("first",), every_token=True),
    "hf_docs": Protocol(hf_docs, "all tokens, windows of L", policies=("none",), stride=512, mean="windows"),
}
"""Name → protocol."""


def named(name: str) -> Protocol:
    """The protocol of a name.

    Raises:
        EvaluationError: for a name that is none, with those that are.
    """
    if name not in PROTOCOLS:
        raise EvaluationError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")
    return PROTOCOLS[name]
