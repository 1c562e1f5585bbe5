"""What every evaluation has in common: the contract with a sweep, and the score of a set of tokens."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from extrapolate.data.documents import Document
from extrapolate.errors import EvaluationError

Measured = Mapping[str, Tensor]
"""What a model said, by name: kept in the results folder, so that scores can be computed anew."""

BLOCKS = 64
"""Into at most so many runs of tokens one document is cut for the uncertainty of its mean."""
BLOCK_TOKENS = 16
"""The shortest such run: losses of neighbours are not independent."""


class Evaluation(Protocol):
    """What is measured on a model at a list of lengths. It never sees a strategy."""

    @property
    def head(self) -> str:
        """``causal`` or ``masked``, the kind of language model it needs."""
        ...

    @property
    def name(self) -> str:
        """In result rows."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of model input, ascending."""
        ...

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have."""
        ...

    @property
    def longest(self) -> int:
        """Tokens of the longest model input."""
        ...

    def identity(self, tokenizer: Any) -> dict[str, Any]:
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        ...

    def columns(self) -> dict[str, Any]:
        """What all its rows say of it, known before anything runs."""
        ...

    def measure(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        tokenizer: Any,
        *,
        one_pass: bool = True,
        description: str | None = None,
    ) -> dict[str, Tensor]:
        """Run the model. ``one_pass`` is False for a strategy that depends on the length."""
        ...

    def scores(self, measured: Measured) -> Sequence[Any]:
        """A score at every length (and depth), from what :meth:`measure` returned or a results folder keeps."""
        ...


@dataclass(frozen=True)
class Scored:
    """Scored tokens of one window.

    Attributes:
        document: which.
        first: index in its document of the first.
        context: tokens of model input before it.
        size: tokens of model input of the window.
        losses: (n,) float64, nats.
        weight: of their mean.
        text_bytes: UTF-8 bytes of their text; None where the tokenizer does not tell.
        grows: whether the context grows by each token, as in causal models.
    """

    document: int
    first: int
    context: int
    size: int
    losses: Tensor
    weight: float
    text_bytes: int | None
    grows: bool = True


@dataclass(frozen=True)
class Score:
    """Perplexity at one length.

    Attributes:
        length: tokens of model input asked for.
        length_used: tokens of the longest model input really run.
        documents: how many were scored.
        windows: model inputs scored.
        tokens_scored: predicted tokens in the sum, over all windows.
        first_scored: smallest index (from 0) in its document of a scored token.
        last_scored: the largest.
        context_min: fewest tokens of model input before a scored one.
        context_max: most.
        bytes_scored: UTF-8 bytes of the scored tokens; None where the tokenizer does not tell.
        nll_sum: nats, float64; NaN when a loss is not finite.
        nll_mean: nats a token, in the protocol's mean; ``nll_sum / tokens_scored`` where that is over tokens.
        perplexity: ``exp(nll_mean)``; inf past the range of a float, NaN when a loss is not finite.
        bits_per_byte: ``nll_sum / (ln 2 · bytes_scored)``, comparable between tokenizers.
        nonfinite: losses among them that are NaN or infinite; any makes the sum NaN, none is averaged away.
        unit: what uncertainty is over: ``document``, or ``block`` of one document.
        units: JSON, for each unit in order its weighted loss and its weight: their sums' quotient is ``nll_mean``.
    """

    length: int
    length_used: int
    documents: int
    windows: int
    tokens_scored: int
    first_scored: int
    last_scored: int
    context_min: int
    context_max: int
    bytes_scored: int | None
    nll_sum: float
    nll_mean: float
    perplexity: float
    bits_per_byte: float | None
    nonfinite: int
    unit: str
    units: str


def score(length: int, windows: Sequence[Scored]) -> Score:
    """Sum up scored tokens: the one place where losses become a number.

    Args:
        length: tokens of model input asked for.
        windows: of all documents, at least one token among them.
    """
    losses = torch.cat([w.losses.double() for w in windows])
    # each token's share of its window's weight: ones where the mean is over tokens
    weights = torch.cat(
        [torch.full_like(w.losses, w.weight / max(1, w.losses.numel()), dtype=torch.float64) for w in windows]
    )
    counts = [w.losses.numel() for w in windows]
    owner = torch.repeat_interleave(torch.tensor([w.document for w in windows]), torch.tensor(counts))
    nonfinite = int((~torch.isfinite(losses)).sum())
    total = math.nan if nonfinite else float(losses.sum())
    mean = math.nan if nonfinite or not losses.numel() else float((weights * losses).sum()) / float(weights.sum())
    bytes_of = [w.text_bytes for w in windows]
    text_bytes = None if None in bytes_of else sum(n for n in bytes_of if n is not None)
    documents = len(set(owner.tolist()))
    unit, parts = ("document", owner) if documents > 1 else ("block", _blocks(losses.numel()))
    return Score(
        length=length,
        length_used=max(w.size for w in windows),
        documents=documents,
        windows=len(windows),
        tokens_scored=losses.numel(),
        first_scored=min(w.first for w in windows),
        last_scored=max(w.first + n - 1 for w, n in zip(windows, counts, strict=True)),
        context_min=min(w.context for w in windows),
        context_max=max(w.context + (n - 1) * w.grows for w, n in zip(windows, counts, strict=True)),
        bytes_scored=text_bytes,
        nll_sum=total,
        nll_mean=mean,
        perplexity=perplexity(mean),
        bits_per_byte=total / (math.log(2) * text_bytes) if text_bytes else None,
        nonfinite=nonfinite,
        unit=unit,
        units=json.dumps(unit_sums(parts, weights * losses, weights)),
    )


def perplexity(nll_mean: float) -> float:
    """``exp`` of a mean loss in nats; inf where it passes the range of a float, NaN for NaN, never an exception."""
    try:
        return math.exp(nll_mean)
    except OverflowError:
        return math.inf


def _blocks(count: int) -> Tensor:
    """(count,) block of each token: runs of equal length, give or take one."""
    blocks = max(1, min(BLOCKS, count // BLOCK_TOKENS))
    return torch.arange(count) * blocks // count


def unit_sums(parts: Tensor, values: Tensor, weights: Tensor) -> list[list[float | None]]:
    """Sum of values and of weights in each part; null for a sum that is not finite, which JSON cannot say."""
    if not parts.numel():
        return []
    _, index = torch.unique(parts, return_inverse=True)
    size = int(index.max()) + 1
    sums = torch.zeros(size, dtype=torch.float64).index_add_(0, index, values)
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, index, weights)
    return [[float(a) if math.isfinite(a) else None, float(b)] for a, b in zip(sums, total, strict=True)]


def checked_lengths(lengths: Any) -> tuple[int, ...]:
    """Ascending, each once.

    Raises:
        EvaluationError: when it is no list of whole numbers of at least 2.
    """
    if isinstance(lengths, int | float | str):
        raise EvaluationError(
            f"evaluation.lengths={lengths} is one value; give a list in brackets, quoted for the shell: "
            "'evaluation.lengths=[512,1024]' (a bare comma would start one job for each)"
        )
    found = list(lengths)
    if not found or any(isinstance(n, bool) or not isinstance(n, int) or n < 2 for n in found):
        raise EvaluationError(f"lengths must be whole numbers of at least 2 tokens, got {found}")
    return tuple(sorted(set(found)))


def check_whole(field: str, value: Any, *, least: int, most: int | None = None) -> None:
    """A whole number in a range.

    Raises:
        EvaluationError: naming the field, the value and the range.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" + ("" if most is None else f" and at most {most}")
        raise EvaluationError(f"{field} must be a whole number {bounds}, got {value!r}")


