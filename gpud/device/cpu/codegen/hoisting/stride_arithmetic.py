"""Arithmetic on strides: Python integers where they are known at compile time, LLVM i64 otherwise.

Operands that are known are folded; nothing is emitted for a sum with 0 or a product with 0 or 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["FLAT", "Stride", "Strides", "add", "multiply", "subtract"]

Stride = int | str
"""A number, or the LLVM text of an i64."""

Strides = tuple[Stride, Stride, Stride]
"""By how much a value grows from one thread to the next in x, y and z."""

FLAT: Strides = (0, 0, 0)
"""The strides of a value that all threads share."""


@overload
def add(emitter: Emitter, first: str, second: Stride) -> str: ...


@overload
def add(emitter: Emitter, first: Stride, second: Stride) -> Stride: ...


def add(emitter: Emitter, first: Stride, second: Stride) -> Stride:
    """Return the sum of two strides or addresses."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0 or second == 0:
        return second if first == 0 else first
    return emitter.value(f"add i64 {first}, {second}")


def subtract(emitter: Emitter, first: Stride, second: Stride) -> Stride:
    """Return the difference of two strides."""
    if isinstance(first, int) and isinstance(second, int):
        return first - second
    return first if second == 0 else emitter.value(f"sub i64 {first}, {second}")


def multiply(emitter: Emitter, first: Stride, second: Stride) -> Stride:
    """Return the product of two strides."""
    if isinstance(first, int) and isinstance(second, int):
        return first * second
    if first == 0 or second == 0:
        return 0
    if 1 in (first, second):
        return second if first == 1 else first
    return emitter.value(f"mul i64 {first}, {second}")
