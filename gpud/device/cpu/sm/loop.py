"""The SM loop, in native code: time-slices blocks, claims task blocks, goes from launch to launch.

Problem: a sequence of many short launches must not wait for Python between them, and neither must a
block that has ended. Approach: everything that repeats is generated code, which runs outside the
GIL on the SM's thread; Python is needed only to add a persistent block to an SM and to process
that blocks have left.

The loop gives each persistent block of the SM a *turn*, one after the other:

* a block that is in the kernel runs until it is done, yields, polls or fails;
* an idle one looks for what to run next (``@next_block``): a claim in the current launch or, in
  persistent form, another run of the kernel, which claims for itself.

A launch is over when all its task blocks are done: the persistent block that ran the last one makes
the next launch current. The others see that in their next turn, and copy the new launch's header
and parameters into their own memory.

At most one block of a run is in the kernel on an SM, unless that block polls: a block in the middle
of a task block holds a claim that it must keep, and an OS thread is no faster with several. So a
released block leaves within one task block, mostly at once.

Runs on one SM get turns in proportion to their slices there: `gpud.device.cpu.sm.fair_turns`; those
with a quota no more than that allows: `gpud.device.cpu.sm.quotas`.
Until a released block leaves, it is throttled (`gpud.device.cpu.sm.throttling`). For an SM without
work see `gpud.device.cpu.sm.idle`, for blocks that spin in vain `gpud.device.cpu.sm.stillness`.

Once a block of a run has failed, or the run was killed, its other blocks get no further turn:
their results are discarded, and they may wait for the failed one.

Properties:
* a task block stays in its persistent block until it is done, unless its run failed or was killed;
* no task block of a launch begins before all of the previous launch are done;
* while all blocks of a run on an SM poll, another one of the run there begins: a block that
  waits for another one does not wait for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from gpud.device import jit
from gpud.device.cpu.abi.layout import HEADER, Failure, Setup
from gpud.device.cpu.abi.record_access import (
    Record,
    add,
    block_record_of,
    compare,
    header_of,
    launch_of,
    load,
    offset,
    run_of,
    share_of,
    store,
)
from gpud.device.cpu.abi.records import (
    BLOCK,
    BLOCK_BYTES,
    MAX_SLOTS,
    NONE,
    RUN_BYTES,
    SHARE_BYTES,
    SM,
    SM_GONE,
    SM_INBOX,
    SM_SLOTS,
    BlockState,
    ExitReason,
)
from gpud.device.cpu.codegen.runtime.thread_scheduler import DONE, FAILED, YIELDED, define_scheduler
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.fair_turns import (
    Turn,
    define_is_ahead,
    enter_sm,
    leave_sm,
    mark_busy,
    start_over,
)
from gpud.device.cpu.sm.idle import back_off, define_wake, wait_for_doorbell
from gpud.device.cpu.sm.lane_launches import define_lane_launches
from gpud.device.cpu.sm.lane_sleep import define_wait_for_records
from gpud.device.cpu.sm.lane_take_back import define_take_back
from gpud.device.cpu.sm.next_block import LEAVE, PARK, START, define_next_block
from gpud.device.cpu.sm.quotas import define_is_paused
from gpud.device.cpu.sm.stillness import define_watch
from gpud.device.cpu.sm.throttling import define_may_run_released, end_throttled_turn

__all__ = ["CLOSING", "GONE", "SPINNING", "NativeLoop", "native_loop"]

GONE, CLOSING, SPINNING = 1, 2, 3
"""Why the loop returns: blocks have left; the SM must end; a block has been still for long."""
_MOST_KEPT = 16
"""Rounds for which a block on standby keeps Python from hearing of blocks that have left."""

_STALL_NS = 10_000_000
"""A block that only yields while its run claims nothing may be polling with barriers in between:
after it has run for this time another block of the run may begin on its SM."""


class NativeLoop(NamedTuple):
    """The native functions; addresses are ints.

    Attributes:
        loop: ``(sm) -> GONE | CLOSING | SPINNING``; without the GIL until it has to report.
        add: ``(sm, block, run, index)``: adds a persistent block to an SM. Quick, keeps the GIL.
        wake: ``(sm)``: sets the SM's doorbell.
        report: ``(lane, began_ns, number, status)``: writes the completion of a lane's launch.
        wait: ``(lane, bell)``: sleeps until a lane that lends has a record, and takes its share
            back if there is a plan; or until the bell's word is not 0. Without the GIL.
        change: ``(lane, from, to) -> lent``: changes ``LANE.lent`` if it is ``from``, and returns
            what it was; not while a plan is carried out.
        code: the code, which must live as long as the functions are used.
    """

    loop: Any
    add: Any
    wake: Any
    report: Any
    wait: Any
    change: Any
    code: jit.NativeCode


@cache
def native_loop() -> NativeLoop:
    """Return the functions, compiled at the first call."""
    ir = IRModule()
    define_scheduler(ir)
    ir.declare("declare i32 @sched_yield()")
    ir.declare("declare i64 @syscall(i64, ...)")
    ir.metadata("!0", "!0 = !{}")
    define_is_paused(ir)
    define_next_block(ir)
    define_take_back(ir)
    define_wait_for_records(ir)
    define_lane_launches(ir)
    define_may_run_released(ir)
    define_is_ahead(ir)
    define_watch(ir)
    _define_leave(ir)
    _define_loop(ir)
    define_wake(ir)
    _define_add(ir)
    names = "sm_loop", "sm_add", "sm_wake", "lane_report", "lane_wait", "lane_change"
    code = jit.assemble(ir.text(), names)
    address, word = ctypes.c_void_p, ctypes.c_uint32
    return NativeLoop(
        code.function("sm_loop", ctypes.CFUNCTYPE(ctypes.c_int32, address)),
        code.function("sm_add", ctypes.PYFUNCTYPE(None, address, address, address, word)),
        code.function("sm_wake", ctypes.PYFUNCTYPE(None, address)),
        code.function(
            "lane_report",
            ctypes.PYFUNCTYPE(None, address, ctypes.c_uint64, word, word),
        ),
        code.function("lane_wait", ctypes.CFUNCTYPE(None, address, address)),
        code.function("lane_change", ctypes.PYFUNCTYPE(word, address, word, word)),
        code,
    )


# -- the loop --------------------------------------------------------------------------------------


def _define_loop(ir: IRModule) -> None:
    e = Emitter(ir, "define i32 @sm_loop(ptr %sm)")
    sm = Record(e, "%sm", SM)
    busy, at, idle = e.alloca("i1", "busy"), e.alloca("i32", "at"), e.alloca("i64", "idle")
    e.do(f"store i64 0, ptr {idle}")
    e.do(f"store i32 0, ptr {at}")
    e.do(f"store i1 false, ptr {busy}")
    parked = e.alloca("i32", "parked")
    e.do(f"store i32 0, ptr {parked}")
    with e.loop() as (again, _):
        with e.when(compare(e, "ne", "i32", sm.load("doorbell", "acquire"), 0)):
            _drain_inbox(e, sm)
        end_throttled_turn(e, sm)
        index = e.value(f"load i32, ptr {at}")
        with e.when(compare(e, "uge", "i32", index, sm.load("count"))):
            _end_round(e, sm, busy, at, idle, parked)
            e.jump(again)
        e.do(f"store i32 {e.value(f'add i32 {index}, 1')}, ptr {at}")
        slots = offset(e, "%sm", SM_SLOTS)
        block = e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {index}')}")
        setup = Record(e, block, HEADER).at("setup")
        empty = compare(e, "eq", "i32", load(e, "i32", setup), Setup.BLOCK)
        look, start, step = e.label("look"), e.label("start"), e.label("step")
        e.branch(empty, look, start)
        e.place(start)
        # Blocks that have left are reported at the end of the round: let no block delay that.
        check, released = e.label("check"), e.label("released")
        told = compare(e, "eq", "i32", sm.load("gone"), 0)
        begins = compare(e, "ne", "i32", sm.load("begins"), 0)
        e.branch(e.value(f"or i1 {told}, {begins}"), check, again)
        e.place(check)
        block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
        with e.when(compare(e, "ne", "i32", run_of(e, block_record).load("kill", "monotonic"), 0)):
            Record(e, block, HEADER).store("error", Failure.KILLED)
            _abort_block(e, sm, block, at, busy)
            e.jump(again)
        share = share_of(e, block_record)
        kept, several, ahead = e.label("kept"), e.label("several"), e.label("ahead")
        limited, paused, free = e.label("limited"), e.label("paused"), e.label("free")
        throttled = e.label("throttled")
        index = block_record.load("index", "monotonic")
        e.branch(compare(e, "eq", "i32", index, NONE), released, kept)
        e.place(released)
        may_run = e.value(f"call i1 @may_run_released(ptr %sm, ptr {block})")
        e.branch(may_run, step, throttled)
        e.place(throttled)
        share.store("throttled", 1)
        e.jump(again)
        e.place(kept)
        e.branch(compare(e, "eq", "i32", share.load("rate", "monotonic"), 0), free, limited)
        e.place(limited)
        e.branch(e.value(f"call i1 @is_paused(ptr {block})"), paused, free)
        e.place(paused)
        start_over(e, sm, share)
        e.jump(throttled)
        e.place(free)
        e.branch(compare(e, "eq", "i32", sm.load("shares"), 1), step, several)
        e.place(several)
        e.branch(e.value(f"call i1 @is_ahead(ptr %sm, ptr {share.pointer})"), ahead, step)
        e.place(ahead)
        e.do(f"store i1 true, ptr {busy}")  # another run's turn is due: do not back off
        e.jump(again)
        e.place(step)
        _step(e, sm, block, at, busy, again, parked)
        e.place(look)
        what = e.value(f"call i32 @next_block(ptr {block}, i1 false)")
        _apply_next_block(e, what, block, at, busy, again, parked)
    e.end("unreachable")
    e.finish()


def _drain_inbox(e: Emitter, sm: Record) -> None:
    """Add the blocks of the inbox, as the doorbell is set, or return if the SM must end."""
    e.do(f"atomicrmw xchg ptr {sm.at('doorbell')}, i32 0 seq_cst")
    with e.when(compare(e, "ne", "i32", sm.load("closing", "acquire"), 0)):
        e.end(f"ret i32 {CLOSING}")
    with e.loop() as (_, out):
        head = sm.load("inbox_head")
        more = e.label("more")
        e.branch(compare(e, "ne", "i32", head, sm.load("inbox_tail", "acquire")), more, out)
        e.place(more)
        place = e.value(f"and i32 {head}, {MAX_SLOTS - 1}")
        inbox = offset(e, "%sm", SM_INBOX)
        added = e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {inbox}, i32 {place}')}")
        enter_sm(e, sm, share_of(e, Record(e, offset(e, added, -BLOCK_BYTES), BLOCK)))
        count = sm.load("count")
        slots = offset(e, "%sm", SM_SLOTS)
        e.do(f"store ptr {added}, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {count}')}")
        sm.store("count", e.value(f"add i32 {count}, 1"))
        sm.store("inbox_head", e.value(f"add i32 {head}, 1"))


def _end_round(e: Emitter, sm: Record, busy: str, at: str, idle: str, parked: str) -> None:
    """Every block has had its turn."""
    begins = sm.load("begins")
    some = compare(e, "ne", "i32", begins, 0)
    less = e.value(f"sub i32 {begins}, 1")
    sm.store("begins", e.value(f"select i1 {some}, i32 {less}, i32 0"))
    with e.when(compare(e, "ne", "i32", sm.load("gone"), 0)):
        # Other blocks may need but one turn more to leave, and Python takes longer than that.
        waits = e.value(f"call i1 @standby_waits(ptr {sm.pointer})")
        kept = sm.load("kept")
        due = e.value(f"and i1 {waits}, {compare(e, 'ult', 'i32', kept, _MOST_KEPT)}")
        begun = compare(e, "ugt", "i32", begins, 1)
        present = compare(e, "ne", "i32", sm.load("count"), 0)
        first = e.value(f"and i1 {present}, {e.value(f'or i1 {due}, {begun}')}")
        with e.when(e.value(f"xor i1 {first}, true")):
            sm.store("kept", 0)
            sm.store("begins", 0)
            e.end(f"ret i32 {GONE}")
        sm.store("kept", e.value(f"add i32 {kept}, 1"))
        with e.when(due):
            sm.store("begins", 2)  # else no block has a turn
        e.do(f"store i1 true, ptr {busy}")  # do not sleep before Python was told
    with e.when(compare(e, "ne", "i32", sm.load("spinning"), 0)):
        sm.store("spinning", 0)
        e.end(f"ret i32 {SPINNING}")
    empty, some, over = e.label("empty"), e.label("some"), e.label("over")
    worked, polled = e.label("worked"), e.label("polled")
    e.branch(compare(e, "eq", "i32", sm.load("count"), 0), empty, some)
    e.place(empty)
    wait_for_doorbell(e, sm)
    e.jump(worked)
    e.place(some)
    e.branch(e.value(f"load i1, ptr {busy}"), worked, polled)
    e.place(worked)
    e.do(f"store i64 0, ptr {idle}")
    e.jump(over)
    e.place(polled)
    waits, polls = e.label("waits"), e.label("polls")
    count = e.value(f"load i32, ptr {parked}")
    e.branch(compare(e, "eq", "i32", count, sm.load("count")), waits, polls)
    e.place(waits)
    e.do(f"call void @wait_for_records(ptr {sm.pointer}, i64 0)")
    e.jump(worked)
    e.place(polls)
    back_off(e, sm, idle)
    e.jump(over)
    e.place(over)
    e.do(f"store i32 0, ptr {parked}")
    e.do(f"store i1 false, ptr {busy}")
    e.do(f"store i32 0, ptr {at}")


def _step(e: Emitter, sm: Record, block: str, at: str, busy: str, again: str, parked: str) -> None:
    """Run a block for one turn."""
    block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)

    def becomes(state: int) -> None:
        block_record.store("state", state)

    def was(state: int) -> str:
        return compare(e, "eq", "i32", block_record.load("state"), state)

    share = share_of(e, block_record)
    share.store("throttled", 0)
    turn = Turn(e, sm, share)
    result = e.value(f"call i32 @step(ptr {block})")
    turn.end()
    turn.charge(block_record)
    polls, done, failed, goes_on = (e.label(n) for n in ("polls", "done", "failed", "goes_on"))
    e.end(
        f"switch i32 {result}, label %{goes_on} [i32 {YIELDED}, label %{polls} "
        f"i32 {DONE}, label %{done} i32 {FAILED}, label %{failed}]"
    )
    e.place(polls)
    with e.when(was(BlockState.RUNS)):
        becomes(BlockState.POLLS)
        add(e, share.at("busy"), -1)
    e.do(f"call void @watch(ptr {sm.pointer}, ptr {block})")
    e.jump(again)
    e.place(goes_on)
    e.do(f"store i1 true, ptr {busy}")
    block_record.store("still_ns", 0)
    _detect_stall(e, sm, block_record, turn, becomes, was)
    e.jump(again)
    e.place(failed)
    _abort_block(e, sm, block, at, busy)
    e.jump(again)
    e.place(done)
    _end_block(e, block_record, block, busy)
    what = e.value(f"call i32 @next_block(ptr {block}, i1 true)")
    _apply_next_block(e, what, block, at, busy, again, parked)


def _end_block(e: Emitter, block_record: Record, block: str, busy: str) -> None:
    """Make a block idle: its kernel is done or was aborted."""
    e.do(f"store i1 true, ptr {busy}")
    with e.when(compare(e, "eq", "i32", block_record.load("state"), BlockState.RUNS)):
        add(e, share_of(e, block_record).at("busy"), -1)
    block_record.store("state", BlockState.IDLE)
    block_record.store("still_ns", 0)
    Record(e, block, HEADER).store("setup", Setup.BLOCK)


def _abort_block(e: Emitter, sm: Record, block: str, at: str, busy: str) -> None:
    """Have a block that failed or was killed leave, and all others of its run after it."""
    block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
    _end_block(e, block_record, block, busy)
    run = run_of(e, block_record)
    run.store("stop", 1, "seq_cst")
    run.store("kill", 1, "monotonic")
    block_record.store("reason", ExitReason.FAILED)
    e.do(f"call void @leave(ptr {sm.pointer}, ptr {block}, ptr {at})")


def _detect_stall(
    e: Emitter,
    sm: Record,
    block_record: Record,
    turn: Turn,
    becomes: Callable[[int], None],
    was: Callable[[int], str],
) -> None:
    """Find out whether a block may poll with barriers in between: its launch claims nothing."""
    launch = launch_of(e, run_of(e, block_record), block_record.load("launch"))
    claimed = launch.load("next", "monotonic")
    goes_on, stands, over = e.label("goes_on"), e.label("stands"), e.label("over")
    e.branch(compare(e, "ne", "i32", claimed, block_record.load("claimed")), goes_on, stands)
    e.place(goes_on)
    block_record.store("claimed", claimed)
    block_record.store("spent_ns", 0)
    with e.when(was(BlockState.POLLS)):
        becomes(BlockState.RUNS)
        mark_busy(e, sm, share_of(e, block_record))
    e.jump(over)
    e.place(stands)
    # Its own time: beside others a block may wait for longer than this.
    spent = e.value(f"add i64 {block_record.load('spent_ns')}, {turn.took()}")
    block_record.store("spent_ns", spent)
    long = compare(e, "ugt", "i64", spent, _STALL_NS)
    with e.when(e.value(f"and i1 {long}, {was(BlockState.RUNS)}")):
        becomes(BlockState.POLLS)
        add(e, share_of(e, block_record).at("busy"), -1)
    e.place(over)


def _apply_next_block(
    e: Emitter, what: str, block: str, at: str, busy: str, again: str, parked: str
) -> None:
    """Act on the result of ``@next_block``."""
    start, leave, park = e.label("start"), e.label("leave"), e.label("park")
    e.end(
        f"switch i32 {what}, label %{again} "
        f"[i32 {START}, label %{start} i32 {LEAVE}, label %{leave} i32 {PARK}, label %{park}]"
    )
    e.place(park)
    add(e, parked, 1)
    e.jump(again)
    e.place(start)
    e.do(f"store i1 true, ptr {busy}")  # the block's first turn is due: do not yield before
    block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
    block_record.store("state", BlockState.RUNS)
    mark_busy(e, Record(e, "%sm", SM), share_of(e, block_record))
    e.jump(again)
    e.place(leave)
    e.do(f"call void @leave(ptr %sm, ptr {block}, ptr {at})")
    e.jump(again)


def _define_leave(ir: IRModule) -> None:
    """Define ``void @leave(ptr %sm, ptr %b, ptr %at)``: remove the block of slot ``*%at - 1``."""
    e = Emitter(ir, "define internal void @leave(ptr %sm, ptr %b, ptr %at) nounwind")
    sm = Record(e, "%sm", SM)
    leave_sm(e, sm, share_of(e, block_record_of(e)))
    index = e.value(f"sub i32 {load(e, 'i32', '%at')}, 1")
    store(e, "i32", index, "%at")
    count = e.value(f"sub i32 {sm.load('count')}, 1")
    sm.store("count", count)
    slots = offset(e, "%sm", SM_SLOTS)
    last = e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {count}')}")
    e.do(f"store ptr {last}, ptr {e.value(f'getelementptr ptr, ptr {slots}, i32 {index}')}")
    gone = sm.load("gone")
    list_ = offset(e, "%sm", SM_GONE)
    e.do(f"store ptr %b, ptr {e.value(f'getelementptr ptr, ptr {list_}, i32 {gone}')}")
    sm.store("gone", e.value(f"add i32 {gone}, 1"))
    e.end("ret void")
    e.finish()


# -- called from Python ----------------------------------------------------------------------------


def _define_add(ir: IRModule) -> None:
    e = Emitter(ir, "define void @sm_add(ptr %sm, ptr %b, ptr %run, i32 %index)")
    sm, block_record, header = Record(e, "%sm", SM), block_record_of(e), header_of(e)
    number = sm.load("index")
    block_record.store("run", "%run")
    shares = offset(e, "%run", RUN_BYTES)
    skip = e.value(f"mul i64 {e.value(f'zext i32 {number} to i64')}, {SHARE_BYTES}")
    block_record.store("share", offset(e, shares, skip))
    block_record.store("index", "%index", "monotonic")
    for name in ("launch", "loaded", "number"):
        block_record.store(name, NONE)
    block_record.store("state", BlockState.IDLE)
    block_record.store("reason", ExitReason.OVER)
    block_record.store("polled", 0)
    block_record.store("still_ns", 0)
    header.store("smid", number)
    header.store("error", 0)
    header.store("setup", Setup.BLOCK)
    tail = sm.load("inbox_tail")
    place = e.value(f"and i32 {tail}, {MAX_SLOTS - 1}")
    inbox = offset(e, "%sm", SM_INBOX)
    e.do(f"store ptr %b, ptr {e.value(f'getelementptr ptr, ptr {inbox}, i32 {place}')}")
    sm.store("inbox_tail", e.value(f"add i32 {tail}, 1"), "release")
    e.do("call void @sm_wake(ptr %sm)")
    e.end("ret void")
    e.finish()
