"""The module that stands where a patched model's rotary module stood."""

import torch
from torch import Tensor, nn

from extrapolate.errors import ModelError
from extrapolate.models.families import RotarySeam, expand
from extrapolate.rope import Frequencies, RopeSpec, cos_sin
from extrapolate.strategies.base import Strategy


def text_length(strategy: Strategy, spec: RopeSpec, declared: int | None, start: int, stop: int) -> int:
    """Tokens of the text for which a call that runs its tokens ``start``…``stop - 1`` computes: declared, or so far.

    Raises:
        ModelError: when the text is longer than declared, or a strategy that depends on the length would meet what an
            earlier call computed for a shorter text.
    """
    if declared is not None and stop > declared:
        raise ModelError(
            f"the text has {stop} tokens by now, but the model was patched with length={declared}; declare the longest "
            "text"
        )
    if declared is None and start > 0 and strategy.varies_with_length(spec):
        raise ModelError(
            f"{strategy.name} depends on the length, and this call of {stop - start} tokens reaches position "
            f"{stop - 1}: what is cached was computed for a shorter text; pass use_cache=False, or declare the length "
            "of the whole text: extrapolate.patch(model, strategy, length=...)"
        )
    return stop if declared is None else declared


class PatchedRotary(nn.Module):
    """Stands where the model's rotary module stood: ``(x, position_ids) → (cos, sin)`` of a strategy.

    Frequencies are float32 plain attributes, so no cast or move of the model can round them; phases are formed in
    float32 and cast at the very end. The original module is kept aside, outside the module tree.
    """

    def __init__(
        self, strategy: Strategy, spec: RopeSpec, seam: RotarySeam, length: int | None = None, identity: bool = False
    ) -> None:
        super().__init__()
        self.strategy = strategy
        self.spec = spec
        self.seam = seam  # a plain attribute: the original module in it is no submodule
        self.length = length  # declared
        self.identity = identity  # the attention function rotates instead
        self.varies = length is None and strategy.varies_with_length(spec)
        self._standing = strategy.frequencies(spec, length or spec.pretrained_length)

    @property
    def original(self) -> nn.Module:
        """The module that the checkpoint came with."""
        return self.seam.module

    @property
    def inv_freq(self) -> Tensor:
        """(d/2,) float32, radians a position.

        For a length-dependent strategy those at the declared length, or at the pretrained one.
        """
        return self._standing.inv_freq

    @property
    def attention_scaling(self) -> float:
        """Factor on cos and sin, under transformers' name for it."""
        return self._standing.attention_factor

    def frequencies(self, length: int) -> Frequencies:
        """The strategy's frequencies for a text of ``length`` tokens."""
        if not self.varies:
            return self._standing
        return self.strategy.frequencies(self.spec, length)

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Cos and sin tables for ``position_ids`` (batch, T), each (batch, T, d), d/2 in single form, in x's dtype.

        Raises:
            ModelError: when a length-dependent strategy meets keys that an earlier call rotated for another length, or
                a text longer than declared.
        """
        if self.identity:
            ones = x.new_ones(*position_ids.shape, self.seam.pairs, dtype=torch.float32)
            cos, sin = ones, torch.zeros_like(ones)
        elif self.varies:
            cos, sin = self._tables_by_row(position_ids)
        else:
            if self.length is not None:
                text_length(self.strategy, self.spec, self.length, 0, int(position_ids.max()) + 1)
            cos, sin = cos_sin(self._standing, position_ids.to(x.device))
        dtype, form = x.dtype if self.seam.casts else cos.dtype, self.seam.form
        return expand(cos, form).to(x.device, dtype), expand(sin, form).to(x.device, dtype)

    def _tables_by_row(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        lengths = (position_ids.amax(dim=-1) + 1).tolist()  # each row's own, whatever the rest of the batch is
        stop = int(max(lengths))
        text_length(self.strategy, self.spec, None, stop - position_ids.shape[-1], stop)
        rows = [cos_sin(self.frequencies(int(length)), row) for length, row in zip(lengths, position_ids, strict=True)]
        return torch.stack([cos for cos, _ in rows]), torch.stack([sin for _, sin in rows])

    def extra_repr(self) -> str:
        """The strategy, in the model's printed form."""
        return repr(self.strategy)
