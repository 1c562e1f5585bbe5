"""Perplexity by length, defined: which tokens are scored, with how much context, and which mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from extrapolate.data.documents import Document
from extrapolate.errors import EvaluationError
from extrapolate.evaluation.losses import token_losses

START_TOKENS = ("none", "first")


@dataclass(frozen=True)
class Score:
    """Perplexity at one length.

    Attributes:
        length: tokens of model input asked for, in each document.
        length_used: tokens of model input really run; equal to ``length``.
        documents: how many were scored.
        tokens_scored: predicted tokens in the sum, over all documents.
        first_scored: index (from 0) in its document of the first token that is scored.
        last_scored: index of the last.
        nll_sum: nats, float64; NaN when a loss is not finite.
        nll_mean: ``nll_sum / tokens_scored``, nats a token.
        perplexity: ``exp(nll_mean)``; inf past the range of a float, NaN when a loss is not finite.
        nonfinite: losses among them that are NaN or infinite; any makes the sum NaN, none is averaged away.
    """

    length: int
    length_used: int
    documents: int
    tokens_scored: int
    first_scored: int
    last_scored: int
    nll_sum: float
    nll_mean: float
    perplexity: float
    nonfinite: int


@dataclass(frozen=True)
class Perplexity:
    """The ``prefix`` protocol: for each length L, the first L tokens of every document in one window.

    ``exp(sum of losses of tokens 2..L of all documents / their number)``: every token is scored exactly once with all
    the context before it, and documents weigh by their tokens. With a start token the window is that token and the
    first L - 1 tokens, all of which are scored; the start token itself never is.

    Args:
        lengths: tokens of model input; each at least 2.
        protocol: ``prefix``.
        start_token: ``none``, or ``first`` for the tokenizer's beginning-of-text token before each document.
        batch_size: documents in one forward pass; changes speed and memory, not numbers.

    Raises:
        EvaluationError: naming the field, the value and the rule.
    """

    lengths: Sequence[int] = (1024, 2048, 4096, 8192)
    protocol: str = "prefix"
    start_token: str = "none"
    batch_size: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.lengths, int | float | str):
            raise EvaluationError(
                f"evaluation.lengths={self.lengths} is one value; give a list in brackets, quoted for the shell: "
                "'evaluation.lengths=[512,1024]' (a bare comma would start one job for each)"
            )
        lengths = list(self.lengths)
        if not lengths or any(isinstance(n, bool) or not isinstance(n, int) or n < 2 for n in lengths):
            raise EvaluationError(f"lengths must be whole numbers of at least 2 tokens, got {lengths}")
        object.__setattr__(self, "lengths", tuple(sorted(set(lengths))))
        if self.protocol != "prefix":
            raise EvaluationError(f"protocol must be 'prefix', got {self.protocol!r}")
        if self.start_token not in START_TOKENS:
            raise EvaluationError(f"start_token must be one of {', '.join(START_TOKENS)}, got {self.start_token!r}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise EvaluationError(f"batch_size must be a whole number of at least 1, got {self.batch_size!r}")

    @property
    def name(self) -> str:
        """The evaluation's name in result rows."""
        return "perplexity"

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have."""
        return max(self.lengths)

    def identity(self) -> dict[str, Any]:
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        return {
            "evaluation": self.name,
            "protocol": self.protocol,
            "lengths": list(self.lengths),
            "start_token": self.start_token,
        }

    def start_token_id(self, tokenizer: Any) -> int | None:
        """Id of the token put before each document; None for none.

        Raises:
            EvaluationError: when one is asked for and the tokenizer has none.
        """
        if self.start_token == "none":
            return None
        if tokenizer.bos_token_id is None:
            raise EvaluationError(
                "start_token=first, but the tokenizer has no beginning-of-text token; use start_token=none"
            )
        return int(tokenizer.bos_token_id)

    def losses(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        *,
        start_token_id: int | None = None,
        one_pass: bool = True,
        description: str | None = None,
    ) -> dict[int, Tensor]:
        """Run the model: token losses of every document, for each window that had to be run.

        Under causal attention the losses of the first L tokens do not depend on what follows, so one pass at the
        longest length serves every shorter one. A strategy that depends on the length needs a pass for each.

        Args:
            model: a causal language model, patched or not.
            documents: each with at least ``max(lengths)`` tokens.
            start_token_id: from :meth:`start_token_id`.
            one_pass: False for a strategy that depends on the length.
            description: shown before a progress bar (tokens a second, time left); no bar when left out.

        Returns:
            window → (documents, window - 1) float32, nats.

        Raises:
            EvaluationError: when a document is too short or there is none.
        """
        if not documents:
            raise EvaluationError("there are no documents to score")
        short = [d for d in documents if d.ids.numel() < self.min_tokens]
        if short:
            raise EvaluationError(
                f"{short[0].name} has {short[0].ids.numel():,} tokens, the longest length needs {self.min_tokens:,}"
            )
        windows = [max(self.lengths)] if one_pass else list(self.lengths)
        total = sum(windows) * len(documents)
        with tqdm(
            total=total,
            desc=description,
            unit="tok",
            unit_scale=True,
            disable=None if description else True,
            leave=False,
        ) as bar:
            return {
                window: torch.cat(
                    [
                        token_losses(
                            model,
                            torch.stack(
                                [_window(d, window, start_token_id) for d in documents[i : i + self.batch_size]]
                            ),
                            progress=bar.update,
                        )
                        for i in range(0, len(documents), self.batch_size)
                    ]
                )
                for window in windows
            }

    def scores(self, losses: dict[int, Tensor]) -> list[Score]:
        """Perplexity at every length, from the losses of :meth:`losses` or read back from a results folder."""
        longest = max(losses)
        return [
            prefix_score(
                losses.get(length, losses[longest]), length, first_scored=1 if self.start_token == "none" else 0
            )
            for length in self.lengths
        ]


def prefix_score(losses: Tensor, length: int, first_scored: int = 1) -> Score:
    """Score the first ``length`` tokens of model input.

    Args:
        losses: (documents, at least length - 1), nats.
        length: tokens of model input.
        first_scored: index in its document of the first token that is scored: 1, or 0 behind a start token.

    Raises:
        EvaluationError: when there are fewer losses than that.
    """
    documents, have = losses.shape
    if length < 2 or have < length - 1:
        raise EvaluationError(f"length {length} needs {length - 1} losses a document, there are {have}")
    chosen = losses[:, : length - 1].double()
    nonfinite = int((~torch.isfinite(chosen)).sum())
    nll_sum = math.nan if nonfinite else float(chosen.sum())
    scored = chosen.numel()
    nll_mean = nll_sum / scored
    return Score(
        length=length,
        length_used=length,
        documents=documents,
        tokens_scored=scored,
        first_scored=first_scored,
        last_scored=first_scored + length - 2,
        nll_sum=nll_sum,
        nll_mean=nll_mean,
        perplexity=perplexity(nll_mean),
        nonfinite=nonfinite,
    )


def perplexity(nll_mean: float) -> float:
    """``exp`` of a mean loss in nats; inf where it passes the range of a float, NaN for NaN, never an exception."""
    try:
        return math.exp(nll_mean)
    except OverflowError:
        return math.inf


def _window(document: Document, length: int, start_token_id: int | None) -> Tensor:
    if start_token_id is None:
        return document.ids[:length]
    return torch.cat((torch.tensor([start_token_id]), document.ids[: length - 1]))
