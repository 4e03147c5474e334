"""How an SM's thread idles: it yields the CPU, naps, or waits on a futex.

Problem: an idle SM must take no processor time from the others, and must react at once when a
persistent block is added.

Approach: a doorbell in the SM's record is a futex. Setting it makes the system call only if the
SM's thread sleeps.

Properties:
* without a persistent block the OS thread sleeps;
* with only polling blocks it yields the CPU every round, and after a while naps for an eighth of
  the time that it has waited, unless a lane gets a record (`gpud.device.cpu.sm.lane_sleep`).
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import Record, compare, load, offset, store
from gpud.device.cpu.abi.records import SM
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.futex import FUTEX_WAKE, NAP_NS, PRIVATE, futex

__all__ = ["back_off", "define_wake", "nap", "wait_for_doorbell"]

_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = PRIVATE, FUTEX_WAKE | PRIVATE

_YIELD_NS, _NAP_PART, _NAP_NS = 50_000, 8, 200_000
"""With only polling blocks an SM yields for `_YIELD_NS`; then each nap is the waiting time divided
by `_NAP_PART`, at most `_NAP_NS`. A poller slows the other hardware thread of its core."""


def back_off(e: Emitter, sm: Record, idle: str) -> None:
    """Yield or nap while all blocks only poll, for other OS threads and the other hyperthread.

    Args:
        e: emits the code.
        sm: the SM.
        idle: pointer to the time since when all blocks only poll, in ns; 0 before the first call.
    """
    over = e.label("over")
    now = e.value("call i64 @now()")
    with e.when(compare(e, "eq", "i64", load(e, "i64", idle), 0)):
        e.do(f"store i64 {now}, ptr {idle}")
    waited = e.value(f"sub i64 {now}, {load(e, 'i64', idle)}")
    short, long = e.label("short"), e.label("long")
    e.branch(compare(e, "ult", "i64", waited, _YIELD_NS), short, long)
    e.place(short)
    e.do("call i32 @sched_yield()")
    e.jump(over)
    e.place(long)
    part = e.value(f"udiv i64 {waited}, {_NAP_PART}")
    little = compare(e, "ult", "i64", part, _NAP_NS)
    limit = e.value(f"select i1 {little}, i64 {part}, i64 {_NAP_NS}")
    e.do(f"call void @wait_for_records(ptr {sm.pointer}, i64 {limit})")
    e.jump(over)
    e.place(over)


def nap(e: Emitter, sm: Record, ns: object = NAP_NS) -> None:
    """Wait until the doorbell is set, or for a time."""
    time = e.alloca("[2 x i64]", "nap")
    store(e, "i64", 0, time)
    store(e, "i64", ns, offset(e, time, 8))
    wait_for_doorbell(e, sm, time)


def wait_for_doorbell(e: Emitter, sm: Record, timeout: str = "null") -> None:
    """Wait until the doorbell is set or the timeout is over."""
    sm.store("sleeping", 1, "seq_cst")
    e.do(
        f"call i64 (i64, ...) @syscall(i64 {futex()}, ptr {sm.at('doorbell')}, "
        f"i64 {_FUTEX_WAIT_PRIVATE}, i64 0, ptr {timeout})"
    )
    sm.store("sleeping", 0, "seq_cst")


def define_wake(ir: IRModule) -> None:
    """Define ``void @sm_wake(ptr %sm)``: set the doorbell, wake the SM's thread if it sleeps."""
    e = Emitter(ir, "define void @sm_wake(ptr %sm)")
    sm = Record(e, "%sm", SM)
    sm.store("doorbell", 1, "seq_cst")
    slept = e.value(f"atomicrmw xchg ptr {sm.at('sleeping')}, i32 0 seq_cst")
    with e.when(compare(e, "ne", "i32", slept, 0)):
        e.do(
            f"call i64 (i64, ...) @syscall(i64 {futex()}, ptr {sm.at('doorbell')}, "
            f"i64 {_FUTEX_WAKE_PRIVATE}, i64 1)"
        )
    e.end("ret void")
    e.finish()
