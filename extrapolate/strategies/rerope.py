"""ReRoPE: no relative position beyond the window."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, tokens


@dataclass(frozen=True)
class ReRoPE(Strategy):
    """Rectified RoPE: every pair further apart than ``window`` is seen at relative position ``window``.

    It reaches any length. Compose it with :class:`LogN`, as its author does.

    Source: Su 2023, kexue.fm/archives/9708.

    Args:
        window: tokens, at most the pretrained length; a quarter of it when left out.
    """

    name: ClassVar[str] = "rerope"
    window: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "window", minimum=1)

    def at(self, rope: RopeSpec, length: int) -> "ReRoPE":  # noqa: ARG002
        """With its window."""
        return dataclasses.replace(self, window=self._window(rope))

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """Near and far.

        Raises:
            StrategyError: when the window is beyond L.
        """
        window = self._window(rope)
        far = Band(
            query_position=lambda i: i.new_full(i.shape, window),
            key_position=lambda j: j.new_zeros(j.shape),
            covers=lambda i, j: i - j >= window,
        )
        return near(window), far

    def _window(self, rope: RopeSpec) -> int:
        trained = rope.pretrained_length
        window = max(1, trained // 4) if self.window is None else self.window
        if window > trained:
            raise StrategyError(f"rerope: window={window} must be at most the pretrained length {trained}")
        return window
