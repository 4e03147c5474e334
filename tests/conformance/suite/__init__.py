"""The conformance suite: kernels of our own, each with an independent NumPy reference.

Any device can run it; nothing here imports one. ``CASES`` holds every case in a fixed order,
``find(name)`` finds one, ``covering(feature)`` the ones that are there for a feature.
"""

from __future__ import annotations

from importlib import import_module

from .case import Case
from .comparison import Results, differences_between, mismatches

__all__ = [
    "CASES",
    "Case",
    "Results",
    "covering",
    "differences_between",
    "find",
    "mismatches",
]

_MODULES = (
    *("algorithms_linear", "algorithms_grid", "algorithms_parallel", "algorithms_sorting"),
    *("algorithms_numeric", "algorithms_discrete", "integers", "bits", "bulk_copies", "video"),
    *("predicates", "floats", "chains", "halves", "conversions", "conversions_packed"),
    *("approximations", "memory", "memory_opcodes", "syntax_variants", "textures", "parameters"),
    *("shared", "atomics", "locks", "waits", "matrices", "matrix_products", "barriers"),
    *("barriers_numbered", "warps", "whole_files", "warp_divergence", "calls"),
    *("call_signatures", "control_transfer", "control", "module_state", "frontends"),
    *("frontend_shapes", "headers", "cooperative_grids", "rejected", "names"),
)

CASES: tuple[Case, ...] = tuple(
    one for module in _MODULES for one in import_module(f"{__name__}.{module}").CASES
)
_BY_NAME = {one.name: one for one in CASES}


def find(name: str) -> Case:
    """The case of that name; raises `KeyError`."""
    return _BY_NAME[name]


def covering(feature: str) -> tuple[Case, ...]:
    """The cases whose ``covers`` names ``feature``."""
    return tuple(one for one in CASES if feature in one.covers)
