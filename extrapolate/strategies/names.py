"""A strategy as plain data and back, so that a saved model can name it."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from extrapolate import strategies
from extrapolate.errors import StrategyError
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.compose import Composed


def kinds() -> dict[str, type[Strategy]]:
    """The package's own strategies by name."""
    found = (getattr(strategies, name) for name in strategies.__all__)
    return {kind.name: kind for kind in found if isinstance(kind, type) and issubclass(kind, Strategy)}


def describe(strategy: Strategy) -> dict[str, Any] | None:
    """Name and fields as JSON values; None for a strategy, or a part of one, that is none of the package's own."""
    if isinstance(strategy, Composed):
        parts = [describe(part) for part in strategy.parts]
        return None if None in parts else {"strategy": Composed.name, "parts": parts}
    if kinds().get(strategy.name) is not type(strategy):
        return None
    fields = {name: list(x) if isinstance(x, tuple) else x for name, x in strategy.parameters().items()}
    return {"strategy": strategy.name, **fields}


def build(description: Any) -> Strategy:
    """The strategy that :func:`describe` described. Only the package's own are built: no code runs by name.

    Raises:
        StrategyError: when this release does not know the name or a field.
    """
    try:
        fields = dict(description)
        name = fields.pop("strategy")
        if name == Composed.name:
            return Composed(tuple(build(part) for part in fields["parts"]))
        return kinds()[name](**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise StrategyError(f"this release has no strategy such as {description!r}{_hint(description)}") from error


def _hint(description: Any) -> str:
    """Names near to one that is not there, or the fields that there are."""
    name = description.get("strategy") if isinstance(description, Mapping) else None
    if name is None or name == Composed.name:
        return ""
    if name in kinds():
        fields = [field.name for field in dataclasses.fields(kinds()[name])]
        return "" if set(description) <= {"strategy", *fields} else f"; its fields are {', '.join(fields) or 'none'}"
    known = sorted(kinds().keys() - {"strategy", "transform"})  # which are bases of others
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"; {meant}there are {', '.join(known)}"
