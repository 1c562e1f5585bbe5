"""LongRoPE: one searched divisor a pair, another set beyond the trained length, the first tokens left alone."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import torch

from extrapolate.errors import StrategyError, first_line
from extrapolate.rope import Frequencies, RopeSpec, base_frequencies
from extrapolate.strategies.base import Strategy, number


@dataclass(frozen=True, kw_only=True)
class LongRoPE(Strategy):
    """Pair i divided by a factor of its own, from one list up to the trained length and another beyond it.

    The lists are searched for each model; Phi-3 and its successors carry theirs in ``config.json``. Factors are given
    as a list or as the path of a file: JSON (a list, or a transformers config with the field in it) or text with one
    number a line. Which list applies follows the length of the text, so each length takes its own pass, unless the
    lists are equal.

    Source: Ding et al. 2024, arXiv 2402.13753, Eq. 2-3, and the authors' code; transformers' ``longrope`` type.

    Args:
        long_factor: d/2 divisors for texts longer than the switch.
        short_factor: d/2 divisors for texts up to it; ones when left out.
        factor: s, at least 1; sets the attention factor only.
        attention_factor: replaces the default ``sqrt(1 + ln s / ln L)`` ("su") on cos and sin, 1 for s = 1.
        switch_length: tokens up to which the short list applies; the pretrained length when left out, 0 for never.
        start_tokens: this many first positions rotate as plain, with an attention factor of 1 (the paper's n-hat).
    """

    name: ClassVar[str] = "longrope"
    depends_on_length: ClassVar[bool] = True
    long_factor: tuple[float, ...]
    short_factor: tuple[float, ...] | None = None
    factor: float = 4.0
    attention_factor: float | None = None
    switch_length: int | None = None
    start_tokens: int = 0

    def __post_init__(self) -> None:
        number(self, "factor", minimum=1)
        object.__setattr__(self, "long_factor", _factors("long_factor", self.long_factor))
        if self.short_factor is not None:
            object.__setattr__(self, "short_factor", _factors("short_factor", self.short_factor))
        if self.attention_factor is not None:
            number(self, "attention_factor", above=0)
        for field in ("switch_length", "start_tokens"):
            value = getattr(self, field)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if not whole and not (field == "switch_length" and value is None):
                raise StrategyError(f"longrope: {field} must be a whole number of tokens of at least 0, got {value!r}")

    def varies_with_length(self, rope: RopeSpec) -> bool:  # noqa: ARG002
        """Whether two lists are in use."""
        short = self.short_factor or (1.0,) * len(self.long_factor)
        return self.switch_length != 0 and short != self.long_factor

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """``theta^(-2i/d) / lambda_i``, from the long list when ``length`` exceeds the switch.

        Raises:
            StrategyError: when a list does not hold d/2 factors.
        """
        plain = base_frequencies(rope.theta, rope.rotary_dim)
        for field, factors in (("long_factor", self.long_factor), ("short_factor", self.short_factor)):
            if factors is not None and len(factors) != plain.numel():
                raise StrategyError(
                    f"longrope: {field} holds {len(factors)} factors, rotary_dim {rope.rotary_dim} needs "
                    f"{plain.numel()}"
                )
        switch = rope.pretrained_length if self.switch_length is None else self.switch_length
        factors = self.long_factor if length > switch else self.short_factor
        slowed = plain if factors is None else (plain.double() / torch.tensor(factors, dtype=torch.float64)).float()
        start = {"start_tokens": self.start_tokens, "start_inv_freq": plain} if self.start_tokens else {}
        return Frequencies(slowed, self._attention_factor(rope), **start)  # type: ignore[arg-type]

    def _attention_factor(self, rope: RopeSpec) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(rope.pretrained_length))


def _factors(field: str, value: Any) -> tuple[float, ...]:
    """A list of divisors, from a sequence or a file."""
    found = _read(field, Path(value)) if isinstance(value, str | Path) else value
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise StrategyError(f"longrope: {field} must be a list of d/2 factors or a file with them, got {value!r}")
    for i, x in enumerate(found):
        if not isinstance(x, Real) or isinstance(x, bool) or not math.isfinite(x) or x <= 0:
            raise StrategyError(f"longrope: {field}[{i}] must be a number above 0, got {x!r}")
    return tuple(float(x) for x in found)


def _read(field: str, path: Path) -> Any:
    """Factors in a JSON list, a transformers config, or a text with one number a line."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
        if path.suffix != ".json":
            return [float(x) for x in text.replace(",", " ").split()]
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise StrategyError(f"longrope: cannot read {field} from {str(path)!r}: {first_line(error)}") from error
    if isinstance(found, dict):
        scaling = found.get("rope_parameters") or found.get("rope_scaling") or found
        if field not in scaling:
            raise StrategyError(f"longrope: {str(path)!r} has no {field!r} in its rope_parameters or rope_scaling")
        found = scaling[field]
    return found
