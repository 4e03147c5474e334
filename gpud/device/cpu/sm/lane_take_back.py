"""Takes a lane's share back when a record comes, in native code.

Problem: while a lane lends its share, others' blocks fill its SMs. When a record comes, those of
the take-back plan must be told to leave before they claim another task block, and the lane's block
must begin as soon as they have left; Python takes longer for each than a short task block lasts.

Approach: Python keeps the plan as rows of memory, the blocks that are to leave, and one block of
the lane on each of its SMs, on *standby*: it takes no room there, and does not begin. The thread
that watches the lane sleeps here, outside the GIL. When a record comes it writes the words of each
row that a resize writes. A block on standby begins once no released block is left on its SM, and
Python hears after that of what has happened.

Properties:
* a plan is carried out once, and wholly: ``LANE.lent`` goes from `Lent.PLANNED` to `Lent.TAKING` to
  `Lent.TAKEN`, and Python, which changes blocks and plans, first takes it from `Lent.PLANNED` to
  `Lent.OPEN`;
* a block on standby begins only in room that Python has found for it, and after what had that room.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import HEADER, Setup
from gpud.device.cpu.abi.record_access import (
    Record,
    compare,
    load,
    offset,
    run_of,
    share_of,
    store,
)
from gpud.device.cpu.abi.records import (
    BLOCK,
    BLOCK_BYTES,
    CONTROL,
    LANE,
    NONE,
    SM,
    SM_SLOTS,
    Lent,
    Standby,
)
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.lane_records import lane_of, wide
from gpud.device.futex import (
    FUTEX_WAITV,
    NAP_NS,
    PRIVATE,
    PRIVATE_32,
    SHARED_32,
    futex,
    sleeps_on_several,
)
from gpud.wire import lane_ring as ring

__all__ = ["begin_on_standby", "define_take_back"]

_BEGIN_ROUNDS = 2
"""In the first a block on standby is given a task block, in the second it runs it."""

_LOOKS, _LOOK_NS = 10, 100_000
"""How often, and how long each time, Python waits for the launch that has woken a lane. Without
that the launch's first clock read came 130 to 260 us after it had begun, with it 2 to 3 us."""


def define_take_back(ir: IRModule) -> None:
    """Define ``@lane_wait``, ``@lane_change`` and ``@standby_waits``."""
    _define_take(ir)
    _define_wait(ir)
    _define_change(ir)
    _define_has_released(ir)
    _define_waits(ir)


def begin_on_standby(
    e: Emitter, block_record: Record, lane: Record, sm_index: str, park: str, leave: str
) -> None:
    """Let a block on standby go on if it may begin; else go to ``park`` or ``leave``."""
    share = share_of(e, block_record)
    stays, taken, begins = e.label("stays"), e.label("taken"), e.label("begins")
    e.branch(compare(e, "ne", "i32", lane.load("retire", "acquire"), 0), leave, stays)
    e.place(stays)
    e.branch(_has_room(e, share.load("standby", "acquire"), lane), taken, park)
    e.place(taken)
    place = e.value(f"getelementptr ptr, ptr {lane.load('sms')}, i32 {sm_index}")
    sm = Record(e, load(e, "ptr", place), SM)
    e.branch(e.value(f"call i1 @has_released(ptr {sm.pointer})"), park, begins)
    e.place(begins)
    share.store("standby", Standby.NO, "release")
    sm.store("begins", _BEGIN_ROUNDS)


