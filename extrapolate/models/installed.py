"""Everything that a patch changes of a model: what stands there, and putting it there."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from extrapolate.attention.seat import ATTRIBUTE, Seat, seats
from extrapolate.models.families import RotarySeam, find_rotary
from extrapolate.models.rotary import PatchedRotary
from extrapolate.models.saving import exported_config


def seams_of(model: nn.Module) -> list[RotarySeam]:
    """A model's seams with the modules it was loaded with, so that strategies replace each other and never stack."""
    patched_before = [(name, m) for name, m in model.named_modules() if isinstance(m, PatchedRotary)]
    seams = [replace(t.seam, name=name) for name, m in patched_before for t in m.tables.values()]
    return seams or find_rotary(model)


@dataclass(frozen=True)
class Installed:
    """Everything that a patch changes of a model.

    Attributes:
        modules: rotary modules by name.
        seats: attention modules that rotate for themselves, by name.
        configs: configs of modules whose attention function is chosen by them, by name.
    """

    modules: dict[str, nn.Module]
    seats: dict[str, Seat]
    configs: dict[str, Any]

    @classmethod
    def now(cls, model: nn.Module, seams: Sequence[RotarySeam]) -> "Installed":
        """What a model has in its seams, patched or not."""
        return cls({seam.name: model.get_submodule(seam.name) for seam in seams}, seats(model), _configs(model))

    @classmethod
    def stock(cls, model: nn.Module) -> "Installed":
        """What it was loaded with."""
        modules = {name: m.original for name, m in model.named_modules() if isinstance(m, PatchedRotary)}
        found = next(iter(seats(model).values()), None)
        return cls(modules, {}, _configs(model) if found is None else found.banded.configs)


def _configs(model: Any) -> dict[str, Any]:
    """Each module's reference to the model's config or its text part."""
    ours = {id(model.config), id(model.config.get_text_config())}
    return {name: m.__dict__["config"] for name, m in model.named_modules() if id(m.__dict__.get("config")) in ours}


def install(model: nn.Module, installed: Installed) -> None:
    """Put everything where ``installed`` says."""
    for name, module in installed.modules.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    for name in seats(model):
        del model.get_submodule(name).__dict__[ATTRIBUTE]
    for name, seat in installed.seats.items():
        model.get_submodule(name).__dict__[ATTRIBUTE] = seat
    for name, config in installed.configs.items():
        model.get_submodule(name).__dict__["config"] = config
    if getattr(model.__dict__.get("save_pretrained"), "func", None) is _save_pretrained:
        del model.__dict__["save_pretrained"]
    is_patched = any(isinstance(m, PatchedRotary) for m in model.modules())
    if is_patched and hasattr(model, "save_pretrained") and "save_pretrained" not in model.__dict__:
        # no bound method, which pickle looks up by its name; a copy of the model gets one that holds the copy
        model.save_pretrained = functools.partial(_save_pretrained, model)  # type: ignore[assignment]


def _save_pretrained(model: Any, *args: Any, **options: Any) -> Any:
    """The model's own ``save_pretrained``, for as long as it runs with a config that carries the strategy."""
    rotary = next(m for m in model.modules() if isinstance(m, PatchedRotary))
    own, tables = model.config, rotary.main
    model.config = exported_config(own, tables.strategy, tables.spec)
    try:
        return type(model).save_pretrained(model, *args, **options)
    finally:
        model.config = own
