"""ReRoPE: no relative position beyond the window, or beyond it slower ones."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, number, tokens, within_reach


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
        return ReRoPE(window=_window(self, rope))

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """Near and far.

        Raises:
            StrategyError: when the window is beyond L.
        """
        window = _window(self, rope)
        far = Band(
            query_position=lambda i: i.new_full(i.shape, window),
            key_position=lambda j: j.new_zeros(j.shape),
            covers=lambda i, j: i - j >= window,
        )
        return near(window), far


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
        return LeakyReRoPE(window=_window(self, rope), k=self.k)

    def reach(self, rope: RopeSpec) -> int | None:
        """``(L - 1 - w)·k + w + 1``, rounded down; None for k = 1, which is plain."""
        window = _window(self, rope)
        return None if self.k == 1 else int((rope.pretrained_length - 1 - window) * self.k + window + 1)

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:
        """Near and far.

        Raises:
            StrategyError: when the window is beyond L, or the text is longer than the setting reaches.
        """
        window, k = _window(self, rope), self.k
        if k == 1:
            return super().bands(rope, length)
        within_reach(self, rope, length, "(L - 1 - window)·k + window + 1", "use a larger k or a smaller window")
        far = Band(
            query_position=lambda i: window + (i - window) / k,
            key_position=lambda j: j / k,
            covers=lambda i, j: i - j >= window,
        )
        return near(window), far


def _window(strategy: ReRoPE | LeakyReRoPE, rope: RopeSpec) -> int:
    """The window in use: ReRoPE sees a far pair at the window itself, leaky ReRoPE further away than that."""
    trained = rope.pretrained_length
    window = max(1, trained // 4) if strategy.window is None else strategy.window
    if isinstance(strategy, LeakyReRoPE) and window >= trained:
        raise StrategyError(f"leaky_rerope: window={window} must be below the pretrained length {trained}")
    if window > trained:
        raise StrategyError(f"rerope: window={window} must be at most the pretrained length {trained}")
    return window