def _define_take(ir: IRModule) -> None:
    """Define ``void @lane_take(ptr %lane)``: carry out the plan, if there is one."""
    e = Emitter(ir, "define internal void @lane_take(ptr %lane)")
    lane = Record(e, "%lane", LANE)
    held = e.value(
        f"cmpxchg ptr {lane.at('lent')}, i32 {Lent.PLANNED}, i32 {Lent.TAKING} seq_cst monotonic"
    )
    mine = e.value(f"extractvalue {{ i32, i1 }} {held}, 1")
    with e.when(e.value(f"xor i1 {mine}, true")):
        e.end("ret void")
    rows = lane.load("rows")
    with e.count("0", lane.load("row_count")) as index:
        block = load(e, "ptr", e.value(f"getelementptr ptr, ptr {rows}, i32 {index}"))
        block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
        # In this order, see `gpud.device.cpu.scheduling.run`.
        block_record.store("index", NONE, "seq_cst")
        store(e, "i32", 0, offset(e, block_record.pointer, CONTROL + cw.STAYS), "seq_cst")
    lane.store("lent", Lent.TAKEN, "seq_cst")
    sms = lane.load("sms")
    with e.count("0", lane.load("sm_count")) as index:
        sm = load(e, "ptr", e.value(f"getelementptr ptr, ptr {sms}, i32 {index}"))
        e.do(f"call void @sm_wake(ptr {sm})")
    e.end("ret void")
    e.finish()


def _define_wait(ir: IRModule) -> None:
    """Define ``void @lane_wait(ptr %lane, ptr %bell)``, see `NativeLoop.wait`."""
    e = Emitter(ir, "define void @lane_wait(ptr %lane, ptr %bell)")
    lane = Record(e, "%lane", LANE)
    waiters = e.alloca("[48 x i8]", "waiters")
    time = e.alloca("[2 x i64]", "nap")
    with e.loop() as (again, _):
        with e.when(compare(e, "ne", "i32", load(e, "i32", "%bell", "acquire"), 0)):
            e.end("ret void")
        shared, tail = lane.load("ring"), lane.load("tail", "acquire")
        record = compare(e, "ne", "i32", load(e, "i32", shared, "acquire"), tail)
        # A block may have read a record just before it left.
        launch = compare(e, "ne", "i32", lane.load("current", "acquire"), NONE)
        with e.when(e.value(f"or i1 {record}, {launch}")):
            e.do("call void @lane_take(ptr %lane)")
            _linger(e, lane, time)
            e.end("ret void")
        listening = offset(e, shared, ring.LISTENING)
        e.do(f"atomicrmw add ptr {listening}, i32 1 seq_cst")
        if sleeps_on_several():
            for at, word, value, flags in (
                (0, shared, wide(e, tail), SHARED_32),
                (24, "%bell", "0", PRIVATE_32),
            ):
                store(e, "i64", value, offset(e, waiters, at))
                store(e, "ptr", word, offset(e, waiters, at + 8))
                store(e, "i32", flags, offset(e, waiters, at + 16))
                store(e, "i32", 0, offset(e, waiters, at + 20))
            e.do(
                f"call i64 (i64, ...) @syscall(i64 {FUTEX_WAITV}, ptr {waiters}, "
                "i64 2, i64 0, ptr null, i64 0)"
            )
        else:
            store(e, "i64", 0, time)
            store(e, "i64", NAP_NS, offset(e, time, 8))
            e.do(
                f"call i64 (i64, ...) @syscall(i64 {futex()}, ptr {shared}, i64 0, "
                f"i64 {wide(e, tail)}, ptr {time})"
            )
        e.do(f"atomicrmw sub ptr {listening}, i32 1 seq_cst")
        e.jump(again)
    e.end("unreachable")
    e.finish()


def _linger(e: Emitter, lane: Record, time: str) -> None:
    """Wait until the launches that have woken a lane have ended, or for a time.

    Python would take the core from the SM's thread, or from the client's.
    """
    with e.count("0", str(_LOOKS)):
        going = e.label("going")
        over = e.label("over")
        taken = compare(e, "eq", "i32", lane.load("lent", "acquire"), Lent.TAKEN)
        none = compare(e, "eq", "i32", lane.load("current", "acquire"), NONE)
        head = load(e, "i32", lane.load("ring"), "acquire")
        read = compare(e, "eq", "i32", lane.load("tail", "acquire"), head)
        ended = e.value(f"and i1 {none}, {read}")
        early = e.value(f"xor i1 {ended}, true")
        e.branch(e.value(f"and i1 {taken}, {early}"), going, over)
        e.place(over)
        e.end("ret void")
        e.place(going)
        store(e, "i64", 0, time)
        store(e, "i64", _LOOK_NS, offset(e, time, 8))
        e.do(
            f"call i64 (i64, ...) @syscall(i64 {futex()}, ptr %bell, i64 {PRIVATE}, i64 0, "
            f"ptr {time})"
        )


