"""Shares an SM's time among its runs in proportion to the slices that each has there.

Problem: the SM loop visits persistent blocks one after the other. With a turn for each run in every
round, two runs with 1/8 and 7/8 of an SM would each do half of its work.

Approach: start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, "Start-time fair queueing",
SIGCOMM 1996). Each run has a virtual time on each of its SMs: the time that its blocks had there,
multiplied by M and divided by the number of its blocks. A block is skipped while its run is ahead
of another one that has a block to run. The SM's virtual time is that at which the last turn
began; a run that comes, or that had nothing to run, begins with it: it is not paid for the past.

Properties:
* of runs that always have something to run, none gets ahead by more than a turn: over time each
  has the part of the SM that its slices are of all slices present;
* nothing is held back for a run that has nothing to run or only polls; a run alone on its SM has
  all of it, and is not measured;
* the run that is furthest behind is never skipped, so the SM does not stand still;
* released blocks are outside of this: they have no slices (`gpud.device.cpu.sm.throttling`).
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import (
    Record,
    add,
    compare,
    load,
    offset,
    run_of,
    share_of,
    store,
)
from gpud.device.cpu.abi.records import NONE, SHARE, SM, SM_SHARES
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.next_block import CLOCK_THREAD_CPUTIME_ID
from gpud.device.cpu.sm.quotas import pay

__all__ = ["Turn", "define_is_ahead", "enter_sm", "leave_sm", "mark_busy", "start_over"]

_SHORT_NS = 20_000
"""Turns below are measured by the monotonic clock: much longer than a system call takes, and much
shorter than the operating system gives to another process."""


def define_is_ahead(ir: IRModule) -> None:
    """Define ``i1 @is_ahead(ptr %sm, ptr %share)``: whether another run's turn is due first."""
    ir.declare("declare i64 @llvm.smax.i64(i64, i64)")
    ir.declare("declare i64 @llvm.umin.i64(i64, i64)")
    e = Emitter(ir, "define internal i1 @is_ahead(ptr %sm, ptr %share) nounwind")
    mine = Record(e, "%share", SHARE).load("virtual_ns")
    with e.count("0", Record(e, "%sm", SM).load("shares")) as index:
        other = Record(e, load(e, "ptr", _place(e, index)), SHARE)
        behind = compare(e, "ult", "i64", other.load("virtual_ns"), mine)
        runs = compare(e, "ne", "i32", other.load("busy"), 0)
        able = compare(e, "eq", "i32", other.load("throttled"), 0)
        with e.when(e.value(f"and i1 {behind}, {e.value(f'and i1 {runs}, {able}')}")):
            e.end("ret i1 true")
    e.end("ret i1 false")
    e.finish()


def enter_sm(e: Emitter, sm: Record, share: Record) -> None:
    """Count a block that an SM has got; with a run's first one the run takes part."""
    blocks = share.load("blocks")
    with e.when(compare(e, "eq", "i32", blocks, 0)):
        count = sm.load("shares")
        store(e, "ptr", share.pointer, _place(e, count))
        sm.store("shares", e.value(f"add i32 {count}, 1"))
    share.store("blocks", e.value(f"add i32 {blocks}, 1"))


def leave_sm(e: Emitter, sm: Record, share: Record) -> None:
    """Discount a block that leaves its SM; with its run's last one the run takes no more part."""
    blocks = e.value(f"sub i32 {share.load('blocks')}, 1")
    share.store("blocks", blocks)
    with e.when(compare(e, "eq", "i32", blocks, 0)):
        last = e.value(f"sub i32 {sm.load('shares')}, 1")
        sm.store("shares", last)
        moved = load(e, "ptr", _place(e, last))
        with e.count("0", last) as index:
            place = _place(e, index)
            with e.when(compare(e, "eq", "ptr", load(e, "ptr", place), share.pointer)):
                store(e, "ptr", moved, place)


def mark_busy(e: Emitter, sm: Record, share: Record) -> None:
    """Count a block that has something to run from now on."""
    with e.when(compare(e, "eq", "i32", share.load("busy"), 0)):
        start_over(e, sm, share)
    add(e, share.at("busy"), 1)


