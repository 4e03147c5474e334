"""cp.async: copies from global to shared memory, executed synchronously.

A program may not rely on a copy being unfinished, so waiting for one copy or a group is a no-op; an
arrival on an mbarrier that copies trigger happens at the instruction that requests it. Bulk copies
are loops, see `gpud.device.cpu.codegen.preparation.bulk_copies`.

Source: PTX ISA 9.0, section 9.7.9.25 (asynchronous copy).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction, Operand
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, read
from gpud.device.cpu.lower.data_movement.mbarrier import arrive
from gpud.device.cpu.lower.data_movement.state_spaces import element, space_of
from gpud.device.cpu.lower.registry import CACHE_HINTS, Modifiers, lowering, rejected


@lowering("cp")
def _cp(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    modifiers.flag("reduce")
    modifiers.require("async")
    if modifiers.flag("bulk"):
        _bulk(ins, modifiers)
        return
    if modifiers.flag("commit_group") or modifiers.flag("wait_all"):
        modifiers.done(0)
        return
    if modifiers.flag("wait_group"):
        modifiers.done(1)
        return
    if modifiers.flag("mbarrier"):
        _arrive_when_copied(thread, ins, modifiers)
        return
    _copy(thread, ins, modifiers)


def _bulk(ins: Instruction, modifiers: Modifiers) -> None:
    """Lower what remains of bulk copies, which are loops by now: waits and hints, as nothing."""
    modifiers.skip(*CACHE_HINTS)
    if modifiers.flag("commit_group"):
        modifiers.done(0)
    elif modifiers.flag("wait_group"):
        modifiers.flag("read")
        modifiers.done(1)
    elif modifiers.flag("prefetch"):
        return
    else:
        raise rejected(ins, "the CPU device has no such bulk copy")


def _arrive_when_copied(thread: Thread, ins: Instruction, modifiers: Modifiers) -> None:
    """Lower ``cp.async.mbarrier.arrive{.noinc}``: the copies are done, so it arrives now.

    Without ``.noinc`` the pending count is first raised by one, so that nothing changes.
    """
    modifiers.require("arrive")
    counts, space = modifiers.flag("noinc"), space_of(modifiers)
    modifiers.require("b64")
    modifiers.done(1)
    if counts:
        arrive(thread, thread.pointer(ins.operands[0], space), constant(thread.emitter, "i64", 1))


def _copy(thread: Thread, ins: Instruction, modifiers: Modifiers) -> None:
    """Lower a copy to shared memory, done synchronously; ``wait_group`` then is a no-op."""
    modifiers.require("ca", "cg")
    to = modifiers.require("shared", "shared::cta", "shared::cluster")
    modifiers.require("global")
    hinted = modifiers.flag("L2::cache_hint")
    modifiers.skip(*CACHE_HINTS)
    modifiers.done()
    operands = list(ins.operands[: len(ins.operands) - hinted])
    target, source = thread.pointer(operands[0], to), thread.pointer(operands[1], "global")
    size = getattr(operands[2], "value", 0)
    if size not in (4, 8, 16) or len(operands) > 4:
        raise rejected(ins, "it copies 4, 8 or 16 bytes")
    if len(operands) == 4:
        _copy_some(thread, target, source, size, operands[3])
        return
    for index in range(size // 4):
        value = thread.emitter.value(
            f"load i32, ptr {element(thread, source, index, 4)}, align 4{thread.tags}"
        )
        thread.emitter.do(
            f"store i32 {value}, ptr {element(thread, target, index, 4)}, align 4{thread.tags}"
        )


def _copy_some(thread: Thread, target: str, source: str, size: int, count: Operand) -> None:
    """Copy the first bytes and fill the rest of ``size`` with zeros, without reading it."""
    stored = thread.storage.get(getattr(count, "name", ""), "i32")
    if stored == "i1":  # ignore-src: a predicate that asks for zeros only
        number = read(thread, count, "pred").select(constant(thread.emitter, "i32", 0), size)
    else:
        number = read(thread, count, "u32").min_u(size)
    thread.emitter.module.define_once("gpud.copy.zero", _COPY_ZERO)
    pointers = (Value(thread.emitter, "ptr", text) for text in (target, source))
    arguments = ", ".join(
        f"{a.type} {a.text}" for a in (*pointers, number, constant(thread.emitter, "i32", size))
    )
    thread.emitter.do(f"call void @gpud.copy.zero({arguments})")


_COPY_ZERO = """define internal void @gpud.copy.zero(ptr %to, ptr %from, i32 %count, i32 %size) {
entry:
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %stored]
  %have = icmp ult i32 %i, %count
  br i1 %have, label %read, label %stored
read:
  %source = getelementptr i8, ptr %from, i32 %i
  %byte = load i8, ptr %source
  br label %stored
stored:
  %value = phi i8 [0, %loop], [%byte, %read]
  %target = getelementptr i8, ptr %to, i32 %i
  store i8 %value, ptr %target
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %size
  br i1 %more, label %loop, label %done
done:
  ret void
}"""
