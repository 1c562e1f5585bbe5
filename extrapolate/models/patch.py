"""Put a strategy into a loaded model, prove that it took effect, and take it out again without a trace."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache

from extrapolate.errors import ModelError, StrategyError
from extrapolate.models.attention import BoundedLayer
from extrapolate.models.examine import banded, trial
from extrapolate.models.export import check_length
from extrapolate.models.families import RotarySeam, deviation, expand, read_spec, saved_entry
from extrapolate.models.installed import Installed, install, seams_of
from extrapolate.models.rotary import PatchedRotary
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.names import build
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.shipped import Shipped

BUFFER_TOLERANCE = 0.01
"""A found buffer further than this from the config's frequencies is reported; rounding to bfloat16 stays below."""


class Patch:
    """Handle on a patched model.

    Attributes:
        model: the model that was patched.
        strategy: what it runs now.
        spec: what was read from its config.
        varies_with_length: whether a text's length changes the frequencies; then each length needs its own pass.
    """

    def __init__(
        self, model: nn.Module, strategy: Strategy, spec: RopeSpec, length: int | None, before: Installed
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.spec = spec
        self.varies_with_length = length is None and strategy.varies_with_length(spec)
        self._before = before  # what stood in the seams when this patch came
        self._restored = False

    def cache(self) -> Cache:
        """A new key/value cache for ``generate(..., cache=handle.cache())``.

        Its size is bounded for a strategy that forgets (:class:`AttentionSinks`, :class:`LMInfinite`); it takes rows
        without padding then. For any other it is transformers' own.
        """
        kept = self.strategy.keeps(self.spec)
        config: Any = self.model.config
        if kept is None:
            return DynamicCache(config=config)
        return Cache(layers=[BoundedLayer(*kept) for _ in range(config.get_text_config().num_hidden_layers)])

    def restore(self) -> None:
        """Put the model's own rotary modules back, bit for bit; a second call does nothing."""
        if not self._restored:
            unpatch(self.model)
            self._restored = True

    def _undo(self) -> None:
        """Put back what stood there before this patch, which may be an earlier one."""
        install(self.model, self._before)
        self._restored = True


def patch(
    model: nn.Module, strategy: Strategy, *, pretrained_length: int | None = None, length: int | None = None
) -> Patch:
    """Replace the rotary embedding of a loaded model by a strategy.

    A strategy that only changes frequencies gives the model other tables of cos and sin. One that changes positions or
    scales queries replaces the attention function: queries and keys stay unrotated, in the cache too, until they meet.

    A strategy that depends on the length of the text is exact in one forward pass of that text. What a cache holds was
    computed when the text was shorter, so it is refused beyond one call unless ``length`` says how long the text will
    become: then one pass, chunks and decoding agree.

    Theta and pretrained length come from the config; what the buffers hold is not used. Patching a patched model
    replaces the strategy, and one restore returns to the checkpoint as it was loaded. ``model.save_pretrained`` under a
    patch writes a config that carries the strategy, or warns and says how to apply it again.

    Args:
        model: a loaded transformers model with RoPE.
        strategy: any :class:`Strategy`.
        pretrained_length: tokens; overrides the config.
        length: tokens of the longest text, for a strategy that depends on it; each call's own when left out.

    Returns:
        A handle with ``restore()``.

    Raises:
        ModelError: when the model has no rotary embedding that is understood, or the patch did not take effect; the
            model is left as it was.
        StrategyError: when the strategy cannot be applied to this model.
    """
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"strategy must be a Strategy such as extrapolate.YaRN(factor=4), got {strategy!r}")
    if not hasattr(model, "config"):
        raise ModelError(f"{type(model).__name__} has no config to read theta and the pretrained length from")
    if length is not None:
        check_length(length)
    saved = saved_entry(model.config) or {}
    if isinstance(strategy, Shipped) and saved and not saved.get("in_rope_parameters"):
        own = build(saved.get("strategy"))
        strategy = own if own.changes_attention else strategy  # tables of cos and sin are in the spec
    seams = seams_of(model)
    spec = read_spec(model.config, pretrained_length)
    for seam in seams:
        _check_seam(model, spec, seam)
    strategy.bands(spec, length or spec.pretrained_length)  # refuses settings that do not fit the model
    rotaries = {
        seam.name: PatchedRotary(strategy, spec, seam, length, identity=strategy.changes_attention) for seam in seams
    }
    before, stock = Installed.now(model, seams), Installed.stock(model)
    try:
        if strategy.changes_attention:
            install(model, banded(model, strategy, spec, length, stock, rotaries))
        else:
            install(model, replace(stock, modules={**stock.modules, **rotaries}))
            _prove(model, strategy, spec, length, rotaries)
    except BaseException:
        install(model, before)
        raise
    return Patch(model, strategy, spec, length, before)


