"""Video instructions: scalar with byte and half-word selectors, and SIMD on two or four parts.

Everything is computed in i64, where no sum, difference or saturation of 32-bit parts overflows;
``vshl`` and ``vmad`` need i128.

Source: PTX ISA 9.0, sections 9.7.18 (scalar video) and 9.7.18.7 ff. (SIMD video). The functions
here are the steps of the reference code there: select and extend, operate, saturate, then a second
operation on c or a merge into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpud.compiler.ptx.model import Instruction, Operand, RawOperand, Register
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

_SELECTED = re.compile(r"(-?)\s*([%$\w]+)(?:\.([bh])([0-9]+))?")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class _Selected:
    """An operand with its selector: ``-%r1.h0`` is negative, register %r1, kind h, index 0."""

    operand: Operand
    negative: bool = False
    kind: str = ""
    indices: str = ""

    @classmethod
    def parse(cls, ins: Instruction, operand: Operand) -> _Selected:
        if not isinstance(operand, RawOperand):
            return cls(operand)
        match = _SELECTED.fullmatch(operand.text)
        if match is None:
            raise rejected(ins, f"operand {operand.text} is not known here")
        return cls(Register(match[2]), bool(match[1]), match[3] or "", match[4] or "")

    @property
    def bits(self) -> int:
        return {"": 32, "h": 16, "b": 8}[self.kind]

    @property
    def shift(self) -> int:
        return int(self.indices or 0) * (self.bits % 32)

    def extended(self, thread: Thread, type_: str) -> Value:
        """Return the selected part as i64, sign- or zero-extended by the type."""
        part = (read(thread, self.operand, "b32") >> self.shift).trunc(f"i{self.bits}")
        return part.sext("i64") if type_[0] == "s" else part.zext("i64")


def _clamp(value: Value, *, signed: bool, bits: int) -> Value:
    """Saturate to a signed or unsigned integer of ``bits`` bits."""
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - signed)) - 1
    return value.max_s(low).min_s(high)


def _minimum_maximum(base: str, a: Value, b: Value) -> Value:
    return a.min_s(b) if base == "min" else a.max_s(b)


def _operate(base: str, a: Value, b: Value) -> Value:
    """Emit one step on signed i64 values."""
    if base == "add":
        return a + b
    if base == "sub":
        return a - b
    if base == "absdiff":
        return (a - b).unary("abs")
    if base == "avrg":
        total = a + b
        return total.compare("sge", 0).select(total + 1, total).sar(1)
    return _minimum_maximum(base, a, b)


# -- scalar


def _finish(
    thread: Thread,
    ins: Instruction,
    result: Value,
    *,
    signed: bool,
    sat: bool,
    second: str,
) -> None:
    """Saturate, apply the second operation or the merge, and write 32 bits."""
    target = _Selected.parse(ins, ins.operands[0])
    if sat:
        result = _clamp(result, signed=signed, bits=target.bits)
    value = result.trunc("i32")
    if second or target.kind:
        if len(ins.operands) != 4:
            raise rejected(ins, "it needs an operand c")
        c = read(thread, ins.operands[3], "b32")
        if second == "add":
            value = value + c
        elif second:
            kind = "s" if signed else "u"
            both = {"smin": Value.min_s, "smax": Value.max_s, "umin": Value.min_u}
            value = both.get(kind + second, Value.max_u)(value, c)
        else:
            mask = ((1 << target.bits) - 1) << target.shift
            value = ((value << target.shift) & mask) | (c & ~mask)
    elif len(ins.operands) != 3:
        raise rejected(ins, "operand c needs .add, .min, .max or a selected destination")
    write(thread, target.operand, "b32", value)


@lowering("vadd", "vsub", "vabsdiff", "vmin", "vmax")
def _scalar(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    sat, second = modifiers.flag("sat"), modifiers.choice("add", "min", "max")
    b_type, a_type, type_ = modifiers.type(), modifiers.type(), modifiers.type()
    modifiers.done()
    a, b = (
        _Selected.parse(ins, operand).extended(thread, kind)
        for operand, kind in zip(ins.operands[1:3], (a_type, b_type), strict=True)
    )
    result = _operate(ins.opcode.base[1:], a, b)
    _finish(thread, ins, result, signed=type_[0] == "s", sat=sat, second=second)


@lowering("vshl", "vshr")
def _scalar_shift(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    sat, mode = modifiers.flag("sat"), modifiers.require("clamp", "wrap")
    second = modifiers.choice("add", "min", "max")
    b_type, a_type, type_ = modifiers.type(), modifiers.type(), modifiers.type()
    modifiers.done()
    if b_type != "u32":
        raise rejected(ins, "the shift count must be .u32")
    value = _Selected.parse(ins, ins.operands[1]).extended(thread, a_type).sext("i128")
    count = _Selected.parse(ins, ins.operands[2]).extended(thread, "u32")
    count = (count.min_u(32) if mode == "clamp" else count & 31).zext("i128")
    result = value << count if ins.opcode.base == "vshl" else value.sar(count)
    _finish(thread, ins, result, signed=type_[0] == "s", sat=sat, second=second)


@lowering("vset")
def _scalar_set(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    comparison = modifiers.require(*_COMPARISONS)
    second = modifiers.choice("add", "min", "max")
    b_type, a_type = modifiers.type(), modifiers.type()
    modifiers.done()
    a = _Selected.parse(ins, ins.operands[1]).extended(thread, a_type)
    b = _Selected.parse(ins, ins.operands[2]).extended(thread, b_type)
    result = _holds(comparison, a, b).zext("i64")
    _finish(thread, ins, result, signed=False, sat=False, second=second)


def _holds(comparison: str, a: Value, b: Value) -> Value:
    return a.compare(comparison if comparison in ("eq", "ne") else "s" + comparison, b)


@lowering("vmad")
def _scalar_mad(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    plus_one, sat = modifiers.flag("po"), modifiers.flag("sat")
    shift = int(modifiers.choice("shr7", "shr15", default="shr0")[3:])
    b_type, a_type, type_ = modifiers.type(), modifiers.type(), modifiers.type()
    modifiers.done(4)
    a, b, c = (_Selected.parse(ins, operand) for operand in ins.operands[1:])
    negative = a.negative != b.negative
    if plus_one and (negative or c.negative):
        raise rejected(ins, ".po allows no negated operand")
    signed = "s" in (a_type[0], b_type[0]) or negative or c.negative
    product = a.extended(thread, a_type).sext("i128") * b.extended(thread, b_type).sext("i128")
    addend = read(thread, c.operand, "b32")
    if negative:
        product = -product
    elif c.negative:
        addend = -addend
    wide = addend.sext("i128") if signed else addend.zext("i128")
    total = product + wide + (1 if plus_one else 0)
    result = total.sar(shift) if signed else total >> shift
    if sat:
        result = _clamp(result, signed=signed, bits=32)
    write(thread, ins.operands[0], type_, result.trunc("i32"))


# -- SIMD


def _parts(thread: Thread, ins: Instruction, count: int, position: int, type_: str) -> list[Value]:
    """Return the ``count`` selected parts of operand a (position 1) or b (2) as i64.

    The selector's digits, highest part first, number the parts of a and then those of b.
    """
    bits = 32 // count
    first, second = (_Selected.parse(ins, operand) for operand in ins.operands[1:3])
    selected = (first, second)[position - 1]
    default = range((position - 1) * count, position * count)
    indices = [int(digit) for digit in reversed(selected.indices)] or list(default)
    if len(indices) != count or max(indices) >= 2 * count:
        raise rejected(ins, "a selector has the wrong length")
    values = [read(thread, operand.operand, "b32") for operand in (first, second)]
    result = []
    for index in indices:
        source, part = divmod(index, count)
        cut = (values[source] >> (part * bits)).trunc(f"i{bits}")
        result.append(cut.sext("i64") if type_[0] == "s" else cut.zext("i64"))
    return result


_SIMD = ("add", "sub", "avrg", "absdiff", "min", "max", "set")


@lowering(*(f"v{base}{count}" for base in _SIMD for count in (2, 4)))
def _simd(thread: Thread, ins: Instruction) -> None:
    base, count = ins.opcode.base[1:-1], int(ins.opcode.base[-1])
    bits = 32 // count
    modifiers = Modifiers(ins)
    comparison = modifiers.require(*_COMPARISONS) if base == "set" else ""
    sat, accumulate = modifiers.flag("sat"), modifiers.flag("add")
    b_type, a_type = modifiers.type(), modifiers.type()
    type_ = "u32" if base == "set" else modifiers.type()
    modifiers.done(4)
    target = _Selected.parse(ins, ins.operands[0])
    mask = {int(digit) for digit in target.indices} if target.kind else set(range(count))
    c = read(thread, ins.operands[3], "b32")
    result = c if accumulate else constant(thread.emitter, "i32", 0)
    pairs = zip(
        _parts(thread, ins, count, 1, a_type), _parts(thread, ins, count, 2, b_type), strict=True
    )
    for index, (a, b) in enumerate(pairs):
        if index not in mask:
            kept = ((1 << bits) - 1) << (index * bits)
            result = result if accumulate else result | (c & kept)
            continue
        value = _holds(comparison, a, b).zext("i64") if comparison else _operate(base, a, b)
        if sat:
            value = _clamp(value, signed=type_[0] == "s", bits=bits)
        part = value.trunc("i32")
        if accumulate:
            result = result + part
        else:
            result = result | ((part & ((1 << bits) - 1)) << (index * bits))
    write(thread, target.operand, "b32", result)
