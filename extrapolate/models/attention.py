"""Attention in bands: the positions of a strategy instead of a model's own, exact, and in blocks.

While a model is patched this way its rotary module returns the identity, so queries and keys reach the attention
function, and the cache, unrotated. The function here, which transformers calls through its attention interface, rotates
them for each band, runs the fastest exact kernel on the rectangles that a band covers, and merges the partial results
by their log-sum-exp in float32. No tensor of length × length is ever made.
"""

import itertools
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from extrapolate.errors import ModelError
from extrapolate.models.rotary import text_length
from extrapolate.rope import Layout, RopeSpec, cos_sin, rotate
from extrapolate.strategies.base import CAUSAL, Band, Strategy

NAME = "extrapolate"
"""Of the attention function, in transformers' registries."""

BLOCK = 1024
"""Queries at a time."""

KEYS_AT_ONCE = 4096
"""Keys at a time where scores are held: the path without a fused kernel."""

OBSERVED = 128
"""Queries at a time whose weights are formed for an observer."""

PLANS_KEPT = 4
"""Of the latest calls at least; every layer of a pass shares one for each place that its rows stand at."""

ATTRIBUTE = "_extrapolate"
"""Where an attention module finds the :class:`Seat` of its patch."""


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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, perhaps in a process that has patched nothing yet."""
        self.__dict__.update(state)
        register()

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


@dataclass(frozen=True)
class Turn:
    """How an attention module rotates a head.

    Attributes:
        layout: which dimensions form a pair.
        start: first dimension that is rotated.
        back: whether it turns against the usual direction, queries and keys alike (nanochat).
    """

    layout: Layout
    start: int = 0
    back: bool = False

    def apply(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(..., T, head_dim) rotated by (T, d/2) tables."""
        sin = -sin if self.back else sin
        if self.start == 0:
            return rotate(x, cos, sin, self.layout)
        kept, turned = x[..., : self.start], x[..., self.start :]
        return torch.cat((kept, rotate(turned, cos, sin, self.layout)), dim=-1)


@dataclass
class Seat:
    """One attention module's place in a patch.

    Attributes:
        banded: the patch.
        turn: how it rotates; None for a layer that does not.
    """

    banded: Banded
    turn: Turn | None


Probe = Callable[[nn.Module, Tensor, Tensor], Seat]
"""(attention module, queries, keys) → the seat to use; sees every call while a model is examined."""

PROBE: ContextVar[Probe | None] = ContextVar("probe", default=None)


class Observer:
    """Sees what each layer attends to while a model runs in bands; :func:`extrapolate.models.observe.observed`.

    Attributes:
        first_query: index of the first query whose weights are wanted.
    """

    first_query: int = 0

    def heads(self, module: nn.Module, seat: Seat, query: Tensor, key: Tensor) -> None:
        """A layer's unrotated queries (batch, heads, T, head_dim) and keys (batch, kv heads, S, head_dim)."""

    def weights(self, module: nn.Module, weights: Tensor, queries: Tensor, keys: Tensor) -> None:
        """Some of a layer's attention weights (rows, heads, t, s), float32, at these indices of queries and keys.

        What is not seen has weight 0; each pair that is seen comes once.
        """


OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention function of a model that is patched in bands.

    Args:
        module: the attention module; its :class:`Seat` says what to do.
        query: (batch, heads, queries, head_dim), unrotated.
        key: (batch, key/value heads, keys, head_dim), unrotated, what was cached included.
        value: (batch, key/value heads, keys, value_dim).
        attention_mask: what :func:`starts` made, (batch, 1, 1, 4).
        scaling: factor on the scores; ``head_dim ** -0.5`` when left out.
        dropout: must be 0.
        sliding_window: keys this far before their query, and further, are not seen; where there is a mask it says so.
        softcap: scores become ``softcap·tanh(score / softcap)``.
        s_aux: (heads,) logit of a sink that takes part in the softmax and has no value (gpt-oss).
        **others: what a model passes beside; refused where it would change the result.

    Returns:
        (batch, queries, heads, value_dim) and no weights.
    """
    seat: Seat | None = module.__dict__.get(ATTRIBUTE)
    probe = PROBE.get()
    if probe is not None:
        seat = probe(module, query, key)
    if seat is None:
        raise ModelError(f"{type(module).__name__} was not there when the model was patched; patch it again")
    _refuse(module, attention_mask, dropout, others)
    batch, heads, queries, head_dim = query.shape
    scale = head_dim**-0.5 if scaling is None else scaling
    out = query.new_zeros(batch, queries, heads, value.shape[-1])
    starts = seat.banded.starts(attention_mask, batch, queries, key.shape[2], sliding_window)
    rows_of: dict[Start, list[int]] = {}
    for row, start in enumerate(starts):
        rows_of.setdefault(start, []).append(row)
    seat.banded.most = max(PLANS_KEPT, 2 * len(rows_of))  # layers of two kinds alternate
    observer = OBSERVER.get()
    if observer is not None:
        observer.heads(module, seat, query, key)
    run = _Run(module, seat, scale, softcap, s_aux, observer)
    for start, rows in rows_of.items():
        first_query = start.query - start.before  # its index in the text
        skip = max(0, -first_query)  # padding
        if skip >= queries:
            continue
        index = _indices(seat.banded, start, key.shape[2])
        seen = (index >= 0) & (index < first_query + queries)  # neither padding nor a static cache's empty end
        low, high = int(seen.int().argmax()), int(seen.sum())
        q, k, v = (x if len(rows) == batch else x[rows] for x in (query, key, value))
        result = run(
            q[:, :, skip:],
            k[:, :, low : low + high],
            v[:, :, low : low + high],
            first_query + skip,
            index[low : low + high],
            start.window,
        )
        if len(rows) == batch:
            out[:, skip:] = result
        else:
            out[rows, skip:] = result
    return out, None


def _indices(banded: Banded, start: Start, count: int) -> Tensor:
    """Index in its text of the key in each slot of the cache, rising; below 0 where there is padding.

    A cache of bounded size that has dropped what no query sees still begins with the beginning of the text.
    """
    index = torch.arange(start.key - start.before, start.key - start.before + count)
    kept = banded.strategy.keeps(banded.spec)
    if start.key > 0 and kept is not None and not start.window:
        if start.before:
            raise ModelError("a cache of bounded size takes rows of one length: padding cannot be dropped from it")
        index[: kept[0]] = torch.arange(min(kept[0], count))
    return index


def _refuse(module: nn.Module, mask: Tensor | None, dropout: float, others: dict[str, Any]) -> None:
    who = type(module).__name__
    if mask is not None and mask.shape[1:] != (1, 1, 4) and PROBE.get() is not None:
        raise ModelError(f"{who} makes a mask of its own for keys of its own, which bands do not know")
    if mask is not None and (mask.shape[1:] != (1, 1, 4) or mask.dtype != torch.long):
        raise ModelError(f"{who}: bands take a (batch, length) mask of padding, got one of shape {tuple(mask.shape)}")
    if dropout:
        raise ModelError(f"{who}: attention dropout {dropout:g} is not supported in bands; call model.eval()")
    for name in ("position_bias", "head_mask"):
        if others.get(name) is not None:
            raise ModelError(f"{who}: {name} is not supported in bands")
    if others.get("output_attentions"):
        raise ModelError(f"{who}: output_attentions needs length × length weights, which bands never make")
    if others.get("is_causal") is False:
        raise ModelError(f"{who}: attention that is not causal cannot be patched in bands")


@dataclass(frozen=True)
class _Run:
    """The attention of rows that stand at the same place of their texts."""

    module: nn.Module
    seat: Seat
    scale: float
    softcap: float | None
    sinks: Tensor | None
    observer: Observer | None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, start: int, keys: Tensor, window: int) -> Tensor:
        """(rows, heads, T, d), (rows, kv, S, d), (rows, kv, S, dv) → (rows, T, heads, dv)."""
        rows, heads, queries, _ = query.shape
        plan = self.seat.banded.plan(start, start + queries, keys, window, query.device)
        rotated = [self._rotate(key[:, :, band.first : band.last], band.key) for band in plan.bands]
        out = query.new_empty(rows, queries, heads, value.shape[-1])
        width = value.shape[-1]
        if width < query.shape[-1]:  # multi-head latent attention; the fused kernels want heads of one width
            value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
        kernel = _kernel(query, key, value, self.softcap)
        for n, a in enumerate(range(0, queries, plan.block)):
            block = slice(a, min(a + plan.block, queries))
            merged: tuple[Tensor, Tensor] | None = None
            for band, k in zip(plan.bands, rotated, strict=True):
                if not band.pieces[n]:
                    continue
                q = self._query(query[:, :, block], band, plan, block)
                for piece in band.pieces[n]:
                    span = slice(piece.start - band.first, piece.stop - band.first)
                    part = kernel(q, k[:, :, span], value[:, :, piece.start : piece.stop], self.scale, piece)
                    merged = part if merged is None else _merge(merged, part)
            whole = self._finish(merged, query[:, :, block], value)
            if self.observer is not None and merged is not None and start + block.stop > self.observer.first_query:
                self._show(self.observer, plan, n, block, query, rotated, merged[1], start, keys)
            out[:, block] = whole[..., :width].transpose(1, 2).to(out.dtype)
        return out

    def _show(
        self,
        observer: Observer,
        plan: Plan,
        n: int,
        block: slice,
        query: Tensor,
        rotated: list[Tensor],
        lse: Tensor,
        start: int,
        keys: Tensor,
    ) -> None:
        """The weights of block ``n``, a few queries at a time: scores once more, less what the kernels summed up to."""
        if self.sinks is not None:
            lse = torch.logaddexp(lse, self.sinks.float().view(1, -1, 1))
        for a in range(max(block.start, observer.first_query - start), block.stop, OBSERVED):
            part = slice(a, min(a + OBSERVED, block.stop))
            inside = slice(part.start - block.start, part.stop - block.start)
            for band, key in zip(plan.bands, rotated, strict=True):
                for piece in band.pieces[n]:
                    stop = min(piece.stop, piece.start + inside.stop) if piece.causal else piece.stop
                    span = slice(piece.start - band.first, stop - band.first)
                    score = _scores(self._query(query[:, :, part], band, plan, part), key[:, :, span], self.scale)
                    if self.softcap is not None:
                        score = self.softcap * (score / self.softcap).tanh()
                    weight = (score.flatten(1, 2) - lse[:, :, inside, None]).exp()
                    mask = None if piece.mask is None else piece.mask[inside]
                    if piece.causal:
                        rows = torch.arange(inside.start, inside.stop, device=weight.device)
                        mask = torch.arange(stop - piece.start, device=weight.device) <= rows[:, None]
                    if mask is not None:
                        weight = weight.masked_fill(~mask, 0.0)
                    indices = torch.arange(start + part.start, start + part.stop)
                    observer.weights(self.module, weight, indices, keys[piece.start : stop])

    def _query(self, query: Tensor, band: BandPlan, plan: Plan, block: slice) -> Tensor:
        if plan.scale is not None:
            query = (query * plan.scale[block, None]).to(query.dtype)
        cos, sin = band.query
        return self._rotate(query, (cos[block], sin[block]))

    def _rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        return x if self.seat.turn is None else self.seat.turn.apply(x, *table)

    def _finish(self, merged: tuple[Tensor, Tensor] | None, query: Tensor, value: Tensor) -> Tensor:
        if merged is None:  # nothing is seen: a window of 0
            return query.new_zeros(*query.shape[:3], value.shape[-1])
        out, lse = merged
        if self.sinks is None:
            return out
        sink = self.sinks.float().view(1, -1, 1)
        return out * (lse - torch.logaddexp(lse, sink)).exp()[..., None]


def _merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Softmax over two disjoint sets of keys from those over each, float32."""
    (a, x), (b, y) = one, other
    lse = torch.logaddexp(x, y)
    total = lse.masked_fill(lse == -math.inf, 0.0)  # where neither has a key: their shares are 0, not NaN
    return a.float() * (x - total).exp()[..., None] + b.float() * (y - total).exp()[..., None], lse


