"""A key/value cache that stops growing, for strategies that forget."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


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
