"""LongRoPE's evolutionary search over one divisor a rotary pair, as a sampler for Optuna."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

Genes = dict[str, Any]


class LongRoPEEvolution(optuna.samplers.BaseSampler):
    """Population, mutation and crossover as in the paper; divisors never fall from one pair to the next.

    The first ``population`` trials are the starts that were enqueued and mutations of them. Each later generation has
    ``mutations`` + ``crossovers`` trials, bred from the best ``parents`` of all earlier generations. Parameters that
    are no divisors mutate and cross with them. What it breeds depends on the finished trials and their number only, so
    a study that is resumed goes on as it would have.

    Source: Ding et al. 2024, arXiv 2402.13753, Algorithm 1 and Appendix A (population 64, 40 iterations, 16 mutations,
    16 crossovers, 32 parents, mutation probability 0.3).

    Args:
        population: trials of the first generation.
        mutations: of each later generation.
        crossovers: of each later generation.
        parents: the best trials that it breeds from.
        probability: with which a parameter mutates.
        seed: of everything random.
    """

    def __init__(
        self,
        population: int = 64,
        mutations: int = 16,
        crossovers: int = 16,
        parents: int = 32,
        probability: float = 0.3,
        seed: int = 0,
    ) -> None:
        for name, value in (("population", population), ("parents", parents), ("mutations", mutations)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.population, self.mutations, self.crossovers = population, mutations, crossovers
        self.parents, self.probability, self.seed = parents, probability, seed

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters together, as earlier trials had them."""
        space: dict[str, BaseDistribution] = optuna.search_space.intersection_search_space(
            [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        )
        return space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Genes:
        """A child of earlier generations; nothing before there is one."""
        chance = random.Random(f"{self.seed} {trial.number}")
        best = self._best(study, trial.number)
        if not search_space or not best:
            return {}
        place = trial.number - self.population
        if place < 0 or place % (self.mutations + self.crossovers) < self.mutations or len(best) < 2:
            return self._mutated(chance, chance.choice(best), search_space)
        one, other = chance.sample(best, 2)
        return self._crossed(chance, one, other, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """A parameter that no earlier trial had: anything in its range."""
        chance = random.Random(f"{self.seed} {trial.number} {name} {study.study_name}")
        return _drawn(chance, distribution, None, None)

    def _best(self, study: optuna.Study, number: int) -> list[Genes]:
        """Parameters of the trials to breed from, of the generations before that of trial ``number``."""
        size = self.mutations + self.crossovers
        place = number - self.population
        before = number if place < 0 else self.population + place // size * size
        states = (TrialState.COMPLETE,)
        done = [t for t in study.get_trials(deepcopy=False, states=states) if t.number < before and t.value is not None]
        done.sort(key=lambda t: (t.value, t.number))
        return [t.params for t in done[: self.parents]]

    def _mutated(
        self, chance: random.Random, parent: Mapping[str, Any], space: Mapping[str, BaseDistribution]
    ) -> Genes:
        """Some parameters anew; a divisor between its neighbours."""
        child = dict(parent)
        families = _families(space)
        for name in sorted(space):
            if chance.random() >= self.probability:
                continue
            family = next((f for f in families if name in f), [name])
            i = family.index(name)
            low = child[family[i - 1]] if i > 0 else None
            high = child[family[i + 1]] if i + 1 < len(family) else None
            child[name] = _drawn(chance, space[name], low, high)
        return child

    def _crossed(
        self,
        chance: random.Random,
        one: Mapping[str, Any],
        other: Mapping[str, Any],
        space: Mapping[str, BaseDistribution],
    ) -> Genes:
        """Each parameter of either parent; a divisor that would fall below its neighbour comes of the other one."""
        child = {name: chance.choice((one, other))[name] for name in sorted(space)}
        for family in _families(space):
            for before, name in itertools.pairwise(family):
                if child[name] < child[before]:
                    child[name] = max(one[name], other[name], child[before])
        return child


def _families(space: Mapping[str, BaseDistribution]) -> list[list[str]]:
    """Names of each list of divisors in order: ``long_factor.00``, ``.01`` and so on."""
    found: dict[str, list[str]] = {}
    for name in sorted(space):
        head, dot, tail = name.rpartition(".")
        if dot and tail.isdecimal():
            found.setdefault(head, []).append(name)
    return list(found.values())


def _drawn(chance: random.Random, distribution: Any, low: float | None, high: float | None) -> Any:
    """A value of the distribution, not below ``low`` nor above ``high``."""
    if isinstance(distribution, CategoricalDistribution):
        return chance.choice(distribution.choices)
    a = distribution.low if low is None else max(distribution.low, low)
    b = distribution.high if high is None else min(distribution.high, high)
    if distribution.step:
        steps = [round((x - distribution.low) / distribution.step) for x in (a, b)]
        value = distribution.low + chance.randint(*steps) * distribution.step
        return type(distribution.low)(min(max(value, a), b))
    if distribution.log:
        return a * (b / a) ** chance.random()
    return chance.uniform(a, b)