def start_over(e: Emitter, sm: Record, share: Record) -> None:
    """Let a run that did not ask for turns not be paid for the past."""
    now, mine = sm.load("virtual_ns"), share.load("virtual_ns")
    late = compare(e, "ult", "i64", mine, now)
    share.store("virtual_ns", e.value(f"select i1 {late}, i64 {now}, i64 {mine}"))


class Turn:
    """A turn, from its construction to `end`.

    It is measured in the thread's processor time if there are several runs, or this one has a rate
    (`gpud.device.cpu.sm.quotas`): what the operating system gave to other processes meanwhile is no
    work. In turns by the monotonic clock beside busy processes, a run with 1/32 of an SM did up to
    a quarter more than that. But that clock takes a system call, and the other none. So a turn that
    was short by the monotonic clock counts as that long, and the others' processor time is read
    once: it is what the thread has had since it was read last, less the short turns since then.
    """

    def __init__(self, e: Emitter, sm: Record, share: Record) -> None:
        self.emitter = e
        self._sm = sm
        self._share = share
        self._rate = share.load("rate", "monotonic")
        self._limited = compare(e, "ne", "i32", self._rate, 0)
        several = compare(e, "ne", "i32", sm.load("shares"), 1)
        self._several = e.value(f"or i1 {several}, {self._limited}")
        self._took = e.alloca("i64", "took")
        self._began = e.value("call i64 @now()")

    def end(self) -> None:
        """End it."""
        e, sm = self.emitter, self._sm
        took = e.value(f"sub i64 {e.value('call i64 @now()')}, {self._began}")
        store(e, "i64", took, self._took)
        short, long, over = e.label("short"), e.label("long"), e.label("over")
        with e.when(self._several):
            e.branch(compare(e, "ult", "i64", took, _SHORT_NS), short, long)
            e.place(short)
            sm.store("short_ns", e.value(f"add i64 {sm.load('short_ns')}, {took}"))
            e.jump(over)
            e.place(long)
            now = e.value(f"call i64 @clock(i32 {CLOCK_THREAD_CPUTIME_ID})")
            since = e.value(f"sub i64 {now}, {sm.load('processor_ns')}")
            own = e.value(f"sub i64 {since}, {sm.load('short_ns')}")
            some = e.value(f"call i64 @llvm.smax.i64(i64 {own}, i64 0)")
            store(e, "i64", e.value(f"call i64 @llvm.umin.i64(i64 {some}, i64 {took})"), self._took)
            sm.store("processor_ns", now)
            sm.store("short_ns", 0)
            e.jump(over)
            e.place(over)

    def took(self) -> str:
        """Return how long it has lasted, in ns; once it has ended."""
        return load(self.emitter, "i64", self._took)

    def charge(self, block_record: Record) -> None:
        """Have the block's run pay for it, and add it to its virtual time beside others."""
        e, sm = self.emitter, self._sm
        with e.when(self._limited):
            pay(e, self._share, self._rate, self._began, self.took())
        kept = compare(e, "ne", "i32", block_record.load("index", "monotonic"), NONE)
        with e.when(e.value(f"and i1 {self._several}, {kept}")):
            share = share_of(e, block_record)
            start, now = share.load("virtual_ns"), sm.load("virtual_ns")
            later = compare(e, "ugt", "i64", start, now)
            sm.store("virtual_ns", e.value(f"select i1 {later}, i64 {start}, i64 {now}"))
            occupancy = e.value(f"zext i32 {run_of(e, block_record).load('max_occupancy')} to i64")
            whole = e.value(f"mul i64 {self.took()}, {occupancy}")
            blocks = e.value(f"zext i32 {share.load('blocks')} to i64")
            weighted = e.value(f"udiv i64 {whole}, {blocks}")
            share.store("virtual_ns", e.value(f"add i64 {start}, {weighted}"))


def _place(e: Emitter, index: str) -> str:
    """Return the address of an entry of the SM's list of shares."""
    return e.value(f"getelementptr ptr, ptr {offset(e, '%sm', SM_SHARES)}, i32 {index}")
