"""Checks around calls: the target of a pointer, stack space, and failure of the callee.

Problem: a call through a pointer must reach a function of the program, recursion must not overflow
the OS thread's stack, and a thread that has ended its block inside a function must leave the
callers too.

Approach: a check of the pointer before the call (``gpud.target``), as a jump table that LLVM merges
with the one that selects the function; a comparison of the frame size with the stack space in use,
which is passed as an argument; an i1 result.

Properties:
* after a report, control goes where `ThreadCode.fail` of the emitting code sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Failure
from gpud.device.cpu.codegen.emit.fault_reports import report_fields
from gpud.device.cpu.ir.emitter import Emitter, IRModule

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode

__all__ = [
    "STACK_BYTES",
    "check_stack_room",
    "check_target",
    "define_reports",
    "return_if_failed",
    "switch",
]

STACK_BYTES = 1 << 16
"""Space for the local memory of nested function calls. A GPU has 1 KiB by default; recursion must
end long before it overflows the OS thread's stack."""


_BAD_TARGET, _STACK_FULL = "gpud.bad_target", "gpud.stack_full"


def define_reports(ir: IRModule) -> None:
    """Define the functions that report a call to a wrong target or without stack space.

    Separate functions, so that the code of the checks stays small enough to be inlined.
    """
    astray = {
        "error": str(Failure.TARGET),
        "error_thread": "%thread",
        "error_line": "%line",
        "error_claim": "%claim",
        "error_site": "%site",
        "error_address": "%address",
    }
    full = {"error": str(Failure.STACK), "error_thread": "%thread"}
    more = ", i32 %line, i32 %claim, i32 %site, i64 %address"
    for name, arguments, fields in ((_BAD_TARGET, more, astray), (_STACK_FULL, "", full)):
        header = f"define internal void @{name}(ptr %b, i32 %thread{arguments})"
        emitter = Emitter(ir, f"{header} nounwind cold noinline minsize")
        report_fields(emitter, fields)
        emitter.end("ret void")
        emitter.finish()


def check_target(code: ThreadCode, ins: ptx.Instruction) -> None:
    """Emit a ``gpud.target``: end the block if the jump or call that follows has a wrong target."""
    emitter = code.emitter
    site, value, claim, *legal = ins.operands
    assert isinstance(site, ptx.Address)
    astray, go_on = emitter.label("astray"), emitter.label("aimed")
    if legal and isinstance(legal[0], ptx.Immediate):
        index = code.read(value, "u32")
        given = emitter.value(f"zext i32 {index} to i64")
        out = emitter.value(f"icmp uge i32 {index}, {legal[0].value}")
        emitter.branch_unlikely(out, astray, go_on)
    else:
        given = code.read(value, "u64")
        numbers = [code.program.pointers[one.name] for one in legal if isinstance(one, ptx.Symbol)]
        switch(emitter, given, [(number, go_on) for number in numbers], astray, cold=True)
    emitter.place(astray)
    known = (code.places.thread, str(ins.line), code.read(claim, "u32"), str(site.offset))
    arguments = ", ".join(f"i32 {number}" for number in known)
    emitter.do(f"call void @{_BAD_TARGET}(ptr %b, {arguments}, i64 {given})")
    code.fail()
    emitter.place(go_on)


def switch(
    emitter: Emitter, value: str, cases: Sequence[tuple[int, str]], otherwise: str, *, cold: bool
) -> None:
    """End the LLVM block with a switch on an i64; ``cold``: the default case is unlikely."""
    arms = " ".join(f"i64 {number}, label %{label}" for number, label in cases)
    weights = ""
    if cold and cases:
        likely = ", i32 100000" * len(cases)
        weights = f', !prof !{{!"branch_weights", i32 1{likely}}}'
    emitter.end(f"switch i64 {value}, label %{otherwise} [{arms}]{weights}")


def check_stack_room(code: ThreadCode, size: int) -> None:
    """End the block if the frame of the function to be called does not fit."""
    emitter = code.emitter
    full = "true"
    if size <= STACK_BYTES:
        full = emitter.value(f"icmp ugt i32 {code.places.used}, {STACK_BYTES - size}")
    end, fits = emitter.label("full"), emitter.label("fits")
    emitter.branch_unlikely(full, end, fits)
    emitter.place(end)
    emitter.do(f"call void @{_STACK_FULL}(ptr %b, i32 {code.places.thread})")
    code.fail()
    emitter.place(fits)


def return_if_failed(code: ThreadCode, failed: str) -> None:
    """Leave if the i1 ``failed`` is set, which is unlikely: the thread has ended its block."""
    emitter = code.emitter
    end, go_on = emitter.label("failed"), emitter.label("fine")
    emitter.branch_unlikely(failed, end, go_on)
    emitter.place(end)
    code.fail()
    emitter.place(go_on)
