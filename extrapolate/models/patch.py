"""Put a strategy into a loaded model, prove that it took effect, and take it out again without a trace."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache

from extrapolate.attention.cache import BoundedLayer
from extrapolate.errors import ModelError, StrategyError
from extrapolate.models.examine import banded, trial
from extrapolate.models.export import check_length
from extrapolate.models.families import RotarySeam, lay_out, parts, spec_of
from extrapolate.models.installed import Installed, install, seams_of
from extrapolate.models.layers import Layers, choose
from extrapolate.models.rotary import PatchedRotary, Tables
from extrapolate.models.spec import saved_entry
from extrapolate.models.stock import check_stock
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.names import build
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.shipped import Shipped


class Patch:
    """Handle on a patched model.

    Attributes:
        model: the model that was patched.
        strategy: what it runs now.
        spec: what was read from its config, of the layers that run it.
        layers: which layers run it, in words: ``all``, layer types, or indices.
        varies_with_length: whether a text's length changes the frequencies; then each length needs its own pass.
    """

    def __init__(
        self, model: nn.Module, strategy: Strategy, spec: RopeSpec, length: int | None, layers: str, before: Installed
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.spec = spec
        self.layers = layers
        self.varies_with_length = length is None and strategy.varies_with_length(spec)
        self._before = before  # what stood in the seams when this patch came
        self._restored = False

    def cache(self) -> Cache:
        """A new key/value cache for ``generate(..., cache=handle.cache())``.

        Its size is bounded for a strategy that forgets (:class:`AttentionSinks`, :class:`LMInfinite`) in all layers; it
        takes rows without padding then. For any other it is transformers' own.
        """
        kept = self.strategy.keeps(self.spec) if self.layers == "all" else None  # the other layers see everything
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
    model: nn.Module,
    strategy: Strategy,
    *,
    pretrained_length: int | None = None,
    length: int | None = None,
    layers: Layers = None,
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
        layers: which layers run it: ``"all"``, a layer type of the config such as ``"full_attention"``, or indices.
            Left out, all layers that share one rotary embedding, and where layer types have frequencies of their own
            (Gemma 3, OLMo 3) the global ones; the others stay as the checkpoint ships them.

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
    specs = [spec_of(seam, model.config, pretrained_length) for seam in seams]
    for seam, spec in zip(seams, specs, strict=True):
        _check_seam(model, spec, seam)
    choice = choose(model, seams, layers)
    spec = next(spec for seam, spec in zip(seams, specs, strict=True) if choice.takes(seam))
    strategy.bands(spec, length or spec.pretrained_length)  # refuses settings that do not fit the model
    in_bands = strategy.changes_attention or choice.indices is not None
    tables: dict[str, dict[str | None, Tables]] = {}
    # those that run the strategy first: the others stay as shipped
    for seam, read in sorted(zip(seams, specs, strict=True), key=lambda pair: not choice.takes(pair[0])):
        runs = strategy if choice.takes(seam) else Shipped()
        tables.setdefault(seam.name, {})[seam.layer_type] = Tables(runs, read, seam, length, identity=in_bands)
    rotaries = {name: PatchedRotary(found) for name, found in tables.items()}
    before, stock = Installed.now(model, seams), Installed.stock(model)
    try:
        if in_bands:
            install(model, banded(model, strategy, choice.indices, length, stock, rotaries))
        else:
            install(model, replace(stock, modules={**stock.modules, **rotaries}))
            _prove(model, strategy, spec, length, rotaries)
    except BaseException:
        install(model, before)
        raise
    return Patch(model, strategy, spec, length, choice.label, before)


@contextlib.contextmanager
def patched(
    model: nn.Module,
    strategy: Strategy,
    *,
    pretrained_length: int | None = None,
    length: int | None = None,
    layers: Layers = None,
) -> Iterator[Patch]:
    """Run a model under a strategy; on exit, also after an exception, it is exactly what it was on entry.

    Arguments and errors are those of :func:`patch`.
    """
    handle = patch(model, strategy, pretrained_length=pretrained_length, length=length, layers=layers)
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
    check_stock(model, seam, spec)


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
    for name, module in replacements.items():
        for kind, tables in module.tables.items():
            off, tolerance = _off(module, kind, tables, declared)
            if not off <= tolerance:
                raise ModelError(
                    f"{type(model).__name__}: {name} is off its closed form by {off:.3g} under {tables.strategy!r}"
                )
    if not _called(model, replacements):
        raise ModelError(
            f"{type(model).__name__}: the forward pass never asks {', '.join(replacements)} for its tables, so "
            f"{strategy!r} would change nothing"
        )


def _off(module: PatchedRotary, kind: str | None, tables: Tables, declared: int | None) -> tuple[float, float]:
    """How far a module's tables are from their closed form in float64, and how far they may be."""
    spec = tables.spec
    length = min(declared or spec.pretrained_length, spec.pretrained_length)
    expected = tables.strategy.frequencies(spec, declared or length)
    call = tables.seam.call
    whole = tables.varies or call != "positions"  # which cannot be asked for single positions
    positions = torch.arange(length)[None] if whole else torch.arange(0, length, max(1, length // 64))[None]
    phases = positions[..., None].double() * expected.inv_freq.double()
    radius = torch.full_like(phases[..., :1], expected.attention_factor)
    if expected.start_inv_freq is not None:
        start = positions[..., None] < expected.start_tokens
        phases = torch.where(start, positions[..., None].double() * expected.start_inv_freq.double(), phases)
        radius = torch.where(start, 1.0, radius)
    tolerance = 1e-6 + 2.0**-23 * length  # a float32 phase is off by half a unit in its last place
    cos, sin = phases.cos() * radius, phases.sin() * radius
    if call == "positions":
        found: Any = module(torch.zeros(1, 1, 1), positions, kind)
    else:
        cos, sin = cos[0], sin[0]
        asked = {"shape": ((1, length),), "length": (torch.zeros(1, 1, length, 1), length), "count": (length,)}
        found = module(*asked[call])
        found = tuple(part.flatten(0, tables.seam.lead)[:length] for part in parts(found))
    if not tables.seam.casts or call == "shape":  # in the dtype of the checkpoint's own table
        eps = torch.finfo(parts(found)[0].dtype).eps
        tolerance += eps if eps > 1e-6 else 0.0
    pairs = zip(parts(found), parts(lay_out(cos, sin, tables.seam.form)), strict=True)
    off = max((f.cpu().to(e.dtype) - e).abs().max().item() for f, e in pairs)
    return off, tolerance * max(1.0, expected.attention_factor)


def _called(model: nn.Module, replacements: Mapping[str, nn.Module]) -> bool:
    """Whether a two-token pass asks one of the replaced modules; a model may hold others that it never uses."""
    parameters = list(model.parameters())
    if not parameters or any(p.is_meta for p in parameters):
        return True  # nothing to run: offloaded or not materialised yet
    called: list[nn.Module] = []
    hooks = [m.register_forward_pre_hook(lambda module, _: called.append(module)) for m in replacements.values()]
    try:
        trial(model, torch.zeros(1, 2, dtype=torch.long), "verify the patch")
    finally:
        for hook in hooks:
            hook.remove()
    return bool(called)
