"""LM-Infinite: the beginning, the neighbours, and a ceiling on distance."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, tokens


@dataclass(frozen=True)
class LMInfinite(Strategy):
    """LM-Infinite: a query sees the first tokens and its neighbours, no pair further apart than a limit.

    Keys less than ``local`` before their query are at true positions; the first ``first`` tokens of the text are seen
    from anywhere, at ``min(distance, limit)``; all others are not seen. It reaches any length, and no cache needs more
    than those keys.

    Source: Han et al. 2024, arXiv 2308.16137, section 4 (the mask's Λ shape and the distance limit), without the
    optional re-introduction of middle tokens, which depends on the data.

    Args:
        first: tokens of the beginning (the paper: 10 to 100).
        local: tokens; the pretrained length when left out.
        limit: largest relative position, at least ``local``; ``local`` when left out.
    """

    name: ClassVar[str] = "lm_infinite"
    first: int = 10
    local: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "first", minimum=0, automatic=False)
        tokens(self, "local", minimum=1)
        tokens(self, "limit", minimum=1)

    def at(self, rope: RopeSpec, length: int) -> "LMInfinite":  # noqa: ARG002
        """With the sizes in use."""
        local, limit = self._sizes(rope)
        return dataclasses.replace(self, local=local, limit=limit)

    def keeps(self, rope: RopeSpec) -> tuple[int, int]:
        """The beginning and the neighbours."""
        return self.first, self._sizes(rope)[0]

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """Neighbours, the beginning below the limit, the beginning at it."""
        first, (local, limit) = self.first, self._sizes(rope)
        below = Band(
            query_position=lambda i: i,
            key_position=lambda j: j,
            covers=lambda i, j: (j < first) & (i - j >= local) & (i - j < limit),
        )
        at_limit = Band(
            query_position=lambda i: i.new_full(i.shape, limit),
            key_position=lambda j: j.new_zeros(j.shape),
            covers=lambda i, j: (j < first) & (i - j >= limit),
        )
        return (near(local), below, at_limit) if limit > local else (near(local), at_limit)

    def _sizes(self, rope: RopeSpec) -> tuple[int, int]:
        """Local and limit in use.

        Raises:
            StrategyError: when they do not fit each other or the pretrained length.
        """
        trained = rope.pretrained_length
        local = trained if self.local is None else self.local
        limit = local if self.limit is None else self.limit
        if not local <= limit <= trained:
            raise StrategyError(
                f"lm_infinite: limit must be at least local and at most the pretrained length {trained}, got "
                f"local={local}, limit={limit}"
            )
        return local, limit
