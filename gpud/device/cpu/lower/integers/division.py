"""Integer division and remainder that LLVM can vectorise and that never trap.

Problem: ``div``/``rem`` by zero are unspecified in PTX but must not crash the process, nor must
INT_MIN / -1; and no CPU of interest divides integers in vectors, so that one ``div`` keeps a
whole loop over threads scalar.

Approach: up to 32 bits, divide in floating point, which has vector forms everywhere. By a
constant, leave the integer instruction: LLVM turns it into a multiplication. 64-bit operands are
divided by the integer instruction with a divisor made safe.

Algorithm and properties, for n-bit operands and a floating type of p bits with p > n + 1 bits
(16 in float, 32 in double): a and b convert exactly. If b divides a, the quotient is exact. Else
it is at least 1/b away from the next integer, while rounding moves it by at most q * 2**-p <
2**n / b * 2**-p < 1/b; so truncation gives the integer quotient.
Division by zero gives all ones, and a remainder of a, as NVIDIA's code sequence does.

Source: PTX ISA 9.0, sections 9.7.1.8 and 9.7.1.9; the bound is elementary.
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Immediate, Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.integers.integer_arithmetic import INTEGERS
from gpud.device.cpu.lower.registry import Modifiers, lowering


@lowering("div", "rem", types=INTEGERS)
def _div_rem(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(3)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:])
    signed = type_[0] == "s"
    divisor = ins.operands[2]
    if isinstance(divisor, Immediate) and divisor.value % (1 << a.width) not in (
        0,
        (1 << a.width) - 1,
    ):
        quotient = a.op("sdiv" if signed else "udiv", b)
    elif a.width == 64:
        quotient = _divide_integers(a, b, signed=signed)
    else:
        quotient = _divide_floats(a, b, signed=signed)
    result = quotient if ins.opcode.base == "div" else a - quotient * b
    write(thread, ins.operands[0], type_, result)


def _divide_integers(a: Value, b: Value, *, signed: bool) -> Value:
    zero = b.eq(0)
    if not signed:
        return zero.select(-1, a.op("udiv", zero.select(1, b)))
    # -1 and 0 take the divisor 1: a / -1 is -a (which wraps), a / 0 is -1.
    minus_one = b.eq(-1)
    quotient = a.op("sdiv", (zero | minus_one).select(1, b))
    return zero.select(-1, minus_one.select(-quotient, quotient))


def _divide_floats(a: Value, b: Value, *, signed: bool) -> Value:
    float_ = "float" if a.width == 16 else "double"
    to_float = "sitofp" if signed else "uitofp"
    bits = a.width
    quotient = a.cast(to_float, float_) / b.cast(to_float, float_)
    if signed:
        # INT_MIN / -1 is the one quotient out of range; it wraps to INT_MIN.
        limit = float(1 << (bits - 1))
        quotient = quotient.eq(limit).select(-limit, quotient)
        return b.eq(0).select(-1.0, quotient).cast("fptosi", a.type)
    return b.eq(0).select(float((1 << bits) - 1), quotient).cast("fptoui", a.type)
