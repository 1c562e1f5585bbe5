"""Passkey retrieval: a number told once in a long text, asked for at its end."""

import random
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.evaluation.retrieval.base import Puzzle, Retrieval


@dataclass(frozen=True)
class Passkey(Retrieval):
    """A pass key of five digits in repeated filler (Mohtashami and Jaggi 2023, arXiv 2305.16300, Appendix).

    Its fields are those of :class:`~extrapolate.evaluation.retrieval.base.Retrieval`.
    """

    haystack: str = "filler"

    name: ClassVar[str] = "passkey"

    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:
        """A key at a depth."""
        key = rng.randrange(10_000, 100_000)
        return Puzzle(
            head="Somewhere in the following text a pass key is told. Remember it; you will be asked for it.\n\n",
            facts=[(depth, f" The pass key is {key}. Remember it: {key} is the pass key. ")],
            question="\n\nWhat is the pass key? The pass key is",
            answer=f" {key}",
        )
