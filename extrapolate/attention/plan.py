"""Bands made real: which rectangles of the causal triangle a call needs, at which positions, and with which masks."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from extrapolate.errors import ModelError
from extrapolate.rope import RopeSpec, cos_sin
from extrapolate.strategies.base import CAUSAL, Band, Strategy

BLOCK = 1024
"""Queries at a time."""

PLANS_KEPT = 4
"""Of the latest calls at least; every layer of a pass shares one for each place that its rows stand at."""


class Start(NamedTuple):
    """Where a row of a batch stands, as far as a mask says it.

    Attributes:
        key: slot of the first key.
        query: slot of the first query.
        before: padding before the text.
        window: keys that a query sees, itself included; of -n the keys of its own chunk of n; 0 for all before it.
    """

    key: int
    query: int
    before: int
    window: int


@dataclass(frozen=True)
class Piece:
    """One kernel call: a block of queries against a run of keys.

    Attributes:
        start: first key.
        stop: key after the last.
        mask: (queries, keys) boolean, True where a key is seen; None when all are.
        causal: whether the mask is that of a square's lower triangle.
        empty: (queries,) True where a query sees none of these keys; None when each sees one.
    """

    start: int
    stop: int
    mask: Tensor | None = None
    causal: bool = False
    empty: Tensor | None = None


@dataclass(frozen=True)
class BandPlan:
    """What a band comes to for one call.

    Attributes:
        query: cos and sin for each query, (queries, d/2) float32.
        key: the same for each key from ``first`` to ``last``.
        first: first key that any query sees.
        last: key after the last.
        pieces: of each block of queries.
    """

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    first: int
    last: int
    pieces: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True)
class Plan:
    """All bands of one call, shared by the layers of a pass.

    Attributes:
        bands: in the strategy's order.
        scale: (queries,) float32 factors on the queries; None for none.
        block: queries at a time.
    """

    bands: tuple[BandPlan, ...]
    scale: Tensor | None
    block: int


@dataclass
class Banded:
    """What the attention function of a patched model needs to know; shared by its layers.

    Attributes:
        strategy: whose frequencies, bands and factors apply.
        spec: of the checkpoint.
        length: tokens, declared for a strategy that depends on the length; None: each call's own.
        plans: of the latest calls.
        most: plans to keep.
        rows: the latest mask, and what it says.
        configs: of the patched modules, by name, as they were before.
    """

    strategy: Strategy
    spec: RopeSpec
    length: int | None = None
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)
    most: int = PLANS_KEPT
    rows: tuple[Tensor, list[Start]] | None = None
    configs: dict[str, Any] = field(default_factory=dict)

    def starts(self, mask: Tensor | None, batch: int, queries: int, keys: int, window: int | None) -> list[Start]:
        """What :func:`starts` said of each row; the window a layer names counts where there is no mask."""
        if mask is None:
            return [Start(0, keys - queries, 0, window or 0)] * batch
        if self.rows is None or self.rows[0] is not mask:  # read from the device once a pass
            self.rows = (mask, [Start(*row) for row in mask[:, 0, 0].tolist()])
        return self.rows[1]

    def plan(self, start: int, stop: int, keys: Tensor, window: int, device: torch.device) -> Plan:
        """The plan for queries ``start``…``stop - 1`` of a text and keys at the indices ``keys`` (rising)."""
        where = (start, stop, keys.numel(), int(keys[0]) if keys.numel() else 0, window, device)
        if where not in self.plans:
            while len(self.plans) >= self.most:
                del self.plans[next(iter(self.plans))]
            self.plans[where] = self._planned(start, stop, keys, window, device)
        return self.plans[where]

    def _planned(self, start: int, stop: int, keys: Tensor, window: int, device: torch.device) -> Plan:
        length = text_length(self.strategy, self.spec, self.length, start, stop)
        frequencies = self.strategy.frequencies(self.spec, length)
        queries = torch.arange(start, stop)

        def table(positions: Tensor) -> tuple[Tensor, Tensor]:
            cos, sin = cos_sin(frequencies, positions)
            return cos.to(device), sin.to(device)

        bands = self.strategy.bands(self.spec, length)
        whole = bands == (CAUSAL,) and not window and keys.numel() == stop - start
        block = stop - start if whole else BLOCK
        plans = []
        for band in bands:
            pieces = [(Piece(0, stop - start, causal=True),)] if whole else _pieces(band, queries, keys, window)
            bounds = [(piece.start, piece.stop) for found in pieces for piece in found]
            if bounds:
                first, last = min(a for a, _ in bounds), max(b for _, b in bounds)
                query = table(band.query_position(queries))
                key = table(band.key_position(keys[first:last]))
                placed = tuple(tuple(_on(piece, device) for piece in found) for found in pieces)
                plans.append(BandPlan(query, key, first, last, placed))
        scale = self.strategy.query_scale(self.spec, queries)
        return Plan(tuple(plans), None if scale is None else scale.to(device), block)


def _pieces(band: Band, queries: Tensor, keys: Tensor, window: int) -> list[tuple[Piece, ...]]:
    """For each block of queries the runs of keys that all of them see, and those that some see, with a mask."""
    masks: dict[bytes, Tensor] = {}  # most blocks have the same
    found = []
    queries, keys = queries.int(), keys.int()  # half the memory of their differences
    for part in torch.split(queries, BLOCK):
        end = int(torch.searchsorted(keys, part[-1], right=True))  # no key after the last query
        query, key = part[:, None], keys[None, :end]
        covered = band.covers(query, key).expand(part.numel(), end) & (key <= query)
        if window > 0:
            covered = covered & (query - key < window)
        elif window < 0:
            covered = covered & (query // -window == key // -window)
        kind = covered.any(dim=0).int() + covered.all(dim=0).int()  # 0: seen by none, 1: by some, 2: by all
        edges = [0, *((kind[1:] != kind[:-1]).nonzero().flatten() + 1).tolist(), end]
        pieces = []
        for a, b in itertools.pairwise(edges):
            if a == b or kind[a] == 0:
                continue
            if kind[a] == 2:
                pieces.append(Piece(a, b))
                continue
            mask = covered[:, a:b].contiguous()
            mask = masks.setdefault(bytes(mask.numpy().data) + bytes(mask.shape[1].to_bytes(8, "big")), mask)
            causal = b - a == part.numel() and bool((mask == torch.ones_like(mask).tril()).all())
            empty = ~mask.any(dim=1)
            pieces.append(Piece(a, b, None if causal else mask, causal, empty if empty.any() else None))
        found.append(tuple(pieces))
    return found


def _on(piece: Piece, device: torch.device) -> Piece:
    if device.type == "cpu":
        return piece
    mask, empty = (None if x is None else x.to(device) for x in (piece.mask, piece.empty))
    return replace(piece, mask=mask, empty=empty)


def text_length(strategy: Strategy, spec: RopeSpec, declared: int | None, start: int, stop: int) -> int:
    """Tokens of the text for which a call that runs its tokens ``start``…``stop - 1`` computes: declared, or so far.

    Raises:
        ModelError: when the text is longer than declared, or a strategy that depends on the length would meet what an
            earlier call computed for a shorter text.
    """
    if declared is not None and stop > declared:
        raise ModelError(
            f"the text has {stop} tokens by now, but the model was patched with length={declared}; declare the longest "
            "text"
        )
    if declared is None and start > 0 and strategy.varies_with_length(spec):
        raise ModelError(
            f"{strategy.name} depends on the length, and this call goes from position {start} to {stop - 1}: what is "
            "cached was computed for a shorter text; pass use_cache=False, or declare the length of the whole text: "
            "extrapolate.patch(model, strategy, length=...)"
        )
    return stop if declared is None else declared
