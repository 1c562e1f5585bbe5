"""Which layers of a model run a strategy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from extrapolate.errors import ModelError
from extrapolate.models.families import RotarySeam

Layers = str | Sequence[int] | None
"""``"all"``, a layer type of the config, indices, or None for the global layers."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        label: in words, for a result row.
        layer_type: of the frequencies that change; None for all.
        only_global: leave the frequencies of local layers alone.
        indices: layers that run the strategy, where frequencies alone cannot tell them apart; None for no such choice.
    """

    label: str
    layer_type: str | None = None
    only_global: bool = False
    indices: frozenset[int] | None = None

    def takes(self, seam: RotarySeam) -> bool:
        """Whether layers that use this seam may run the strategy."""
        if self.layer_type is not None:
            return seam.layer_type == self.layer_type
        return not (self.only_global and seam.is_local)


def choose(model: Any, seams: Sequence[RotarySeam], layers: Layers) -> Choice:
    """Resolve what a user asked for.

    Raises:
        ModelError: for a layer type or an index that the model does not have.
    """
    config = model.config.get_text_config()
    types = [seam.layer_type for seam in seams if seam.layer_type is not None]
    if layers is None:
        apart = [seam.layer_type for seam in seams if seam.layer_type is not None and not seam.is_local]
        if not apart or len(apart) == len(types):
            return Choice("all")
        return Choice(",".join(dict.fromkeys(apart)), only_global=True)
    if layers == "all":
        return Choice("all")
    count = int(config.num_hidden_layers)
    if isinstance(layers, str):
        if layers in types:
            return Choice(layers, layer_type=layers)
        of_layers = list(getattr(config, "layer_types", None) or ())
        if layers not in of_layers:
            known = ", ".join(dict.fromkeys([*types, *of_layers])) or "none"
            raise ModelError(f"{type(model).__name__}: no layer type {layers!r}; its layer types: {known}")
        indices = frozenset(i for i, kind in enumerate(of_layers) if kind == layers)
        return Choice(layers, indices=indices)
    wrong = [i for i in layers if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < count]
    if wrong or not layers:
        got = wrong[0] if wrong else layers
        raise ModelError(f"{type(model).__name__}: layers must be indices from 0 to {count - 1}, got {got!r}")
    return Choice(",".join(map(str, sorted(set(layers)))), indices=frozenset(layers))


def index_of(module: nn.Module, name: str) -> int | None:
    """The layer that an attention module belongs to, from its attribute or the first number in its name."""
    found = getattr(module, "layer_idx", None)
    if isinstance(found, int):
        return found
    return next((int(part) for part in name.split(".") if part.isdigit()), None)
