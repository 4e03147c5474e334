"""Launches of a lane, in native code: read from its ring, begun, and reported in it.

Problem: between a client's record in the ring (`gpud.wire.lane_ring`) and the first task block, and
between the last one and the completion, no Python must run; and the ring is written by a stranger,
at any time.

Approach: the persistent blocks of a lane stay on their SMs. One that has nothing to run reads the
next record, on its SM's thread: it copies the record, checks the copy, makes a `LAUNCH` of it, and
wakes the lane's other SMs if there is work for them. The block that has run the last task block
writes the completion, and reads the next record. What is rare is left to Python: a launch that
fails, prints, or is cancelled makes all blocks of the lane leave.

Terms: a *user* of a `LAUNCH` is a block that may read or write it; there are `LANE_LAUNCHES` of
them, used in turn, and one with users is not used again.

Properties:
* launches of a lane begin in the order of their numbers, each after the one before is reported;
* whatever is in the ring, and however it changes, no memory but the ring and the lane's own records
  is accessed, and the reading of a record ends;
* a record that breaks a rule ends its lane: ``error`` says which, and nothing more is read;
* an SM's thread that sleeps while the lane has no launch is woken by the next record.
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import (
    Record,
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
    LANE,
    LANE_COPY,
    LANE_LAUNCHES,
    NONE,
    RUN,
    RUN_BYTES,
    SHARE,
    SHARE_BYTES,
    ClaimMode,
)
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.lane_records import copy, define_accept, lane_of, slot_address, wide
from gpud.device.cpu.sm.lane_take_back import begin_on_standby
from gpud.device.cpu.sm.next_block import LEAVE, PARK, START, is_active, leave_if_released
from gpud.device.futex import FUTEX_WAKE, futex
from gpud.device.lane_reports import RingError
from gpud.wire import lane_ring as ring

__all__ = ["define_lane_launches"]


def define_lane_launches(ir: IRModule) -> None:
    """Define ``i32 @next_lane_block(ptr %b, i1 %ended)``: `@next_block` of a lane's blocks."""
    _define_report(ir)
    _define_ring_sms(ir)
    define_accept(ir)
    _define_pull(ir)
    _define_next_lane_block(ir)


# -- completions -----------------------------------------------------------------------------------


def _define_report(ir: IRModule) -> None:
    """Define ``void @lane_report(ptr %lane, ptr %run, i32 %number, i32 %status)``.

    It writes the completion of a launch, the latest one that was accepted, and wakes its client if
    that waits for it and was not woken for it before. Nothing that the client writes is changed: it
    could be about to sleep again. Also called from Python, when the lane has no blocks.
    """
    e = Emitter(ir, "define void @lane_report(ptr %lane, i64 %began, i32 %number, i32 %status)")
    lane = Record(e, "%lane", LANE)
    shared = lane.load("ring")
    one = _completion(e, shared, "%number")
    store(e, "i32", "%number", one)
    share = e.value(f"shl i32 {lane.load('slices', 'monotonic')}, {ring.SLICES_SHIFT}")
    store(e, "i32", e.value(f"or i32 %status, {share}"), offset(e, one, 4))
    store(e, "i64", lane.load("accepted_ns"), offset(e, one, 8))
    store(e, "i64", "%began", offset(e, one, 16))
    store(e, "i64", e.value("call i64 @now()"), offset(e, one, 24))
    following = e.value("add i32 %number, 1")
    store(e, "i32", following, offset(e, shared, ring.BEGUN), "release")
    completed = offset(e, shared, ring.COMPLETED)
    store(e, "i32", following, completed, "seq_cst")
    e.do("fence seq_cst")
    wanted = load(e, "i32", offset(e, shared, ring.WANTED), "monotonic")
    with e.when(compare(e, "ne", "i32", wanted, lane.load("woken"))):
        ahead = e.value(f"sub i32 {following}, {wanted}")
        with e.when(compare(e, "sge", "i32", ahead, 0)):
            lane.store("woken", wanted)
            e.do(
                f"call i64 (i64, ...) @syscall(i64 {futex()}, ptr {completed}, "
                f"i64 {FUTEX_WAKE}, i64 2147483647)"
            )
    e.end("ret void")
    e.finish()


