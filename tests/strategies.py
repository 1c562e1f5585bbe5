"""THE table: every strategy with an independent reference. A strategy that is not here fails the tests.

To add one: a row with settings at which the method does something, and either a closed form from ``tests/reference.py``
or the ``rope_parameters`` with which transformers itself computes it; published vectors go to ``GOLDEN``.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import extrapolate as xt
from extrapolate.rope import RopeSpec
from tests import reference

SPECS = (
    RopeSpec(16, 1e4, 64),
    RopeSpec(64, 1e4, 2048),
    RopeSpec(64, 1e5, 8192),
    RopeSpec(80, 1e4, 2048),
    RopeSpec(96, 5e5, 8192),
    RopeSpec(128, 1e4, 4096),
    RopeSpec(128, 1e6, 32768),
    RopeSpec(256, 1e4, 8192),
)
"""What every row is compared at: head sizes, thetas and pretrained lengths of the field, and the tests' tiny model."""


@dataclass(frozen=True)
class Row:
    """One strategy at one setting.

    Attributes:
        setting: the strategy, or a function of d/2 for one whose fields are lists of that size.
        frequencies: closed form in Python floats.
        attention_factor: expected value, or a function of the spec.
        native: transformers' rope_parameters for the same method, without theta; None where it has none.
        lengths: at how many times the pretrained length it is compared; beyond 1 where only then it does something.
        specs: what it is compared at.
        relative: (spec, text length, query index, key index) → relative position, None where the key is not seen; left
            out for a strategy that leaves positions alone.
        scale: (spec, query index) → factor on the query.
    """

    setting: xt.Strategy | Callable[[int], xt.Strategy]
    frequencies: Callable[[RopeSpec], list[float]]
    attention_factor: float | Callable[[RopeSpec], float] = 1.0
    native: dict[str, Any] | Callable[[int], dict[str, Any]] | None = None
    lengths: float = 1
    specs: tuple[RopeSpec, ...] = SPECS
    relative: Callable[[RopeSpec, int, int, int], float | None] | None = None
    scale: Callable[[RopeSpec, int], float] | None = None

    def strategy(self, pairs: int = 8) -> xt.Strategy:
        """The strategy for a head of d/2 pairs; the tests' tiny model has 8."""
        return self.setting if isinstance(self.setting, xt.Strategy) else self.setting(pairs)

    def length(self, spec: RopeSpec) -> int:
        """Tokens at which the row is compared."""
        return int(self.lengths * spec.pretrained_length)

    def factor(self, spec: RopeSpec) -> float:
        """The attention factor expected."""
        return self.attention_factor(spec) if callable(self.attention_factor) else self.attention_factor

    def table(self, spec: RopeSpec, length: int) -> torch.Tensor:
        """Relative positions of a text, (length, length) float64, NaN where a key is not seen."""
        relative = self.relative or (lambda _, __, i, j: i - j)
        found = torch.full((length, length), math.nan, dtype=torch.float64)
        for i in range(length):
            for j in range(i + 1):
                position = relative(spec, length, i, j)
                found[i, j] = math.nan if position is None else position
        return found

    def scales(self, spec: RopeSpec, length: int) -> torch.Tensor:
        """Factors on the queries of a text, (length,) float64."""
        scale = self.scale or (lambda _, __: 1.0)
        return torch.tensor([scale(spec, i) for i in range(length)], dtype=torch.float64)

    def transformers(self, spec: RopeSpec) -> tuple[Any, float] | None:
        """What transformers itself computes, (d/2,) float32 and attention factor; None where it has no such method."""
        if self.native is None:
            return None
        native = self.native(spec.rotary_dim // 2) if callable(self.native) else self.native
        if native["rope_type"] == "default":
            exponent = torch.arange(0, spec.rotary_dim, 2).float() / spec.rotary_dim
            return 1.0 / (spec.theta**exponent), 1.0
        config = transformers.LlamaConfig(
            head_dim=spec.rotary_dim,
            max_position_embeddings=declared_length(native, spec.pretrained_length),
            rope_parameters={
                **native,
                "rope_theta": spec.theta,
                "original_max_position_embeddings": spec.pretrained_length,
            },
        )
        found: tuple[Any, float] = ROPE_INIT_FUNCTIONS[native["rope_type"]](config, "cpu", seq_len=self.length(spec))
        return found

    @property
    def id(self) -> str:
        strategy = self.strategy()
        fields = {f.name: f.default for f in dataclasses.fields(strategy)}
        changed = {k: v for k, v in vars(strategy).items() if k in fields and v != fields[k]}
        shown = ", ".join(f"{k}={'…' if isinstance(v, tuple) else v}" for k, v in changed.items())
        return f"{strategy.name}({shown})" + (f"@{self.lengths:g}L" if self.lengths != 1 else "")


def pairs_of(length: int, count: int = 200) -> list[tuple[int, int]]:
    """Query and key indices in a text of ``length`` tokens: some of each distance, and the corners."""
    found = {(0, 0), (length - 1, 0), (length - 1, length - 1)}
    for n in range(count):
        i = (n * 7919 + length - 1) % length
        distance = int((i + 1) * (n * 0.618 % 1) ** 2)
        found |= {(i, i - distance), (i, min(i, n % 13))}
    return sorted(found)


def positions_off(row: Row, strategy: xt.Strategy, spec: RopeSpec) -> float:
    """Largest relative difference of a strategy's relative positions and query factors from a row's references.

    Infinite where a pair is seen by one and not by the other, or by two bands.
    """
    length, worst = row.length(spec), 0.0
    pairs = pairs_of(length)
    query, key = torch.tensor(pairs).T
    seen = torch.zeros(len(pairs), dtype=torch.long)
    found = torch.zeros(len(pairs), dtype=torch.float64)
    for band in strategy.bands(spec, length):
        covered = band.covers(query, key)
        seen += covered
        relative = band.query_position(query).double() - band.key_position(key).double()
        found += torch.where(covered, relative, 0.0)
    for (i, j), times, position in zip(pairs, seen.tolist(), found.tolist(), strict=True):
        expected = row.relative(spec, length, i, j) if row.relative else float(i - j)
        if times != (expected is not None):
            return math.inf
        worst = max(worst, abs(position - (expected or 0)) / max(1, abs(expected or 0)))
    scale = strategy.query_scale(spec, query)
    for n, (i, _) in enumerate(pairs):
        expected = row.scale(spec, i) if row.scale else 1.0
        worst = max(worst, abs((1.0 if scale is None else scale[n].item()) / expected - 1))
    return worst


def declared_length(native: dict[str, Any], pretrained_length: int) -> int:
    """``max_position_embeddings`` of a checkpoint with this scaling: the dynamic type takes its L from there."""
    return pretrained_length * (1 if native["rope_type"] == "dynamic" else int(native.get("factor", 1)))


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
    return Row(
        xt.YaRN(**fields),
        lambda rope: reference.yarn(rope, **_shape(fields)),
        expected_factor,
        native={"rope_type": "yarn", **fields},
    )


def _yarn_variant(**fields: Any) -> Row:
    mean = {"harmonic": reference.harmonic, "geometric": reference.geometric}[fields["blend"]]
    return Row(
        xt.YaRN(**fields),
        lambda rope: reference.yarn(rope, **_shape(fields), mean=mean),
        _temperature(fields["factor"]),
    )


def _shape(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of YaRN that shape its ramp, by the reference's names."""
    names = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate", "factor": "factor"}
    return {names[k]: v for k, v in fields.items() if k in names}


def _temperature(factor: float) -> float:
    return math.log(factor) / 10 + 1


def _mrrope(factor: float, variant: Any, **fields: float) -> Row:
    return Row(
        xt.MrRoPE(factor=factor, variant=variant, **fields),
        lambda rope: reference.mrrope(
            rope, factor, variant == "pro", **{k: v for k, v in _shape(fields).items() if k != "factor"}
        ),
        fields.get("attention_factor", _temperature(factor)),
    )


def _dynamic_yarn(lengths: float, **fields: Any) -> Row:
    factor = max(1.0, lengths)
    return Row(
        xt.DynamicYaRN(**fields),
        lambda rope: reference.yarn(rope, factor, **_shape(fields)),
        _temperature(factor),
        lengths=lengths,
    )


def _short(pairs: int) -> list[float]:
    return [1 + 0.25 * i / pairs for i in range(pairs)]


def _long(pairs: int) -> list[float]:
    return [1 + 7 * (i / pairs) ** 2 for i in range(pairs)]


def _longrope(lengths: float, expected_factor: Any, /, **fields: Any) -> Row:
    def setting(pairs: int) -> xt.Strategy:
        return xt.LongRoPE(long_factor=tuple(_long(pairs)), short_factor=tuple(_short(pairs)), **fields)

    def frequencies(rope: RopeSpec) -> list[float]:
        pairs = rope.rotary_dim // 2
        divisors = _long(pairs) if lengths > 1 or fields.get("switch_length") == 0 else _short(pairs)
        return [f / x for f, x in zip(reference.plain(rope), divisors, strict=True)]

    native = None
    if "switch_length" not in fields:
        native = lambda pairs: {  # noqa: E731
            "rope_type": "longrope",
            "long_factor": _long(pairs),
            "short_factor": _short(pairs),
            **fields,
        }
    return Row(setting, frequencies, expected_factor, native, lengths)


def _resonance(setting: xt.Strategy, before: Callable[[RopeSpec], list[float]], **fields: Any) -> Row:
    """Compared where no wavelength is so near the middle of two whole numbers that float32 cannot tell which is nearer.

    Above a million positions the two differ by less than the tolerance.
    """

    def decided(spec: RopeSpec) -> bool:
        wavelengths = [2 * math.pi / f for f in before(spec) if f]
        return all(abs(w % 1 - 0.5) > 2e-7 * w or w > 1e6 for w in wavelengths)

    specs = tuple(spec for spec in SPECS if decided(spec))
    assert len(specs) >= 3
    return Row(setting, lambda rope: reference.resonance(before(rope)), specs=specs, **fields)


def _su(factor: float) -> Callable[[RopeSpec], float]:
    return lambda rope: math.pow(1 + math.log(factor, rope.pretrained_length), 0.5)


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


SMALL = SPECS[:1]
"""For settings in tokens."""


def _positions(setting: xt.Strategy, relative: Any, lengths: float = 2, **fields: Any) -> Row:
    return Row(setting, **{"frequencies": reference.plain, **fields}, lengths=lengths, relative=relative)


def _self_extend(lengths: float, group: int | None = None, window: int | None = None) -> Row:
    return _positions(
        xt.SelfExtend(group=group, window=window),
        lambda rope, n, i, j: reference.self_extend(rope, n, i, j, group, window),
        lengths,
        specs=SMALL if window else SPECS,
    )


def _dual_chunk(rope: RopeSpec, _: int, i: int, j: int) -> float:
    return reference.dual_chunk(i, j, 3 * rope.pretrained_length // 4, rope.pretrained_length // 8)


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
    *(_dynamic_yarn(n) for n in (0.5, 1, 2, 4.5)),
    _dynamic_yarn(4, beta_fast=16.0, beta_slow=2.0, truncate=False),
    # YaRN's variants
    *(_yarn_variant(factor=s, blend=b) for s in (4.0, 16.0) for b in ("harmonic", "geometric")),
    _yarn_variant(factor=4.0, blend="harmonic", beta_fast=16.0, beta_slow=2.0, truncate=False),
    *(
        Row(
            xt.YaRN(factor=s, ramp="rotations", beta_fast=fast, beta_slow=slow),
            lambda rope, s=s, slow=slow, fast=fast: reference.by_turns(rope, s, slow, fast),  # type: ignore[misc]
            _temperature(s),
        )
        for s, slow, fast in ((4.0, 1.0, 32.0), (16.0, 1.0, 32.0), (4.0, 2.0, 8.0))
    ),
    *(_mrrope(s, variant) for s in (1.0, 4.0, 16.0) for variant in ("uni", "pro")),
    _mrrope(4.0, "pro", beta_fast=16.0, beta_slow=2.0, attention_factor=1.0),
    *(
        Row(xt.NTKFixed(factor=s), lambda rope, s=s: reference.ntk_fixed(rope, s))  # type: ignore[misc]
        for s in (1.0, 2.0, 4.0, 16.0)
    ),
    *(
        Row(xt.NTKMixed(factor=s, mixed_b=b), lambda rope, s=s, b=b: reference.ntk_mixed(rope, s, b))  # type: ignore[misc]
        for s, b in ((1.0, 0.75), (4.0, 0.75), (16.0, 0.625), (4.0, 1.0))
    ),
    *(
        Row(xt.GiraffePower(power=p), lambda rope, p=p: reference.giraffe_power(rope, p))  # type: ignore[misc]
        for p in (0.1, 0.5, 2.0)
    ),
    *(
        Row(
            xt.GiraffeTruncate(a=a, b=b, rho=rho),
            lambda rope, a=a, b=b, rho=rho: reference.giraffe_truncate(rope, a, b, rho),  # type: ignore[misc]
        )
        for a, b, rho in ((0.125, 1.0, 0.0625), (0.3, 2.0, 0.5))
    ),
    Row(xt.FoPE(), reference.fope),
    Row(xt.NoPE(), lambda rope: [0.0] * (rope.rotary_dim // 2)),
    *(
        Row(
            xt.Proportional(p=p),
            lambda rope, p=p: reference.proportional(rope, p),  # type: ignore[misc]
            native={"rope_type": "proportional", "partial_rotary_factor": p},
        )
        for p in (0.25, 0.75, 1.0)
    ),
    _resonance(xt.Resonance(), reference.plain),
    *(_longrope(n, _su(4), factor=4.0) for n in (0.5, 1, 1.5, 4)),
    _longrope(2, 1.0, factor=1.0),
    _longrope(2, 0.9, factor=4.0, attention_factor=0.9),
    _longrope(0.5, _su(4), factor=4.0, switch_length=0),
    # positions; their fields are tokens, so most settings go with one pretrained length
    *(_self_extend(n) for n in (0.5, 1, 2, 5)),
    _self_extend(4, group=8),
    *(_self_extend(n, group=4, window=32) for n in (1.5, 2.5)),
    _self_extend(2, group=5, window=32),
    _positions(xt.ReRoPE(), lambda rope, _, i, j: reference.rerope(rope, i, j, None), 4),
    _positions(xt.ReRoPE(window=17), lambda rope, _, i, j: reference.rerope(rope, i, j, 17), specs=SMALL),
    _positions(xt.LeakyReRoPE(), lambda rope, _, i, j: reference.rerope(rope, i, j, None, 16), 4),
    _positions(
        xt.LeakyReRoPE(window=10, k=3.5), lambda rope, _, i, j: reference.rerope(rope, i, j, 10, 3.5), specs=SMALL
    ),
    _positions(xt.DualChunk(), _dual_chunk, 4),
    _positions(xt.DualChunk(chunk=40, local=9), lambda _, __, i, j: reference.dual_chunk(i, j, 40, 9), specs=SMALL),
    _positions(
        xt.STRING(),
        lambda rope, _, i, j: reference.string(i, j, rope.pretrained_length // 3, rope.pretrained_length // 32),
        1.25,
    ),
    _positions(xt.STRING(shift=60, local=5), lambda _, __, i, j: reference.string(i, j, 60, 5), 1.75, specs=SMALL),
    _positions(
        xt.LMInfinite(),
        lambda rope, _, i, j: reference.lm_infinite(i, j, 10, rope.pretrained_length, rope.pretrained_length),
    ),
    _positions(
        xt.LMInfinite(first=3, local=20, limit=50),
        lambda _, __, i, j: reference.lm_infinite(i, j, 3, 20, 50),
        specs=SMALL,
    ),
    _positions(
        xt.AttentionSinks(),
        lambda rope, _, i, j: reference.attention_sinks(i, j, 4, rope.pretrained_length - 4),
        specs=SMALL,  # the reference goes through the cache
    ),
    *(
        _positions(
            xt.AttentionSinks(sinks=s, window=w),
            lambda _, __, i, j, s=s, w=w: reference.attention_sinks(i, j, s, w),
            specs=SMALL,
        )
        for s, w in ((2, 20), (0, 10), (8, 1))
    ),
    Row(xt.LogN(), reference.plain, lengths=3, scale=reference.log_n),
    *(Row(xt.Temperature(scale=t), reference.plain, scale=lambda _, __, t=t: t) for t in (0.8, 1.0, 1.3)),  # type: ignore[misc]
    # several as one
    _positions(
        xt.compose(xt.YaRN(factor=2), xt.DualChunk()),
        lambda rope, _, i, j: reference.dual_chunk(i, j, 3 * rope.pretrained_length // 2, rope.pretrained_length // 4),
        4,
        frequencies=lambda rope: reference.yarn(rope, 2),
        attention_factor=_temperature(2),
    ),
    _positions(
        xt.compose(xt.NTK(factor=2), xt.SelfExtend(group=4, window=32)),
        lambda rope, n, i, j: reference.self_extend(rope, n, i, j, 4, 32),
        3,
        frequencies=lambda rope: reference.ntk(rope, 2),
        specs=SMALL,
    ),
    _positions(
        xt.compose(xt.ReRoPE(), xt.LogN(), xt.Temperature(scale=1.2)),
        lambda rope, _, i, j: reference.rerope(rope, i, j, None),
        scale=lambda rope, i: 1.2 * reference.log_n(rope, i),
    ),
    _resonance(
        xt.compose(xt.YaRN(factor=16), xt.Resonance()),
        lambda rope: reference.yarn(rope, 16),
        attention_factor=1.2772588722,
    ),
    _resonance(xt.compose(xt.Resonance(), xt.FoPE()), reference.fope),
    _resonance(
        xt.compose(xt.DynamicNTK(factor=2), xt.Resonance()),
        lambda rope: reference.dynamic_ntk(rope, 2, 3 * rope.pretrained_length),
        lengths=3,
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
    (xt.NTKFixed(factor=4), RopeSpec(128, 1e4, 4096), {0: 0.97857206, 32: 0.0048928603, 63: 2.886955e-05}, 6.4128576),
    (xt.NTKMixed(factor=12), RopeSpec(128, 1e4, 4096), {63: 9.6231832e-06}, 4.9127744),
    (xt.NTKMixed(factor=16, mixed_b=0.625), RopeSpec(128, 1e4, 4096), {63: 7.2173874e-06}, 4.1003858),
    (xt.YaRN(factor=16, ramp="rotations"), RopeSpec(128, 1e4, 4096), {32: 0.0022940483}, 7.2961465),
    (xt.YaRN(factor=16, blend="harmonic"), RopeSpec(128, 1e4, 4096), {32: 0.0012621359}, 7.2034453),
    (xt.MrRoPE(factor=16, variant="uni"), RopeSpec(128, 1e4, 4096), {32: 0.0027813287}, 7.2950864),
    (xt.MrRoPE(factor=16, variant="pro"), RopeSpec(128, 1e4, 4096), {32: 0.0054002987}, 7.3746194),
    (xt.Proportional(p=0.25), RopeSpec(128, 1e6, 4096), {16: 0.0}, 4.9875781),
    (xt.GiraffePower(power=0.5), RopeSpec(128, 1e4, 4096), {63: 1.4434775e-05}, 7.0586449),
    (xt.GiraffeTruncate(), RopeSpec(128, 1e4, 2048), {46: 1.917476e-4, 60: 0.0}, 7.4429541),
    (xt.Resonance(), RopeSpec(128, 1e4, 4096), {0: 1.0471976}, 7.5600922),
    (xt.compose(xt.YaRN(factor=16), xt.Resonance()), RopeSpec(128, 1e4, 4096), {0: 1.0471976}, 7.4651781),
)
