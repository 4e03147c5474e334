"""Has an SM's thread sleep until a lane of its blocks gets a record, in native code."""

from __future__ import annotations

from collections.abc import Callable

from gpud.device.cpu.abi.record_access import Record, compare, load, offset, run_of, share_of, store
from gpud.device.cpu.abi.records import BLOCK, BLOCK_BYTES, LANE, NONE, SM, SM_SLOTS, Standby
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.idle import nap
from gpud.device.cpu.sm.lane_records import wide
from gpud.device.futex import (
    FUTEX_WAITV,
    NAP_NS,
    PRIVATE_32,
    SHARED_32,
    sleeps_on_several,
)
from gpud.wire import lane_ring as ring

__all__ = ["define_wait_for_records"]

_WAITER_BYTES = 24
_MOST_LANES = 64  # that an SM's thread waits for: one for each slot
_CLOCK_MONOTONIC = 1


def define_wait_for_records(ir: IRModule) -> None:
    """Define ``void @wait_for_records(ptr %sm, i64 %limit)``.

    It sleeps until the doorbell is set, or a lane of the SM without a launch gets a record, or for
    ``limit`` nanoseconds; 0: without a limit. Where the kernel cannot have a thread sleep on
    several words, it naps on its doorbell.
    """
    e = Emitter(ir, "define internal void @wait_for_records(ptr %sm, i64 %limit)")
    sm = Record(e, "%sm", SM)
    endless = compare(e, "eq", "i64", "%limit", 0)
    if sleeps_on_several():
        _sleep(e, sm, endless)
    else:
        nap(e, sm, e.value(f"select i1 {endless}, i64 {NAP_NS}, i64 %limit"))
    e.end("ret void")
    e.finish()


def _sleep(e: Emitter, sm: Record, endless: str) -> None:
    waiters = e.alloca(f"[{_WAITER_BYTES * (_MOST_LANES + 1)} x i8]", "waiters")
    words = e.alloca(f"[{_MOST_LANES} x ptr]", "words")
    count, last = e.alloca("i32", "count"), e.alloca("ptr", "last")
    time = e.alloca("[2 x i64]", "until")
    store(e, "i32", 1, count)
    store(e, "ptr", "null", last)
    until = e.value(f"add i64 {e.value('call i64 @now()')}, %limit")
    store(e, "i64", e.value(f"udiv i64 {until}, 1000000000"), time)
    store(e, "i64", e.value(f"urem i64 {until}, 1000000000"), offset(e, time, 8))
    limit = e.value(f"select i1 {endless}, ptr null, ptr {time}")

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
        block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
        lane = Record(e, run_of(e, block_record).load("lane"), LANE)
        with e.when(compare(e, "ne", "ptr", lane.pointer, "null")):
            _add_lane(e, block_record, lane, last, count, words, add)
    every = load(e, "i32", count)
    e.do(
        f"call i64 (i64, ...) @syscall(i64 {FUTEX_WAITV}, ptr {waiters}, "
        f"i64 {wide(e, every)}, i64 0, ptr {limit}, i64 {_CLOCK_MONOTONIC})"
    )
    sm.store("sleeping", 0, "seq_cst")
    with e.count("0", e.value(f"sub i32 {every}, 1")) as index:
        listening = load(e, "ptr", e.value(f"getelementptr ptr, ptr {words}, i32 {index}"))
        e.do(f"atomicrmw sub ptr {listening}, i32 1 seq_cst")


def _add_lane(
    e: Emitter,
    block_record: Record,
    lane: Record,
    last: str,
    count: str,
    words: str,
    add: Callable[[str, str, str, int], None],
) -> None:
    """Count an SM's thread among those that listen to the ring of a block's lane."""
    new = compare(e, "ne", "ptr", lane.pointer, load(e, "ptr", last))
    none = compare(e, "eq", "i32", lane.load("current", "seq_cst"), NONE)
    # For a block on standby somebody else waits, and sets the doorbell.
    standby = share_of(e, block_record).load("standby", "monotonic")
    begun = compare(e, "eq", "i32", standby, Standby.NO)
    with e.when(e.value(f"and i1 {new}, {e.value(f'and i1 {none}, {begun}')}")):
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
