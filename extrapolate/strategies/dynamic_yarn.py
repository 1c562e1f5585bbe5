"""Dynamic YaRN: YaRN by as much as the text is longer than training."""

from dataclasses import dataclass
from typing import ClassVar

from extrapolate.errors import StrategyError
from extrapolate.rope import Frequencies, RopeSpec
from extrapolate.strategies.base import Blend, Strategy
from extrapolate.strategies.yarn import Ramp, YaRN


@dataclass(frozen=True)
class DynamicYaRN(Strategy):
    """YaRN with ``max(1, l/L)`` in place of the factor, temperature included; plain up to L.

    Source: Peng et al. 2023, arXiv 2309.00071, section 3.3, and the authors' code.

    Args:
        beta_fast: as in :class:`YaRN`.
        beta_slow: as in :class:`YaRN`.
        ramp: as in :class:`YaRN`.
        blend: as in :class:`YaRN`.
        truncate: as in :class:`YaRN`.
    """

    name: ClassVar[str] = "dynamic_yarn"
    depends_on_length: ClassVar[bool] = True
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ramp: Ramp = "index"
    blend: Blend = "arithmetic"
    truncate: bool = True

    def __post_init__(self) -> None:
        try:
            checked = self._yarn(1.0)
        except StrategyError as error:
            raise StrategyError(f"dynamic_{error}") from None  # the checks are YaRN's, the name is not
        for field in self.parameters():
            object.__setattr__(self, field, getattr(checked, field))

    def _yarn(self, factor: float) -> YaRN:
        return YaRN(factor, self.beta_fast, self.beta_slow, self.ramp, self.blend, self.truncate)

    def frequencies(self, rope: RopeSpec, length: int) -> Frequencies:
        """YaRN's at ``s = max(1, length/L)``."""
        return self._yarn(max(1.0, length / rope.pretrained_length)).frequencies(rope, length)