def _define_change(ir: IRModule) -> None:
    """Define ``i32 @lane_change(ptr %lane, i32 %from, i32 %to)``, see `NativeLoop.change`."""
    e = Emitter(ir, "define i32 @lane_change(ptr %lane, i32 %from, i32 %to)")
    lent = Record(e, "%lane", LANE).at("lent")
    with e.loop() as (again, _):
        held = e.value(f"cmpxchg ptr {lent}, i32 %from, i32 %to seq_cst seq_cst")
        was = e.value(f"extractvalue {{ i32, i1 }} {held}, 0")
        wait, over = e.label("wait"), e.label("over")
        e.branch(compare(e, "eq", "i32", was, Lent.TAKING), wait, over)
        e.place(wait)
        e.do("call i32 @sched_yield()")
        e.jump(again)
        e.place(over)
        e.end(f"ret i32 {was}")
    e.end("unreachable")
    e.finish()


def _define_has_released(ir: IRModule) -> None:
    """Define ``i1 @has_released(ptr %sm)``: whether an SM has a block that is to leave."""
    e = Emitter(ir, "define internal i1 @has_released(ptr %sm) nounwind")
    with e.count("0", Record(e, "%sm", SM).load("count")) as index:
        block_record = Record(e, offset(e, _slot(e, index), -BLOCK_BYTES), BLOCK)
        gone = compare(e, "eq", "i32", block_record.load("index", "monotonic"), NONE)
        with e.when(gone):
            e.end("ret i1 true")
    e.end("ret i1 false")
    e.finish()


def _define_waits(ir: IRModule) -> None:
    """Define ``i1 @standby_waits(ptr %sm)``: whether one on standby waits for others to leave."""
    e = Emitter(ir, "define internal i1 @standby_waits(ptr %sm) nounwind")
    found = e.alloca("i1", "found")
    store(e, "i1", "false", found)
    with e.count("0", Record(e, "%sm", SM).load("count")) as index:
        block = _slot(e, index)
        block_record = Record(e, offset(e, block, -BLOCK_BYTES), BLOCK)
        standby = share_of(e, block_record).load("standby", "acquire")
        with e.when(compare(e, "uge", "i32", standby, Standby.READY)):
            lane = lane_of(e, run_of(e, block_record))
            taken = _has_room(e, standby, lane)
            goes_on = compare(e, "eq", "i32", lane.load("retire", "acquire"), 0)
            idle = compare(
                e, "eq", "i32", load(e, "i32", Record(e, block, HEADER).at("setup")), Setup.BLOCK
            )
            with e.when(e.value(f"and i1 {e.value(f'and i1 {taken}, {goes_on}')}, {idle}")):
                store(e, "i1", "true", found)
    e.end(f"ret i1 {load(e, 'i1', found)}")
    e.finish()


def _has_room(e: Emitter, standby: str, lane: Record) -> str:
    """Return whether a block on standby has room, but for blocks that are to leave."""
    ready = compare(e, "eq", "i32", standby, Standby.READY)
    taken = compare(e, "eq", "i32", lane.load("lent", "acquire"), Lent.TAKEN)
    leaving = compare(e, "eq", "i32", standby, Standby.LEAVING)
    return e.value(f"or i1 {e.value(f'and i1 {ready}, {taken}')}, {leaving}")


def _slot(e: Emitter, index: str) -> str:
    """Return the block in a slot of the SM ``%sm``."""
    slots = offset(e, "%sm", SM_SLOTS)
    return load(e, "ptr", e.value(f"getelementptr ptr, ptr {slots}, i32 {index}"))