def start_token_id(tokenizer: Any, policy: str, *, otherwise: int | None = None) -> int | None:
    """Id of the tokenizer's beginning-of-text token, or of another where it has none; None for policy ``none``.

    Raises:
        EvaluationError: when one is asked for and there is none.
    """
    if policy == "none":
        return None
    found = otherwise if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if found is None:
        raise EvaluationError(
            f"start_token={policy}, but the tokenizer has no beginning-of-text token; use start_token=none"
        )
    return int(found)


def check_documents(documents: Sequence[Document], min_tokens: int) -> None:
    """Documents that are long enough.

    Raises:
        EvaluationError: when there is none, or one is too short.
    """
    if not documents:
        raise EvaluationError("there are no documents to score")
    short = [d for d in documents if d.ids.numel() < min_tokens]
    if short:
        raise EvaluationError(
            f"{short[0].name} has {short[0].ids.numel():,} tokens, the longest length needs {min_tokens:,}"
        )


def byte_counts(documents: Sequence[Document], tokens: int) -> dict[str, Tensor]:
    """``bytes_i`` of the first tokens of each document whose tokenizer tells."""
    return {f"bytes_{i}": d.ends[:tokens].clone() for i, d in enumerate(documents) if d.ends is not None}


def progress_bar(total: int, description: str | None, unit: str = "tok") -> Any:
    """Shown on a terminal; none without a description."""
    disable = None if description else True
    return tqdm(total=total, desc=description, unit=unit, unit_scale=True, disable=disable, leave=False)
