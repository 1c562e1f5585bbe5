"""Needle in a haystack: sentences that have nothing to do with the text around them."""

import random
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import EvaluationError
from extrapolate.evaluation.base import check_whole
from extrapolate.evaluation.retrieval.base import Puzzle, Retrieval

PLACES = (
    *("Lisbon", "Oslo", "Quito", "Kyoto", "Tunis", "Perth", "Lagos", "Turin", "Havana", "Dakar", "Bergen", "Sofia"),
    *("Lima", "Cairo", "Boston", "Hanoi", "Delhi", "Riga", "Vienna", "Accra", "Toledo", "Nairobi", "Dublin", "Geneva"),
)


@dataclass(frozen=True)
class Needle(Retrieval):
    """Numbers of places told in real text, after Kamradt's needle in a haystack and RULER's multi-key niah
    (arXiv 2404.06654).

    Args:
        needles: places that are asked for, in the order of the text; the first at the depth, the others after it.
        distractors: further places with numbers of their own that nobody asks for, anywhere.
    """

    needles: int = 1
    distractors: int = 0

    name: ClassVar[str] = "needle"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("needles", self.needles, least=1)
        check_whole("distractors", self.distractors, least=0)
        if self.needles + self.distractors > len(PLACES):
            raise EvaluationError(
                f"needles and distractors must be at most {len(PLACES)} together, got {self.needles + self.distractors}"
            )

    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:
        """Needles from a depth on, and distractors anywhere."""
        places = rng.sample(PLACES, self.needles + self.distractors)
        numbers = [rng.randrange(1_000_000, 10_000_000) for _ in places]
        told = [f" The secret number of {p} is {n}. " for p, n in zip(places, numbers, strict=True)]
        spread = [depth + (1 - depth) * i / self.needles for i in range(self.needles)]
        asked = places[: self.needles]
        names = asked[0] if self.needles == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
        what = f"secret number of {names} is" if self.needles == 1 else f"secret numbers of {names}, in this order, are"
        return Puzzle(
            head="The following text tells secret numbers. Remember them; you will be asked for one or more.\n\n",
            facts=list(zip([*spread, *(rng.random() for _ in range(self.distractors))], told, strict=True)),
            question=f"\n\nQuestion: which numbers were told? Answer: The {what}",
            answer=" " + ", ".join(str(n) for n in numbers[: self.needles]),
        )
