"""What a strategy does to each rotary pair, and the length at which a pair first turns where training never was."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from extrapolate.analysis.bounds import supported_length
from extrapolate.errors import StrategyError
from extrapolate.rope import RopeSpec
from extrapolate.strategies import Plain, Strategy

LIMIT = 2**20
"""Tokens up to which a break is looked for."""


def rotary_pairs(strategy: Strategy, spec: RopeSpec, length: int) -> pd.DataFrame:
    """Every rotary pair of a head under a strategy, beside what it went through in training.

    Training is plain RoPE at the checkpoint's theta over its pretrained length L: a pair has seen the phases from 0 to
    those of relative position L, all of the circle when it makes a turn there (Peng et al. 2023, arXiv 2309.00071,
    section 3; Liu et al. 2023, arXiv 2310.05209).

    Args:
        strategy: any; its positions count as well as its frequencies.
        spec: of the checkpoint.
        length: tokens of the text.

    Returns:
        One row for each pair: ``pair`` (0 the fastest), ``inv_freq`` (radians a position), ``wavelength`` (tokens a
        turn, infinite for one that stands still), ``slowed`` (times slower than in training), ``turns_trained`` (made
        within L), ``finishes`` (whether it made one), ``unseen`` (share of the relative positions of the last query
        whose phase was never seen), ``resolution_lost`` (1 - step / trained step: how much closer neighbouring tokens
        are in phase; below 0 for a pair made faster).

    Raises:
        StrategyError: when the strategy cannot reach the length.
    """
    trained = _trained(spec)
    used = strategy.frequencies(spec, length).inv_freq.double().numpy()
    seen = _relative(strategy, spec, length)
    bound = _bound(spec)
    turns = spec.pretrained_length * trained / (2 * math.pi)
    finishes = turns >= 1
    unseen = np.zeros(used.size)
    for i in np.flatnonzero(~finishes):  # one pair at a time: no length × pairs in memory
        phases = np.mod(seen * used[i], 2 * math.pi)
        unseen[i] = np.mean(phases >= bound[i]) if seen.size else 0.0
    with np.errstate(divide="ignore"):
        return pd.DataFrame(
            {
                "pair": np.arange(used.size),
                "inv_freq": used,
                "wavelength": 2 * math.pi / used,
                "slowed": trained / used,
                "turns_trained": turns,
                "finishes": finishes,
                "unseen": unseen,
                "resolution_lost": 1 - used / trained,
            }
        )


def break_length(strategy: Strategy, spec: RopeSpec, *, limit: int = LIMIT) -> int | None:
    """The shortest text, in tokens, in which some pair reaches a phase that training never showed.

    Only pairs that made no full turn can: their phases stay within L trained steps as long as relative positions grow
    by no more than the pair is slowed. A strategy with a reach breaks behind it. Lengths are looked at in steps of an
    eighth of an octave and bisected.

    Returns:
        None when that does not happen up to ``limit``.

    Raises:
        StrategyError: when ``limit`` is not above the pretrained length.
    """
    start = spec.pretrained_length
    if limit <= start:
        raise StrategyError(f"limit must be above the pretrained length {start:,}, got {limit!r}")
    good = start
    for eighth in range(1, math.ceil(8 * math.log2(limit / start)) + 1):
        length = min(limit, round(start * 2 ** (eighth / 8)))
        if length > good and _breaks(strategy, spec, length):
            bad = length
            while bad - good > 1:
                middle = (good + bad) // 2
                good, bad = (good, middle) if _breaks(strategy, spec, middle) else (middle, bad)
            return bad
        good = max(good, length)
    return None


def break_lengths(strategies: Sequence[Strategy], spec: RopeSpec, *, limit: int = LIMIT) -> pd.DataFrame:
    """What theory predicts of each strategy, before any model is run.

    Returns:
        One row for each: ``label``; ``claimed_length`` (factor × pretrained length, missing without a factor);
        ``break_length`` (:func:`break_length`, missing when not below ``limit``); ``cosine_length``
        (:func:`supported_length` of its frequencies; missing likewise, and where they follow the length or positions
        are not distances), all in tokens.
    """
    rows = []
    for strategy in strategies:
        factor = strategy.parameters().get("factor")
        fixed = not strategy.varies_with_length(spec) and not strategy.changes_positions
        frequencies = strategy.frequencies(spec, spec.pretrained_length)
        rows.append(
            {
                "label": strategy.label,
                "claimed_length": round(factor * spec.pretrained_length) if isinstance(factor, float) else pd.NA,
                "break_length": break_length(strategy, spec, limit=limit) or pd.NA,
                "cosine_length": (fixed and supported_length(frequencies, limit)) or pd.NA,
            }
        )
    whole = ["claimed_length", "break_length", "cosine_length"]
    return pd.DataFrame(rows, columns=["label", *whole]).astype(dict.fromkeys(whole, "Int64"))


def _trained(spec: RopeSpec) -> NDArray[np.float64]:
    found: NDArray[np.float64] = Plain().frequencies(spec, spec.pretrained_length).inv_freq.double().numpy()
    return found


def _relative(strategy: Strategy, spec: RopeSpec, length: int) -> NDArray[np.float64]:
    """Relative positions at which the last query of a text sees its keys."""
    query, keys = torch.tensor([length - 1]), torch.arange(length)
    found = []
    for band in strategy.bands(spec, length):
        covered = band.covers(query[:, None], keys[None]).expand(1, length)[0]
        found.append(band.query_position(query).double() - band.key_position(keys[covered]).double())
    return torch.cat(found).numpy()


def _breaks(strategy: Strategy, spec: RopeSpec, length: int) -> bool:
    try:
        seen = _relative(strategy, spec, length)
        used = strategy.frequencies(spec, length).inv_freq.double().numpy()
    except StrategyError:  # beyond its reach
        return True
    unfinished = spec.pretrained_length * _trained(spec) < 2 * math.pi
    farthest = np.abs(seen).max(initial=0.0) * used
    return bool((farthest >= _bound(spec))[unfinished].any())


def _bound(spec: RopeSpec) -> NDArray[np.float64]:
    """The phase of each pair where training ended, less what float32 frequencies may be off."""
    return spec.pretrained_length * _trained(spec) * (1 - 3e-7)
