"""One method a file. Pure maths on :class:`~extrapolate.rope.RopeSpec`: torch and math only, no model."""

from extrapolate.strategies.abf import ABF
from extrapolate.strategies.base import Band, Frequencies, Strategy
from extrapolate.strategies.dynamic_linear import DynamicLinear
from extrapolate.strategies.dynamic_ntk import DynamicNTK
from extrapolate.strategies.linear import Linear
from extrapolate.strategies.llama3 import Llama3
from extrapolate.strategies.ntk import NTK
from extrapolate.strategies.ntk_by_parts import NTKByParts
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.shipped import Shipped
from extrapolate.strategies.yarn import YaRN

__all__ = [
    "ABF",
    "NTK",
    "Band",
    "DynamicLinear",
    "DynamicNTK",
    "Frequencies",
    "Linear",
    "Llama3",
    "NTKByParts",
    "Plain",
    "Shipped",
    "Strategy",
    "YaRN",
]