def _completion(e: Emitter, shared: str, number: str) -> str:
    """Return the address of the completion of a launch."""
    place = wide(e, e.value(f"and i32 {number}, {ring.SLOTS - 1}"))
    at = e.value(f"mul i64 {place}, {ring.COMPLETION_BYTES}")
    return offset(e, shared, e.value(f"add i64 {at}, {ring.COMPLETIONS_AT}"))


# -- records ---------------------------------------------------------------------------------------


def _define_ring_sms(ir: IRModule) -> None:
    """Define ``void @ring_sms(ptr %lane, ptr %run, i32 %self)``: wake the lane's other SMs."""
    e = Emitter(ir, "define internal void @ring_sms(ptr %lane, ptr %run, i32 %self)")
    lane = Record(e, "%lane", LANE)
    sms = lane.load("sms")
    with e.count("0", lane.load("sm_count")) as index:
        skip = e.value(f"mul i64 {wide(e, index)}, {SHARE_BYTES}")
        share = Record(e, offset(e, offset(e, "%run", RUN_BYTES), skip), SHARE)
        has = compare(e, "ne", "i32", load(e, "i32", share.at("blocks"), "monotonic"), 0)
        other = compare(e, "ne", "i32", index, "%self")
        with e.when(e.value(f"and i1 {has}, {other}")):
            sm = load(e, "ptr", e.value(f"getelementptr ptr, ptr {sms}, i32 {index}"))
            e.do(f"call void @sm_wake(ptr {sm})")
    e.end("ret void")
    e.finish()


