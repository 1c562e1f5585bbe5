"""Variable tracking: a chain of assignments spread over a text."""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.evaluation.base import check_whole
from extrapolate.evaluation.retrieval.base import Puzzle, Retrieval


@dataclass(frozen=True)
class VariableTracking(Retrieval):
    """Which variables hold a value, told through a chain of assignments in order (RULER's vt, arXiv 2404.06654).

    The chain is spread evenly over the text, so there is no depth.

    Args:
        hops: assignments after the first.
        chains: further chains of their own value, as distractors.
    """

    depths: Sequence[float] = ()
    haystack: str = "filler"
    hops: int = 2
    chains: int = 0

    name: ClassVar[str] = "variable_tracking"
    has_depth: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("hops", self.hops, least=0)
        check_whole("chains", self.chains, least=0)

    def puzzle(self, rng: random.Random, depth: float) -> Puzzle:  # noqa: ARG002
        """Chains over the whole text, each in order."""
        facts: list[tuple[float, str]] = []
        steps = self.hops + 1
        used: set[str] = set()
        for chain in range(self.chains + 1):
            names = _names(rng, steps, used)
            value = rng.randrange(10_000, 100_000)
            sources = [str(value), *(f"VAR {name}" for name in names[:-1])]
            places = [(i + (0.5 if chain == 0 else rng.random())) / steps for i in range(steps)]
            told = [f" VAR {name} = {source}. " for name, source in zip(names, sources, strict=True)]
            facts += zip(places, told, strict=True)
            if chain == 0:
                asked, answer = value, ", ".join(names)
        return Puzzle(
            head="The following text assigns values to variables. Remember which variable holds what.\n\n",
            facts=facts,
            question=f"\n\nThe variables that hold the value {asked}, in the order of their assignment, are",
            answer=f" {answer}",
        )


def _names(rng: random.Random, count: int, used: set[str]) -> list[str]:
    """Names of five capitals that are not used yet."""
    found: list[str] = []
    while len(found) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in used:
            used.add(name)
            found.append(name)
    return found
