"""Save a patched model so that whoever loads it gets the strategy too."""

import copy
import json
import math
import warnings
from typing import Any

import torch

from extrapolate.errors import StrategyError
from extrapolate.models.export import STILL, rope_parameter_forms
from extrapolate.models.spec import SAVED, layer_types, read_spec
from extrapolate.rope import RopeSpec
from extrapolate.strategies import Plain, Shipped, Strategy
from extrapolate.strategies.names import describe

TOLERANCE = 1e-6
"""Relative, between a strategy's frequencies and those that a written config implies."""


def exported_config(config: Any, strategy: Strategy, spec: RopeSpec) -> Any:
    """A copy of a model's config that carries a strategy.

    Where transformers can express it, it stands in ``rope_parameters``, and the copy is proved: read anew by its own
    class, it implies the strategy's frequencies. Otherwise a warning says how to apply it again. In both cases the
    entry ``extrapolate`` remembers the checkpoint's theta and pretrained length, so that a later strategy does not
    stack on this one, and the strategy itself.
    """
    if isinstance(strategy, Shipped):
        return config
    why = f"{type(config).__name__} takes no rope_parameters that imply it"
    several = bool(layer_types(config))
    if several:
        why = "its layer types have frequencies of their own"
    try:
        own = getattr(config.get_text_config(), "rope_parameters", None)
        takes_them = own is not None and not several  # not remote code of v4
        for parameters in rope_parameter_forms(strategy, spec) if takes_them else ():
            candidate = _written(config, parameters, strategy, spec)
            if _implies(candidate, strategy, spec):
                return candidate
    except StrategyError as error:
        why = str(error)
    remembered = describe(strategy) is not None and not several
    again = "xt.load_model applies it again by itself; after another loader" if remembered else "after loading"
    warnings.warn(
        f"the saved config does not carry {strategy.label} ({why}): {again}, "
        f"call extrapolate.patch(model, {strategy!r})",
        stacklevel=3,
    )
    return _written(config, None, strategy, spec) if remembered else config


def _written(config: Any, parameters: dict[str, Any] | None, strategy: Strategy, spec: RopeSpec) -> Any:
    """A copy of a config with the entry, and with other rope_parameters where given."""
    written = copy.deepcopy(config)
    text = written.get_text_config()
    text.__dict__.pop(SAVED, None)
    if parameters is not None:
        share = {name: x for name, x in text.rope_parameters.items() if name == "partial_rotary_factor"}
        text.rope_parameters = share | parameters  # repeated even when 1: left out, some classes take another default
        if parameters["rope_type"] == "dynamic":  # takes its L from here
            text.max_position_embeddings = spec.pretrained_length
        if getattr(text, "original_max_position_embeddings", None) is not None:  # Phi-3 keeps it beside the scaling
            text.original_max_position_embeddings = parameters.get(
                "original_max_position_embeddings", spec.pretrained_length
            )
    if type(strategy) is not Plain:
        entry = {
            "strategy": describe(strategy),
            "in_rope_parameters": parameters is not None,
            "rope_theta": spec.theta,
            "pretrained_length": spec.pretrained_length,
        }
        setattr(text, SAVED, entry)
    return written


def _implies(config: Any, strategy: Strategy, spec: RopeSpec) -> bool:
    """Whether a config, written and read anew, implies the strategy's frequencies."""
    try:
        implied = read_spec(type(config).from_dict(json.loads(config.to_json_string(use_diff=False))))
    except Exception:  # a config class that refuses the rope_type
        return False
    if (implied.rotary_dim, implied.theta, implied.pretrained_length) != (
        spec.rotary_dim,
        spec.theta,
        spec.pretrained_length,
    ):
        return False
    for length in (1, spec.pretrained_length, spec.pretrained_length + 1, 4 * spec.pretrained_length):
        expected = strategy.frequencies(spec, length)
        found = Shipped().frequencies(implied, length)
        same = torch.allclose(found.inv_freq.double(), expected.inv_freq.double(), rtol=TOLERANCE, atol=2 / STILL)
        if not same or not math.isclose(found.attention_factor, expected.attention_factor, rel_tol=TOLERANCE):
            return False
    return True