def _define_pull(ir: IRModule) -> None:
    """Define ``i1 @lane_pull(ptr %lane, ptr %run, i32 %self)``: make the next launch current.

    It returns whether there is a current launch; another thread may be making one.
    """
    e = Emitter(ir, "define internal i1 @lane_pull(ptr %lane, ptr %run, i32 %self)")
    lane, run = Record(e, "%lane", LANE), Record(e, "%run", RUN)
    # Most blocks that ask find nothing. What comes now is seen by who goes to sleep.
    head = load(e, "i32", lane.load("ring"), "acquire")
    with e.when(compare(e, "eq", "i32", head, lane.load("tail", "acquire"))):
        e.end("ret i1 false")
    held = e.value(f"cmpxchg ptr {lane.at('pulling')}, i32 0, i32 1 acquire monotonic")
    mine, other = e.label("mine"), e.label("other")
    e.branch(e.value(f"extractvalue {{ i32, i1 }} {held}, 1"), mine, other)
    e.place(other)
    e.end("ret i1 false")

    def leave(found: str) -> None:
        lane.store("pulling", 0, "release")
        e.end(f"ret i1 {found}")

    e.place(mine)
    with e.when(compare(e, "ne", "i32", lane.load("current", "acquire"), NONE)):
        leave("true")
    shared = lane.load("ring")
    with e.loop() as (again, _):
        with e.when(compare(e, "ne", "i32", lane.load("retire", "acquire"), 0)):
            leave("false")
        at = lane.load("next_launch")
        launch = launch_of(e, run, at)
        with e.when(compare(e, "ne", "i32", launch.load("users", "acquire"), 0)):
            leave("false")
        tail = lane.load("tail")
        there = e.value(f"sub i32 {load(e, 'i32', shared, 'acquire')}, {tail}")
        with e.when(compare(e, "eq", "i32", there, 0)):
            leave("false")
        with e.when(compare(e, "ugt", "i32", there, ring.SLOTS)):
            lane.store("wrong", there)
            lane.store("error", RingError.HEAD)
            lane.store("retire", 1, "seq_cst")
            e.do("call void @ring_sms(ptr %lane, ptr %run, i32 %self)")
            leave("false")
        copy(e, offset(e, "%lane", LANE_COPY), slot_address(e, shared, tail), 128, volatile=True)
        taken = e.value(f"call i32 @lane_accept(ptr %lane, ptr %run, i32 {at}, i32 {there})")
        with e.when(compare(e, "eq", "i32", taken, 0)):
            e.do("call void @ring_sms(ptr %lane, ptr %run, i32 %self)")
            leave("false")
        lane.store("tail", e.value(f"add i32 {tail}, {taken}"), "release")
        store(e, "i32", lane.load("tail"), offset(e, shared, ring.TAIL), "release")
        number = lane.load("number")
        # Who cancels a launch writes `skip` and then reads this, and here it is the other way.
        lane.store("number", e.value(f"add i32 {number}, 1"), "seq_cst")
        now = e.value("call i64 @now()")
        lane.store("accepted_ns", now)
        store(e, "i64", now, offset(e, _completion(e, shared, number), 8))
        run.store("first_ns", 0, "monotonic")
        turn = e.value(f"and i32 {e.value(f'add i32 {at}, 1')}, {LANE_LAUNCHES - 1}")
        lane.store("next_launch", turn)
        following = e.value(f"add i32 {number}, 1")
        copied = offset(e, "%lane", LANE_COPY)
        lane.store("limit_ms", load(e, "i32", offset(e, copied, ring.LIMIT_AT)), "monotonic")
        flags = load(e, "i32", offset(e, copied, ring.FLAGS_AT))
        with e.when(compare(e, "eq", "i32", e.value(f"and i32 {flags}, 1"), 0)):
            lane.store("job_ns", now, "monotonic")
            seen = e.value(f"lshr i32 {flags}, 1")
            missed = compare(e, "ne", "i32", seen, lane.load("failures"))
            matters = compare(e, "ne", "i32", seen, ring.EVERY)
            stops = e.value(f"and i1 {missed}, {matters}")
            lane.store("broken", e.value(f"zext i1 {stops} to i32"))
        told = compare(e, "eq", "i32", lane.load("skip", "seq_cst"), following)
        broken = compare(e, "ne", "i32", lane.load("broken"), 0)
        with e.when(e.value(f"or i1 {told}, {broken}")):  # Python reports that it did not begin
            lane.store("skipped", 1)
            lane.store("unreported", following)
            lane.store("retire", 1, "seq_cst")
            e.do("call void @ring_sms(ptr %lane, ptr %run, i32 %self)")
            leave("false")
        store(e, "i32", following, offset(e, shared, ring.BEGUN), "release")
        lane.store("current", at, "seq_cst")
        lane.store("pulling", 0, "release")
        with e.when(compare(e, "ugt", "i32", launch.load("total"), 1)):
            e.do("call void @ring_sms(ptr %lane, ptr %run, i32 %self)")
        e.end("ret i1 true")
        _ = again
    e.end("unreachable")
    e.finish()


# -- blocks ----------------------------------------------------------------------------------------


