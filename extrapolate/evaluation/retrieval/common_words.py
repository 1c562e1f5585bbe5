"""Common words: which words of a long list stand there most often."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import EvaluationError
from extrapolate.evaluation.base import check_whole
from extrapolate.evaluation.retrieval.base import Puzzle, Retrieval


@dataclass(frozen=True)
class CommonWords(Retrieval):
    """A list of made-up words, a few of them often (RULER's cwe, arXiv 2404.06654); the whole text must be read.

    Args:
        common: words that are frequent, and asked for in alphabetical order.
        frequency: how often each of them stands there.
        rare: how often every other word does.
    """

    depths: Sequence[float] = ()
    haystack: str = "filler"
    common: int = 3
    frequency: int = 30
    rare: int = 3

    name: ClassVar[str] = "common_words"
    haystacks: ClassVar[tuple[str, ...]] = ("filler",)  # its own list, which needs no documents
    has_depth: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("common", self.common, least=1)
        check_whole("rare", self.rare, least=1)
        check_whole("frequency", self.frequency, least=2)
        if self.frequency <= self.rare:
            raise EvaluationError(f"frequency must be above rare={self.rare}, got {self.frequency}")

    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:  # noqa: ARG002
        """The common words anywhere among the others."""
        used: set[str] = set()
        common = sorted(_word(rng, used) for _ in range(self.common))
        return Puzzle(
            head=f"A list of words. {self.common} of them stand there more often than the others.\n\n",
            facts=[(rng.random(), f" {word},") for word in common for _ in range(self.frequency)],
            question="\n\nThe most frequent words of the list, in alphabetical order:",
            answer=" " + ", ".join(common),
            haystack=_others(rng, self.rare, used),
        )


def _others(rng: random.Random, rare: int, used: set[str]) -> Iterator[str]:
    """Other words, each ``rare`` times within the next fifty or so."""
    while True:
        words = [_word(rng, used) for _ in range(50)] * rare
        rng.shuffle(words)
        for word in words:
            yield f" {word},"


def _word(rng: random.Random, used: set[str]) -> str:
    """A word of three syllables that nobody used yet."""
    while True:
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        if word not in used:
            used.add(word)
            return word
