"""Has an SM's thread sleep until a lane of its blocks gets a record, in native code."""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import Record, compare, load, offset, run_of, store
from gpud.device.cpu.abi.records import BLOCK, BLOCK_BYTES, NONE, SM_SLOTS
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.sm.idle import nap
from gpud.device.cpu.sm.lane_records import lane_of, wide
from gpud.device.futex import FUTEX_WAITV, PRIVATE_32, SHARED_32, sleeps_on_several
from gpud.wire import lane_ring as ring

__all__ = ["wait_for_records"]

_WAITER_BYTES = 24
_MOST_LANES = 64  # that an SM's thread waits for: one for each slot


def wait_for_records(e: Emitter, sm: Record) -> None:
    """Sleep until the doorbell is set, or a lane of the SM without a launch gets a record.

    Where the kernel cannot have a thread sleep on several words, it naps on its doorbell.
    """
    if not sleeps_on_several():
        nap(e, sm)
        return
    waiters = e.alloca(f"[{_WAITER_BYTES * (_MOST_LANES + 1)} x i8]", "waiters")
    words = e.alloca(f"[{_MOST_LANES} x ptr]", "words")
    count, last = e.alloca("i32", "count"), e.alloca("ptr", "last")
    store(e, "i32", 1, count)
    store(e, "ptr", "null", last)

    def add(at: str, value: str, word: str, flags: int) -> None:
        one = offset(e, waiters, at)
        store(e, "i64", value, one)
        store(e, "ptr", word, offset(e, one, 8))
        store(e, "i32", flags, offset(e, one, 16))
        store(e, "i32", 0, offset(e, one, 20))

    add("0", "0", sm.at("doorbell"), PRIVATE_32)
    sm.store("sleeping", 1, "seq_cst")
    slots = offset(e, "%sm", SM_SLOTS)
    with e.count("0", sm.load("count")) as index:
        block = e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {index}')}")
        run = run_of(e, Record(e, offset(e, block, -BLOCK_BYTES), BLOCK))
        lane = lane_of(e, run)
        new = compare(e, "ne", "ptr", lane.pointer, load(e, "ptr", last))
        none = compare(e, "eq", "i32", lane.load("current", "seq_cst"), NONE)
        with e.when(e.value(f"and i1 {new}, {none}")):
            store(e, "ptr", lane.pointer, last)
            shared = lane.load("ring")
            listening = offset(e, shared, ring.LISTENING)
            number = load(e, "i32", count)
            at = e.value(f"mul i64 {wide(e, number)}, {_WAITER_BYTES}")
            add(at, wide(e, lane.load("tail", "acquire")), shared, SHARED_32)
            e.do(f"atomicrmw add ptr {listening}, i32 1 seq_cst")
            before = e.value(f"sub i32 {number}, 1")
            store(e, "ptr", listening, e.value(f"getelementptr ptr, ptr {words}, i32 {before}"))
            store(e, "i32", e.value(f"add i32 {number}, 1"), count)
    every = load(e, "i32", count)
    e.do(
        f"call i64 (i64, ...) @syscall(i64 {FUTEX_WAITV}, ptr {waiters}, "
        f"i64 {wide(e, every)}, i64 0, ptr null, i64 0)"
    )
    sm.store("sleeping", 0, "seq_cst")
    with e.count("0", e.value(f"sub i32 {every}, 1")) as index:
        listening = load(e, "ptr", e.value(f"getelementptr ptr, ptr {words}, i32 {index}"))
        e.do(f"atomicrmw sub ptr {listening}, i32 1 seq_cst")
