"""Put a strategy into a loaded model, prove that it took effect, and take it out again without a trace."""

import contextlib
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.errors import ModelError, StrategyError, first_line
from extrapolate.models.families import RotarySeam, deviation, expand, find_rotary, read_spec
from extrapolate.models.saving import exported_config
from extrapolate.rope import Frequencies, RopeSpec, cos_sin
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.plain import Plain

BUFFER_TOLERANCE = 0.01
"""A found buffer further than this from the config's frequencies is reported; rounding to bfloat16 stays below."""


class PatchedRotary(nn.Module):
    """Stands where the model's rotary module stood: ``(x, position_ids) → (cos, sin)`` of a strategy.

    Frequencies are float32 plain attributes, so no cast or move of the model can round them; phases are formed in
    float32 and cast at the very end. The original module is kept aside, outside the module tree.
    """

    def __init__(self, strategy: Strategy, spec: RopeSpec, seam: RotarySeam) -> None:
        super().__init__()
        self.strategy = strategy
        self.spec = spec
        self.seam = seam  # a plain attribute: the original module in it is no submodule
        self.varies = strategy.varies_with_length(spec)
        self._at_pretrained_length = strategy.frequencies(spec, spec.pretrained_length)

    @property
    def original(self) -> nn.Module:
        """The module that the checkpoint came with."""
        return self.seam.module

    @property
    def inv_freq(self) -> Tensor:
        """(d/2,) float32, radians a position; at the pretrained length for a length-dependent strategy."""
        return self._at_pretrained_length.inv_freq

    @property
    def attention_scaling(self) -> float:
        """Factor on cos and sin, under transformers' name for it."""
        return self._at_pretrained_length.attention_factor

    def frequencies(self, length: int) -> Frequencies:
        """The strategy's frequencies for a text of ``length`` tokens."""
        if not self.varies:
            return self._at_pretrained_length
        return self.strategy.frequencies(self.spec, length)

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Cos and sin tables for ``position_ids`` (batch, T), each (batch, T, d), d/2 in single form, in x's dtype.

        Raises:
            ModelError: when a length-dependent strategy meets keys that an earlier call rotated for another length.
        """
        if self.varies:
            cos, sin = self._tables_by_row(position_ids)
        else:
            cos, sin = cos_sin(self._at_pretrained_length, position_ids.to(x.device))
        dtype, form = x.dtype if self.seam.casts else cos.dtype, self.seam.form
        return expand(cos, form).to(x.device, dtype), expand(sin, form).to(x.device, dtype)

    def _tables_by_row(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        lengths = (position_ids.amax(dim=-1) + 1).tolist()  # each row's own, whatever the rest of the batch is
        if max(lengths) > position_ids.shape[-1]:
            raise ModelError(
                f"{self.strategy.name} depends on the length, and this call of {position_ids.shape[-1]} tokens reaches "
                f"position {max(lengths) - 1}: cached keys would carry another length's rotation; pass use_cache=False"
            )
        rows = [cos_sin(self.frequencies(int(length)), row) for length, row in zip(lengths, position_ids, strict=True)]
        return torch.stack([cos for cos, _ in rows]), torch.stack([sin for _, sin in rows])

    def extra_repr(self) -> str:
        """The strategy, in the model's printed form."""
        return repr(self.strategy)


class Patch:
    """Handle on a patched model.

    Attributes:
        model: the model that was patched.
        strategy: what it runs now.
        spec: what was read from its config.
        varies_with_length: whether a text's length changes the frequencies; then each length needs its own pass.
    """

    def __init__(self, model: nn.Module, strategy: Strategy, spec: RopeSpec, before: Mapping[str, nn.Module]) -> None:
        self.model = model
        self.strategy = strategy
        self.spec = spec
        self.varies_with_length = strategy.varies_with_length(spec)
        self._before = before  # what stood in the seams when this patch came
        self._restored = False

    def restore(self) -> None:
        """Put the model's own rotary modules back, bit for bit; a second call does nothing."""
        if not self._restored:
            unpatch(self.model)
            self._restored = True

    def _undo(self) -> None:
        """Put back what stood there before this patch, which may be an earlier one."""
        _install(self.model, self._before)
        self._restored = True


