"""Watch what a model attends to, under whatever strategy it runs, and leave nothing behind."""

import contextlib
from collections.abc import Iterator

from torch import nn

from extrapolate.attention.seat import OBSERVER, Observer, seats
from extrapolate.models.examine import banded
from extrapolate.models.families import spec_of
from extrapolate.models.installed import Installed, install, seams_of
from extrapolate.models.rotary import PatchedRotary, Tables
from extrapolate.strategies.shipped import Shipped


@contextlib.contextmanager
def observed(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show an observer every layer's queries, keys and attention weights for as long as this is entered.

    Weights are formed for a few queries at a time, so memory does not grow with length × length. A model that is not
    patched in bands is so for this time, under the strategy it has: its hidden states are the same within rounding.

    Args:
        model: a loaded transformers model with RoPE, patched or not.
        observer: called by each layer.

    Raises:
        ModelError: when its layers do not come through transformers' attention interface, or rotate in no known way.
    """
    before: Installed | None = None
    token = OBSERVER.set(None)  # the examination's own passes are not shown
    try:
        if not seats(model):
            before = Installed.now(model, seams_of(model))
            _into_bands(model)
        OBSERVER.set(observer)
        yield
    finally:
        OBSERVER.reset(token)
        if before is not None:
            install(model, before)


def _into_bands(model: nn.Module) -> None:
    """The strategy that a model runs, whatever it is, in bands."""
    found = {name: m.tables for name, m in model.named_modules() if isinstance(m, PatchedRotary)}
    if not found:
        for seam in seams_of(model):
            tables = Tables(Shipped(), spec_of(seam, model.config, None), seam)
            found.setdefault(seam.name, {})[seam.layer_type] = tables
    rotaries = {
        name: PatchedRotary(
            {kind: Tables(t.strategy, t.spec, t.seam, t.length, identity=True) for kind, t in tables.items()}
        )
        for name, tables in found.items()
    }
    main = next(iter(rotaries.values())).main
    stock = Installed.stock(model)
    install(model, banded(model, main.strategy, None, main.length, stock, rotaries))
