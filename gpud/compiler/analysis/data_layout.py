"""Sizes and alignments, in bytes, of PTX types, variables and parameter lists.

Source: PTX ISA 9.0, sections 5.2 (types), 5.4 (variables, alignment) and 5.1.6 (parameters).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from gpud.compiler.ptx.model import Parameter, Variable

__all__ = ["layout_bytes", "offsets", "size_and_align", "type_bytes"]

_VECTOR = {None: 1, "v2": 2, "v4": 4, "v8": 8}
_NAMED = {"pred": 1, "f16x2": 4, "bf16x2": 4, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


def type_bytes(type_name: str) -> int:
    """Return the bytes of a value of a fundamental or packed type; a predicate counts as 1."""
    name = type_name.lstrip(".")
    digits = name.lstrip("busf")
    return _NAMED[name] if name in _NAMED else int(digits) // 8 if digits.isdecimal() else 8


def size_and_align(declared: Variable | Parameter) -> tuple[int, int]:
    """Return (size, alignment) of a variable or parameter; an array without length has size 0."""
    unit = type_bytes(declared.type)
    if isinstance(declared, Variable):
        unit *= _VECTOR[declared.vector.lstrip(".") if declared.vector else None]
    count = prod(length or 0 for length in declared.dims) if declared.dims else 1
    return unit * count, declared.align or unit


def offsets(items: Iterable[Variable | Parameter]) -> tuple[list[int], int]:
    """Return (the offset of each item, total bytes) of consecutive items, each aligned."""
    starts, end = [], 0
    for item in items:
        size, align = size_and_align(item)
        starts.append(-(-end // align) * align)
        end = starts[-1] + size
    return starts, end


def layout_bytes(items: Iterable[Variable | Parameter]) -> int:
    """Return the total bytes of consecutive ``items``, each aligned."""
    return offsets(items)[1]