def patch(model: nn.Module, strategy: Strategy, *, pretrained_length: int | None = None) -> Patch:
    """Replace the rotary embedding of a loaded model by a strategy.

    Theta and pretrained length come from the config; what the buffers hold is not used. Patching a patched model
    replaces the strategy, and one restore returns to the checkpoint as it was loaded. ``model.save_pretrained`` under a
    patch writes a config that carries the strategy, or warns and says how to apply it again.

    Args:
        model: a loaded transformers model with RoPE.
        strategy: any :class:`Strategy`.
        pretrained_length: tokens; overrides the config.

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
    if strategy.changes_positions:
        raise StrategyError(
            f"{strategy.name} changes positions (bands), which this release cannot apply to a model yet"
        )
    seams = _seams(model)
    spec = read_spec(model.config, pretrained_length)
    for seam in seams:
        _check_seam(model, spec, seam)
    replacements = {seam.name: PatchedRotary(strategy, spec, seam) for seam in seams}
    before = _installed(model, replacements)
    try:
        _install(model, replacements)
        _prove(model, strategy, spec, replacements)
    except BaseException:
        _install(model, before)
        raise
    return Patch(model, strategy, spec, before)


@contextlib.contextmanager
def patched(model: nn.Module, strategy: Strategy, *, pretrained_length: int | None = None) -> Iterator[Patch]:
    """Run a model under a strategy; on exit, also after an exception, it is exactly what it was on entry.

    Arguments and errors are those of :func:`patch`.
    """
    handle = patch(model, strategy, pretrained_length=pretrained_length)
    try:
        yield handle
    finally:
        handle._undo()


def unpatch(model: nn.Module) -> None:
    """Return a model to the checkpoint as it was loaded; harmless on a model that is not patched."""
    _install(model, {name: m.original for name, m in model.named_modules() if isinstance(m, PatchedRotary)})


def _seams(model: nn.Module) -> list[RotarySeam]:
    """A model's seams with the modules it was loaded with, so that strategies replace each other and never stack."""
    patched_before = [(name, m) for name, m in model.named_modules() if isinstance(m, PatchedRotary)]
    return [replace(m.seam, name=name) for name, m in patched_before] or find_rotary(model)


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


def _installed(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    return {name: model.get_submodule(name) for name in names}


def _install(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    if getattr(model.__dict__.get("save_pretrained"), "__func__", None) is _save_pretrained:
        del model.__dict__["save_pretrained"]
    is_patched = any(isinstance(m, PatchedRotary) for m in model.modules())
    if is_patched and hasattr(model, "save_pretrained") and "save_pretrained" not in model.__dict__:
        # a bound method: a deep copy of the model gets one bound to the copy
        model.save_pretrained = types.MethodType(_save_pretrained, model)  # type: ignore[assignment]


def _save_pretrained(model: Any, *args: Any, **options: Any) -> Any:
    """The model's own ``save_pretrained``, for as long as it runs with a config that carries the strategy."""
    rotary = next(m for m in model.modules() if isinstance(m, PatchedRotary))
    own = model.config
    model.config = exported_config(own, rotary.strategy, rotary.spec)
    try:
        return type(model).save_pretrained(model, *args, **options)
    finally:
        model.config = own


def _prove(model: nn.Module, strategy: Strategy, spec: RopeSpec, replacements: Mapping[str, PatchedRotary]) -> None:
    """The tables are the strategy's closed form, they differ from plain when they should, and the model uses them."""
    length = spec.pretrained_length
    expected = strategy.frequencies(spec, length)
    varies = strategy.varies_with_length(spec)
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
    tokens = torch.zeros(1, 2, dtype=torch.long, device=parameters[0].device)
    devices = [tokens.device] if tokens.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices, enabled=model.training):
            getattr(model, "base_model", model)(input_ids=tokens, use_cache=False)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__}: a two-token pass to verify the patch failed: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(set(replacements) - called)
