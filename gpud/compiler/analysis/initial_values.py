"""The bytes of variables' initial values, and the addresses in them.

Source: PTX ISA 9.0, section 5.4.4 (initializers).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from gpud.compiler.analysis.data_layout import type_bytes
from gpud.compiler.ptx.model import Immediate, Initializer, InitialValue, RawOperand, Variable

__all__ = ["leaves", "literal_bytes", "masked", "named"]


def leaves(variable: Variable) -> Iterator[tuple[int, Immediate | Initializer]]:
    """Yield (offset in bytes, leaf) of a variable's initial value; omitted elements are zero."""
    size = type_bytes(variable.type)

    def walk(
        part: InitialValue, at: int, dims: tuple[int | None, ...]
    ) -> Iterator[tuple[int, Immediate | Initializer]]:
        if isinstance(part, RawOperand):
            return  # fields of a sampler or texture reference, which nothing here has
        if not isinstance(part, tuple):
            yield at, part
            return
        step = size
        for length in dims[1:]:
            step *= length or 1
        if len(dims) <= 1 and variable.vector and part and isinstance(part[0], tuple):
            step *= int(variable.vector[1:])
        for item in part:
            yield from walk(item, at, dims[1:])
            at += step

    if variable.init is not None:
        yield from walk(variable.init, 0, variable.dims)


def named(value: InitialValue | None) -> Iterator[str]:
    """Yield the names in an initial value."""
    if isinstance(value, tuple):
        for item in value:
            yield from named(item)
    elif isinstance(value, Initializer):
        yield value.name


def literal_bytes(literal: Immediate, type_name: str) -> bytes:
    """Return the bytes of a literal as a value of a PTX type."""
    value = literal.value
    if literal.kind == "int" and type_name in ("f32", "f64"):
        return _float_bytes(float(value), type_name)
    if literal.kind == "f64" and type_name == "f32":
        return _float_bytes(struct.unpack("<d", struct.pack("<Q", value))[0], type_name)
    size = type_bytes(type_name)
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def masked(value: int, mask: int | None) -> int:
    """Return the part of an address that ``mask`` selects, moved to bit 0: ``0xFF00(name)``."""
    if mask is None:
        return value
    lowest = (mask & -mask).bit_length() - 1
    return (value & mask) >> lowest


def _float_bytes(value: float, type_name: str) -> bytes:
    try:
        return struct.pack("<f" if type_name == "f32" else "<d", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))
