"""What transformers' mask says of each row: where it stands, its padding, its window; never length × length."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from extrapolate.attention.seat import PROBE
from extrapolate.errors import ModelError


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
