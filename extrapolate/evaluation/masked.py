"""Losses of masked tokens: what perplexity is for a model that sees both sides."""

from collections.abc import Callable, Sequence
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
)
from extrapolate.evaluation.losses import losses_of
from extrapolate.running import evaluating, input_device


def masked_losses(
    model: nn.Module,
    input_ids: Tensor,
    mask_token_id: int,
    *,
    every: int = 8,
    batch_size: int = 8,
    frame: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """The loss of each token of a text when it is masked, for an encoder such as RoFormer.

    ``every`` passes: pass r masks the tokens r, r + every, r + 2·every, … at once, so each token is scored exactly
    once and sees all but one in ``every`` of the others. ``every`` of at least the length masks one token at a time:
    the pseudo-log-likelihood of Salazar et al. (2020, arXiv 1910.14659), in as many passes as there are tokens.
    ``masked_losses(...).double().mean().exp()`` is their pseudo-perplexity, of one text.

    Args:
        model: a masked language model.
        input_ids: (batch, length) token ids without padding.
        mask_token_id: what stands for a masked token, ``tokenizer.mask_token_id``.
        every: distance between tokens masked in one pass.
        batch_size: rows in one forward pass; changes speed and memory, not numbers.
        frame: the first and the last token are the model's own (such as [CLS] and [SEP]): never masked, never scored.
        progress: told how many tokens of input are done.

    Returns:
        (batch, length) float32, nats; NaN for the tokens of a frame.

    Raises:
        EvaluationError: naming the argument, the value and the rule.
    """
    if input_ids.ndim != 2 or input_ids.shape[1] < 1:
        raise EvaluationError(f"input_ids must be (batch, length) of at least 1 token, got {tuple(input_ids.shape)}")
    for name, value in (("every", every), ("batch_size", batch_size)):
        check_whole(name, value, least=1)
    if bool((input_ids == mask_token_id).any()):
        raise EvaluationError(f"input_ids hold mask_token_id {mask_token_id} already; a masked token has no loss")
    rows, length = input_ids.shape
    every = min(every, length)
    phase = torch.arange(length) % every
    if frame:
        phase[[0, -1]] = -1
    losses = torch.full((rows, length), torch.nan)
    work = [(row, r) for row in range(rows) for r in range(every)]
    with evaluating(model), torch.no_grad():
        for start in range(0, len(work), batch_size):
            part = work[start : start + batch_size]
            masks = torch.stack([phase == r for _, r in part])
            ids = input_ids[[row for row, _ in part]].cpu()
            logits = model(ids.masked_fill(masks, mask_token_id).to(input_device(model))).logits
            for (row, _), mask, logit, target in zip(part, masks, logits, ids, strict=True):
                losses[row, mask] = losses_of(logit[mask.to(logit.device)][None], target[None, mask])[0]
            if progress:
                progress(ids.numel())
    return losses


@dataclass(frozen=True)
class PseudoPerplexity:
    """``exp`` of the mean loss of masked tokens, for encoders: the first L tokens of every document, each scored once.

    Salazar et al. (2020, arXiv 1910.14659), Eq. 4, with one in ``every`` tokens masked at a time. Both sides are seen,
    so every length is a pass of its own, and a token of one length is not behind the same text at another.

    Args:
        lengths: tokens of model input L, the frame included.
        every: distance between tokens masked in one pass; at least the length masks one at a time, as the paper does.
        start_token: ``first`` frames each document with the tokenizer's [CLS] and [SEP], as encoders are trained;
            ``none`` gives the text alone.
        batch_size: rows in one forward pass; changes speed and memory, not numbers.

    Raises:
        EvaluationError: naming the field, the value and the rule.
    """

    lengths: Sequence[int] = (128, 256, 512, 1024)
    every: int = 8
    start_token: str = "first"
    batch_size: int = 8

    head = "masked"
    name = "pseudo_perplexity"

    def __post_init__(self) -> None:
        lengths = checked_lengths(self.lengths)
        object.__setattr__(self, "lengths", lengths)
        check_whole("every", self.every, least=1)
        check_whole("batch_size", self.batch_size, least=1)
        if self.start_token not in ("none", "first"):
            raise EvaluationError(f"start_token must be 'none' or 'first', got {self.start_token!r}")
        if lengths[0] < 3:
            raise EvaluationError(f"lengths must be at least 3 tokens, got {list(lengths)}")

    @property
    def longest(self) -> int:
        """Tokens of the longest model input."""
        return max(self.lengths)

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have."""
        return self.longest

    def identity(self, tokenizer: Any) -> dict[str, Any]:
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        return {
            "evaluation": self.name,
            "lengths": list(self.lengths),
            "every": self.every,
            "start_token": self.start_token,
            "ids": self._ids(tokenizer),
        }

    def columns(self) -> dict[str, Any]:
        """What all its rows say of it, known before anything runs."""
        return {
            "evaluation": self.name,
            "protocol": "masked",
            "start_token": self.start_token,
            "stride": self.every,
            "mean": "tokens",
        }

    def _ids(self, tokenizer: Any) -> dict[str, int]:
        """Ids of the mask and of the frame.

        Raises:
            EvaluationError: when the tokenizer lacks one.
        """
        wanted = ["mask"] + (["cls", "sep"] if self.start_token == "first" else [])
        found = {name: getattr(tokenizer, f"{name}_token_id", None) for name in wanted}
        absent = [name for name, value in found.items() if value is None]
        if absent:
            way_out = "use start_token=none" if "mask" not in absent else "it needs a masked language model's tokenizer"
            raise EvaluationError(f"the tokenizer has no {' and no '.join(absent)} token; {way_out}")
        return {name: int(value) for name, value in found.items() if value is not None}

    def measure(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        tokenizer: Any,
        *,
        one_pass: bool = True,  # noqa: ARG002 - no pass serves two lengths
        description: str | None = None,
    ) -> dict[str, Tensor]:
        """Run the model.

        Args:
            model: a masked language model, patched or not.
            documents: each with at least :attr:`min_tokens` tokens.
            tokenizer: for the ids of its mask and frame.
            one_pass: changes nothing here.
            description: shown before a progress bar (tokens a second, time left); no bar when left out.

        Returns:
            ``window_n``: (documents, n) float32, nats, the loss of each of the n tokens of model input, NaN for the
            frame. ``bytes_i``: (tokens,) int64, UTF-8 bytes of document i up to the end of each token, where known.
            ``input_tokens``: how many were run.

        Raises:
            EvaluationError: when a document is too short or there is none, or the tokenizer has no mask token.
        """
        check_documents(documents, self.min_tokens)
        ids = self._ids(tokenizer)
        framed = self.start_token == "first"
        total = len(documents) * sum(n * min(self.every, n) for n in self.lengths)
        measured = {"input_tokens": torch.tensor(total)}
        with progress_bar(total, description) as bar:
            for length in self.lengths:
                text = torch.stack([d.ids[: length - 2 * framed] for d in documents])
                if framed:
                    edges = [torch.full((len(text), 1), ids[name]) for name in ("cls", "sep")]
                    text = torch.cat((edges[0], text, edges[1]), dim=1)
                measured[f"window_{length}"] = masked_losses(
                    model,
                    text,
                    ids["mask"],
                    every=self.every,
                    batch_size=self.batch_size,
                    frame=framed,
                    progress=bar.update,
                )
        return measured | byte_counts(documents, self.min_tokens)

    def scores(self, measured: Measured) -> list[Score]:
        """A score at every length, from what :meth:`measure` returned or a results folder keeps."""
        return [
            score(n, [self._scored(measured, n, d) for d in range(len(measured[f"window_{n}"]))]) for n in self.lengths
        ]

    def _scored(self, measured: Measured, length: int, document: int) -> Scored:
        framed = self.start_token == "first"
        losses = measured[f"window_{length}"][document, int(framed) : length - framed].double()
        ends = measured.get(f"bytes_{document}")
        seen = length - -(-length // min(self.every, length))
        return Scored(
            document=document,
            first=0,
            context=seen,
            size=length,
            losses=losses,
            weight=float(losses.numel()),
            text_bytes=None if ends is None else int(ends[losses.numel() - 1]),
            grows=False,
        )
