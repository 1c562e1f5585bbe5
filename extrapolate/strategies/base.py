"""The contract of a strategy: frequencies, bands, or both, as pure functions of the checkpoint's spec and length."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal, get_args

from torch import Tensor

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies

__all__ = [
    "CAUSAL",
    "Band",
    "Blend",
    "Frequencies",
    "Strategy",
    "Transform",
    "blend",
    "choice",
    "flag",
    "near",
    "number",
    "rising",
    "tokens",
    "within_reach",
]

Blend = Literal["arithmetic", "harmonic", "geometric"]
"""The mean between two speeds: linear in frequency, linear in wavelength, or in the logarithm of either."""


@dataclass(frozen=True)
class Band:
    """A part of the causal triangle with positions of its own for the rotation.

    A query at index i of its text sees a key at index j of the band at relative position
    ``query_position(i) - key_position(j)``.

    Attributes:
        query_position: query indices → positions, element by element; they need not be whole.
        key_position: key indices → positions, element by element.
        covers: (query indices, key indices), broadcast → which pairs belong to it; a strategy's bands are disjoint, and
            none has a pair whose key comes after its query.
    """

    query_position: Callable[[Tensor], Tensor]
    key_position: Callable[[Tensor], Tensor]
    covers: Callable[[Tensor, Tensor], Tensor]


def _identity(index: Tensor) -> Tensor:
    return index


def _causal(query: Tensor, key: Tensor) -> Tensor:
    return key <= query


CAUSAL = Band(query_position=_identity, key_position=_identity, covers=_causal)
"""All of the triangle at true positions."""


def near(window: int) -> Band:
    """Keys less than ``window`` before their query, itself included, at true positions."""
    return Band(_identity, _identity, lambda query, key: (key <= query) & (query - key < window))


@dataclass(frozen=True)
class Strategy:
    """Base of every strategy: a frozen dataclass whose fields are the keys of its YAML, checked at construction.

    A subclass overrides :meth:`frequencies`, :meth:`bands`, or both. It starts from the checkpoint's theta and
    pretrained length and replaces what the checkpoint ships; it never stacks on it.
    """

    name: ClassVar[str] = "strategy"
    depends_on_length: ClassVar[bool] = False
    """Whether ``length`` changes the result; such a strategy is evaluated with one pass a length."""

    def __init_subclass__(cls) -> None:
        """Name a subclass after its class when it gives no ``name`` of its own."""
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:  # noqa: ARG002
        """Frequencies for a text of ``length`` tokens; unscaled RoPE unless a subclass says otherwise."""
        return Frequencies(base_frequencies(rope.theta, rope.rotary_dim))

    def bands(self, rope: RopeSpec, length: int) -> tuple[Band, ...]:  # noqa: ARG002
        """Disjoint bands for a text of ``length`` tokens; one causal band at true positions unless overridden."""
        return (CAUSAL,)

    def query_scale(self, rope: RopeSpec, position: Tensor) -> Tensor | None:  # noqa: ARG002
        """Factor on the query at each index of its text, as ``position``; None for none."""
        return None

    def varies_with_length(self, rope: RopeSpec) -> bool:  # noqa: ARG002
        """Whether ``length`` matters on this checkpoint; :attr:`depends_on_length` unless the checkpoint decides."""
        return self.depends_on_length

    def at(self, rope: RopeSpec, length: int) -> "Strategy":  # noqa: ARG002
        """The strategy with its automatic parameters filled in for a text of ``length`` tokens."""
        return self

    def reach(self, rope: RopeSpec) -> int | None:  # noqa: ARG002
        """Longest text, in tokens, that its positions are made for; None for any."""
        return None

    def keeps(self, rope: RopeSpec) -> tuple[int, int] | None:  # noqa: ARG002
        """(first, last) tokens of a text that a later query can still see; None when it sees all."""
        return None

    @property
    def changes_positions(self) -> bool:
        """Whether it has bands of its own."""
        return type(self).bands is not Strategy.bands

    @property
    def scales_queries(self) -> bool:
        """Whether it has a :meth:`query_scale` of its own."""
        return type(self).query_scale is not Strategy.query_scale

    @property
    def changes_attention(self) -> bool:
        """Whether tables of cos and sin cannot express it, so that the attention function itself must be replaced."""
        return self.changes_positions or self.scales_queries

    def parameters(self) -> dict[str, object]:
        """Every field with the value in use; what a result row stores."""
        return dataclasses.asdict(self)

    @property
    def label(self) -> str:
        """Name and factor for tables and legends, such as ``yarn ×4``."""
        factor = self.parameters().get("factor")
        return self.name if factor is None else f"{self.name} ×{factor:g}"


@dataclass(frozen=True)
class Transform(Strategy):
    """A change of whatever frequencies another strategy gives, to be composed with it; alone, of unscaled RoPE."""

    def transform(self, frequencies: Frequencies, rope: RopeSpec, length: int) -> Frequencies:
        """The changed frequencies; every subclass has its own."""
        raise NotImplementedError(f"{type(self).__name__} must define transform(frequencies, rope, length)")

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """The transform of unscaled RoPE."""
        return self.transform(super().frequencies(rope, length), rope, length)


def number(
    strategy: Strategy, field: str, *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
) -> float:
    """Check one numeric field and store it as float, so that 4 and 4.0 are the same setting.

    Args:
        strategy: the dataclass under construction.
        field: name of the field.
        minimum: smallest value allowed.
        above: the value must be larger than this.
        maximum: largest value allowed.

    Raises:
        StrategyError: naming the field, the value and the rule.
    """
    value = getattr(strategy, field)
    rule = f"a number of at least {minimum:g}" if minimum > -math.inf else f"a number above {above:g}"
    rule += f" and at most {maximum:g}" if maximum < math.inf else ""
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or value < minimum or value <= above or value > maximum:
        raise StrategyError(f"{strategy.name}: {field} must be {rule}, got {value!r}")
    object.__setattr__(strategy, field, float(value))
    return float(value)


def tokens(strategy: Strategy, field: str, *, minimum: int = 0, automatic: bool = True) -> None:
    """Check one field that counts tokens; None passes where its value may be automatic.

    Raises:
        StrategyError: naming the field, the value and the rule.
    """
    value = getattr(strategy, field)
    if value is None and automatic:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        rule = f"a whole number of at least {minimum}"
        raise StrategyError(f"{strategy.name}: {field} must be {rule}, got {value!r}")


def within_reach(strategy: Strategy, rope: RopeSpec, length: int, formula: str, hint: str) -> None:
    """Check that a text is not longer than a strategy's positions are made for.

    Raises:
        StrategyError: with the settings in use, the formula and its value, and the way out.
    """
    reach = strategy.reach(rope)
    if reach is not None and length > reach:
        settings = ", ".join(f"{name}={value:g}" for name, value in strategy.at(rope, length).parameters().items())
        raise StrategyError(
            f"{strategy.name}: {settings} reach {formula} = {reach} tokens with L={rope.pretrained_length}, and the "
            f"text has {length}; {hint}"
        )


def rising(strategy: Strategy, low: str, high: str) -> None:
    """Check two fields that bound a ramp: positive numbers, the second above the first.

    Raises:
        StrategyError: naming the fields and the values.
    """
    bottom, top = number(strategy, low, above=0), number(strategy, high, above=0)
    if top <= bottom:
        raise StrategyError(f"{strategy.name}: {high} must be above {low}, got {low}={bottom:g}, {high}={top:g}")


def blend(rope: RopeSpec, factor: float, keep: Tensor, kind: Blend = "arithmetic") -> Tensor:
    """From interpolated pairs f/s, where g = 0, to kept ones f, where g = 1.

    Arithmetic, ``(1-g)·f/s + g·f``, is YaRN's (arXiv 2309.00071, Eq. 19); harmonic, ``f / ((1-g)·s + g)``, is linear in
    wavelength; geometric is ``f / s^(1-g)``.

    Args:
        rope: the checkpoint's spec.
        factor: s.
        keep: (d/2,) float64, g of each pair.
        kind: of mean.

    Returns:
        (d/2,) float32. In float64 from the float32 ladder between, so that kept pairs round back to plain bit for bit
        and interpolated ones to plain/s.
    """
    plain = base_frequencies(rope.theta, rope.rotary_dim).double()
    if kind == "arithmetic":
        return ((1 - keep) * (plain / factor) + keep * plain).float()
    if kind == "harmonic":
        return (plain / ((1 - keep) * factor + keep)).float()
    return (plain / factor ** (1 - keep)).float()


def flag(strategy: Strategy, field: str) -> None:
    """Check one boolean field.

    Raises:
        StrategyError: naming the field and the value.
    """
    value = getattr(strategy, field)
    if not isinstance(value, bool):
        hint = " (write true or false)" if isinstance(value, str | Integral) else ""
        raise StrategyError(f"{strategy.name}: {field} must be a boolean{hint}, got {value!r}")


def choice(strategy: Strategy, field: str, options: object) -> None:
    """Check one field that names one of a ``Literal``'s options.

    Raises:
        StrategyError: naming the field, the value and the options.
    """
    value = getattr(strategy, field)
    if value not in get_args(options):
        raise StrategyError(f"{strategy.name}: {field} must be one of {', '.join(get_args(options))}, got {value!r}")
