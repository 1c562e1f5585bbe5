"""Key-value retrieval: one pair out of many of its kind."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.evaluation.retrieval.base import Puzzle, Retrieval


@dataclass(frozen=True)
class KeyValue(Retrieval):
    """A list of random pairs that fills the length (Liu et al. 2023, Lost in the middle, arXiv 2307.03172, §3).

    Every line is a distractor of the one asked for, so that nothing but the key tells it apart.
    """

    haystack: str = "filler"

    name: ClassVar[str] = "key_value"
    haystacks: ClassVar[tuple[str, ...]] = ("filler",)  # its own list, which needs no documents

    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:
        """A pair at a depth."""
        key, value = _word(rng), _word(rng)
        return Puzzle(
            head="Keys and their values:\n",
            facts=[(depth, f"{key}: {value}\n")],
            question=f"\nThe value of one key, looked up in the list above:\n{key}:",
            answer=f" {value}",
            haystack=_pairs(rng),
        )


def _pairs(rng: random.Random) -> Iterator[str]:
    while True:
        yield f"{_word(rng)}: {_word(rng)}\n"


def _word(rng: random.Random) -> str:
    return f"{rng.getrandbits(32):08x}"
