"""Throttles released persistent blocks that are in the middle of a task block.

Problem: a released block must leave, and its capacity belongs to others already. An online job
whose victims have long task blocks would share its SM in equal turns with one such block of each.
But other blocks of the victims' jobs may wait for the released ones, so these must not stop for
good.

Approach: while blocks of other jobs that are not released are on the SM, released ones wait
`_FIRST_WAIT_NS`, then get a turn from time to time: after each they pause for `_PAUSE_FACTOR` times
as long as it took.

Properties:
* beside others, released blocks together have about a quarter of an SM's time after the first
  wait;
* without others on their SM they go on at once.
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import Record, block_record_of, compare, offset
from gpud.device.cpu.abi.records import (
    BLOCK,
    BLOCK_BYTES,
    NONE,
    SHARE,
    SM,
    SM_SLOTS,
    Standby,
)
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["define_may_run_released", "end_throttled_turn"]

_FIRST_WAIT_NS, _PAUSE_FACTOR, _STALE_NS = 3_000_000, 3, 100_000_000
"""Wait before the first turn of a released block; pause after a turn, as a multiple of its length;
time without a turn after which the next one counts as the first. With 10 ms in place of 3, online
requests were no quicker, and a released task block could take 7 ms longer to leave."""


def end_throttled_turn(e: Emitter, sm: Record) -> None:
    """If a released block has just had its turn, set the time of the next one."""
    since = sm.load("turn_since_ns")
    with e.when(compare(e, "ne", "i64", since, 0)):
        now = e.value("call i64 @now()")
        took = e.value(f"sub i64 {now}, {since}")
        pause = e.value(f"mul i64 {took}, {_PAUSE_FACTOR}")
        sm.store("next_turn_ns", e.value(f"add i64 {now}, {pause}"))
        sm.store("turn_since_ns", 0)


def define_may_run_released(ir: IRModule) -> None:
    """Define ``i1 @may_run_released(ptr %sm, ptr %b)``: whether a released block has a turn."""
    e = Emitter(ir, "define internal i1 @may_run_released(ptr %sm, ptr %b) nounwind")
    sm, own = Record(e, "%sm", SM), block_record_of(e).load("run")
    slots = offset(e, "%sm", SM_SLOTS)
    others = e.alloca("i1", "others")
    e.do(f"store i1 false, ptr {others}")
    with e.count("0", sm.load("count")) as index:
        block = e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {index}')}")
        block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
        stays = compare(e, "ne", "i32", block_record.load("index", "monotonic"), NONE)
        other = compare(e, "ne", "ptr", block_record.load("run"), own)
        # One on standby waits for the released one to leave.
        share = Record(e, block_record.load("share"), SHARE)
        begun = compare(e, "eq", "i32", share.load("standby", "monotonic"), Standby.NO)
        with e.when(e.value(f"and i1 {stays}, {e.value(f'and i1 {other}, {begun}')}")):
            e.do(f"store i1 true, ptr {others}")
    with e.when(e.value(f"xor i1 {e.value(f'load i1, ptr {others}')}, true")):
        e.end("ret i1 true")
    now, then = e.value("call i64 @now()"), sm.load("next_turn_ns")
    stale = compare(e, "ugt", "i64", now, e.value(f"add i64 {then}, {_STALE_NS}"))
    with e.when(stale):
        sm.store("next_turn_ns", e.value(f"add i64 {now}, {_FIRST_WAIT_NS}"))
        e.end("ret i1 false")
    with e.when(compare(e, "ult", "i64", now, then)):
        e.end("ret i1 false")
    sm.store("turn_since_ns", now)
    e.end("ret i1 true")
    e.finish()
