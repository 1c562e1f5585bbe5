"""Attention sinks (StreamingLLM): the first tokens and the latest ones, positions counted within the cache."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, tokens


@dataclass(frozen=True)
class AttentionSinks(Strategy):
    """StreamingLLM: a query sees the first ``sinks`` tokens and the latest ``window``, itself included.

    Positions are slots of the cache that holds just those: the latest are at their true distance, and once the cache is
    full the sinks stand right before them, so that no relative position reaches ``sinks + window``. It reaches any
    length, with a cache that stops growing (:meth:`Patch.cache`); what lies between is forgotten. Up to
    ``sinks + window`` tokens it is plain.

    Source: Xiao et al. 2024, arXiv 2309.17453, section 3.2.

    Args:
        sinks: tokens.
        window: tokens; the rest of the pretrained length when left out. At most the pretrained length with the sinks.
    """

    name: ClassVar[str] = "attention_sinks"
    sinks: int = 4
    window: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "sinks", minimum=0, automatic=False)
        tokens(self, "window", minimum=1)

    def at(self, rope: RopeSpec, length: int) -> "AttentionSinks":  # noqa: ARG002
        """With its window."""
        return dataclasses.replace(self, window=self.keeps(rope)[1])

    def keeps(self, rope: RopeSpec) -> tuple[int, int]:
        """Sinks and window.

        Raises:
            StrategyError: when both together exceed the pretrained length.
        """
        trained = rope.pretrained_length
        window = trained - self.sinks if self.window is None else self.window
        if window < 1 or self.sinks + window > trained:
            raise StrategyError(
                f"attention_sinks: sinks and window together must be at most the pretrained length {trained}, got "
                f"sinks={self.sinks}, window={window}"
            )
        return self.sinks, window

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """The latest tokens, and the sinks."""
        sinks, window = self.keeps(rope)
        before = Band(
            query_position=lambda i: i.clamp(max=sinks + window - 1),
            key_position=lambda j: j,
            covers=lambda i, j: (j < sinks) & (i - j >= window),
        )
        return near(window), before
