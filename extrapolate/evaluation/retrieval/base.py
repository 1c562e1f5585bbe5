"""Retrieval at an exact length: a fact hidden in a long text, asked for at its end; what all tasks share."""

import hashlib
import json
import math
import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from extrapolate.data.documents import Document, encode
from extrapolate.errors import EvaluationError
from extrapolate.evaluation.base import (
    Measured,
    check_documents,
    check_whole,
    checked_lengths,
    perplexity,
    progress_bar,
    start_token_id,
    unit_sums,
)
from extrapolate.evaluation.losses import answer_losses

FILLER = (
    "The river runs past the mill and under the old bridge. A cart goes by in the morning and comes back at night. "
    "The miller counts the sacks and closes the door. Then it is quiet again until the next day. "
)
"""What a haystack of ``filler`` repeats."""

HAYSTACKS = ("documents", "filler")


@dataclass(frozen=True)
class Puzzle:
    """One question before it is tokenised.

    Attributes:
        head: what the text begins with.
        facts: each with the place in the haystack where it is told, from 0 (its beginning) to 1 (its end).
        question: what the text ends with, up to the answer.
        answer: what must follow.
        haystack: text of its own for a task that does not hide facts in prose; an endless supply.
    """

    head: str
    facts: Sequence[tuple[float, str]]
    question: str
    answer: str
    haystack: Iterator[str] | None = None


@dataclass(frozen=True)
class RetrievalScore:
    """Retrieval at one length and depth.

    Attributes:
        length: tokens of prompt and answer together, the start token included.
        length_used: the same; never shorter.
        depth: where the fact stands in the haystack, from 0 to 1; None for a task that has no such place.
        samples: questions asked.
        accuracy: share of questions whose whole answer greedy decoding gives, token for token.
        answer_rank: mean over answer tokens of how many tokens the model prefers to the right one; 0 is all right.
        documents: texts that haystacks were cut from.
        windows: prompts.
        tokens_scored: answer tokens.
        nll_sum: of the answer tokens, nats; NaN when a loss is not finite.
        nll_mean: nats an answer token.
        perplexity: ``exp(nll_mean)``.
        nonfinite: losses that are NaN or infinite.
        unit: ``sample``.
        units: JSON, of each answer its loss, its tokens, and 1 where it is right, else 0.
    """

    length: int
    length_used: int
    depth: float | None
    samples: int
    accuracy: float
    answer_rank: float
    documents: int
    windows: int
    tokens_scored: int
    nll_sum: float
    nll_mean: float
    perplexity: float
    nonfinite: int
    unit: str
    units: str


