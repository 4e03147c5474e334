"""State spaces: pointers into them, and conversion to and from generic addresses.

Generic, global, const, param and local addresses are host addresses. A shared address is an offset
from the block's shared memory, so that 32-bit ones work.

Source: PTX ISA 9.0, chapter 5.1 and sections 9.7.9.20 (isspacep) and 9.7.9.19 (cvta).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.registry import Modifiers, lowering

__all__ = ["SPACES", "element", "generic_shared", "space_of"]

SPACES = (
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "const",
    "param",
    "param::entry",
    "param::func",
)


def space_of(modifiers: Modifiers) -> str:
    """Take the state space modifier; "" is generic."""
    return modifiers.choice(*SPACES)


def element(thread: Thread, pointer: str, index: int, size: int) -> str:
    """Return a ``ptr`` to element ``index`` of ``size`` bytes from ``pointer`` on."""
    if index == 0:
        return pointer
    return thread.emitter.value(f"getelementptr i8, ptr {pointer}, i64 {index * size}")


def generic_shared(thread: Thread) -> Value:
    """Return the generic address at which the block's shared memory begins."""
    return Value(
        thread.emitter,
        "i64",
        thread.emitter.value(f"ptrtoint ptr {thread.addresses.shared_base()} to i64"),
    )


@lowering("cvta")
def _cvta(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    to, space = modifiers.flag("to"), modifiers.require(*SPACES)
    type_ = modifiers.require("u64", "u32")
    modifiers.done(2)
    value = read(thread, ins.operands[1], type_).zext("i64")
    if space.startswith("shared"):
        base = generic_shared(thread)
        value = value - base if to else value + base
    write(thread, ins.operands[0], type_, value.trunc(LLVM_TYPE[type_]))


@lowering("isspacep")
def _isspacep(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    space = modifiers.require(*SPACES)
    modifiers.done(2)
    address = read(thread, ins.operands[1], "u64")

    def inside(bounds: tuple[str, str]) -> Value:
        first, size = (Value(thread.emitter, "i64", text) for text in bounds)
        return (address - first).compare("ult", size)

    shared = (generic_shared(thread).text, thread.addresses.shared_size())
    ranges = {
        "shared": shared,
        "local": thread.addresses.local_range(),
        "const": thread.addresses.const_range(),
        "param": thread.addresses.param_range(),
    }
    if space == "global":
        result = ~inside(ranges["shared"])
        for other in ("local", "const", "param"):
            result = result & ~inside(ranges[other])
    else:
        result = inside(ranges[space.partition("::")[0]])
    write(thread, ins.operands[0], "pred", result)
