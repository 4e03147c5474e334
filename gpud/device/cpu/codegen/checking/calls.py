"""Emits the calls of a checked program, and defines the functions that they call.

In a program that is loaded without an arena nothing can be looked up, and nothing is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.compiler.abi.check_calls import ACCESS, SHARED, SHUFFLE, STORED, SYNC
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.checking.state import (
    ACCESS_FUNCTION,
    SHARED_FUNCTION,
    SHUFFLE_FUNCTION,
    STORED_FUNCTION,
    SYNC_FUNCTION,
)

if TYPE_CHECKING:
    from gpud.device.cpu.ir.thread import Thread

__all__ = ["call_check"]

_ARGUMENTS = {
    ACCESS: (ACCESS_FUNCTION, ("u64", "u64", "u32", "u32")),
    SHARED: (SHARED_FUNCTION, ("u64", "u32", "u32")),
    STORED: (STORED_FUNCTION, ("u32", "u32")),
    SHUFFLE: (SHUFFLE_FUNCTION, ("u32", "u32", "u32", "u32", "u32")),
    SYNC: (SYNC_FUNCTION, ("u32", "u32")),
}


def call_check(
    code: Thread,
    thread: str,
    name: str,
    results: tuple[ptx.Operand, ...],
    arguments: tuple[ptx.Operand, ...],
    *,
    has_arena: bool,
) -> None:
    """Emit a call; ``thread`` is the thread's number, an i32."""
    function, types = _ARGUMENTS[name]
    if not has_arena:
        for result in results:
            code.write(result, "u64", code.read(arguments[0], "u64"))
        return
    passed = [f"ptr %b, i32 {thread}"]
    for argument, type_ in zip(arguments, types, strict=True):
        passed.append(f"i{type_[1:]} {code.read(argument, type_)}")
    text = f"@{function}({', '.join(passed)})"
    if results:
        code.write(results[0], "u64", code.emitter.value(f"call i64 {text}"))
    else:
        code.emitter.do(f"call void {text}")
