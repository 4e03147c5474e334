"""f16 and bf16 arithmetic, single and in pairs (f16x2, bf16x2).

Problem: each result must be rounded once, but the arithmetic is done in a wider format and then
rounded to the narrow one; a first rounding that lands on a midpoint makes the second one wrong.

Approach, with p = 11 (f16) or 8 (bf16) bits:
    add, sub in float: double rounding is innocuous because 24 >= 2p + 2.
    mul of f16 in float: 22 bits, exact. mul of bf16 in double: exact; then one rounding.
    fma of f16 in double: the product a*b is exact. The sum is wrong only if it rounds to a
        midpoint m of two halves without being m. If c dominates: c is no midpoint, so
        |a*b| >= |m - c| >= 2**-13 |m|, the product's last bit is worth at least 2**-35 |m|, and the
        sum fits 53 bits. If a*b dominates: c is a multiple of 2**-24 and the result less than
        2**17, and the sum fits 53 bits again.
    fma of bf16 in double, rounded to odd: here a*b may be a midpoint and c as small as 2**-133.

Source: PTX ISA 9.0, section 9.7.4 (half precision); S. Figueroa, "When is double rounding
innocuous?" (1995); Boldo and Melquiond (2008), as in `formats`.
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.floats.approximations import exponential, hyperbolic_tangent
from gpud.device.cpu.lower.floats.float_arithmetic import minimum_maximum, mixed_precision
from gpud.device.cpu.lower.floats.formats import NAN, flush_half, narrow, round_to_odd, widen
from gpud.device.cpu.lower.integers.integer_arithmetic import join_halves, split_halves
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

__all__ = ["add_halves"]

_TYPES = "f16 bf16 f16x2 bf16x2"
_SINGLE = {"f16": "f16", "bf16": "bf16", "f16x2": "f16", "bf16x2": "bf16"}


def _each(thread: Thread, ins: Instruction, type_: str, function: Callable[..., Value]) -> None:
    """Write ``function`` of the operands' i16 patterns, of both halves for a packed type."""
    if type_ in ("f16", "bf16"):
        result = function(*(read(thread, operand, "b16") for operand in ins.operands[1:]))
        write(thread, ins.operands[0], "b16", result)
        return
    pairs = [split_halves(read(thread, operand, "b32")) for operand in ins.operands[1:]]
    low, high = (function(*(pair[i] for pair in pairs)) for i in (0, 1))
    write(thread, ins.operands[0], "b32", join_halves(low, high))


def _clamp(bits: Value, format_: str, *, sat: bool, relu: bool) -> Value:
    """Apply .sat ([+0, 1], NaN gives +0) and .relu (negative gives +0, NaN, positive, stays)."""
    if sat:
        limit = 0x3C00 if format_ == "f16" else 0x3F80
        bits = bits.compare("sgt", 0x7C00 if format_ == "f16" else 0x7F80).select(0, bits)
        bits = bits.min_s(limit)
    return bits.max_s(0) if sat or relu else bits


def _sum_to_odd(a: Value, b: Value) -> Value:
    """Return the sum of two doubles, rounded to odd."""
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    bits = total.bits()
    outwards = (error.bits() ^ bits).compare("sge", 0)
    move = (bits & 1).eq(0) & error.compare("one", 0.0)
    return move.select(outwards.select(bits + 1, bits - 1), bits).as_type("double")


def add_halves(a: Value, b: Value, format_: str) -> Value:
    """Return the rounded sum of two i16 patterns."""
    return narrow(widen(a, format_) + widen(b, format_), format_)


def _compute(base: str, format_: str, *bits: Value) -> Value:
    """Emit add, sub, mul or fma of i16 patterns."""
    values = [widen(b, format_) for b in bits]
    if base == "add":
        return narrow(values[0] + values[1], format_)
    if base == "sub":
        return narrow(values[0] - values[1], format_)
    if base == "mul" and format_ == "f16":
        return narrow(values[0] * values[1], format_)
    wide = [value.cast("fpext", "double") for value in values]
    result = wide[0] * wide[1]
    if base == "fma":
        result = result + wide[2] if format_ == "f16" else _sum_to_odd(result, wide[2])
    return narrow(round_to_odd(result), format_)


@lowering("add", "sub", "mul", "fma", types=_TYPES)
def _arithmetic(thread: Thread, ins: Instruction) -> None:
    base = ins.opcode.base
    if ins.opcode.has("f32"):
        mixed_precision(thread, ins)
        return
    modifiers = Modifiers(ins)
    if not modifiers.flag("rn") and base == "fma":
        raise rejected(ins, "it needs .rn")
    ftz, sat, relu = modifiers.flag("ftz"), modifiers.flag("sat"), modifiers.flag("relu")
    type_ = modifiers.type()
    modifiers.done(4 if base == "fma" else 3)
    format_ = _SINGLE[type_]
    if (format_ == "bf16" and (ftz or sat)) or (relu and (base != "fma" or sat)):
        raise rejected(ins, f".{type_} has no such modifier")

    def one(*bits: Value) -> Value:
        if ftz:
            bits = tuple(flush_half(b) for b in bits)
        result = _compute(base, format_, *bits)
        if ftz:
            result = flush_half(result)
        return _clamp(result, format_, sat=sat, relu=relu)

    _each(thread, ins, type_, one)


@lowering("neg", "abs", types=_TYPES)
def _sign(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    ftz, type_ = modifiers.flag("ftz"), modifiers.type()
    modifiers.done(2)
    if ftz and _SINGLE[type_] == "bf16":
        raise rejected(ins, f".{type_} has no .ftz")

    def one(bits: Value) -> Value:
        if ftz:
            bits = flush_half(bits)
        return bits ^ 0x8000 if ins.opcode.base == "neg" else bits & 0x7FFF

    _each(thread, ins, type_, one)


@lowering("min", "max", types=_TYPES)
def _min_max(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    ftz, nan = modifiers.flag("ftz"), modifiers.flag("NaN")
    xorsign, absolute = modifiers.flag("xorsign"), modifiers.flag("abs")
    type_ = modifiers.type()
    modifiers.done(3)
    format_ = _SINGLE[type_]
    if xorsign != absolute or (ftz and format_ == "bf16"):
        raise rejected(ins, f".{type_} has no such modifier")

    def one(a: Value, b: Value) -> Value:
        if ftz:
            a, b = flush_half(a), flush_half(b)
        values = [widen(bits & 0x7FFF if absolute else bits, format_) for bits in (a, b)]
        result = narrow(minimum_maximum(ins.opcode.base, *values, nan=nan), format_)
        if xorsign:
            is_nan = result.eq(NAN["i16"])
            result = is_nan.select(result, result | ((a ^ b) & 0x8000))
        return result

    _each(thread, ins, type_, one)


@lowering("ex2", "tanh", types=_TYPES)
def _approximations(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    modifiers.require("approx")
    ftz, type_ = modifiers.flag("ftz"), modifiers.type()
    modifiers.done(2)
    format_ = _SINGLE[type_]
    if ftz and (format_ == "f16" or ins.opcode.base == "tanh"):
        raise rejected(ins, f".{type_} has no .ftz")

    def one(bits: Value) -> Value:
        value = widen(bits, format_)
        result = exponential(value) if ins.opcode.base == "ex2" else hyperbolic_tangent(value)
        narrowed = narrow(result, format_)
        if ftz:
            narrowed = (narrowed & 0x7F80).eq(0).select(narrowed & 0x8000, narrowed)
        return narrowed

    _each(thread, ins, type_, one)
