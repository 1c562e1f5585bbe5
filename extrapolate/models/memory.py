"""How much memory a forward pass takes, from the model's config alone, and how much there is.

The phases of :func:`extrapolate.token_losses` are added up tensor by tensor as transformers' decoder layers hold them:
the widest moment of one layer, and the head with a slice of logits. No layer's activations outlive it, because nothing
is kept for gradients, so depth does not matter.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from extrapolate.attention.plan import BLOCK
from extrapolate.models.load import HEADS
from extrapolate.running import LOGITS_AT_ONCE

INDEX = 8
"""Bytes of an index."""


@dataclass(frozen=True)
class Footprint:
    """What decides the memory of a forward pass.

    Args:
        config: transformers config of the model.
        dtype: of weights and activations.
        attn_implementation: transformers' attention; ``eager`` forms length × length scores.
        bands: of the strategy's positions; 0 where it leaves positions alone.
        batch: rows at a time.
    """

    config: Any
    dtype: torch.dtype
    attn_implementation: str = "sdpa"
    bands: int = 0
    batch: int = 1

    def weights(self, head: str = "causal") -> int:
        """Bytes of the weights, counted on a model without storage."""
        with torch.device("meta"):
            model = HEADS[head].from_config(self.config)
        size = self.dtype.itemsize
        return sum(parameter.numel() * size for parameter in model.parameters())

    def activations(self, length: int) -> int:
        """Bytes beside the weights at the widest moment of a pass over ``length`` tokens a row."""
        return max(self._layer(length), self._head(length))

    def longest(self, available: int, below: int) -> int:
        """The longest length, at most ``below``, whose activations fit into so many bytes; 0 when none does."""
        low, high = 0, below
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.activations(middle) <= available else (low, middle - 1)
        return low

    def _sizes(self) -> tuple[int, int, int, int]:
        """Hidden, all query heads, all key heads, vocabulary: entries a token."""
        text = self.config.get_text_config()
        heads = int(text.num_attention_heads)
        width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
        keys = int(getattr(text, "num_key_value_heads", None) or heads)
        return int(text.hidden_size), heads * width, keys * width, int(text.vocab_size)

    def _feed_forward(self, length: int) -> int:
        """The MLP of one decoder layer, or its experts, which transformers runs for all tokens at once."""
        size, tokens = self.dtype.itemsize, self.batch * length
        text, (hidden, *_) = self.config.get_text_config(), self._sizes()
        mlp = int(getattr(text, "intermediate_size", None) or 4 * hidden)
        dense = 3 * mlp * tokens * size  # gate, up and their product
        chosen = int(getattr(text, "num_experts_per_tok", None) or 0)
        expert = int(getattr(text, "moe_intermediate_size", None) or mlp)
        # each choice of a token: its state, gate and up, activation and product; later four states; the order
        routed = tokens * chosen * (size * max(hidden + 4 * expert, 4 * hidden) + 5 * INDEX)
        return max(dense, routed)

    def _attention(self, length: int) -> int:
        """Attention of one decoder layer."""
        size, tokens = self.dtype.itemsize, self.batch * length
        _, queries, keys, _ = self._sizes()
        if self.bands:
            planned = BLOCK * length * (4 + 3)  # distances of a block of queries to all keys, and what is covered
            # all keys for each band, in float32 meanwhile; the output; a block's parts in float32, and its masks
            rotated = tokens * (keys * (self.bands * size + 12) + queries * size)
            block = min(BLOCK, length) * (self.batch * queries * (3 * size + 20) + 4 * BLOCK * (size + 1))
            return tokens * size * (queries + 2 * keys) + max(planned, rotated + block)
        # queries with the three parts of their rotation and the output, keys and values
        heads = tokens * size * (5 * queries + 3 * keys)
        if self.attn_implementation != "eager":
            return heads
        # scores with and without their mask, softmax in float32, its cast
        entry = 8 if size == 4 else 3 * size + 4
        return heads + length**2 * (self.batch * int(self.config.get_text_config().num_attention_heads) * entry + size)

    def _layer(self, length: int) -> int:
        """The widest moment of one decoder layer, with the embeddings, the residual before and behind, and its norm."""
        size, tokens = self.dtype.itemsize, self.batch * length
        hidden, *_ = self._sizes()
        states = 4 * tokens * hidden * size
        return states + max(self._feed_forward(length), self._attention(length), tokens * hidden * 8)

    def _head(self, length: int) -> int:
        """Hidden states and a slice of logits, their float32 copy and their log-softmax."""
        size = self.dtype.itemsize
        hidden, _, _, vocabulary = self._sizes()
        slices = min(LOGITS_AT_ONCE, self.batch * length * vocabulary) * (8 + (size if size < 4 else 0))
        return 2 * self.batch * length * hidden * size + slices


def free_memory(device: str) -> int:
    """Bytes that a process may still take: on the GPU, or of the machine and of its control group."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min([int(psutil.virtual_memory().available), *_group_rooms(Path("/sys/fs/cgroup"))])


def _group_rooms(root: Path, of: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What the control groups of this process (containers, Slurm jobs; version 2) leave of their limits, bytes."""
    try:
        (path,) = (line[3:] for line in of.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
    except (OSError, ValueError):
        return []
    group = root / path.strip("/")
    rooms = []
    for folder in [group, *group.parents]:
        try:
            limit = int((folder / "memory.max").read_text(encoding="utf-8"))  # "max" is no number
            used = int((folder / "memory.current").read_text(encoding="utf-8"))
            lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            cached = {k: int(v) for k, v in (line.split() for line in lines)}.get("inactive_file", 0)
        except (OSError, ValueError):
            continue
        rooms.append(max(0, limit - (used - cached)))
    return rooms
