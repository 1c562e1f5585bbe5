"""THE table: every strategy with an independent reference. A strategy that is not here fails the tests.

To add one: a row with settings at which the method does something, and either a closed form from ``tests/reference.py``
or the ``rope_parameters`` with which transformers itself computes it; published vectors go to ``GOLDEN``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import extrapolate as xt
from extrapolate.rope import RopeSpec
from tests import reference


@dataclass(frozen=True)
class Row:
    """One strategy at one setting.

    Attributes:
        strategy: the setting.
        frequencies: closed form in Python floats.
        attention_factor: expected value.
        native: transformers' rope_parameters for the same method, without theta; None where it has none.
        lengths: at how many times the pretrained length it is compared; beyond 1 where only then it does something.
    """

    strategy: xt.Strategy
    frequencies: Callable[[RopeSpec], list[float]]
    attention_factor: float = 1.0
    native: dict[str, Any] | None = None
    lengths: float = 1

    @property
    def id(self) -> str:
        changed = {k: v for k, v in self.strategy.parameters().items() if v != getattr(type(self.strategy), k)}
        return f"{self.strategy.name}({', '.join(f'{k}={v}' for k, v in changed.items())})"


def _linear(factor: float) -> Row:
    return Row(
        xt.Linear(factor=factor),
        lambda rope: reference.linear(rope, factor),
        native={"rope_type": "linear", "factor": factor},
    )


def _ntk(factor: float) -> Row:
    # transformers' dynamic form with f = 1 equals the fixed one at length s·L; see test_strategies.py
    return Row(xt.NTK(factor=factor), lambda rope: reference.ntk(rope, factor))


def _yarn(expected_factor: float, /, **fields: Any) -> Row:
    names = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate", "factor": "factor"}
    shape = {names[k]: v for k, v in fields.items() if k in names}
    return Row(
        xt.YaRN(**fields),
        lambda rope: reference.yarn(rope, **shape),
        expected_factor,
        native={"rope_type": "yarn", **fields},
    )


def _llama3(**fields: float) -> Row:
    names = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | fields
    return Row(
        xt.Llama3(**fields),
        lambda rope: reference.by_turns(rope, *names.values()),
        # at factor 32 transformers' own float32 ramp is up to 2e-6 off float64 for some head sizes
        native={"rope_type": "llama3", **names} if names["factor"] <= 8 else None,
    )


def _by_parts(**fields: float) -> Row:
    names = {"factor": 4.0, "alpha": 1.0, "beta": 32.0} | fields
    return Row(xt.NTKByParts(**fields), lambda rope: reference.by_turns(rope, *names.values()))


def _dynamic_ntk(factor: float, lengths: float) -> Row:
    return Row(
        xt.DynamicNTK(factor=factor),
        lambda rope: reference.dynamic_ntk(rope, factor, int(lengths * rope.pretrained_length)),
        native={"rope_type": "dynamic", "factor": factor},
        lengths=lengths,
    )


TABLE = (
    Row(xt.Plain(), reference.plain, native={"rope_type": "default"}),
    Row(xt.Shipped(), reference.plain, native={"rope_type": "default"}),
    *(_linear(s) for s in (1.0, 2.0, 3.5, 8.0, 32.0)),
    *(_ntk(s) for s in (1.0, 2.0, 3.5, 8.0, 32.0)),
    # 0.1·ln s + 1, as published to ten digits for s = 2, 4, 16
    _yarn(1.0, factor=1.0),
    _yarn(1.0693147181, factor=2.0),
    _yarn(1.1386294361, factor=4.0),
    _yarn(1.2772588722, factor=16.0),
    _yarn(1.1386294361, factor=4.0, truncate=False),
    _yarn(1.1386294361, factor=4.0, beta_fast=16.0, beta_slow=2.0),
    _yarn(1.0, factor=4.0, attention_factor=1.0),
    _yarn(0.9, factor=4.0, attention_factor=0.9),
    # DeepSeek: m(k) = 0.1·k·ln 40 + 1, m(1) = 1.3688879454, m(0.707) = 1.2608037774
    _yarn(1.0857263993, factor=40.0, mscale=1.0, mscale_all_dim=0.707),
    *(
        Row(xt.ABF(base=base), lambda rope, base=base: reference.plain(RopeSpec(rope.rotary_dim, base, 1)))  # type: ignore[misc]
        for base in (2e4, 5e5, 1e6)
    ),
    *(
        _by_parts(**fields)
        for fields in ({"factor": 4.0}, {"factor": 16.0}, {"factor": 4.0, "alpha": 2.0, "beta": 8.0})
    ),
    *(
        _llama3(**fields)
        for fields in (
            {"factor": 8.0},
            {"factor": 32.0},
            {"factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
        )
    ),
    *(_dynamic_ntk(s, lengths) for s in (1.0, 2.0, 4.0) for lengths in (0.5, 1, 2, 4.5)),
    *(
        Row(xt.DynamicLinear(), lambda rope, n=n: reference.linear(rope, max(1, n)), lengths=n)  # type: ignore[misc]
        for n in (0.5, 1, 2, 4.5)
    ),
)

GOLDEN: tuple[tuple[xt.Strategy, RopeSpec, dict[int, float], float], ...] = (
    # published or hand-derived values: pair → inv_freq, and their sum
    (xt.Plain(), RopeSpec(128, 1e4, 4096), {1: 0.86596435, 16: 0.1, 32: 0.01, 63: 1.1547819e-4}, 7.4599542),
    (xt.Linear(factor=8), RopeSpec(128, 1e4, 4096), {63: 1.4434775e-05}, 0.93249428),
    (xt.Linear(factor=4), RopeSpec(128, 1e4, 4096), {63: 2.886955e-05}, 1.8649885),
    (xt.NTK(factor=2), RopeSpec(128, 1e4, 4096), {0: 1.0}, 6.9677582),
    (
        xt.NTK(factor=4),
        RopeSpec(128, 1e4, 4096),
        {0: 1.0, 1: 0.84711719, 16: 0.070322755, 32: 0.0049452898, 63: 2.886955e-05},
        6.5407976,
    ),
    (xt.NTK(factor=8), RopeSpec(128, 1e4, 4096), {0: 1.0}, 6.1669786),
    (
        xt.YaRN(factor=16),
        RopeSpec(128, 1e4, 4096),
        {
            20: 0.056234129,
            24: 0.027061801,
            30: 0.008526844,
            32: 0.0056730769,
            40: 8.8178896e-4,
            46: 8.334509e-5,
            63: 7.2173874e-6,
        },
        7.3652348,
    ),
    # by-parts with the paper's ramp
    (xt.NTKByParts(factor=16), RopeSpec(128, 1e4, 4096), {32: 0.0022940483}, 7.2961465),
    (
        xt.Llama3(factor=8),
        RopeSpec(128, 5e5, 8192),
        {24: 0.0072926651, 30: 0.0013718937, 31: 8.5675146e-4, 32: 5.2484602e-4, 40: 3.4281024e-5, 63: 3.0689259e-7},
        5.3860583,
    ),
    (xt.Llama3(factor=32), RopeSpec(128, 5e5, 8192), {}, 5.3851823),
    (xt.YaRN(factor=16, truncate=False), RopeSpec(128, 1e4, 4096), {}, 7.3713719),
    (
        xt.YaRN(factor=4),
        RopeSpec(128, 1e6, 32768),
        {32: 6.0294118e-4, 40: 4.4456985e-5, 63: 3.1023444e-7},
        5.1440348,
    ),
)
