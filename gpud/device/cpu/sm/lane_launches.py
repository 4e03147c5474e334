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

from gpud.compiler.abi import control_words as cw
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
    BLOCK,
    BLOCK_BYTES,
    LANE,
    LANE_COPY,
    LANE_LAUNCHES,
    LAUNCH_BYTES,
    NONE,
    RUN,
    RUN_BYTES,
    SHARE,
    SHARE_BYTES,
    SM_SLOTS,
    ClaimMode,
    RingError,
)
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.sm.idle import FUTEX_WAKE, futex
from gpud.device.cpu.sm.next_block import LEAVE, PARK, START, is_active, leave_if_released
from gpud.wire import lane_ring as ring

__all__ = ["FUTEX_WAITV", "PRIVATE_32", "SHARED_32", "define_lane_launches", "wait_for_records"]

FUTEX_WAITV = 449  # the same on every machine
PRIVATE_32, SHARED_32 = 2 | 128, 2  # flags of futex_waitv
_WAITER_BYTES = 24
_MOST_LANES = 64  # that an SM's thread waits for: one for each slot


def define_lane_launches(ir: IRModule) -> None:
    """Define ``i32 @next_lane_block(ptr %b, i1 %ended)``: `@next_block` of a lane's blocks."""
    ir.declare("declare i32 @llvm.ctlz.i32(i32, i1)")
    _define_report(ir)
    _define_ring_sms(ir)
    _define_divide(ir)
    _define_accept(ir)
    _define_pull(ir)
    _define_next_lane_block(ir)


def _lane_of(e: Emitter, run: Record) -> Record:
    return Record(e, run.load("lane"), LANE)


def _wide(e: Emitter, value: str) -> str:
    return e.value(f"zext i32 {value} to i64")


def _copy(e: Emitter, target: str, source: str, size: object, *, volatile: bool = False) -> None:
    flag = "true" if volatile else "false"
    e.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 {flag})")


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
    place = _wide(e, e.value(f"and i32 %number, {ring.SLOTS - 1}"))
    at = e.value(f"mul i64 {place}, {ring.COMPLETION_BYTES}")
    one = offset(e, shared, e.value(f"add i64 {at}, {ring.COMPLETIONS_AT}"))
    store(e, "i32", "%number", one)
    store(e, "i32", "%status", offset(e, one, 4))
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


# -- records ---------------------------------------------------------------------------------------


def _define_ring_sms(ir: IRModule) -> None:
    """Define ``void @ring_sms(ptr %lane, ptr %run, i32 %self)``: wake the lane's other SMs."""
    e = Emitter(ir, "define internal void @ring_sms(ptr %lane, ptr %run, i32 %self)")
    lane = Record(e, "%lane", LANE)
    sms = lane.load("sms")
    with e.count("0", lane.load("sm_count")) as index:
        skip = e.value(f"mul i64 {_wide(e, index)}, {SHARE_BYTES}")
        share = Record(e, offset(e, offset(e, "%run", RUN_BYTES), skip), SHARE)
        has = compare(e, "ne", "i32", load(e, "i32", share.at("blocks"), "monotonic"), 0)
        other = compare(e, "ne", "i32", index, "%self")
        with e.when(e.value(f"and i1 {has}, {other}")):
            sm = load(e, "ptr", e.value(f"getelementptr ptr, ptr {sms}, i32 {index}"))
            e.do(f"call void @sm_wake(ptr {sm})")
    e.end("ret void")
    e.finish()


def _define_divide(ir: IRModule) -> None:
    """Define ``void @put_divider(ptr %at, i32 %by)``: see `gpud.compiler.abi.fast_division`."""
    e = Emitter(ir, "define internal void @put_divider(ptr %at, i32 %by) nounwind")
    zeros = e.value(f"call i32 @llvm.ctlz.i32(i32 {e.value('sub i32 %by, 1')}, i1 false)")
    shift = e.value(f"sub i32 32, {zeros}")
    power = e.value(f"shl i64 1, {_wide(e, e.value(f'add i32 31, {shift}'))}")
    quotient = e.value(f"udiv i64 {power}, {_wide(e, '%by')}")
    multiplier = e.value(f"trunc i64 {e.value(f'add i64 {quotient}, 1')} to i32")
    store(e, "i32", multiplier, "%at")
    store(e, "i32", shift, offset(e, "%at", 4))
    e.end("ret void")
    e.finish()