@dataclass(frozen=True)
class Retrieval:
    """A task: puzzles of exactly L tokens, prompt and answer together, drawn from a seed with the tokenizer at hand.

    The answer is scored behind its prompt by the loss and the rank of its tokens. Greedy decoding gives the answer just
    when each of its tokens has rank 0 behind the ones before it, so exact match needs no decoding, and small models,
    which never answer right, are told apart by loss and rank.

    Args:
        lengths: tokens of prompt and answer, the start token included.
        depths: where the fact stands, from 0 to 1; a row for each.
        samples: questions at each length and depth.
        seed: of the questions; the same for every strategy.
        haystack: ``documents`` of the data group, or a repeated ``filler`` that needs none.
        start_token: ``none``, or ``first`` for the tokenizer's beginning-of-text token.
        batch_size: prompts in one forward pass; changes speed and memory, not numbers.
        chunk: tokens of a prompt in one forward pass, the rest being in the cache, which bounds memory; whole prompts
            when left out, and for a strategy that depends on the length.

    Raises:
        EvaluationError: naming the field, the value and the rule.
    """

    lengths: Sequence[int] = (1024, 2048, 4096, 8192)
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    samples: int = 2
    seed: int = 0
    haystack: str = "documents"
    start_token: str = "none"
    batch_size: int = 1
    chunk: int | None = None

    head: ClassVar[str] = "causal"
    name: ClassVar[str]
    has_depth: ClassVar[bool] = True
    haystacks: ClassVar[tuple[str, ...]] = HAYSTACKS

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))
        depths = tuple(float(d) for d in self.depths)
        if not self.has_depth and depths:
            raise EvaluationError(f"depths mean nothing to {self.name}; leave them out")
        if self.has_depth and (not depths or not all(0 <= d <= 1 for d in depths)):
            raise EvaluationError(f"depths must be numbers from 0 to 1, got {list(self.depths)}")
        object.__setattr__(self, "depths", depths)
        for field in ("samples", "batch_size"):
            check_whole(field, getattr(self, field), least=1)
        if self.chunk is not None:
            check_whole("chunk", self.chunk, least=1)
        if self.haystack not in self.haystacks:
            raise EvaluationError(f"haystack must be {' or '.join(self.haystacks)}, got {self.haystack!r}")
        if self.start_token not in ("none", "first"):
            raise EvaluationError(f"start_token must be 'none' or 'first', got {self.start_token!r}")

    @abstractmethod
    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:
        """A question of this task, from a source of randomness."""

    @property
    def longest(self) -> int:
        """Tokens of the longest model input."""
        return max(self.lengths)

    @property
    def min_tokens(self) -> int:
        """Tokens a document must have; 0 where none is needed."""
        return self.longest if self.haystack == "documents" else 0

    def identity(self, tokenizer: Any) -> dict[str, Any]:
        """Every field that can change a number; what the cell's key takes from the evaluation."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("batch_size", "chunk")}
        return {"evaluation": self.name, **fields, "start_token_id": self._start(tokenizer)}

    def columns(self) -> dict[str, Any]:
        """What all its rows say of it, known before anything runs."""
        return {
            "evaluation": self.name,
            "protocol": "answer",
            "start_token": self.start_token,
            "mean": "tokens",
            "samples": self.samples,
        }

    def _start(self, tokenizer: Any) -> list[int]:
        found = start_token_id(tokenizer, self.start_token)
        return [] if found is None else [found]

    def prompts(
        self, tokenizer: Any, documents: Sequence[Document], length: int, depth: float
    ) -> Iterator[tuple[Tensor, int]]:
        """Token ids of each question: (length,) prompt and answer, and how many of them are the answer.

        The start of the answer is tokenised by itself, as decoding would meet it.

        Raises:
            EvaluationError: when the question alone is longer than the length.
        """
        for sample in range(self.samples):
            where = f"{self.name}/{self.seed}/{length}/{depth}/{sample}"
            # of a digest, because Python's own hash of a text differs between processes
            rng = random.Random(int.from_bytes(hashlib.sha256(where.encode()).digest()[:8], "big"))
            puzzle = self.puzzle(rng, depth)
            head, question, answer = (
                encode(tokenizer, text)[0] for text in (puzzle.head, puzzle.question, puzzle.answer)
            )
            head = torch.cat((torch.tensor(self._start(tokenizer), dtype=torch.int64), head))
            facts = [(place, encode(tokenizer, text)[0]) for place, text in puzzle.facts]
            room = length - sum(ids.numel() for ids in (head, question, answer, *(f for _, f in facts)))
            if room < 0:
                raise EvaluationError(
                    f"length {length} is too short for {self.name}: its question takes {length - room} tokens"
                )
            hay = self._haystack(rng, tokenizer, documents, room, puzzle)
            closers = (".", "!", "?", "\n") if puzzle.haystack is None else (",", "\n")
            yield torch.cat((head, _hidden(hay, facts, tokenizer, closers), question, answer)), answer.numel()

    def _haystack(
        self, rng: random.Random, tokenizer: Any, documents: Sequence[Document], room: int, puzzle: Puzzle
    ) -> Tensor:
        """(room,) tokens."""
        if puzzle.haystack is not None:
            parts: list[Tensor] = []
            while sum(p.numel() for p in parts) < room:
                parts.append(encode(tokenizer, next(puzzle.haystack))[0])
            ids = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
            return ids[ids.numel() - room :]  # cut at its beginning, as if the text had begun earlier
        if self.haystack == "filler":
            once = encode(tokenizer, FILLER)[0]
            return once.repeat(-(-room // once.numel()))[:room]
        ids = documents[rng.randrange(len(documents))].ids
        start = rng.randrange(ids.numel() - room + 1)
        return ids[start : start + room]

    def measure(
        self,
        model: nn.Module,
        documents: Sequence[Document],
        tokenizer: Any,
        *,
        one_pass: bool = True,
        description: str | None = None,
    ) -> dict[str, Tensor]:
        """Run the model on every question.

        Args:
            model: a causal language model, patched or not.
            documents: to cut haystacks from; not needed for ``filler``.
            tokenizer: the model's.
            one_pass: False for a strategy that depends on the length: no chunks then.
            description: shown before a progress bar (tokens a second, time left); no bar when left out.

        Returns:
            ``losses_L`` and ``ranks_L``: (depths, samples, answer tokens) float32 nats, and int64; NaN and -1 past the
            end of a shorter answer. ``documents``: how many. ``input_tokens``: how many.

        Raises:
            EvaluationError: when a document is too short or there is none, or a length is too short for the task.
        """
        if self.min_tokens:
            check_documents(documents, self.min_tokens)
        depths = self.depths or (0.5,)
        total = sum(self.lengths) * len(depths) * self.samples
        measured = {"documents": torch.tensor(len(documents)), "input_tokens": torch.tensor(total)}
        with progress_bar(total, description) as bar:
            for length in self.lengths:
                work = [item for depth in depths for item in self.prompts(tokenizer, documents, length, depth)]
                width = max(count for _, count in work)
                losses = torch.full((len(work), width), torch.nan)
                ranks = torch.full((len(work), width), -1)
                for i in range(0, len(work), self.batch_size):
                    part = work[i : i + self.batch_size]
                    most = max(count for _, count in part)
                    found = answer_losses(
                        model, torch.stack([ids for ids, _ in part]), most, chunk=self.chunk if one_pass else None
                    )
                    for row, (_, count) in enumerate(part):
                        losses[i + row, :count] = found[0][row, most - count :]
                        ranks[i + row, :count] = found[1][row, most - count :]
                    bar.update(len(part) * length)
                shape = (len(depths), self.samples, width)
                measured[f"losses_{length}"], measured[f"ranks_{length}"] = losses.view(shape), ranks.view(shape)
        return measured

    def scores(self, measured: Measured) -> list[RetrievalScore]:
        """A score at every length and depth, from what :meth:`measure` returned or a results folder keeps."""
        documents = int(measured["documents"])
        return [
            _score(length, depth, documents, measured[f"losses_{length}"][i], measured[f"ranks_{length}"][i])
            for length in self.lengths
            for i, depth in enumerate(self.depths or (None,))
        ]


def _score(length: int, depth: float | None, documents: int, losses: Tensor, ranks: Tensor) -> RetrievalScore:
    """Of (samples, answer tokens)."""
    real = ranks >= 0
    answers, sample = losses[real].double(), real.nonzero()[:, 0]
    nonfinite = int((~torch.isfinite(answers)).sum())
    total = math.nan if nonfinite else float(answers.sum())
    mean = total / answers.numel()
    right = ((ranks == 0) | ~real).all(dim=1)
    units = unit_sums(sample, answers, torch.ones_like(answers))
    return RetrievalScore(
        length=length,
        length_used=length,
        depth=depth,
        samples=len(losses),
        accuracy=float(right.double().mean()),
        answer_rank=float(ranks[real].double().mean()),
        documents=documents,
        windows=len(losses),
        tokens_scored=answers.numel(),
        nll_sum=total,
        nll_mean=mean,
        perplexity=perplexity(mean),
        nonfinite=nonfinite,
        unit="sample",
        units=json.dumps([[*unit, int(hit)] for unit, hit in zip(units, right, strict=True)]),
    )


def _hidden(hay: Tensor, facts: Sequence[tuple[float, Tensor]], tokenizer: Any, closers: tuple[str, ...]) -> Tensor:
    """The haystack with facts in it, each after the end of the sentence or item that is nearest to its place."""
    ends = [0, *_ends(hay, tokenizer, closers), hay.numel()]
    parts, done = [], 0
    for place, fact in sorted(facts, key=lambda item: item[0]):
        at = max(done, min(ends, key=lambda end: abs(end - place * hay.numel())))
        parts += [hay[done:at], fact]
        done = at
    return torch.cat((*parts, hay[done:]))


def _ends(ids: Tensor, tokenizer: Any, closers: tuple[str, ...]) -> list[int]:
    """Indices one past each token whose text closes a sentence, an item or a line."""
    closing: dict[int, bool] = {}
    for token in set(ids.tolist()):
        text = tokenizer.decode([token]).rstrip(" ")
        closing[token] = text.endswith(closers)
    return [i + 1 for i, token in enumerate(ids.tolist()) if closing[token]]
