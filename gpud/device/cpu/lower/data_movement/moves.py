"""mov: between registers, of addresses and special registers, and packing into wider registers.

Source: PTX ISA 9.0, sections 9.7.9.2 and 9.7.9.3 (mov).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction, Operand, SpecialRegister, Symbol, Vector
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.ir.values import constant, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected


@lowering("mov")
def _mov(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    count = int(modifiers.choice("v2", "v4", default="v1")[1:])
    type_ = modifiers.type()
    modifiers.done(2)
    target, source = ins.operands
    if count > 1:
        _move_vector(thread, ins, count, type_)
    elif isinstance(target, Vector):
        _unpack(thread, ins, target, source, type_)
    elif isinstance(source, Vector):
        _pack(thread, ins, target, source, type_)
    else:
        write(thread, target, type_, read(thread, source, type_))


def _move_vector(thread: Thread, ins: Instruction, count: int, type_: str) -> None:
    """Lower ``mov.v4.u32 {a, b, c, d}, %tid``, or a move from one vector to another."""
    target, source = ins.operands
    if isinstance(source, SpecialRegister):
        names = [f"{source.name}.{suffix}" for suffix in "xyz"[:count]]
        values = [read(thread, SpecialRegister(name), type_) for name in names]
        if count == 4:
            values.append(
                constant(thread.emitter, LLVM_TYPE[type_], 0)
            )  # .w of every special register
    elif isinstance(source, Vector):
        values = [read(thread, item, type_) for item in source.items]
    else:
        raise rejected(ins, "its source must be a vector")
    targets = target.items if isinstance(target, Vector) else ()
    if len(targets) != count or len(values) != count:
        raise rejected(ins, f"it needs vectors of {count} elements")
    for item, value in zip(targets, values, strict=True):
        write(thread, item, type_, value)


def _part(ins: Instruction, vector: Vector, type_: str) -> str:
    """Return the type of the elements of a packed value."""
    bits, rest = divmod(int(type_.lstrip("bsuf")), len(vector.items))
    if rest or f"b{bits}" not in LLVM_TYPE:
        raise rejected(ins, f".{type_} does not divide into {len(vector.items)} elements")
    return f"b{bits}"


def _pack(thread: Thread, ins: Instruction, target: Operand, source: Vector, type_: str) -> None:
    part = _part(ins, source, type_)
    whole = f"b{type_.lstrip('bsuf')}"
    bits = int(part[1:])
    result = constant(thread.emitter, LLVM_TYPE[whole], 0)
    for index, item in enumerate(source.items):
        piece = read(thread, item, part).zext(result.type)
        result = result | (piece << (bits * index)) if index else piece
    write(thread, target, whole, result)


def _unpack(thread: Thread, ins: Instruction, target: Vector, source: Operand, type_: str) -> None:
    part = _part(ins, target, type_)
    value = read(thread, source, f"b{type_.lstrip('bsuf')}")
    bits = int(part[1:])
    for index, item in enumerate(target.items):
        if not (isinstance(item, Symbol) and item.name == "_"):
            write(thread, item, part, (value >> (bits * index)).trunc(LLVM_TYPE[part]))
