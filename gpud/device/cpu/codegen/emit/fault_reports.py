"""Reports of faults: what a thread that ends its block writes to the block's header.

Problem: a trap, a failed assertion or an illegal access ends the whole block, and the reader of the
header must find out what it was, where, and which thread. Approach: a *report* is a set of header
fields; the first one written stays, so that later faults of other threads of the block do not hide
it. `gpud.device.cpu.codegen.preparation.pseudo_instructions` turns everything that ends a block
into a ``trap`` with operands: first a symbol for its kind, then its arguments.

Properties: a report reads registers, writes the header, and has no other effect.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import ASSERT, FAULT, LEAVE
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import HEADER, Failure, Space
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import Thread

__all__ = ["BREAKPOINT", "RAW_ASSERT", "report", "report_fields"]

RAW_ASSERT = "__assertfail"
BREAKPOINT = "brkpt"

_FAILURES = {1: Failure.ADDRESS, 2: Failure.TRAP, 3: Failure.BREAKPOINT, 4: Failure.ASSERT,
             5: Failure.MISALIGNED, 6: Failure.TARGET}  # fmt: skip
"""The reported failure for each fault kind of the program."""
_TABLE = sum(failure << 4 * kind for kind, failure in _FAILURES.items())
_CONTEXT = 3
"""Number of arguments before a call's own in rewritten programs: control words, claim, slots."""
_OWN = {FAULT: 3, ASSERT: 5, LEAVE: 0, RAW_ASSERT: 5, BREAKPOINT: 0}


def report(emitter: Emitter, code: Thread, thread: str, ins: ptx.Instruction) -> None:
    """Record in the block's header that thread ``thread`` (i32) ended it at ``ins``, a ``trap``."""
    what, arguments, claim = _parts(code, ins)
    fields = {"error_thread": thread, "error_line": str(ins.line), "error_claim": claim}
    if what == FAULT:
        kind, site, address = arguments
        fields["error"] = _failure(emitter, code, kind)
        fields["error_site"] = code.read(site, "u32")
        fields["error_address"] = code.read(address, "u64")
    elif what in (ASSERT, RAW_ASSERT):
        if what == ASSERT:
            fields["error_site"] = code.read(arguments.pop(0), "u32")
            message, file, line, function = arguments
        else:
            message, file, line, function, _ = arguments
        fields["error"] = str(Failure.ASSERT)
        fields["error_address"] = code.read(message, "u64")
        fields["error_file"] = code.read(file, "u64")
        fields["error_line"] = code.read(line, "u32")
        fields["error_function"] = code.read(function, "u64")
    elif what == LEAVE:
        fields["error"] = str(Failure.KILLED)
    elif what == BREAKPOINT:
        fields["error"] = str(Failure.BREAKPOINT)
    else:
        fields["error"] = str(Failure.TRAP)
    report_fields(emitter, fields)


def _parts(code: Thread, ins: ptx.Instruction) -> tuple[str, list[ptx.Operand], str]:
    """Return (kind, its own arguments, the claim as i32) of a trap."""
    if not ins.operands:
        return "trap", [], str(cw.NOTHING)
    what = ins.operands[0]
    assert isinstance(what, ptx.Symbol)
    arguments = list(ins.operands[1:])
    claim = str(cw.NOTHING)
    if len(arguments) > _OWN[what.name]:
        claim = code.read(arguments[1], "u32")
        del arguments[:_CONTEXT]
    return what.name, arguments, claim


def _failure(emitter: Emitter, code: Thread, kind: ptx.Operand) -> str:
    if isinstance(kind, ptx.Immediate):
        return str(_FAILURES.get(kind.value, Failure.TRAP))
    number = emitter.value(f"and i32 {code.read(kind, 'u32')}, 7")
    place = emitter.value(f"shl i32 {number}, 2")
    return emitter.value(f"and i32 {emitter.value(f'lshr i32 {_TABLE}, {place}')}, 15")


def report_fields(emitter: Emitter, fields: dict[str, str]) -> None:
    """Write header fields (values are LLVM text), unless there already is a report."""
    defaults = {
        "error_site": "-1",
        "error_claim": str(cw.NOTHING),
        "error_space": str(Space.GLOBAL),
        "error_address": "0",
        "error_file": "0",
        "error_function": "0",
    }
    offset, _ = HEADER["error"]
    error = emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
    fresh = emitter.value(f"icmp eq i32 {emitter.value(f'load i32, ptr {error}')}, {Failure.NONE}")
    with emitter.when(fresh):
        for name, value in {**defaults, **fields}.items():
            offset, type_ = HEADER[name]
            pointer = emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
            emitter.do(f"store {type_} {value}, ptr {pointer}")