def _define_accept(ir: IRModule) -> None:
    """Define ``i32 @lane_accept(ptr %lane, ptr %run, i32 %at, i32 %there)``.

    It checks the launch record that was copied, of ``%there`` slots that are written, and makes the
    run's `LAUNCH` ``%at`` of it. It returns how many slots the record takes; 0 if it is wrong.
    """
    e = Emitter(ir, "define internal i32 @lane_accept(ptr %lane, ptr %run, i32 %at, i32 %there)")
    lane, run = Record(e, "%lane", LANE), Record(e, "%run", RUN)
    copied = offset(e, "%lane", LANE_COPY)

    def field(at: int) -> str:
        return load(e, "i32", offset(e, copied, at))

    def refuse_if(wrong: str, error: int, value: str) -> None:
        with e.when(wrong):
            lane.store("wrong", value)
            lane.store("error", error)
            lane.store("retire", 1, "seq_cst")
            e.end("ret i32 0")

    number, site, size = field(0), field(4), field(20)
    grid = [field(8 + 4 * axis) for axis in range(3)]
    refuse_if(compare(e, "ne", "i32", number, lane.load("number")), RingError.NUMBER, number)
    known = lane.load("site_count", "acquire")
    refuse_if(compare(e, "uge", "i32", site, known), RingError.SITE, site)
    skip = e.value(f"mul i64 {_wide(e, site)}, {LAUNCH_BYTES}")
    image = offset(e, lane.load("sites"), skip)
    launch = launch_of(e, run, "%at")
    params_at = launch.load("params")
    # Of the present site, not of the record: what is copied depends on nothing that is shared.
    own = load(e, "i32", offset(e, image, launch.fields["users"][0]))
    refuse_if(compare(e, "ne", "i32", size, own), RingError.SIZE, size)
    for extent in grid:
        most = compare(e, "ugt", "i32", extent, cw.MAX_TASK_BLOCKS)
        none = compare(e, "eq", "i32", extent, 0)
        refuse_if(e.value(f"or i1 {most}, {none}"), RingError.GRID, extent)
    plane = e.value(f"mul i64 {_wide(e, grid[0])}, {_wide(e, grid[1])}")
    refuse_if(compare(e, "ugt", "i64", plane, cw.MAX_TASK_BLOCKS), RingError.GRID, grid[1])
    every = e.value(f"mul i64 {plane}, {_wide(e, grid[2])}")
    refuse_if(compare(e, "ugt", "i64", every, cw.MAX_TASK_BLOCKS), RingError.GRID, grid[2])
    total = e.value(f"trunc i64 {every} to i32")
    inline = compare(e, "ule", "i32", own, ring.INLINE_BYTES)
    rest = e.value(f"sub i32 {own}, {ring.INLINE_BYTES}")
    above = e.value(f"udiv i32 {e.value(f'add i32 {rest}, {ring.SLOT_BYTES - 1}')}, 128")
    more = e.value(f"select i1 {inline}, i32 0, i32 {above}")
    slots = e.value(f"add i32 {more}, 1")
    refuse_if(compare(e, "ugt", "i32", slots, "%there"), RingError.CUT, slots)

    # Not the users: a late block may be counting itself just now, and out again.
    _copy(e, launch.pointer, image, launch.fields["users"][0])
    launch.store("params", params_at)
    launch.store("number", number)
    launch.store("total", total)
    launch.store("width", total)
    launch.store("height", 1)
    for axis, extent in enumerate(grid):
        store(e, "i32", extent, offset(e, launch.pointer, cw.GRID + 4 * axis))
    flat = compare(e, "eq", "i64", every, _wide(e, grid[0]))
    flags = e.value(f"select i1 {flat}, i32 {cw.ONE_DIMENSIONAL}, i32 0")
    store(e, "i32", flags, offset(e, launch.pointer, cw.FLAGS))
    for axis, at in enumerate((cw.X_DIVIDER, cw.Y_DIVIDER)):
        to = offset(e, launch.pointer, at)
        e.do(f"call void @put_divider(ptr {to}, i32 {grid[axis]})")
    params = offset(e, "%run", params_at)
    first = e.value(f"select i1 {inline}, i32 {own}, i32 {ring.INLINE_BYTES}")
    _copy(e, params, offset(e, copied, ring.INLINE_AT), _wide(e, first))
    with e.count("0", more) as index:
        second = e.value(f"add i32 {lane.load('tail')}, 1")
        place = e.value(f"add i32 {second}, {index}")
        source = _slot(e, lane.load("ring"), place)
        done = e.value(f"mul i32 {index}, {ring.SLOT_BYTES}")
        left = e.value(f"sub i32 {rest}, {done}")
        last = compare(e, "ult", "i32", left, ring.SLOT_BYTES)
        part = e.value(f"select i1 {last}, i32 {left}, i32 {ring.SLOT_BYTES}")
        to = offset(e, params, _wide(e, e.value(f"add i32 {done}, {ring.INLINE_BYTES}")))
        _copy(e, to, source, _wide(e, part), volatile=True)
    lane.store("site", site)
    e.end(f"ret i32 {slots}")
    e.finish()


