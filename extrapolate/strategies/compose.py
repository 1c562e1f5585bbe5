"""Several strategies as one: frequencies of one, transforms on top, positions of another."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Band, Strategy, Transform


def compose(*parts: Strategy, **named: Strategy) -> Strategy:
    """One strategy out of several, such as ``compose(YaRN(factor=4), Resonance())``.

    At most one part sets the frequencies and at most one the positions (bands); transforms change the frequencies in
    the order given, factors on the query multiply. Nothing stacks: two parts that set the same thing are refused.

    Where frequencies are slowed down by a constant factor s, positions are laid out for a model of length s·L: with
    ``compose(YaRN(factor=2), DualChunk())`` the largest relative position is three quarters of 2L.

    Args:
        *parts: strategies; composed ones count as their parts.
        **named: more of them, under any name, as a YAML gives them.

    Raises:
        StrategyError: when there is no part, two parts conflict, or one is no strategy.
    """
    flat = tuple(_flatten((*parts, *named.values())))
    return flat[0] if len(flat) == 1 else Composed(flat)


@dataclass(frozen=True)
class Composed(Strategy):
    """What :func:`compose` makes of several strategies.

    Args:
        parts: the one that sets frequencies first, then transforms in order, then the one that sets positions.
    """

    name: ClassVar[str] = "compose"
    parts: tuple[Strategy, ...]

    def __post_init__(self) -> None:
        parts = self.parts
        if not parts:
            raise StrategyError("compose: needs at least one strategy, got none")
        for part in parts:
            if not isinstance(part, Strategy):
                raise StrategyError(f"compose: every part must be a Strategy such as extrapolate.YaRN(), got {part!r}")
        transforms = [part for part in parts if isinstance(part, Transform)]
        positions = [part for part in parts if part.changes_positions]
        frequencies = [part for part in parts if part not in transforms and (_sets(part) or part not in positions)]
        for what, rivals in (("frequencies", frequencies), ("positions", positions)):
            if len(rivals) > 1:
                names = " and ".join(part.label for part in rivals)
                raise StrategyError(f"compose: {names} both set the {what}, and strategies never stack; keep one")
        kinds = [type(part) for part in transforms]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise StrategyError(f"compose: {kind.name} is given {kinds.count(kind)} times; keep one")
        ordered = (*frequencies, *transforms, *(part for part in positions if part not in frequencies))
        object.__setattr__(self, "parts", ordered)
        object.__setattr__(self, "name", "+".join(part.name for part in ordered))
        object.__setattr__(self, "depends_on_length", any(part.depends_on_length for part in ordered))

    def varies_with_length(self, rope: RopeSpec) -> bool:
        """Whether length matters to any part."""
        return any(part.varies_with_length(rope) for part in self.parts)

    @property
    def changes_positions(self) -> bool:
        """Whether one of the parts has bands of its own."""
        return any(part.changes_positions for part in self.parts)

    @property
    def scales_queries(self) -> bool:
        """Whether one of the parts scales queries."""
        return any(part.scales_queries for part in self.parts)

    def at(self, rope: RopeSpec, length: int) -> "Composed":
        """With the automatic parameters of every part filled in."""
        reachable = self._reachable(rope)
        return Composed(tuple(part.at(reachable if part.changes_positions else rope, length) for part in self.parts))

    def reach(self, rope: RopeSpec) -> int | None:
        """That of the part that sets positions."""
        return self._positions.reach(self._reachable(rope))

    def keeps(self, rope: RopeSpec) -> tuple[int, int] | None:
        """Those of the part that sets positions."""
        return self._positions.keeps(self._reachable(rope))

    def parameters(self) -> dict[str, object]:
        """``parts``, a list of each part's name and fields; and the factor of the part that has one."""
        parts = [{"strategy": part.name, **part.parameters()} for part in self.parts]
        factors = [part["factor"] for part in parts if "factor" in part]
        return {"factor": factors[0], "parts": parts} if factors else {"parts": parts}

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """Those of the part that sets them, or unscaled RoPE, changed by each transform in turn.

        Raises:
            StrategyError: when a transform would change nothing.
        """
        found = super().frequencies(rope, length)
        for part in self.parts:
            if not isinstance(part, Transform):
                found = part.frequencies(rope, length) if _sets(part) else found
                continue
            changed = part.transform(found, rope, length)
            if changed.equal(found) and not part.scales_queries:
                raise StrategyError(f"{self.name}: {part.name} changes nothing of the frequencies before it")
            found = changed
        return found

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:
        """Those of the part that sets positions, or one causal band."""
        return self._positions.bands(self._reachable(rope), length)

    def query_scale(self, rope: RopeSpec, position: Tensor) -> Tensor | None:
        """The product of the parts' factors."""
        scales = [x for x in (part.query_scale(rope, position) for part in self.parts) if x is not None]
        return math.prod(scales[1:], start=scales[0]) if scales else None

    @property
    def _positions(self) -> Strategy:
        """The part that sets positions, or plain."""
        return next((part for part in self.parts if part.changes_positions), Strategy())

    def _reachable(self, rope: RopeSpec) -> RopeSpec:
        """The spec of a model whose trained length is stretched by the constant factor of the frequencies' part."""
        for part in self.parts:
            factor = part.parameters().get("factor")
            if _sets(part) and isinstance(factor, float) and not part.depends_on_length:
                return dataclasses.replace(rope, pretrained_length=int(rope.pretrained_length * factor))
        return rope


def _sets(part: Strategy) -> bool:
    """Whether a part has frequencies of its own."""
    return type(part).frequencies is not Strategy.frequencies


def _flatten(parts: Iterable[Strategy]) -> Iterable[Strategy]:
    for part in parts:
        if isinstance(part, Composed):
            yield from part.parts
        else:
            yield part
