"""dp4a and dp2a: dot products of packed bytes and halves with 32-bit accumulation.

Source: PTX ISA 9.0, sections 9.7.1.24 and 9.7.1.25.
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction, Operand
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected


def _elements(thread: Thread, operand: Operand, type_: str, bits: int) -> list[Value]:
    """Return the packed elements of an operand as i32, lowest first."""
    value = read(thread, operand, "b32")
    extend = Value.sext if type_[0] == "s" else Value.zext
    return [extend((value >> shift).trunc(f"i{bits}"), "i32") for shift in range(0, 32, bits)]


@lowering("dp4a", "dp2a")
def _dot(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    four = ins.opcode.base == "dp4a"
    part = "" if four else modifiers.require("lo", "hi")
    second, first = modifiers.type(), modifiers.type()
    modifiers.done(4)
    if {first, second} - {"u32", "s32"}:
        raise rejected(ins, "its types are .u32 and .s32")
    a = _elements(thread, ins.operands[1], first, 8 if four else 16)
    b = _elements(thread, ins.operands[2], second, 8)
    if part == "hi":
        b = b[2:]
    result = read(thread, ins.operands[3], "b32")
    for x, y in zip(a, b, strict=False):  # dp2a uses two of the four bytes
        result = result + x * y
    write(thread, ins.operands[0], "s32" if "s32" in (first, second) else "u32", result)
