"""One method a file. Pure maths on :class:`~extrapolate.rope.RopeSpec`: torch and math only, no model."""

from extrapolate.strategies.abf import ABF
from extrapolate.strategies.attention_sinks import AttentionSinks
from extrapolate.strategies.base import Band, Frequencies, Strategy, Transform
from extrapolate.strategies.compose import Composed, compose
from extrapolate.strategies.dual_chunk import DualChunk
from extrapolate.strategies.dynamic_linear import DynamicLinear
from extrapolate.strategies.dynamic_ntk import DynamicNTK
from extrapolate.strategies.dynamic_yarn import DynamicYaRN
from extrapolate.strategies.fope import FoPE
from extrapolate.strategies.giraffe_power import GiraffePower
from extrapolate.strategies.giraffe_truncate import GiraffeTruncate
from extrapolate.strategies.leaky_rerope import LeakyReRoPE
from extrapolate.strategies.linear import Linear
from extrapolate.strategies.llama3 import Llama3
from extrapolate.strategies.lm_infinite import LMInfinite
from extrapolate.strategies.log_n import LogN
from extrapolate.strategies.longrope import LongRoPE
from extrapolate.strategies.mrrope import MrRoPE
from extrapolate.strategies.nope import NoPE
from extrapolate.strategies.ntk import NTK
from extrapolate.strategies.ntk_by_parts import NTKByParts
from extrapolate.strategies.ntk_fixed import NTKFixed
from extrapolate.strategies.ntk_mixed import NTKMixed
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.proportional import Proportional
from extrapolate.strategies.rerope import ReRoPE
from extrapolate.strategies.resonance import Resonance
from extrapolate.strategies.self_extend import SelfExtend
from extrapolate.strategies.shipped import Shipped
from extrapolate.strategies.string import STRING
from extrapolate.strategies.temperature import Temperature
from extrapolate.strategies.yarn import YaRN

__all__ = [
    "ABF",
    "NTK",
    "STRING",
    "AttentionSinks",
    "Band",
    "Composed",
    "DualChunk",
    "DynamicLinear",
    "DynamicNTK",
    "DynamicYaRN",
    "FoPE",
    "Frequencies",
    "GiraffePower",
    "GiraffeTruncate",
    "LMInfinite",
    "LeakyReRoPE",
    "Linear",
    "Llama3",
    "LogN",
    "LongRoPE",
    "MrRoPE",
    "NTKByParts",
    "NTKFixed",
    "NTKMixed",
    "NoPE",
    "Plain",
    "Proportional",
    "ReRoPE",
    "Resonance",
    "SelfExtend",
    "Shipped",
    "Strategy",
    "Temperature",
    "Transform",
    "YaRN",
    "compose",
]
