"""Transformers' attention function of a model that is patched in bands.

While a model is patched this way its rotary module returns the identity, so queries and keys reach the attention
function, and the cache, unrotated. The function here, which transformers calls through its attention interface, rotates
them for each band, runs the fastest exact kernel on the rectangles that a band covers, and merges the partial results
by their log-sum-exp in float32. No tensor of length × length is ever made.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.attention.kernels import kernel_for, merge, scores
from extrapolate.attention.masks import starts
from extrapolate.attention.plan import PLANS_KEPT, Banded, BandPlan, Plan, Start
from extrapolate.attention.seat import ATTRIBUTE, OBSERVER, PROBE, Observer, Seat
from extrapolate.errors import ModelError

NAME = "extrapolate"
"""Of the attention function, in transformers' registries."""

OBSERVED = 128
"""Queries at a time whose weights are formed for an observer."""


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
        kernel = kernel_for(query, key, value, self.softcap)
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
                    merged = part if merged is None else merge(merged, part)
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
                    score = scores(self._query(query[:, :, part], band, plan, part), key[:, :, span], self.scale)
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
