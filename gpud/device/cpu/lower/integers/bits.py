"""Logic, shifts, bit fields, counting and permutation.

The ISA defines the result for every count, position or length beyond the register, while LLVM's
shifts by the width or more are poison: each lowering clamps first.

Source: PTX ISA 9.0, sections 9.7.1.15 to 9.7.1.23 (bit fields), 9.7.8 (logic and shift) and
9.7.9.7 (prmt).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Immediate, Instruction, Pair
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, intrinsic, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

# -- logic


@lowering("and", "or", "xor", types="pred b16 b32 b64")
def _logic(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(3)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])
    write(thread, ins.operands[0], type_, a.op(ins.opcode.base, b))


@lowering("not", "cnot", types="pred b16 b32 b64")
def _not(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(2)
    a = read(thread, ins.operands[1], type_)
    result = ~a if ins.opcode.base == "not" else a.eq(0).zext(a.type)
    write(thread, ins.operands[0], type_, result)


@lowering("lop3")
def _lop3(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    combine = modifiers.choice("or", "and")
    modifiers.require("b32")
    modifiers.done(6 if combine else 5)
    a, b, c = (read(thread, operand, "b32") for operand in ins.operands[1:4])
    table = ins.operands[4]
    if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
        raise rejected(ins, "the truth table must be a constant of 8 bits")
    # Bit 4a + 2b + c of the table: the low nibble is the function of (b, c) where a is 0.
    low, high = (_two_inputs(b, c, nibble) for nibble in (table.value & 15, table.value >> 4))
    if table.value & 15 == table.value >> 4:
        result = low
    else:
        result = (a & high) | (~a & low)
    target = ins.operands[0]
    if combine:
        if not isinstance(target, Pair):
            raise rejected(ins, "it needs a destination d|p")
        q = read(thread, ins.operands[5], "pred")
        write(thread, target.second, "pred", result.ne(0).op(combine, q))
        target = target.first
    write(thread, target, "b32", result)


def _two_inputs(b: Value, c: Value, table: int) -> Value:
    """Return the function whose value for bits (b, c) is bit 2b + c of ``table``."""
    zero = b.constant(0)
    low = (zero, ~c, c, ~zero)[table & 3]
    high = (zero, ~c, c, ~zero)[table >> 2]
    if table & 3 == table >> 2:
        return low
    return (b & high) | (~b & low)


# -- shifts


@lowering("shl", "shr", types="b16 b32 b64 u16 u32 u64 s16 s32 s64")
def _shift(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(3)
    a = read(thread, ins.operands[1], type_)
    count = ins.operands[2]
    bits = a.width
    if isinstance(count, Immediate) and 0 <= count.value < bits:
        n = a.constant(count.value)
        inside = None
    else:
        full = read(thread, count, "u32")
        inside = full.compare("ult", bits)
        limited = full.min_u(bits - 1)
        n = limited.zext(a.type) if bits == 64 else limited.trunc(a.type)
    if ins.opcode.base == "shr" and type_[0] == "s":
        result = a.sar(n)  # beyond the width every bit is the sign, as at width - 1
    else:
        result = a << n if ins.opcode.base == "shl" else a >> n
        if inside is not None:
            result = inside.select(result, 0)
    write(thread, ins.operands[0], type_, result)


@lowering("shf")
def _funnel_shift(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    direction, mode = modifiers.require("l", "r"), modifiers.require("clamp", "wrap")
    modifiers.require("b32")
    modifiers.done(4)
    low, high, count = (read(thread, operand, "b32") for operand in ins.operands[1:])
    result = intrinsic("fshl" if direction == "l" else "fshr", high, low, count)
    if mode == "clamp":
        whole = low if direction == "l" else high
        result = count.compare("ult", 32).select(result, whole)
    write(thread, ins.operands[0], "b32", result)


# -- counting


@lowering("popc", "clz", "brev", types="b32 b64")
def _count(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(2)
    a = read(thread, ins.operands[1], type_)
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[ins.opcode.base]
    result = a.unary(name)
    if ins.opcode.base == "brev":
        write(thread, ins.operands[0], type_, result)
    else:
        write(thread, ins.operands[0], "u32", result.trunc("i32"))


@lowering("bfind", types="u32 s32 u64 s64")
def _bfind(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    shift_amount, type_ = modifiers.flag("shiftamt"), modifiers.type()
    modifiers.done(2)
    a = read(thread, ins.operands[1], type_)
    if type_[0] == "s":
        a = a ^ a.sar(a.width - 1)  # of a negative number the highest 0 is wanted
    zeros = a.unary("ctlz")
    position = zeros if shift_amount else a.constant(a.width - 1) - zeros
    write(thread, ins.operands[0], "u32", a.eq(0).select(-1, position).trunc("i32"))


@lowering("fns", types="b32")
def _fns(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    modifiers.require("b32")
    modifiers.done(4)
    mask, base = (read(thread, operand, "b32") for operand in ins.operands[1:3])
    offset = read(thread, ins.operands[3], "s32")
    # Upwards: the |n|-th set bit of the mask from `base` on, both counted from 1. Downwards is
    # upwards in the mirrored mask. Offset 0 asks for bit `base` itself.
    down = offset.compare("slt", 0)
    shown = down.select(mask.unary("bitreverse"), mask)
    start = down.select(base.constant(31) - base, base) & 31
    wanted = offset.unary("abs").max_u(1)
    rest = (shown >> start) << start
    # Binary search for the position: skip a half while it holds too few set bits.
    before = rest.constant(0)
    position = rest.constant(0)
    for half in (16, 8, 4, 2, 1):
        part = (rest >> position) & ((1 << half) - 1)
        count = before + part.unary("ctpop")
        beyond = count.compare("ult", wanted)
        before = beyond.select(count, before)
        position = beyond.select(position + half, position)
    exists = wanted.compare("ule", rest.unary("ctpop"))
    # A base beyond the register finds nothing, and offset 0 finds only bit `base`.
    exists = exists & base.compare("ult", 32)
    exists = exists & (offset.ne(0) | position.eq(start))
    bit = down.select(position.constant(31) - position, position)
    write(thread, ins.operands[0], "b32", exists.select(bit, -1))


# -- bit fields


def _mask(length: Value, type_: str) -> Value:
    """Return ``length`` low ones; an i32 length of the width or more gives all ones."""
    one = constant(length.emitter, type_, 1)
    limited = length.min_u(one.width - 1)
    n = limited.zext(type_) if one.width == 64 else limited
    ones = (one << n) - 1
    return length.compare("ult", one.width).select(ones, -1)


def _shifted(value: Value, name: str, count: Value) -> Value:
    """Return ``value`` shifted by an i32 count; by the width or more gives 0."""
    limited = count.min_u(value.width - 1)
    n = limited.zext(value.type) if value.width == 64 else limited
    return count.compare("ult", value.width).select(value.op(name, n), 0)


@lowering("bfe", types="u32 s32 u64 s64")
def _bfe(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(4)
    a = read(thread, ins.operands[1], type_)
    position, length = (read(thread, operand, "u32") & 0xFF for operand in ins.operands[2:])
    mask = _mask(length, a.type)
    field = _shifted(a, "lshr", position) & mask
    if type_[0] == "s":
        # The sign is the field's highest bit, or the register's where the field reaches beyond.
        last = (position + length - 1).min_u(a.width - 1)
        sign = _shifted(a, "lshr", last) & 1
        negative = sign.ne(0) & length.ne(0)
        # Bits of the field beyond the register are the sign as well.
        inside = _shifted(a.constant(-1), "lshr", position) & mask
        field = negative.select(field | ~inside, field)
    write(thread, ins.operands[0], type_, field)


@lowering("bfi", types="b32 b64")
def _bfi(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(5)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:3])
    position, length = (read(thread, operand, "u32") & 0xFF for operand in ins.operands[3:])
    mask = _shifted(_mask(length, a.type), "shl", position)
    field = _shifted(a, "shl", position)
    write(thread, ins.operands[0], type_, (b & ~mask) | (field & mask))


@lowering("szext", types="u32 s32")
def _szext(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    mode, type_ = modifiers.require("wrap", "clamp"), modifiers.type()
    modifiers.done(3)
    a, n = read(thread, ins.operands[1], type_), read(thread, ins.operands[2], "u32")
    if mode == "wrap":
        n = n & 31
    # Length 0 keeps nothing; 32 and more keep everything.
    up = (n.constant(32) - n.min_u(32)) & 31
    moved = a << up
    result = moved.sar(up) if type_[0] == "s" else moved >> up
    write(thread, ins.operands[0], type_, n.eq(0).select(0, result))


@lowering("bmsk", types="b32")
def _bmsk(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    mode = modifiers.require("wrap", "clamp")
    modifiers.require("b32")
    modifiers.done(3)
    start, length = (read(thread, operand, "u32") for operand in ins.operands[1:])
    if mode == "wrap":
        start, length = start & 31, length & 31
    write(thread, ins.operands[0], "b32", _shifted(_mask(length, "i32"), "shl", start))


# -- bytes


@lowering("prmt")
def _prmt(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    modifiers.require("b32")
    mode = modifiers.choice("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    modifiers.done(4)
    a, b, control = (read(thread, operand, "b32") for operand in ins.operands[1:])
    both = a.zext("i64") | (b.zext("i64") << 32)
    result = a.constant(0)
    for index in range(4):
        if not mode:
            nibble = control >> (4 * index)
            chosen, replicate = nibble & 7, nibble & 8
        else:
            chosen, replicate = _prmt_index(control & 3, index, mode), None
        byte = (both >> (chosen << 3).zext("i64")).trunc("i8")
        if replicate is not None:
            byte = replicate.ne(0).select(byte.sar(7), byte)
        result = result | (byte.zext("i32") << (8 * index))
    write(thread, ins.operands[0], "b32", result)


def _prmt_index(selector: Value, index: int, mode: str) -> Value:
    """Return which byte of {b, a} goes to byte ``index`` in a special mode (ISA, table 32)."""
    constant_ = selector.constant
    if mode == "f4e":
        return selector + index
    if mode == "b4e":
        return (selector - index) & 7
    if mode == "rc8":
        return selector
    if mode == "ecl":
        return selector.max_u(index)
    if mode == "ecr":
        return selector.min_u(index)
    return ((selector & 1) << 1) | constant_(index & 1)
