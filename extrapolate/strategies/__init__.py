"""One method a file. Pure maths on :class:`~extrapolate.rope.RopeSpec`: torch and math only, no model."""

from extrapolate.strategies.abf import ABF
from extrapolate.strategies.base import Band, Frequencies, Strategy, Transform
from extrapolate.strategies.compose import Composed, compose
from extrapolate.strategies.dynamic_linear import DynamicLinear
from extrapolate.strategies.dynamic_ntk import DynamicNTK
from extrapolate.strategies.dynamic_yarn import DynamicYaRN
from extrapolate.strategies.fope import FoPE
from extrapolate.strategies.giraffe_power import GiraffePower
from extrapolate.strategies.giraffe_truncate import GiraffeTruncate
from extrapolate.strategies.linear import Linear
from extrapolate.strategies.llama3 import Llama3
from extrapolate.strategies.longrope import LongRoPE
from extrapolate.strategies.mrrope import MrRoPE
from extrapolate.strategies.nope import NoPE
from extrapolate.strategies.ntk import NTK
from extrapolate.strategies.ntk_by_parts import NTKByParts
from extrapolate.strategies.ntk_fixed import NTKFixed
from extrapolate.strategies.ntk_mixed import NTKMixed
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.proportional import Proportional
from extrapolate.strategies.resonance import Resonance
from extrapolate.strategies.shipped import Shipped
from extrapolate.strategies.yarn import YaRN

__all__ = [
    "ABF",
    "NTK",
    "Band",
    "Composed",
    "DynamicLinear",
    "DynamicNTK",
    "DynamicYaRN",
    "FoPE",
    "Frequencies",
    "GiraffePower",
    "GiraffeTruncate",
    "Linear",
    "Llama3",
    "LongRoPE",
    "MrRoPE",
    "NTKByParts",
    "NTKFixed",
    "NTKMixed",
    "NoPE",
    "Plain",
    "Proportional",
    "Resonance",
    "Shipped",
    "Strategy",
    "Transform",
    "YaRN",
    "compose",
]
