"""One method a file. Pure maths on :class:`~extrapolate.rope.RopeSpec`: torch and math only, no model."""

from extrapolate.strategies.base import Band, Frequencies, Strategy
from extrapolate.strategies.linear import Linear
from extrapolate.strategies.ntk import NTK
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.shipped import Shipped
from extrapolate.strategies.yarn import YaRN

__all__ = ["NTK", "Band", "Frequencies", "Linear", "Plain", "Shipped", "Strategy", "YaRN"]
