"""Perplexity of the tokens that need their long context, where plain perplexity averages it away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.data.documents import Document
from extrapolate.errors import EvaluationError
from extrapolate.evaluation.base import Measured, Score, Scored, check_whole, checked_lengths, score
from extrapolate.evaluation.perplexity import Perplexity

SHORT = "short_"
"""Before the names of what was measured behind short context."""


@dataclass(frozen=True)
class KeyTokens:
    """``exp`` of the mean loss of key tokens: those that long context helps much, in the manner of LongPPL.

    Fang et al. 2024 (arXiv 2410.23771): a token is key when its loss behind short context exceeds the one behind all
    L tokens by more than ``alpha``, and the latter is below ``beta``. The model is its own judge, so strategies have
    key tokens of their own: read ``tokens_scored``, how many there are, beside the number, and compare a perplexity of
    few key tokens with one of many with care. The ``short`` first tokens are no candidates.

    Args:
        lengths: tokens of the long context; each above ``short``.
        short: tokens of the short context; each candidate is behind this many to ``short + stride``.
        stride: tokens that share a short context.
        alpha: least fall of the loss, nats.
        beta: largest loss behind the long context, nats.
        batch_size: windows in one forward pass; changes speed and memory, not numbers.

    Raises:
        EvaluationError: naming the field, the value and the rule.
    """

    lengths: Sequence[int] = (8192, 16384)
    short: int = 4096
    stride: int = 1024
    alpha: float = 2.0
    beta: float = 2.0
    batch_size: int = 1

    head = "causal"
    name = "key_tokens"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))
        check_whole("short", self.short, least=1)
        check_whole("stride", self.stride, least=1)
        check_whole("batch_size", self.batch_size, least=1)
        if self.lengths[0] < self.short + self.stride:
            raise EvaluationError(
                f"lengths must be at least short + stride = {self.short + self.stride:,} tokens, "
                f"got {self.lengths[0]:,}"
            )
        for field in ("alpha", "beta"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise EvaluationError(f"{field} must be a number of nats, got {value!r}")
            object.__setattr__(self, field, float(value))

    @property
    def _long(self) -> Perplexity:
        return Perplexity(self.lengths, batch_size=self.batch_size)

    @property
    def _short(self) -> Perplexity:
        window = self.short + self.stride
        options: dict[str, Any] = {"tokens": self.longest, "stride": self.stride, "first_window": "tail"}
        return Perplexity([window], "sliding", batch_size=self.batch_size, **options)

    @property
    def longest(self) -> int:
        """Tokens of the longest model input."""
        return max(self.lengths)

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have."""
        return self.longest

    def identity(self, tokenizer: Any) -> dict[str, Any]:  # noqa: ARG002 - no token of its own
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        fields = {name: getattr(self, name) for name in ("short", "stride", "alpha", "beta")}
        return {"evaluation": self.name, "lengths": list(self.lengths), **fields}

    def columns(self) -> dict[str, Any]:
        """What all its rows say of it, known before anything runs."""
        told = {"protocol": f"key tokens behind {self.short}", "start_token": "none", "stride": self.stride}
        return {"evaluation": self.name, "mean": "tokens", **told}

    def measure(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        tokenizer: Any = None,
        *,
        one_pass: bool = True,
        description: str | None = None,
    ) -> dict[str, Tensor]:
        """Run the model behind long and behind short context.

        Arguments and errors are those of :meth:`Perplexity.measure`.

        Returns:
            What protocol ``prefix`` measures, and under names that begin with ``short_`` what ``sliding`` does.
        """
        long = self._long.measure(model, documents, tokenizer, one_pass=one_pass, description=description)
        short = self._short.measure(model, documents, tokenizer, one_pass=one_pass, description=description)
        total = long["input_tokens"] + short["input_tokens"]
        return {**long, **{SHORT + name: tensor for name, tensor in short.items()}, "input_tokens": total}

    def scores(self, measured: Measured) -> list[Score]:
        """A score at every length, from what :meth:`measure` returned or a results folder keeps."""
        behind_short = {name.removeprefix(SHORT): t for name, t in measured.items() if name.startswith(SHORT)}
        behind_long = {name: t for name, t in measured.items() if not name.startswith(SHORT)}
        short: dict[int, list[Tensor]] = {}
        for window in self._short.scored(behind_short, self.short + self.stride):
            short.setdefault(window.document, []).append(window.losses)
        joined = {document: torch.cat(parts) for document, parts in short.items()}
        return [self._score(n, list(self._long.scored(behind_long, n)), joined) for n in self.lengths]

    def _score(self, length: int, long: Sequence[Scored], short: dict[int, Tensor]) -> Score:
        keys, places = [], []
        for window in long:  # one for each document, from its second token on
            losses = window.losses[self.short - window.first :]
            fall = short[window.document][: losses.numel()] - losses
            chosen = ((fall > self.alpha) & (losses < self.beta)) | ~torch.isfinite(fall)  # what is broken shows
            places += (chosen.nonzero().flatten() + self.short).tolist()
            keys.append(replace(window, losses=losses[chosen], weight=float(chosen.sum()), text_bytes=None))
        found = score(length, [window for window in keys if window.losses.numel()] or [_nothing(length)])
        if not places:
            return replace(found, documents=len(long), tokens_scored=0, units="[]")
        ends = {"first_scored": min(places), "last_scored": max(places)}
        context = {"context_min": min(places), "context_max": max(places)}
        return replace(found, documents=len(long), windows=len(long), **ends, **context)


def _nothing(length: int) -> Scored:
    """No key token anywhere: a mean that is not a number, and no loss that is broken."""
    return Scored(0, 0, 0, length, torch.zeros(0, dtype=torch.float64), 0.0, None)
