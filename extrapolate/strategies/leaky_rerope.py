"""Leaky ReRoPE: beyond the window relative positions grow slower."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, number, tokens, within_reach


@dataclass(frozen=True)
class LeakyReRoPE(Strategy):
    """Leaky ReRoPE: beyond ``window`` relative positions grow ``k`` times slower, ``w + (i - j - w)/k``.

    It stays within the pretrained length L for texts of up to ``(L - 1 - w)·k + w + 1`` tokens; longer ones are
    refused. With k = 1 it is plain; k without bound is :class:`ReRoPE`.

    Source: Su 2023, kexue.fm/archives/9708.

    Args:
        window: tokens, below the pretrained length; a quarter of it when left out.
        k: at least 1.
    """

    name: ClassVar[str] = "leaky_rerope"
    window: int | None = None
    k: float = 16.0

    def __post_init__(self) -> None:
        tokens(self, "window", minimum=1)
        number(self, "k", minimum=1)

    def at(self, rope: RopeSpec, length: int) -> "LeakyReRoPE":  # noqa: ARG002
        """With its window."""
        return dataclasses.replace(self, window=self._window(rope))

    def reach(self, rope: RopeSpec) -> int | None:
        """``(L - 1 - w)·k + w + 1``, rounded down; None for k = 1, which is plain."""
        window = self._window(rope)
        return None if self.k == 1 else int((rope.pretrained_length - 1 - window) * self.k + window + 1)

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:
        """Near and far.

        Raises:
            StrategyError: when the window is not below L, or the text is longer than the setting reaches.
        """
        window, k = self._window(rope), self.k
        if k == 1:
            return super().bands(rope, length)
        within_reach(self, rope, length, "(L - 1 - window)·k + window + 1", "use a larger k or a smaller window")
        far = Band(
            query_position=lambda i: window + (i - window) / k,
            key_position=lambda j: j / k,
            covers=lambda i, j: i - j >= window,
        )
        return near(window), far

    def _window(self, rope: RopeSpec) -> int:
        trained = rope.pretrained_length
        window = max(1, trained // 4) if self.window is None else self.window
        if window >= trained:
            raise StrategyError(f"leaky_rerope: window={window} must be below the pretrained length {trained}")
        return window
