"""Linear attention with rotary embedding, as RoFormer defines it."""

import torch
from torch import Tensor

from extrapolate.rope import Frequencies, Layout, cos_sin, rotate

CHUNK = 128
"""Tokens whose mutual scores are formed at once in the causal form; changes speed and memory only."""


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, frequencies: Frequencies, *, causal: bool = True, layout: Layout = "half_split"
) -> Tensor:
    """Linear attention, O(T), whose scores carry relative positions.

    ``sum_n (R_m phi(q_m))·(R_n phi(k_n)) v_n / sum_n phi(q_m)·phi(k_n)`` with ``phi(x) = elu(x) + 1``: the rotation
    acts on the feature-mapped queries and keys of the numerator only, because rotated features may be negative and a
    denominator of them could vanish. The weights are then not a probability distribution.

    Source: Su et al. 2021 (RoFormer), arXiv 2104.09864, section 3.3 and Eq. 18-19; Katharopoulos et al. 2020,
    arXiv 2006.16236, for the feature map and the causal form.

    Args:
        q: (..., T, d).
        k: (..., T, d).
        v: (..., T, e).
        frequencies: of any strategy; d may exceed twice their number (partial rotary).
        causal: a query sees keys up to its own position; else all.
        layout: which entries of a head form a pair.

    Returns:
        (..., T, e) in v's dtype, computed in float32 at least.
    """
    dtype = torch.promote_types(torch.float32, v.dtype)
    cos, sin = (table.to(dtype) for table in cos_sin(frequencies, torch.arange(q.shape[-2], device=q.device)))
    phi_q, phi_k = (torch.nn.functional.elu(x.to(dtype)) + 1 for x in (q, k))
    turned_q, turned_k = (rotate(x, cos, sin, layout) for x in (phi_q, phi_k))
    values = v.to(dtype)
    if not causal:
        numerator = turned_q @ (turned_k.transpose(-1, -2) @ values)  # (d, e) is all that queries need of the keys
        denominator = phi_q @ phi_k.sum(dim=-2, keepdim=True).transpose(-1, -2)
        return (numerator / denominator).to(v.dtype)
    out = []
    state = values.new_zeros(*values.shape[:-2], q.shape[-1], values.shape[-1])  # sum of R k v^T so far
    total = values.new_zeros(*values.shape[:-2], q.shape[-1], 1)  # sum of phi(k) so far
    for start in range(0, q.shape[-2], CHUNK):
        here = slice(start, start + CHUNK)
        tq, tk, pq, pk, vs = (x[..., here, :] for x in (turned_q, turned_k, phi_q, phi_k, values))
        numerator = tq @ state + (tq @ tk.transpose(-1, -2)).tril() @ vs
        denominator = pq @ total + (pq @ pk.transpose(-1, -2)).tril().sum(dim=-1, keepdim=True)
        out.append(numerator / denominator)
        state = state + tk.transpose(-1, -2) @ vs
        total = total + pk.sum(dim=-2, keepdim=True).transpose(-1, -2)
    return torch.cat(out, dim=-2).to(v.dtype)
