"""Perplexity by length, from token losses, under a named protocol."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.data.documents import Document
from extrapolate.errors import EvaluationError
from extrapolate.evaluation.base import (
    Measured,
    Score,
    Scored,
    byte_counts,
    check_documents,
    check_whole,
    checked_lengths,
    progress_bar,
    score,
    start_token_id,
)
from extrapolate.evaluation.losses import token_losses
from extrapolate.evaluation.protocols import START_TOKENS, Protocol, Request, Window, named


@dataclass(frozen=True)
class Perplexity:
    """``exp`` of the mean loss of the tokens that a protocol scores, at each length.

    The sum runs over all documents, so they weigh by their scored tokens unless the protocol says otherwise. The
    protocols (:mod:`extrapolate.evaluation.protocols` tells each one's tokens, context and mean):

    ``prefix``: the first L tokens of every document. ``sliding``: all tokens, in windows of L every ``stride``.
    ``last``: the same last ``targets`` tokens behind growing context. ``by_position``: loss by position, in bins that
    end at the lengths. And as others compute it: ``yarn_truncate``, ``yarn_sliding``, ``all_tokens`` (LCEG, LongLoRA),
    ``llamacpp``, ``lm_eval``, ``hf_docs``.

    Args:
        lengths: tokens of model input L, the start token included; each at least 2.
        protocol: one of the names above.
        start_token: the tokenizer's beginning-of-text token before ``none``, the ``first`` token of each document, or
            the first of ``every`` window; it is never scored. The protocol's own when left out.
        tokens: of each document so many are looked at; the longest length when left out.
        stride: tokens from one window to the next; when left out the protocol's own, or half the shortest length
            where that is less.
        targets: tokens scored by ``last``; half the shortest length when left out.
        first_window: of ``sliding``: ``whole``, or ``tail`` for its last ``stride`` tokens only.
        batch_size: windows in one forward pass; changes speed and memory, not numbers.

    Raises:
        EvaluationError: naming the field, the value and the rule.
    """

    lengths: Sequence[int] = (1024, 2048, 4096, 8192)
    protocol: str = "prefix"
    start_token: str | None = None
    tokens: int | None = None
    stride: int | None = None
    targets: int | None = None
    first_window: str | None = None
    batch_size: int = 1

    head = "causal"
    name = "perplexity"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))
        object.__setattr__(self, "start_token", self._checked_start_token())
        check_whole("batch_size", self.batch_size, least=1)
        shortest, longest = self.lengths[0], self.lengths[-1]
        self._fill("tokens", self._rule.extent == "tokens", longest, least=longest)
        half = max(1, shortest // 2)
        self._fill("stride", self._rule.stride is not None, min(self._rule.stride or 1, half), least=1)
        self._check_stride(shortest)
        # one token of the window is behind nothing, or is the start token
        self._fill("targets", self._rule.targets, half, least=1, most=shortest - 1)
        if self.first_window is not None and not self._rule.first_window:
            raise EvaluationError(f"first_window means nothing to protocol {self.protocol!r}; leave it out")
        if self.first_window not in (None, "whole", "tail"):
            raise EvaluationError(f"first_window must be 'whole' or 'tail', got {self.first_window!r}")

    def _check_stride(self, shortest: int) -> None:
        """No stride that leaves tokens between two windows of the shortest length.

        Raises:
            EvaluationError: naming the stride, the longest that is allowed, and why.
        """
        most = self._rule.longest_stride(shortest, str(self.start_token))
        if self.stride is not None and self.stride > most:
            where = f"protocol {self.protocol!r} with start_token={self.start_token} at length {shortest}"
            rule = f"at most {most}" if most else "shorter than any; take longer lengths"
            raise EvaluationError(
                f"stride of {where} must be {rule}, got {self.stride}: a longer one leaves tokens unscored between "
                "windows"
            )

    def _checked_start_token(self) -> str:
        chosen = self._rule.start_token if self.start_token is None else self.start_token
        if chosen not in START_TOKENS:
            raise EvaluationError(f"start_token must be one of {', '.join(START_TOKENS)}, got {chosen!r}")
        if chosen not in self._rule.policies:
            raise EvaluationError(
                f"start_token of protocol {self.protocol!r} must be {' or '.join(self._rule.policies)}, got {chosen!r}"
            )
        return chosen

    def _fill(self, field: str, applies: bool, default: int, *, least: int, most: int | None = None) -> None:
        """Put the default into a field that is left out, and refuse one that means nothing."""
        value = getattr(self, field)
        if not applies:
            if value is not None:
                raise EvaluationError(f"{field} means nothing to protocol {self.protocol!r}; leave it out")
            return
        if value is None:
            object.__setattr__(self, field, default)
        else:
            check_whole(field, value, least=least, most=most)

    @property
    def _rule(self) -> Protocol:
        return named(self.protocol)

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have."""
        return self.tokens or max(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest model input."""
        return max(window.size for length in self.lengths for window in self.windows(length))

    def identity(self, tokenizer: Any) -> dict[str, Any]:
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        fields = {name: getattr(self, name) for name in ("tokens", "stride", "targets", "first_window")}
        return {
            "evaluation": self.name,
            "protocol": self.protocol,
            "lengths": list(self.lengths),
            "start_token": self.start_token,
            "start_token_id": self.start_token_id(tokenizer),
            **{name: value for name, value in fields.items() if value not in (None, "whole")},
        }

    def columns(self) -> dict[str, Any]:
        """What all its rows say of it, known before anything runs."""
        fields = ("protocol", "start_token", "stride", "targets")
        return {name: getattr(self, name) for name in fields} | {"evaluation": self.name, "mean": self._rule.mean}

    def start_token_id(self, tokenizer: Any) -> int | None:
        """Id of the start token; None for none. Of ``lm_eval`` the end-of-text token where there is none, as there.

        Raises:
            EvaluationError: when one is asked for and the tokenizer has none.
        """
        ends = tokenizer.eos_token_id if self.protocol == "lm_eval" else None
        return start_token_id(tokenizer, str(self.start_token), otherwise=ends)

    def windows(self, length: int) -> Iterator[Window]:
        """The windows of a document at a length, in order."""
        ask = Request(
            tokens=self.tokens or max(self.lengths),
            length=length,
            lengths=tuple(self.lengths),
            start_token=str(self.start_token),
            stride=self.stride or 0,
            targets=self.targets or 0,
            first_window=self.first_window or "whole",
        )
        return self._rule.windows(ask)

    def measure(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        tokenizer: Any = None,
        *,
        one_pass: bool = True,
        description: str | None = None,
    ) -> dict[str, Tensor]:
        """Run the model: token losses of every window that had to be run.

        Under causal attention the losses of a window's first tokens do not depend on what follows. So of the windows
        that start at one place, at all lengths, the longest alone is run, unless the strategy depends on the length.

        Args:
            model: a causal language model, patched or not.
            documents: each with at least :attr:`min_tokens` tokens.
            tokenizer: for its start token; not needed without one.
            one_pass: False for a strategy that depends on the length.
            description: shown before a progress bar (tokens a second, time left); no bar when left out.

        Returns:
            ``window_n``: (windows, n) float32, nats, the loss of each of the n tokens of model input, NaN for the
            first. ``places_n``: (windows, 3) int64, its document, the index there of the window's first token, and 1
            for a start token before it.
            ``bytes_i``: (tokens,) int64, UTF-8 bytes of document i up to the end of each token, where known.
            ``input_tokens``: how many were run.

        Raises:
            EvaluationError: when a document is too short or there is none.
        """
        check_documents(documents, self.min_tokens)
        start_token_id = self.start_token_id(tokenizer)
        runs = self._runs(one_pass)
        total = len(documents) * sum(size * len(windows) for size, windows in runs.items())
        measured = {"input_tokens": torch.tensor(total)}
        with progress_bar(total, description) as bar:
            for size, windows in runs.items():
                work = [(d, window) for d in range(len(documents)) for window in windows]
                losses = torch.full((len(work), size), torch.nan)
                for i in range(0, len(work), self.batch_size):
                    part = work[i : i + self.batch_size]
                    ids = torch.stack([_input(documents[d], window, start_token_id) for d, window in part])
                    losses[i : i + len(part), 1:] = token_losses(model, ids, progress=bar.update)
                measured[f"window_{size}"] = losses
                measured[f"places_{size}"] = torch.tensor([(d, w.start, int(w.start_token)) for d, w in work])
        return measured | byte_counts(documents, self.min_tokens)

    def _runs(self, one_pass: bool) -> dict[int, list[Window]]:
        """Size → the windows of that size that must be run, longest first."""
        needed: dict[tuple[int, bool, int], Window] = {}
        for length in reversed(self.lengths):
            for window in self.windows(length):
                key = (window.start, window.start_token, 0 if one_pass else window.size)
                if key not in needed or window.size > needed[key].size:
                    needed[key] = window
        runs: dict[int, list[Window]] = {}
        for window in sorted(needed.values(), key=lambda w: (-w.size, w.start)):
            runs.setdefault(window.size, []).append(window)
        return runs

    def scores(self, measured: Measured) -> list[Score]:
        """A score at every length, from what :meth:`measure` returned or a results folder keeps."""
        return [score(length, list(self.scored(measured, length))) for length in self.lengths]

    def scored(self, measured: Measured, length: int) -> Iterator[Scored]:
        """The scored tokens of every window at a length, document by document.

        Raises:
            EvaluationError: when a window that is needed was not measured.
        """
        rows = _rows(measured)
        for document in sorted({document for document, _, _ in rows}):
            ends = measured.get(f"bytes_{document}")
            for window in self.windows(length):
                found = rows.get((document, window.start, window.start_token), [])
                # its own pass where there is one; else a longer one that begins with it
                losses = next((row for row in found if row.numel() >= window.size), None)
                if losses is None:
                    raise EvaluationError(f"length {length}: no window of {window.size} tokens at {window.start}")
                place = window.first - window.start + window.start_token
                yield Scored(
                    document=document,
                    first=window.first,
                    context=place,
                    size=window.size,
                    losses=losses[place : place + window.scored].double(),
                    weight=float(window.scored) if window.weight is None else window.weight,
                    text_bytes=None if ends is None else _bytes(ends, window),
                )


def _rows(measured: Measured) -> dict[tuple[int, int, bool], list[Tensor]]:
    """(document, start, start token) → losses of the windows that begin so, the shortest first."""
    found: dict[tuple[int, int, bool], list[Tensor]] = {}
    for name in sorted((n for n in measured if n.startswith("window_")), key=lambda n: measured[n].shape[1]):
        places = measured[name.replace("window", "places")].tolist()
        for (document, start, start_token), row in zip(places, measured[name], strict=True):
            found.setdefault((document, start, bool(start_token)), []).append(row)
    return found


def _bytes(ends: Tensor, window: Window) -> int:
    before = int(ends[window.first - 1]) if window.first else 0
    return int(ends[window.last - 1]) - before


def _input(document: Document, window: Window, start_token_id: int | None) -> Tensor:
    ids = document.ids[window.start : window.stop]
    return torch.cat((torch.tensor([start_token_id]), ids)) if window.start_token else ids


def prefix_score(losses: Tensor, length: int, first_scored: int = 1) -> Score:
    """Score the first ``length`` tokens of model input, from :func:`~extrapolate.token_losses` alone.

    Args:
        losses: (documents, at least length - 1), nats.
        length: tokens of model input.
        first_scored: index in its document of the first token that is scored: 1, or 0 behind a start token.

    Raises:
        EvaluationError: when there are fewer losses than that.
    """
    have = losses.shape[1]
    if length < 2 or have < length - 1:
        raise EvaluationError(f"length {length} needs {length - 1} losses a document, there are {have}")
    return score(
        length,
        [Scored(d, first_scored, 1, length, row[: length - 1], length - 1, None) for d, row in enumerate(losses)],
    )
