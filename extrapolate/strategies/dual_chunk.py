"""Dual chunk attention: positions within a chunk, to the chunk before it, and to all earlier ones."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, tokens


@dataclass(frozen=True)
class DualChunk(Strategy):
    """Dual chunk attention (DCA): keys keep their position within their chunk, the query's depends on how far that is.

    With chunks of ``c = chunk - local`` tokens a key at j stands at ``j mod c``. A query at i stands at ``i mod c`` for
    keys of its own chunk, at ``min(i mod c + c, chunk)`` for those of the chunk before (for the first ``local`` queries
    the true distance), and at ``chunk`` for all earlier ones. No relative position exceeds ``chunk``, so it reaches
    any length. Within one chunk it is plain.

    Source: An et al. 2024, arXiv 2402.17463, Eq. 3-8, without the temperature of the authors' code (compose it with
    :class:`Temperature`).

    Args:
        chunk: largest relative position, tokens; at most the pretrained length, three quarters of it when left out.
        local: tokens; an eighth of the pretrained length when left out, below ``chunk``.
    """

    name: ClassVar[str] = "dual_chunk"
    chunk: int | None = None
    local: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "chunk", minimum=1)
        tokens(self, "local", minimum=0)

    def at(self, rope: RopeSpec, length: int) -> "DualChunk":  # noqa: ARG002
        """With both sizes."""
        chunk, local = self._sizes(rope)
        return dataclasses.replace(self, chunk=chunk, local=local)

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """Own chunk, the one before, all earlier ones."""
        chunk, local = self._sizes(rope)
        c = chunk - local

        def within(index: torch.Tensor) -> torch.Tensor:
            return index % c

        own = Band(within, within, lambda i, j: (j <= i) & (i // c == j // c))
        before = Band(lambda i: (i % c + c).clamp(max=chunk), within, lambda i, j: i // c - j // c == 1)
        earlier = Band(lambda i: i.new_full(i.shape, chunk), within, lambda i, j: i // c - j // c > 1)
        return own, before, earlier

    def _sizes(self, rope: RopeSpec) -> tuple[int, int]:
        """Chunk and local in use.

        Raises:
            StrategyError: when they do not fit each other or the pretrained length.
        """
        trained = rope.pretrained_length
        chunk = max(1, 3 * trained // 4) if self.chunk is None else self.chunk
        local = trained // 8 if self.local is None else self.local
        if not local < chunk <= trained:
            raise StrategyError(
                f"dual_chunk: chunk must be above local and at most the pretrained length {trained}, got "
                f"chunk={chunk}, local={local}"
            )
        return chunk, local