def _slot(e: Emitter, shared: str, number: str) -> str:
    """Return the address of a slot of the ring, by its count."""
    place = _wide(e, e.value(f"and i32 {number}, {ring.SLOTS - 1}"))
    skip = e.value(f"mul i64 {place}, {ring.SLOT_BYTES}")
    return offset(e, shared, e.value(f"add i64 {skip}, {ring.SLOTS_AT}"))


def _define_pull(ir: IRModule) -> None:
    """Define ``i1 @lane_pull(ptr %lane, ptr %run, i32 %self)``: make the next launch current.

    It returns whether there is a current launch; another thread may be making one.
    """
    e = Emitter(ir, "define internal i1 @lane_pull(ptr %lane, ptr %run, i32 %self)")
    lane, run = Record(e, "%lane", LANE), Record(e, "%run", RUN)
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
        _copy(e, offset(e, "%lane", LANE_COPY), _slot(e, shared, tail), 128, volatile=True)
        taken = e.value(f"call i32 @lane_accept(ptr %lane, ptr %run, i32 {at}, i32 {there})")
        with e.when(compare(e, "eq", "i32", taken, 0)):
            e.do("call void @ring_sms(ptr %lane, ptr %run, i32 %self)")
            leave("false")
        lane.store("tail", e.value(f"add i32 {tail}, {taken}"), "release")
        store(e, "i32", lane.load("tail"), offset(e, shared, ring.TAIL), "release")
        number = lane.load("number")
        # Who cancels a launch writes `skip` and then reads this, and here it is the other way.
        lane.store("number", e.value(f"add i32 {number}, 1"), "seq_cst")
        lane.store("accepted_ns", e.value("call i64 @now()"))
        run.store("first_ns", 0, "monotonic")
        turn = e.value(f"and i32 {e.value(f'add i32 {at}, 1')}, {LANE_LAUNCHES - 1}")
        lane.store("next_launch", turn)
        following = e.value(f"add i32 {number}, 1")
        skipped = compare(e, "eq", "i32", lane.load("skip", "seq_cst"), following)
        with e.when(skipped):  # Python reports that it was cancelled
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
    lane = _lane_of(e, run)
    self_ = header.load("smid")
    with e.when("%ended"):
        _end(e, block_record, run, lane)
    with e.loop() as (again, _):
        park, leave = e.label("park"), e.label("leave")
        leave_if_released(e, block_record, run, leave)
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


# -- sleep -----------------------------------------------------------------------------------------


def wait_for_records(e: Emitter, sm: Record) -> None:
    """Sleep until the doorbell is set, or a lane of the SM without a launch gets a record."""
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
        lane = _lane_of(e, run)
        new = compare(e, "ne", "ptr", lane.pointer, load(e, "ptr", last))
        none = compare(e, "eq", "i32", lane.load("current", "seq_cst"), NONE)
        with e.when(e.value(f"and i1 {new}, {none}")):
            store(e, "ptr", lane.pointer, last)
            shared = lane.load("ring")
            listening = offset(e, shared, ring.LISTENING)
            number = load(e, "i32", count)
            at = e.value(f"mul i64 {_wide(e, number)}, {_WAITER_BYTES}")
            add(at, _wide(e, lane.load("tail", "acquire")), shared, SHARED_32)
            e.do(f"atomicrmw add ptr {listening}, i32 1 seq_cst")
            before = e.value(f"sub i32 {number}, 1")
            store(e, "ptr", listening, e.value(f"getelementptr ptr, ptr {words}, i32 {before}"))
            store(e, "i32", e.value(f"add i32 {number}, 1"), count)
    every = load(e, "i32", count)
    e.do(
        f"call i64 (i64, ...) @syscall(i64 {FUTEX_WAITV}, ptr {waiters}, "
        f"i64 {_wide(e, every)}, i64 0, ptr null, i64 0)"
    )
    sm.store("sleeping", 0, "seq_cst")
    with e.count("0", e.value(f"sub i32 {every}, 1")) as index:
        listening = load(e, "ptr", e.value(f"getelementptr ptr, ptr {words}, i32 {index}"))
        e.do(f"atomicrmw sub ptr {listening}, i32 1 seq_cst")
