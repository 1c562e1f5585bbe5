"""The module that stands where a patched model's rotary module stood."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.attention.plan import text_length
from extrapolate.errors import ModelError
from extrapolate.models.families import RotarySeam, lay_out
from extrapolate.rope import Frequencies, RopeSpec, cos_sin, unit_circle
from extrapolate.strategies.base import Strategy


def _polar(frequencies: Frequencies, positions: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`cos_sin`, by the function that makes tables of complex numbers, whose last bits differ."""
    table = unit_circle(frequencies, positions)
    return table.real, table.imag


class Tables:
    """Cos and sin of one strategy on one set of frequencies of a rotary module.

    Frequencies are float32 plain attributes, so no cast or move of the model can round them; phases are formed in
    float32 and cast at the very end.
    """

    def __init__(
        self, strategy: Strategy, spec: RopeSpec, seam: RotarySeam, length: int | None = None, identity: bool = False
    ) -> None:
        self.strategy = strategy
        self.spec = spec
        self.seam = seam
        self.length = length  # declared
        self.identity = identity  # the attention function rotates instead
        self.varies = length is None and strategy.varies_with_length(spec)
        self.standing = strategy.frequencies(spec, length or spec.pretrained_length)
        self._at = _polar if seam.form == "complex" else cos_sin

    def frequencies(self, length: int) -> Frequencies:
        """The strategy's frequencies for a text of ``length`` tokens."""
        if not self.varies:
            return self.standing
        return self.strategy.frequencies(self.spec, length)

    def __call__(self, position_ids: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """(batch, T) or (axes, batch, T) → cos and sin, (batch, T, d/2) float32 each.

        Raises:
            ModelError: when a length-dependent strategy meets keys that an earlier call rotated for another length, or
                a text longer than declared, or axes disagree where the attention function rotates.
        """
        if position_ids.ndim == 3:
            position_ids = position_ids[-3:]  # text, height, width; some put an index before them
            if bool((position_ids == position_ids[0]).all()):
                position_ids = position_ids[0]
        if self.identity:
            if position_ids.ndim == 3:
                raise ModelError("positions of images cannot be changed: bands take texts only")
            ones = torch.ones(*position_ids.shape, self.seam.pairs, device=device)
            return ones, torch.zeros_like(ones)
        if position_ids.ndim == 3:
            return self._by_axis(position_ids, device)
        if self.varies:
            return self._by_row(position_ids)
        if self.length is not None:
            text_length(self.strategy, self.spec, self.length, 0, int(position_ids.max()) + 1)
        return self._at(self.standing, position_ids.to(device))

    def _by_row(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        lengths = (position_ids.amax(dim=-1) + 1).tolist()  # each row's own, whatever the rest of the batch is
        text_length(self.strategy, self.spec, None, int(position_ids.min()), int(max(lengths)))
        rows = [self._at(self.frequencies(int(length)), row) for length, row in zip(lengths, position_ids, strict=True)]
        return torch.stack([cos for cos, _ in rows]), torch.stack([sin for _, sin in rows])

    def _by_axis(self, position_ids: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        if self.seam.axes is None or self.varies:
            raise ModelError(
                f"{self.seam.name}: position ids of shape {tuple(position_ids.shape)}, text, height and width, that "
                f"differ are not understood under {self.strategy.name}"
            )
        axes = torch.tensor(self.seam.axes, device=device)
        cos, sin = self._at(self.standing, position_ids.to(device))  # (3, batch, T, d/2)
        which = axes.expand(1, *cos.shape[1:])
        return cos.gather(0, which)[0], sin.gather(0, which)[0]


class PatchedRotary(nn.Module):
    """Stands where the model's rotary module stood: ``(x, position_ids) → (cos, sin)`` of a strategy.

    The original module is kept aside, outside the module tree.

    Args:
        tables: one for each layer type that the module serves, those that a strategy was chosen for first; None for a
            module that serves all layers alike.
    """

    def __init__(self, tables: Mapping[str | None, Tables]) -> None:
        super().__init__()
        self.tables = dict(tables)  # plain attributes: the original module in them is no submodule
        if self.seam.form == "sinusoid":
            self.weight = self.original.weight  # a part of the checkpoint, so of the state_dict

    def __getattr__(self, name: str) -> Any:
        """What the model's own code reads of its rotary module beside calling it: ``config``, ``layer_types``."""
        tables = self.__dict__.get("tables")
        if tables and not name.startswith("_"):
            original = next(iter(tables.values())).seam.module
            if name in original.__dict__:
                return original.__dict__[name]
        return super().__getattr__(name)

    @property
    def main(self) -> Tables:
        """The first of the tables."""
        return next(iter(self.tables.values()))

    @property
    def original(self) -> nn.Module:
        """The module that the checkpoint came with."""
        return self.main.seam.module

    @property
    def seam(self) -> RotarySeam:
        """Of the first tables."""
        return self.main.seam

    @property
    def inv_freq(self) -> Tensor:
        """(d/2,) float32, radians a position.

        For a length-dependent strategy those at the declared length, or at the pretrained one.
        """
        return self.main.standing.inv_freq

    @property
    def attention_scaling(self) -> float:
        """Factor on cos and sin, under transformers' name for it."""
        return self.main.standing.attention_factor

    def under(self, strategy: Strategy) -> "PatchedRotary":
        """The same with another strategy, each text's own length, and tables that rotate."""
        return PatchedRotary({kind: Tables(strategy, t.spec, t.seam) for kind, t in self.tables.items()})

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Tables for the positions that are asked for, called as the original is (:data:`Call`).

        (x, position_ids) gives each (batch, T, d), d/2 in single form, in x's dtype.

        Raises:
            ModelError: as :class:`Tables` does.
        """
        ask: Any = getattr(self, f"_by_{self.seam.call}")
        return ask(*arguments, **options)

    def _by_positions(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        tables = self.tables[layer_type if layer_type in self.tables else None]
        cos, sin = tables(position_ids, x.device)
        return self._finished(lay_out(cos, sin, tables.seam.form), tables.seam, x.device, x.dtype)

    def _by_length(self, x: Tensor, seq_len: int, **_: Any) -> Any:
        """All rows of a text of ``seq_len`` tokens, of which x holds the last."""
        if self.main.varies:
            text_length(self.main.strategy, self.main.spec, None, seq_len - x.shape[-2], seq_len)
        return self._rows(seq_len, x.device, x.dtype)

    def _by_count(self, max_seq_len: int, *_: Any, **__: Any) -> Any:
        """As many rows as are asked for, and more where a longer text was declared."""
        device = next(iter(self.original.buffers())).device
        if self.main.varies:
            raise ModelError(
                f"{self.main.strategy.name} depends on the length, which this model's rotary embedding is not told; "
                "declare it: extrapolate.patch(model, strategy, length=...)"
            )
        return self._rows(max(max_seq_len, self.main.length or 0), device, torch.float32)

    def _rows(self, count: int, device: torch.device, dtype: torch.dtype) -> Any:
        cos, sin = self.main(torch.arange(count)[None], device)
        lead = (None,) * self.seam.lead
        return self._finished(lay_out(cos[0][lead], sin[0][lead], self.seam.form), self.seam, device, dtype)

    @staticmethod
    def _finished(found: Any, seam: RotarySeam, device: torch.device, dtype: torch.dtype) -> Any:
        if seam.form == "complex":
            return found.to(device)
        dtype = dtype if seam.casts else torch.float32
        if isinstance(found, tuple):
            return tuple(table.to(device, dtype) for table in found)
        return found.to(device, dtype)

    def _by_shape(self, input_ids_shape: Any, cache_length: int = 0, *_: Any, **__: Any) -> Tensor:
        return self._sinusoids(self.main, cache_length, cache_length + int(input_ids_shape[1]))

    def _sinusoids(self, tables: Tables, start: int, stop: int) -> Tensor:
        """(T, d), from the checkpoint's own table where it has the row and the strategy changes nothing."""
        weight = self.original.get_parameter("weight")
        cos, sin = tables(torch.arange(start, stop)[None], weight.device)
        found: Tensor = lay_out(cos[0], sin[0], "sinusoid").to(weight.device, weight.dtype)
        known = weight[start:stop]
        if len(known) and tables.frequencies(stop).equal(tables.spec.shipped) and not tables.identity:
            found[: len(known)] = known
        return found

    def extra_repr(self) -> str:
        """The strategy, in the model's printed form."""
        if len(self.tables) == 1:
            return repr(self.main.strategy)
        return ", ".join(f"{kind}: {tables.strategy!r}" for kind, tables in self.tables.items())
