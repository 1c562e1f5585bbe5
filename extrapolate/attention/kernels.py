"""One piece of attention with its log-sum-exp: each device's fastest exact kernel, and scores for the rest."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from extrapolate.attention.plan import Piece

KEYS_AT_ONCE = 4096
"""Keys at a time where scores are held: the path without a fused kernel."""


Kernel = Callable[[Tensor, Tensor, Tensor, float, Piece], tuple[Tensor, Tensor]]
"""(queries, keys, values, scale, piece) → output, and log-sum-exp (rows, heads, queries) float32."""


def kernel_for(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> Kernel:
    """The fastest exact one that gives the log-sum-exp."""
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if softcap is None and not gradient and query.shape[-1] == value.shape[-1]:
        if query.device.type == "cpu":
            return flash_on_cpu
        if query.device.type == "cuda" and query.shape[-1] % 8 == 0:
            return efficient_on_cuda
    return lambda q, k, v, scale, piece: by_scores(q, k, v, scale, piece, softcap)


def flash_on_cpu(query: Tensor, key: Tensor, value: Tensor, scale: float, piece: Piece) -> tuple[Tensor, Tensor]:
    """PyTorch's flash attention for CPUs; a :data:`Kernel`."""
    bias = None
    if piece.mask is not None:
        bias = torch.zeros(piece.mask.shape, dtype=query.dtype).masked_fill_(~piece.mask, -math.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, piece.causal, attn_mask=bias, scale=scale
    )
    if piece.empty is not None:  # the kernel gives 0 for a query without keys
        lse = lse.masked_fill(piece.empty, -math.inf)
    return out, lse


def efficient_on_cuda(query: Tensor, key: Tensor, value: Tensor, scale: float, piece: Piece) -> tuple[Tensor, Tensor]:
    """PyTorch's memory-efficient attention, which takes a mask as well; a :data:`Kernel`."""
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


def by_scores(
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
        score = scores(query, key[:, :, span], scale)
        if softcap is not None:
            score = softcap * (score / softcap).tanh()
        if mask is not None:
            score = score.masked_fill(~mask[:, span], -math.inf)
        lse = score.logsumexp(dim=-1)
        weight = (score - lse[..., None].clamp_min(torch.finfo(score.dtype).min)).exp()  # 0 where nothing is seen
        out = weight @ value[:, :, None, span].float()
        part = out.flatten(1, 2), lse.flatten(1, 2)
        merged = part if merged is None else merge(merged, part)
    assert merged is not None
    return merged


def scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """(rows, heads, T, d), (rows, kv, S, d) → (rows, kv, heads / kv, T, S) float32."""
    rows, heads, queries, width = query.shape
    grouped = query.float().reshape(rows, key.shape[1], heads // key.shape[1], queries, width)
    return grouped @ key[:, :, None].float().transpose(-1, -2) * scale


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Softmax over two disjoint sets of keys from those over each, float32."""
    (a, x), (b, y) = one, other
    lse = torch.logaddexp(x, y)
    total = lse.masked_fill(lse == -math.inf, 0.0)  # where neither has a key: their shares are 0, not NaN
    return a.float() * (x - total).exp()[..., None] + b.float() * (y - total).exp()[..., None], lse