@contextlib.contextmanager
def patched(
    model: nn.Module, strategy: Strategy, *, pretrained_length: int | None = None, length: int | None = None
) -> Iterator[Patch]:
    """Run a model under a strategy; on exit, also after an exception, it is exactly what it was on entry.

    Arguments and errors are those of :func:`patch`.
    """
    handle = patch(model, strategy, pretrained_length=pretrained_length, length=length)
    try:
        yield handle
    finally:
        handle._undo()


def unpatch(model: nn.Module) -> None:
    """Return a model to the checkpoint as it was loaded; harmless on a model that is not patched."""
    install(model, Installed.stock(model))


def _check_seam(model: nn.Module, spec: RopeSpec, seam: RotarySeam) -> None:
    who = type(model).__name__
    if seam.pairs * 2 != spec.rotary_dim:
        raise ModelError(
            f"{who}: {seam.name} holds {seam.pairs} frequencies, but the config implies rotary_dim {spec.rotary_dim}, "
            f"that is {spec.rotary_dim // 2}"
        )
    off = deviation(seam, spec)
    if off > BUFFER_TOLERANCE:
        warnings.warn(
            f"{who}: {seam.name}.inv_freq is up to {off:.3g} times off what the config implies (theta {spec.theta:g}); "
            "the patch uses the config, but the unpatched model does not",
            stacklevel=3,
        )


def _prove(
    model: nn.Module,
    strategy: Strategy,
    spec: RopeSpec,
    declared: int | None,
    replacements: Mapping[str, PatchedRotary],
) -> None:
    """The tables are the strategy's closed form, they differ from plain when they should, and the model uses them."""
    length = min(declared or spec.pretrained_length, spec.pretrained_length)
    expected = strategy.frequencies(spec, declared or length)
    varies = declared is None and strategy.varies_with_length(spec)
    factor = strategy.parameters().get("factor")
    claims = isinstance(factor, float) and factor > 1 and not varies
    if claims and expected.equal(Plain().frequencies(spec, length)):
        raise StrategyError(f"{strategy.label} changes nothing on this model (rotary_dim {spec.rotary_dim})")
    positions = torch.arange(length)[None] if varies else torch.arange(0, length, max(1, length // 64))[None]
    phases = positions[..., None].double() * expected.inv_freq.double()
    radius = torch.full_like(phases[..., :1], expected.attention_factor)
    if expected.start_inv_freq is not None:
        start = positions[..., None] < expected.start_tokens
        phases = torch.where(start, positions[..., None].double() * expected.start_inv_freq.double(), phases)
        radius = torch.where(start, 1.0, radius)
    tolerance = 1e-6 + 2.0**-23 * length  # a float32 phase is off by half a unit in its last place
    for name, module in replacements.items():
        cos, sin = module(torch.zeros(1, 1, 1), positions)
        for table, form in ((cos, phases.cos()), (sin, phases.sin())):
            error = (table.double() - expand(form * radius, module.seam.form)).abs().max().item()
            if error > tolerance * max(1.0, expected.attention_factor):
                raise ModelError(
                    f"{type(model).__name__}: {name} is off its closed form by {error:.3g} under {strategy!r}"
                )
    silent = _uncalled(model, replacements)
    if silent:
        raise ModelError(
            f"{type(model).__name__}: the forward pass never asks {', '.join(silent)} for its tables, so {strategy!r} "
            "would change nothing"
        )


def _uncalled(model: nn.Module, replacements: Mapping[str, nn.Module]) -> list[str]:
    """Names of the replaced modules that a two-token pass does not call."""
    parameters = list(model.parameters())
    if not parameters or any(p.is_meta for p in parameters):
        return []  # nothing to run: offloaded or not materialised yet
    called: set[str] = set()

    def note(name: str) -> Any:
        return lambda *_: called.add(name)

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in replacements.items()]
    try:
        trial(model, torch.zeros(1, 2, dtype=torch.long), "verify the patch")
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(set(replacements) - called)
