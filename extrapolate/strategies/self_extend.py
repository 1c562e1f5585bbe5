"""Self-Extend: neighbours at true positions, everything further in groups."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, tokens, within_reach


@dataclass(frozen=True)
class SelfExtend(Strategy):
    """Self-Extend: within ``window`` plain, beyond it positions are divided by ``group`` and rounded down.

    The relative position of a far pair is ``i//G + W - W//G - j//G``. It stays within the pretrained length L for texts
    of up to ``G·(L - W + W//G)`` tokens, which is ``(L-W)·G + W`` where G divides W; longer ones are refused. With
    group 1, and within the window, it is plain.

    Source: Jin et al. 2024, arXiv 2401.01325, Eq. 3-4. Its authors' prefill takes ``W/G`` as a fraction and their
    decoding ``W//G``; here it is ``W//G`` always, so the two agree.

    Args:
        group: G, positions that become one. Automatic when left out: 1 up to L, then the smallest with which a text
            uses two thirds of L, ``W + (length-W)/G <= 2L/3`` (the paper's rule of thumb: a half to two thirds).
        window: W, tokens; a quarter of L when left out.
    """

    name: ClassVar[str] = "self_extend"
    group: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "group", minimum=1)
        tokens(self, "window", minimum=1)

    def varies_with_length(self, rope: RopeSpec) -> bool:  # noqa: ARG002
        """Whether the group is automatic."""
        return self.group is None

    def at(self, rope: RopeSpec, length: int) -> "SelfExtend":
        """With the group and the window that a text of ``length`` tokens gets."""
        group, window = self._sizes(rope, length)
        return dataclasses.replace(self, group=group, window=window)

    def reach(self, rope: RopeSpec) -> int | None:
        """``G·(L - W + W//G)``; None for an automatic group, and for group 1, which is plain."""
        if self.group is None or self.group == 1:
            return None
        group, window = self._sizes(rope, 1)
        return group * (rope.pretrained_length - window + window // group)

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:
        """Near and far.

        Raises:
            StrategyError: when the window is not below L, or the text is longer than the setting reaches.
        """
        group, window = self._sizes(rope, length)
        if group == 1:
            return super().bands(rope, length)
        if window >= rope.pretrained_length:
            raise StrategyError(
                f"self_extend: window={window} must be below the pretrained length {rope.pretrained_length}"
            )
        formula, hint = "group·(L - window + window//group)", "use a larger group or a smaller window"
        within_reach(self.at(rope, length), rope, length, formula, hint)
        shift = window - window // group
        far = Band(
            query_position=lambda i: i // group + shift,
            key_position=lambda j: j // group,
            covers=lambda i, j: i - j >= window,
        )
        return near(window), far

    def _sizes(self, rope: RopeSpec, length: int) -> tuple[int, int]:
        """Group and window in use."""
        trained = rope.pretrained_length
        window = max(1, trained // 4) if self.window is None else self.window
        if self.group is not None:
            return self.group, window
        if length <= trained:
            return 1, window
        room = 2 * trained - 3 * window  # thirds of a token
        if room <= 0:
            raise StrategyError(
                f"self_extend: window={window} leaves no room for an automatic group, it must be below two thirds "
                f"of the pretrained length {trained}; give group"
            )
        return -(-3 * (length - window) // room), window
