"""STRING: far positions shifted onto near, well-trained ones."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Band, Strategy, near, tokens, within_reach


@dataclass(frozen=True)
class STRING(Strategy):
    """ShifTed Rotary position embeddING: pairs at a distance of ``shift`` or more are seen ``shift - local`` nearer.

    Made for use within the pretrained length L, where far positions are seen rarely in training. It reaches
    ``L + shift - local`` tokens; longer texts are refused. With shift 0 and local 0 it is plain.

    Source: An et al. 2024, arXiv 2410.18745, Eq. 3-4.

    Args:
        shift: S, tokens, at most L; a third of it when left out (the paper: a quarter to two fifths).
        local: W, tokens, at most ``shift``; 1/32 of L when left out (128 of 4,096).
    """

    name: ClassVar[str] = "string"
    shift: int | None = None
    local: int | None = None

    def __post_init__(self) -> None:
        tokens(self, "shift", minimum=0)
        tokens(self, "local", minimum=0)

    def at(self, rope: RopeSpec, length: int) -> "STRING":  # noqa: ARG002
        """With both sizes."""
        shift, local = self._sizes(rope)
        return dataclasses.replace(self, shift=shift, local=local)

    def reach(self, rope: RopeSpec) -> int | None:
        """``L + S - W``; None where the two are equal, which is plain."""
        shift, local = self._sizes(rope)
        return None if shift == local else rope.pretrained_length + shift - local

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:
        """Near and far.

        Raises:
            StrategyError: when the text is longer than the setting reaches.
        """
        shift, local = self._sizes(rope)
        if shift == local:  # also 0 and 0
            return super().bands(rope, length)
        hint = "use a larger shift, or compose it with a strategy that scales frequencies"
        within_reach(self, rope, length, "L + shift - local", hint)
        far = Band(
            query_position=lambda i: i - shift + local,
            key_position=lambda j: j,
            covers=lambda i, j: i - j >= shift,
        )
        return near(shift), far

    def _sizes(self, rope: RopeSpec) -> tuple[int, int]:
        """Shift and local in use.

        Raises:
            StrategyError: when they do not fit each other or the pretrained length.
        """
        trained = rope.pretrained_length
        shift = trained // 3 if self.shift is None else self.shift
        local = min(trained // 32, shift) if self.local is None else self.local
        if not local <= shift <= trained:
            raise StrategyError(
                f"string: shift must be at least local and at most the pretrained length {trained}, got "
                f"shift={shift}, local={local}"
            )
        return shift, local