Kernel = Callable[[Tensor, Tensor, Tensor, float, Piece], tuple[Tensor, Tensor]]
"""(queries, keys, values, scale, piece) → output, and log-sum-exp (rows, heads, queries) float32."""


def _kernel(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> Kernel:
    """The fastest exact one that gives the log-sum-exp."""
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if softcap is None and not gradient and query.shape[-1] == value.shape[-1]:
        if query.device.type == "cpu":
            return _flash_on_cpu
        if query.device.type == "cuda" and query.shape[-1] % 8 == 0:
            return _efficient_on_cuda
    return lambda q, k, v, scale, piece: _by_scores(q, k, v, scale, piece, softcap)


def _flash_on_cpu(query: Tensor, key: Tensor, value: Tensor, scale: float, piece: Piece) -> tuple[Tensor, Tensor]:
    bias = None
    if piece.mask is not None:
        bias = torch.zeros(piece.mask.shape, dtype=query.dtype).masked_fill_(~piece.mask, -math.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, piece.causal, attn_mask=bias, scale=scale
    )
    if piece.empty is not None:  # the kernel gives 0 for a query without keys
        lse = lse.masked_fill(piece.empty, -math.inf)
    return out, lse


def _efficient_on_cuda(query: Tensor, key: Tensor, value: Tensor, scale: float, piece: Piece) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    bias = None
    if piece.mask is not None:
        rows, columns = piece.mask.shape
        padded = -(-columns // 8) * 8  # the kernel wants rows of its bias aligned
        bias = torch.zeros(rows, padded, dtype=query.dtype, device=query.device)
        bias = bias[:, :columns].masked_fill_(~piece.mask, -math.inf).expand(*query.shape[:2], rows, columns)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, piece.causal, scale=scale
    )
    lse = lse[..., : query.shape[2]]
    if piece.empty is not None:
        out, lse = out.masked_fill(piece.empty[:, None], 0.0), lse.masked_fill(piece.empty, -math.inf)
    return out, lse


def _by_scores(
    query: Tensor, key: Tensor, value: Tensor, scale: float, piece: Piece, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Scores in float32, a slice of keys at a time: any device, any head size, soft-capping, gradients."""
    queries = query.shape[2]
    merged: tuple[Tensor, Tensor] | None = None
    mask = piece.mask
    if piece.causal:
        mask = torch.ones(queries, key.shape[2], dtype=torch.bool, device=query.device).tril()
    for a in range(0, key.shape[2], KEYS_AT_ONCE):
        span = slice(a, a + KEYS_AT_ONCE)
        score = _scores(query, key[:, :, span], scale)
        if softcap is not None:
            score = softcap * (score / softcap).tanh()
        if mask is not None:
            score = score.masked_fill(~mask[:, span], -math.inf)
        lse = score.logsumexp(dim=-1)
        weight = (score - lse[..., None].clamp_min(torch.finfo(score.dtype).min)).exp()  # 0 where nothing is seen
        out = weight @ value[:, :, None, span].float()
        part = out.flatten(1, 2), lse.flatten(1, 2)
        merged = part if merged is None else _merge(merged, part)
    assert merged is not None
    return merged


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """(rows, heads, T, d), (rows, kv, S, d) → (rows, kv, heads / kv, T, S) float32."""
    rows, heads, queries, width = query.shape
    grouped = query.float().reshape(rows, key.shape[1], heads // key.shape[1], queries, width)
    return grouped @ key[:, :, None].float().transpose(-1, -2) * scale


def starts(
    batch_size: int,
    q_length: int,
    kv_length: int,  # noqa: ARG001
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> Tensor:
    """Transformers' mask function: for each row a :class:`Start`.

    Slots are counted from the first token that the row ever had, padding included. Padding after a text needs no mask:
    no real token sees what comes later.

    Returns:
        (batch, 1, 1, 4) integers: four dimensions, as a finished mask has, so that transformers passes it on as it is.

    Raises:
        ModelError: for packed sequences, custom masks, and padding in the middle of a text.
    """
    refused = "bands know one causal text a row: packed sequences and custom masks are not supported"
    must_exist = not allow_is_causal_skip and q_length > 1
    if must_exist and PROBE.get() is not None:
        raise ModelError("its attention asks for a whole mask of length × length to work on, which bands never make")
    if others.get("use_vmap"):
        raise ModelError(refused)
    device = others.get("device") or (attention_mask.device if attention_mask is not None else None)
    before = torch.zeros(batch_size, dtype=torch.long, device=device)
    if attention_mask is not None:
        real = attention_mask.bool()
        before = real.int().argmax(dim=1)
        steps = real[:, 1:].int() - real[:, :-1].int()
        if bool(((steps == 1).sum(dim=1) + real[:, 0].int() > 1).any()):
            raise ModelError("attention_mask must mark one run of real tokens in each row, padding before or after it")
    if must_exist and mask_function is not None:  # packed, or compiled, where transformers cannot tell whether it is
        last = torch.as_tensor(q_offset, device=device) + q_length - 1
        for row, first in enumerate(before.tolist()):
            key = max(first, int(last) - local_size + 1) if local_size else first
            if key <= int(last) and not bool(mask_function(torch.tensor(row), 0, last, torch.as_tensor(key))):
                raise ModelError(
                    "bands know one causal text a row: packed sequences and custom masks are not supported"
                )
    window = local_size or 0
    if window and mask_function is not None:  # a window slides, or ends where a chunk begins
        query, key = before[0] + window, before[0] + 1
        window = window if bool(mask_function(torch.zeros_like(query), 0, query, key)) else -window
    first = torch.zeros_like(before)
    return torch.stack((first + kv_offset, first + q_offset, before, first + window), dim=1)[:, None, None]


def register() -> None:
    """Make the function known to transformers, under a name that no model has unless it is patched."""
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
    )  # two seconds, which a command's start is spared

    # plans are made from lengths and masks: a compiler passes both by
    aside: Any = torch.compiler.disable
    AttentionInterface.register(NAME, aside(attention))
    AttentionMaskInterface.register(NAME, aside(starts))


def seats(model: nn.Module) -> dict[str, Seat]:
    """Attention modules of a patched model by name, each with its seat."""
    return {name: m.__dict__[ATTRIBUTE] for name, m in model.named_modules() if ATTRIBUTE in m.__dict__}


class BoundedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's cache that keeps the beginning of the text and its latest tokens, and forgets what lies between.

    Args:
        first: tokens of the beginning.
        last: tokens that the next query sees, itself included.
    """

    is_croppable = False

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.cumulative_length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All keys and values that the new queries see; fewer are kept for the next ones."""
        keys, values = super().update(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        count = keys.shape[-2]
        if count > self.first + self.last - 1:
            kept = torch.arange(count, device=keys.device)
            kept = kept[(kept < self.first) | (kept > count - self.last)]
            self.keys, self.values = keys[:, :, kept], values[:, :, kept]
        return keys, values

    def get_seq_length(self) -> int:
        """Tokens seen so far."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that the next call gets, tokens forgotten before it)."""
        stored = super().get_seq_length()
        return stored + query_length, self.cumulative_length - stored
