"""An attention module's place in a patch: how it rotates, who runs it, and who watches it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.attention.plan import Banded
from extrapolate.rope import Layout, rotate

ATTRIBUTE = "_extrapolate"
"""Where an attention module finds the :class:`Seat` of its patch."""


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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, perhaps in a process that has patched nothing yet."""
        from extrapolate.attention.run import register  # which needs seats itself

        self.__dict__.update(state)
        register()


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


def seats(model: nn.Module) -> dict[str, Seat]:
    """Attention modules of a patched model by name, each with its seat."""
    return {name: m.__dict__[ATTRIBUTE] for name, m in model.named_modules() if ATTRIBUTE in m.__dict__}
