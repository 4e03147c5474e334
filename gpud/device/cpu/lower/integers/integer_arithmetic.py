"""Integer arithmetic: add, sub, mul, mad, their carry chains and 24-bit forms, abs, neg, sad.

Source: PTX ISA 9.0, sections 9.7.1 (integer) and 9.7.2 (extended precision). The ISA does not
define the carry flag that an addition reads after a subtraction. NVRTC's division of 128-bit
integers relies on its being set if there was no borrow, and machine code from ptxas 13.0 does so:
a - b is a + ~b + 1, and the flag is the carry of that.
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, intrinsic, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

__all__ = ["INTEGERS", "join_halves", "split_halves"]

INTEGERS = "u16 s16 u32 s32 u64 s64"
_PACKED = "u16x2 s16x2"
_WIDER = {"16": "32", "32": "64", "64": "128"}


def split_halves(value: Value) -> tuple[Value, Value]:
    """Return the (low, high) i16 halves of an i32."""
    return value.trunc("i16"), (value >> 16).trunc("i16")


def join_halves(low: Value, high: Value) -> Value:
    """Return the i32 of two i16 halves."""
    return low.zext("i32") | (high.zext("i32") << 16)


@lowering("add", "sub", types=f"{INTEGERS} {_PACKED}")
def _add_sub(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    saturate, carry, type_ = modifiers.flag("sat"), modifiers.flag("cc"), modifiers.type()
    modifiers.done(3)
    base = ins.opcode.base
    if (saturate and (carry or type_ != "s32")) or (carry and "16" in type_):
        raise rejected(ins, f".{type_} has no such modifier")
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])

    def one(a: Value, b: Value) -> Value:
        if saturate:
            return intrinsic(f"s{base}.sat", a, b)
        return a + b if base == "add" else a - b

    if type_ in ("u16x2", "s16x2"):
        pairs = zip(split_halves(a), split_halves(b), strict=True)
        result = join_halves(*(one(x, y) for x, y in pairs))
    else:
        result = one(a, b)
    if carry:
        out = result.compare("ult", a) if base == "add" else a.compare("uge", b)
        thread.write_carry(out.text)
    write(thread, ins.operands[0], type_, result)


def _carry_in(thread: Thread, like: Value) -> Value:
    return Value(thread.emitter, "i1", thread.read_carry()).zext(like.type)


def _add_with_carry(thread: Thread, a: Value, b: Value, *, carry_out: bool) -> Value:
    """Return the sum a + b + CC.CF; its two partial sums cannot both overflow."""
    partial = a + b
    result = partial + _carry_in(thread, a)
    if carry_out:
        thread.write_carry((partial.compare("ult", a) | result.compare("ult", partial)).text)
    return result


@lowering("addc", "subc", types="u32 s32 u64 s64")
def _add_sub_carry(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    carry_out, type_ = modifiers.flag("cc"), modifiers.type()
    modifiers.done(3)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])
    term = b if ins.opcode.base == "addc" else ~b
    result = _add_with_carry(thread, a, term, carry_out=carry_out)
    write(thread, ins.operands[0], type_, result)


# -- products


def _wide_product(a: Value, b: Value, type_: str) -> Value:
    """Return the whole product, in an integer of twice the width."""
    wide = f"i{_WIDER[type_[1:]]}"
    extend = Value.sext if type_[0] == "s" else Value.zext
    return extend(a, wide) * extend(b, wide)


def _product(a: Value, b: Value, type_: str, part: str) -> Value:
    if part == "lo":
        return a * b
    wide = _wide_product(a, b, type_)
    return wide if part == "wide" else (wide >> a.width).trunc(a.type)


def _product_24(a: Value, b: Value, type_: str, part: str) -> Value:
    """Return the bits 31..0 or 47..16 of the product of the low 24 bits of both."""
    a, b = (((v << 8).sar(8) if type_[0] == "s" else v & 0xFFFFFF) for v in (a, b))
    if part == "lo":
        return a * b
    return (_wide_product(a, b, type_) >> 16).trunc("i32")


@lowering("mul", types=INTEGERS)
def _mul(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    part, type_ = modifiers.require("lo", "hi", "wide"), modifiers.type()
    modifiers.done(3)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])
    result = _product(a, b, type_, part)
    if part == "wide":
        if type_[1:] == "64":
            raise rejected(ins, "mul.wide of 64-bit integers does not exist")
        type_ = type_[0] + _WIDER[type_[1:]]
    write(thread, ins.operands[0], type_, result)


@lowering("mul24", types="u32 s32")
def _mul24(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    part, type_ = modifiers.require("lo", "hi"), modifiers.type()
    modifiers.done(3)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])
    write(thread, ins.operands[0], type_, _product_24(a, b, type_, part))


@lowering("mad", "madc", "mad24", types=INTEGERS)
def _mad(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    base = ins.opcode.base
    part = modifiers.require("lo", "hi", "wide")
    carry, saturate, type_ = modifiers.flag("cc"), modifiers.flag("sat"), modifiers.type()
    modifiers.done(4)
    if saturate and (part, type_) != ("hi", "s32"):
        raise rejected(ins, "only .hi.s32 saturates")
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:3])
    if base == "mad24":
        product = _product_24(a, b, type_, part)
    else:
        product = _product(a, b, type_, part)
    if part == "wide":
        if type_[1:] == "64" or base != "mad":
            raise rejected(ins, "there is no wide form of this type")
        type_ = type_[0] + _WIDER[type_[1:]]
    c = read(thread, ins.operands[3], type_)
    if saturate:
        result = intrinsic("sadd.sat", product, c)
    elif base == "madc":
        result = _add_with_carry(thread, product, c, carry_out=carry)
    else:
        result = product + c
        if carry:
            thread.write_carry(result.compare("ult", c).text)
    write(thread, ins.operands[0], type_, result)


# -- one operand, and sad


@lowering("abs", "neg", types="s16 s32 s64")
def _abs_neg(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(2)
    a = read(thread, ins.operands[1], type_)
    write(thread, ins.operands[0], type_, -a if ins.opcode.base == "neg" else a.unary("abs"))


@lowering("min", "max", types=f"{INTEGERS} {_PACKED}")
def _min_max(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    relu, type_ = modifiers.flag("relu"), modifiers.type()
    modifiers.done(3)
    if relu and type_ not in ("s32", "s16x2"):
        raise rejected(ins, f".{type_} has no .relu")
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])

    def one(a: Value, b: Value) -> Value:
        result = intrinsic(f"{type_[0]}{ins.opcode.base}", a, b)
        return result.max_s(0) if relu else result

    if type_ in ("u16x2", "s16x2"):
        pairs = zip(split_halves(a), split_halves(b), strict=True)
        result = join_halves(*(one(x, y) for x, y in pairs))
    else:
        result = one(a, b)
    write(thread, ins.operands[0], type_, result)


@lowering("sad", types=INTEGERS)
def _sad(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(4)
    a, b, c = (read(thread, operand, type_) for operand in ins.operands[1:])
    less = a.compare("slt" if type_[0] == "s" else "ult", b)
    write(thread, ins.operands[0], type_, c + less.select(b - a, a - b))