def _define_next_lane_block(ir: IRModule) -> None:
    e = Emitter(ir, "define internal i32 @next_lane_block(ptr %b, i1 %ended)")
    block_record, header = block_record_of(e), header_of(e)
    run = run_of(e, block_record)
    lane = lane_of(e, run)
    self_ = header.load("smid")
    with e.when("%ended"):
        _end(e, block_record, run, lane)
    with e.loop() as (again, _):
        park, leave = e.label("park"), e.label("leave")
        leave_if_released(e, block_record, run, leave)
        with e.when(compare(e, "ne", "i32", share_of(e, block_record).load("standby"), 0)):
            begin_on_standby(e, block_record, lane, self_, park, leave)
        none, some = e.label("none"), e.label("some")
        current = lane.load("current", "acquire")
        e.branch(compare(e, "eq", "i32", current, NONE), none, some)
        e.place(none)
        read = e.label("read")
        e.branch(compare(e, "ne", "i32", lane.load("retire", "acquire"), 0), leave, read)
        e.place(read)
        call = f"call i1 @lane_pull(ptr {lane.pointer}, ptr {run.pointer}, i32 {self_})"
        pulled, nothing = e.value(call), e.label("nothing")
        e.branch(pulled, again, nothing)
        e.place(nothing)
        retired = compare(e, "ne", "i32", lane.load("retire", "acquire"), 0)
        e.branch(retired, again, park)
        e.place(some)
        launch = launch_of(e, run, current)
        busy = compare(e, "ne", "i32", share_of(e, block_record).load("busy"), 0)
        claimed = compare(
            e, "uge", "i32", launch.load("next", "monotonic"), launch.load("total", "monotonic")
        )
        usable, entered, mine = e.label("usable"), e.label("entered"), e.label("mine")
        e.branch(e.value(f"or i1 {claimed}, {busy}"), park, usable)
        e.place(usable)
        e.do(f"atomicrmw add ptr {launch.at('users')}, i32 1 seq_cst")
        back = e.label("back")
        still = compare(e, "eq", "i32", lane.load("current", "seq_cst"), current)
        e.branch(still, entered, back)
        e.place(back)
        e.do(f"atomicrmw sub ptr {launch.at('users')}, i32 1 seq_cst")
        e.jump(again)
        e.place(entered)
        rest = e.label("rest")
        e.branch(is_active(e, block_record, run, launch), mine, rest)
        e.place(rest)
        e.do(f"atomicrmw sub ptr {launch.at('users')}, i32 1 seq_cst")
        e.jump(park)
        e.place(mine)
        number = launch.load("number")
        with e.when(compare(e, "ne", "i32", block_record.load("number"), number)):
            block_record.store("number", number)
            block_record.store("loaded", NONE)
            block_record.store("still_ns", 0)
        begun = e.value(f"call i1 @begin(ptr %b, ptr {launch.pointer}, i32 {current})")
        start = e.label("start")
        e.branch(begun, start, back)
        e.place(start)
        e.end(f"ret i32 {START}")
        e.place(park)
        e.end(f"ret i32 {PARK}")
        e.place(leave)
        e.end(f"ret i32 {LEAVE}")
    e.end("unreachable")
    e.finish()


def _end(e: Emitter, block_record: Record, run: Record, lane: Record) -> None:
    """Count the task block that has ended; report the launch if it was its last."""
    at = block_record.load("launch")
    launch = launch_of(e, run, at)
    with e.when(compare(e, "eq", "i32", launch.load("mode"), ClaimMode.LOOP)):
        e.do(f"atomicrmw add ptr {launch.at('done')}, i32 1 acq_rel")
    e.do("fence acq_rel")
    number = launch.load("number")
    over = e.alloca("i1", "over")
    e.do(f"store i1 false, ptr {over}")
    total = launch.load("total")
    with e.when(compare(e, "eq", "i32", launch.load("done", "acquire"), total)):
        # While this block is a user the record is not used again, so only one can succeed.
        more = e.value(f"add i32 {total}, 1")
        was = e.value(f"cmpxchg ptr {launch.at('done')}, i32 {total}, i32 {more} seq_cst monotonic")
        e.do(f"store i1 {e.value(f'extractvalue {{ i32, i1 }} {was}, 1')}, ptr {over}")
    # Reported while it is still current: another SM's thread would begin the next launch, which
    # could be reported first.
    with e.when(e.value(f"load i1, ptr {over}")):
        silent, printed, reported = e.label("silent"), e.label("printed"), e.label("reported")
        e.branch(compare(e, "eq", "i32", lane.load("printed", "acquire"), 0), silent, printed)
        e.place(printed)
        lane.store("unreported", e.value(f"add i32 {number}, 1"))
        lane.store("retire", 1, "seq_cst")
        lane.store("current", NONE, "seq_cst")
        self_ = header_of(e).load("smid")
        e.do(f"call void @ring_sms(ptr {lane.pointer}, ptr {run.pointer}, i32 {self_})")
        e.jump(reported)
        e.place(silent)
        began = run.load("first_ns", "monotonic")
        e.do(
            f"call void @lane_report(ptr {lane.pointer}, i64 {began}, i32 {number}, "
            f"i32 {ring.DONE})"
        )
        lane.store("current", NONE, "seq_cst")
        e.jump(reported)
        e.place(reported)
    e.do(f"atomicrmw sub ptr {launch.at('users')}, i32 1 seq_cst")
