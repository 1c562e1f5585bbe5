"""What a model attends to: by distance, at which entropy, with which pairs, and how far back a head can copy from."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extrapolate.attention.seat import Observer, Seat
from extrapolate.errors import ModelError
from extrapolate.models.layers import index_of
from extrapolate.models.observe import observed
from extrapolate.running import body_of, evaluating, input_device


@dataclass(frozen=True)
class AttentionStatistics:
    """Four tables, a row for each layer, head, and whatever the table is by; heads are those of queries.

    Attributes:
        heads: ``sink_mass`` (share of the attention that the first tokens get), ``mean_distance`` (tokens, of the
            attention that they do not get), ``entropy`` (nats), each a mean over queries.
        distances: ``first``, ``last`` (tokens from query to key, both included), ``mass`` (share of a query's attention
            at these distances), ``attention`` (mean weight of one key there), means over queries and over pairs.
        positions: ``first``, ``last`` (index of the query, both included), ``entropy`` (nats), ``sink_mass``.
        pairs: ``pair`` (0 turns fastest), ``query_norm``, ``key_norm`` (mean length of the two dimensions of a pair,
            which rotation does not change), ``share`` (of the head's sum of their products): which pairs it uses. No
            rows for a layer that does not rotate.
    """

    heads: pd.DataFrame
    distances: pd.DataFrame
    positions: pd.DataFrame
    pairs: pd.DataFrame


def attention_statistics(
    model: nn.Module, input_ids: Tensor, *, sinks: int = 4, first_query: int = 0
) -> AttentionStatistics:
    """Run a text and look at every head, under whatever strategy the model is patched with.

    Weights are formed for 128 queries at a time and summed up at once: memory grows with the length, not with its
    square. The model is left exactly as it was, also after an exception.

    Pairs by norm as in Barbero et al. 2024, Round and Round We Go! (arXiv 2410.06205); sinks as in Xiao et al. 2023
    (arXiv 2309.17453).

    Args:
        model: a loaded transformers model with RoPE, patched or not.
        input_ids: (1, T) token ids, T at least 2.
        sinks: how many of the first tokens count as sinks, from 0 to T - 1.
        first_query: queries before this index are run, not looked at; 0 for all.

    Raises:
        ModelError: for another shape of ``input_ids``, ``sinks`` or ``first_query`` out of range, or a model whose
            attention cannot be observed.
    """
    length = _length(input_ids)
    if not 0 <= sinks < length:
        raise ModelError(f"sinks must be between 0 and {length - 1}, got {sinks!r}")
    if not 0 <= first_query < length:
        raise ModelError(f"first_query must be between 0 and {length - 1}, got {first_query!r}")
    statistics = _Statistics(length, sinks, first_query)
    _run(model, input_ids, statistics)
    return statistics.tables(_order(model))


def copy_attention(model: nn.Module, input_ids: Tensor, distances: Sequence[int], *, span: int = 64) -> pd.DataFrame:
    """How much each head attends to what followed the last time, when a text repeats itself at some distance.

    The last ``span`` tokens are replaced by those ``distance`` before them; from each of them the key is looked at
    that follows its earlier occurrence, which a copying (induction, retrieval) head attends to. The length of the text
    stays the same, so distances compare.

    Source: Olsson et al. 2022 (arXiv 2209.11895), induction heads; Wu et al. 2024 (arXiv 2404.15574), retrieval heads.

    Args:
        model: a loaded transformers model with RoPE, patched or not.
        input_ids: (1, T) token ids.
        distances: tokens, each at least ``span`` and at most T - ``span``.
        span: repeated tokens, at least 2.

    Returns:
        One row for each layer, head and distance: ``layer``, ``head``, ``distance`` (tokens), ``mass`` (mean attention
        weight of that one key, 0 to 1).

    Raises:
        ModelError: for a distance out of range, or as :func:`attention_statistics`.
    """
    length = _length(input_ids)
    if span < 2:
        raise ModelError(f"span must be at least 2 tokens, got {span!r}")
    for distance in distances:
        if not span <= distance <= length - span:
            raise ModelError(
                f"distances must be between span = {span} and T - span = {length - span} tokens, got {distance!r}"
            )
    tables = []
    for distance in distances:
        repeated = input_ids.clone()
        repeated[:, -span:] = input_ids[:, length - span - distance : length - distance]
        queries = torch.arange(length - span, length)
        copying = _Copying(queries, queries - distance + 1)
        _run(model, repeated, copying)
        tables.append(copying.table(_order(model)).assign(distance=distance))
    if not tables:
        raise ModelError("there is nothing to measure: give at least one distance")
    return pd.concat(tables, ignore_index=True)[["layer", "head", "distance", "mass"]]


def retrieval_distance(copying: pd.DataFrame, *, threshold: float = 0.1) -> pd.DataFrame:
    """The largest distance from which each head still copies.

    Args:
        copying: of :func:`copy_attention`.
        threshold: least attention to the key that followed.

    Returns:
        One row for each head that copies at all: ``layer``, ``head``, ``retrieval_distance`` (tokens), ``mass`` (at the
        distance where it is greatest), the strongest first.
    """
    rows = copying[copying["mass"] >= threshold]
    found = rows.groupby(["layer", "head"], as_index=False).agg(
        retrieval_distance=("distance", "max"), mass=("mass", "max")
    )
    return found.sort_values("mass", ascending=False, ignore_index=True)


def octaves(length: int, steps: int = 4) -> list[tuple[int, int]]:
    """Bins of 0…length - 1, each a quarter of an octave wide: (first, last), both included."""
    powers = range(math.ceil(steps * math.log2(length)) + 1)
    edges = [0, *dict.fromkeys(round(2 ** (k / steps)) for k in powers)]
    return [(a, min(b, length) - 1) for a, b in itertools.pairwise(edges) if a < length]


class _Statistics(Observer):
    """Sums over queries of each layer, by module."""

    def __init__(self, length: int, sinks: int, first_query: int) -> None:
        self.length, self.sinks, self.first_query = length, sinks, first_query
        self.bins = octaves(length)
        self.bin_of = torch.repeat_interleave(
            torch.arange(len(self.bins)), torch.tensor([last - first + 1 for first, last in self.bins])
        )
        self.mass: dict[nn.Module, Tensor] = {}  # (heads, bins) float64
        self.count: dict[nn.Module, Tensor] = {}  # (bins,) pairs seen
        self.by_query: dict[nn.Module, Tensor] = {}  # (3, heads, T) entropy, sink mass, distance × mass
        self.norms: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # (heads, pairs) each

    def heads(self, module: nn.Module, seat: Seat, query: Tensor, key: Tensor) -> None:
        heads = query.shape[1]
        if module in self.by_query:
            raise ModelError(f"{type(module).__name__} runs more than once in a pass, which is not understood here")
        self.mass[module] = torch.zeros(heads, len(self.bins), dtype=torch.float64)
        self.count[module] = torch.zeros(len(self.bins), dtype=torch.float64)
        self.by_query[module] = torch.zeros(3, heads, self.length, dtype=torch.float64)
        if seat.turn is None:
            return
        q, k = (_pair_norms(x, seat) for x in (query, key))
        self.norms[module] = q, k.repeat_interleave(heads // key.shape[1], dim=0)

    def weights(self, module: nn.Module, weights: Tensor, queries: Tensor, keys: Tensor) -> None:
        w = weights[0].cpu()  # (heads, t, s)
        apart = queries[:, None] - keys[None, :]
        seen = apart >= 0  # what a query cannot see has weight 0
        at = self.bin_of[apart.clamp(min=0)].flatten()
        self.mass[module].index_add_(1, at, w.flatten(1).double())
        self.count[module].index_add_(0, at, (seen & (w.amax(dim=0) > 0)).flatten().double())
        entropy, sinks, distance = self.by_query[module]
        entropy[:, queries] -= torch.xlogy(w, w).sum(dim=-1).double()
        early = keys < self.sinks
        sinks[:, queries] += w[..., early].sum(dim=-1).double()
        distance[:, queries] += (w * apart)[..., ~early].sum(dim=-1).double()

    def tables(self, order: dict[nn.Module, int]) -> AttentionStatistics:
        looked_at = slice(self.first_query, self.length)
        first = np.array([a for a, _ in self.bins])
        last = np.array([b for _, b in self.bins])
        heads, distances, positions, pairs = [], [], [], []
        for module in sorted(self.by_query, key=order.__getitem__):
            entropy, sinks, distance = self.by_query[module][:, :, looked_at]
            rest = 1 - sinks
            index = {"layer": order[module], "head": np.arange(len(entropy))}
            far = (distance.sum(dim=1) / rest.sum(dim=1).clamp_min(1e-12)).numpy()
            means = {
                "sink_mass": sinks.mean(dim=1).numpy(),
                "mean_distance": far,
                "entropy": entropy.mean(dim=1).numpy(),
            }
            heads.append(pd.DataFrame({**index, **means}))
            queries = self.length - self.first_query
            mass, count = self.mass[module].numpy(), self.count[module].numpy()
            with np.errstate(invalid="ignore", divide="ignore"):
                each = {"mass": mass / queries, "attention": mass / count}
            distances.append(_by_bin(order[module], first, last, each).dropna(subset=["attention"]))
            bins = self.bin_of[looked_at].numpy()
            each = {
                name: np.stack([np.bincount(bins, x.numpy(), len(first)) for x in values]) / _times(bins, len(first))
                for name, values in (("entropy", entropy), ("sink_mass", sinks))
            }
            positions.append(_by_bin(order[module], first, last, each).dropna(subset=["entropy"]))
            if module in self.norms:
                q, k = (x.numpy() for x in self.norms[module])
                share = q * k / (q * k).sum(axis=1, keepdims=True)
                each = {"query_norm": q, "key_norm": k, "share": share}
                number = np.arange(q.shape[1])
                pairs.append(_by_bin(order[module], number, number, each).rename(columns={"first": "pair"}))
        columns = ["layer", "head", "pair", "query_norm", "key_norm", "share"]
        of_pairs = pd.concat(pairs, ignore_index=True)[columns] if pairs else pd.DataFrame(columns=columns)
        return AttentionStatistics(
            pd.concat(heads, ignore_index=True),
            pd.concat(distances, ignore_index=True),
            pd.concat(positions, ignore_index=True),
            of_pairs,
        )


class _Copying(Observer):
    """The weight of one key for each of some queries."""

    def __init__(self, queries: Tensor, targets: Tensor) -> None:
        self.first_query = int(queries[0])
        self.targets = targets
        self.sums: dict[nn.Module, Tensor] = {}  # (heads,)

    def weights(self, module: nn.Module, weights: Tensor, queries: Tensor, keys: Tensor) -> None:
        wanted = self.targets[queries - self.first_query]
        row, column = (wanted[:, None] == keys[None, :]).nonzero(as_tuple=True)
        found = weights[0].cpu()[:, row, column].sum(dim=1).double()
        self.sums[module] = self.sums.get(module, torch.zeros_like(found)) + found

    def table(self, order: dict[nn.Module, int]) -> pd.DataFrame:
        return pd.concat(
            [
                pd.DataFrame(
                    {
                        "layer": order[module],
                        "head": np.arange(len(self.sums[module])),
                        "mass": (self.sums[module] / len(self.targets)).numpy(),
                    }
                )
                for module in sorted(self.sums, key=order.__getitem__)
            ]
        )


def _length(input_ids: Tensor) -> int:
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 2:
        raise ModelError(f"input_ids must be (1, T) token ids with T at least 2, got {tuple(input_ids.shape)}")
    return int(input_ids.shape[1])


def _order(model: nn.Module) -> dict[nn.Module, int]:
    """Number of the layer that each module belongs to."""
    found = {module: index_of(module, name) for name, module in model.named_modules()}
    return {module: -1 if index is None else index for module, index in found.items()}


@torch.no_grad()
def _run(model: Any, input_ids: Tensor, observer: Observer) -> None:
    with observed(model, observer), evaluating(model):
        body_of(model)(input_ids=input_ids.to(input_device(model)), use_cache=False)


def _pair_norms(x: Tensor, seat: Seat) -> Tensor:
    """(1, heads, T, head_dim) → mean length of each pair's two dimensions, (heads, pairs) float64."""
    assert seat.turn is not None
    start, pairs = seat.turn.start, seat.banded.spec.rotary_dim // 2
    rotated = x[0, ..., start : start + 2 * pairs].float()
    half_split = seat.turn.layout == "half_split"
    halves = rotated.reshape(*rotated.shape[:-1], *((2, pairs) if half_split else (pairs, 2)))
    norms: Tensor = halves.norm(dim=-2 if half_split else -1)
    return norms.double().mean(dim=-2).cpu()


def _by_bin(
    layer: int, first: NDArray[np.int64], last: NDArray[np.int64], each: dict[str, NDArray[np.float64]]
) -> pd.DataFrame:
    """(heads, bins) arrays as rows."""
    heads, bins = next(iter(each.values())).shape
    index = {
        "layer": layer,
        "head": np.repeat(np.arange(heads), bins),
        "first": np.tile(first, heads),
        "last": np.tile(last, heads),
    }
    return pd.DataFrame({**index, **{name: values.flatten() for name, values in each.items()}})


def _times(bins: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    times = np.bincount(bins, minlength=count).astype(float)
    times[times == 0] = np.nan
    return times
