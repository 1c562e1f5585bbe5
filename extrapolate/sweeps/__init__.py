"""Sweeps: cells as values (``cell``), one of them run or reused (``run``), every combination as a table (``grid``)."""

from extrapolate.sweeps.cell import Cell, LoadedModel
from extrapolate.sweeps.grid import sweep

__all__ = ["Cell", "LoadedModel", "sweep"]
