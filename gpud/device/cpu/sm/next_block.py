"""What an idle persistent block runs next, in native code.

``i32 @next_block(ptr %b, i1 %ended)`` counts the task block that has ended, makes the next launch
current if it was the last of its launch, and gives the persistent block its next task block if
there is one. Before its first task block of a launch, a persistent block copies the launch's header
and parameters into its own memory.

Properties:
* no task block of a launch begins before all of the previous launch are done;
* a persistent block that was released, or whose run has stopped, gets no further task block.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import TEMPLATE_BYTES, Setup
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
from gpud.device.cpu.abi.records import CONTROL, LAUNCH, NONE, STATUS, ClaimMode
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = [
    "CLOCK_MONOTONIC",
    "CLOCK_THREAD_CPUTIME_ID",
    "LEAVE",
    "PARK",
    "START",
    "WAIT",
    "define_next_block",
    "is_active",
    "leave_if_released",
]

START, WAIT, LEAVE, PARK = range(4)
"""What ``@next_block`` returns: start the kernel; there is nothing now; there will be nothing;
there is nothing before a lane's next record."""

CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID = 1, 3
"""Clocks of ``@clock``, as Linux numbers them."""


def define_next_block(ir: IRModule) -> None:
    """Define ``@next_block``, ``i64 @now()`` and ``i64 @clock(i32 %which)``, in nanoseconds."""
    ir.declare("declare i32 @clock_gettime(i32, ptr)")
    ir.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    _define_now(ir)
    _define_begin(ir)
    _define_next_block(ir)


def _define_now(ir: IRModule) -> None:
    """Define ``i64 @clock(i32 %which)``, nanoseconds on a clock, and ``@now``, on the monotonic."""
    e = Emitter(ir, "define internal i64 @clock(i32 %which) nounwind")
    time = e.alloca("[2 x i64]", "time")
    e.do(f"call i32 @clock_gettime(i32 %which, ptr {time})")
    seconds = e.value(f"mul i64 {load(e, 'i64', time)}, 1000000000")
    rest = load(e, "i64", offset(e, time, 8))
    e.end(f"ret i64 {e.value(f'add i64 {seconds}, {rest}')}")
    e.finish()
    e = Emitter(ir, "define internal i64 @now() nounwind")
    e.end(f"ret i64 {e.value(f'call i64 @clock(i32 {CLOCK_MONOTONIC})')}")
    e.finish()


def _define_next_block(ir: IRModule) -> None:
    """Define ``i32 @next_block(ptr %b, i1 %ended)``: what the idle block ``%b`` runs next.

    ``%ended``: it has just ended a task block.
    """
    e = Emitter(ir, "define internal i32 @next_block(ptr %b, i1 %ended) nounwind")
    block_record = block_record_of(e)
    run = run_of(e, block_record)
    with e.when(compare(e, "ne", "ptr", run.load("lane"), "null")):
        e.end(f"ret i32 {e.value('call i32 @next_lane_block(ptr %b, i1 %ended)')}")
    with e.when("%ended"):
        _count_and_publish(e, block_record, run)
    with e.when(e.value("call i1 @is_paused(ptr %b)")):
        e.end(f"ret i32 {WAIT}")
    with e.loop() as (again, _):
        wait, leave = e.label("wait"), e.label("leave")
        current = run.load("current", "acquire")
        launch = launch_of(e, run, current)
        _leave_if_told(e, block_record, run, launch, leave)
        claimed = e.value(
            f"icmp uge i32 {launch.load('next', 'monotonic')}, {launch.load('total')}"
        )
        left, none = e.label("left"), e.label("none")
        e.branch(claimed, none, left)
        e.place(none)
        # After the last launch nothing is left; after any other there is more to come.
        following = e.value(f"add i32 {current}, 1")
        e.branch(compare(e, "eq", "i32", following, run.load("launches")), leave, wait)
        e.place(left)
        active = e.label("active")
        e.branch(is_active(e, block_record, run, launch), active, wait)
        e.place(active)
        alone = e.label("alone")
        e.branch(compare(e, "eq", "i32", share_of(e, block_record).load("busy"), 0), alone, wait)
        e.place(alone)
        begun = e.value(f"call i1 @begin(ptr %b, ptr {launch.pointer}, i32 {current})")
        start = e.label("start")
        e.branch(begun, start, again)
        e.place(start)
        e.end(f"ret i32 {START}")
        e.place(wait)
        e.end(f"ret i32 {WAIT}")
        e.place(leave)
        e.end(f"ret i32 {LEAVE}")
    e.end("unreachable")
    e.finish()


def _count_and_publish(e: Emitter, block_record: Record, run: Record) -> None:
    """Count the task block that has ended; if it was the launch's last, make the next current."""
    number = block_record.load("launch")
    launch = launch_of(e, run, number)
    with e.when(compare(e, "eq", "i32", launch.load("mode"), ClaimMode.LOOP)):
        e.do(f"atomicrmw add ptr {launch.at('done')}, i32 1 acq_rel")
    e.do("fence acq_rel")
    with e.when(compare(e, "eq", "i32", launch.load("done", "acquire"), launch.load("total"))):
        following = e.value(f"add i32 {number}, 1")
        with e.when(compare(e, "ult", "i32", following, run.load("launches"))):
            # Several blocks may see that it is over; only the first one's exchange succeeds.
            e.do(
                f"cmpxchg ptr {run.at('current')}, i32 {number}, i32 {following} acq_rel monotonic"
            )


def _leave_if_told(
    e: Emitter, block_record: Record, run: Record, launch: Record, leave: str
) -> None:
    """Go to ``leave`` if the run has stopped, or has no slice for this block any more."""
    stays, fits = e.label("stays"), e.label("fits")
    leave_if_released(e, block_record, run, leave)
    # A launch in form whole that has begun runs to its end, whatever slices the run has now.
    fixed = compare(e, "ne", "i32", launch.load("fixed"), 0)
    begun = compare(e, "ne", "i32", launch.load("next", "monotonic"), 0)
    e.branch(e.value(f"and i1 {fixed}, {begun}"), stays, fits)
    e.place(fits)
    some = compare(e, "ne", "i32", run.load("slices", "monotonic"), 0)
    held = compare(e, "ult", "i32", block_record.load("index", "monotonic"), run.load("fixed"))
    within = _within(e, block_record, run, run.load("max_occupancy"))
    belongs = e.value(f"and i1 {some}, {e.value(f'or i1 {held}, {within}')}")
    e.branch(belongs, stays, leave)
    e.place(stays)


def leave_if_released(e: Emitter, block_record: Record, run: Record, leave: str) -> None:
    """Go to ``leave`` if the run has stopped, or has released this block."""
    asked = e.label("asked")
    stop = compare(e, "ne", "i32", run.load("stop", "monotonic"), 0)
    released = compare(e, "eq", "i32", block_record.load("index", "monotonic"), NONE)
    e.branch(e.value(f"or i1 {stop}, {released}"), leave, asked)
    e.place(asked)


def _within(e: Emitter, block_record: Record, run: Record, occupancy: str) -> str:
    """Return whether ``slices * occupancy // M`` persistent blocks include this one."""
    one = e.value(f"zext i32 {block_record.load('index', 'monotonic')} to i64")
    least = e.value(f"add i64 {one}, 1")
    m = e.value(f"zext i32 {run.load('occupancy')} to i64")
    slices = e.value(f"zext i32 {run.load('slices', 'monotonic')} to i64")
    mine = e.value(f"zext i32 {occupancy} to i64")
    return compare(
        e,
        "ule",
        "i64",
        e.value(f"mul i64 {least}, {m}"),
        e.value(f"mul i64 {slices}, {mine}"),
    )


def is_active(e: Emitter, block_record: Record, run: Record, launch: Record) -> str:
    """Return whether a launch has room for a persistent block."""
    within = _within(e, block_record, run, launch.load("occupancy"))
    return e.value(f"or i1 {within}, {compare(e, 'ne', 'i32', launch.load('fixed'), 0)}")


def _define_begin(ir: IRModule) -> None:
    """Define ``i1 @begin(ptr %b, ptr %launch, i32 %number)``: begin a task block, if any."""
    e = Emitter(ir, "define internal i1 @begin(ptr %b, ptr %launch, i32 %number) nounwind")
    block_record, header = block_record_of(e), header_of(e)
    run = run_of(e, block_record)
    launch = Record(e, "%launch", LAUNCH)
    block_record.store("launch", "%number")
    with e.when(compare(e, "ne", "i32", block_record.load("loaded"), "%number")):
        _load_launch(e, block_record, run, launch, header)
    again = e.label("again")
    by_kernel, by_loop, ready = e.label("by_kernel"), e.label("by_loop"), e.label("ready")
    stays = offset(e, block_record.pointer, CONTROL + cw.STAYS)
    e.branch(compare(e, "eq", "i32", launch.load("mode"), ClaimMode.KERNEL), by_kernel, by_loop)
    e.place(by_kernel)
    # A release writes the index before this word: write and read them in the opposite order here.
    store(e, "i32", 1, stays, "seq_cst")
    e.do("fence seq_cst")
    kept = compare(e, "ne", "i32", block_record.load("index", "seq_cst"), NONE)
    goes_on = compare(e, "eq", "i32", run.load("stop", "seq_cst"), 0)
    active = e.value(f"and i1 {is_active(e, block_record, run, launch)}, {goes_on}")
    first = e.label("first")
    e.branch(e.value(f"and i1 {active}, {kept}"), first, again)
    e.place(first)
    for axis in "xyz":
        header.store(f"ctaid_{axis}", 0)
    e.jump(ready)
    e.place(by_loop)
    number = e.value(f"atomicrmw add ptr {launch.at('next')}, i32 1 monotonic")
    mine = e.label("mine")
    e.branch(compare(e, "ult", "i32", number, launch.load("total")), mine, again)
    e.place(mine)
    _place_block(e, header, launch, number)
    e.jump(ready)
    e.place(ready)
    with e.when(compare(e, "eq", "i64", run.load("first_ns", "monotonic"), 0)):
        run.store("first_ns", e.value("call i64 @now()"), "monotonic")
    block_record.store("claimed", launch.load("next", "monotonic"))
    block_record.store("spent_ns", 0)
    header.store("setup", Setup.STATES)
    e.end("ret i1 true")
    e.place(again)
    e.end("ret i1 false")
    e.finish()


def _load_launch(
    e: Emitter, block_record: Record, run: Record, launch: Record, header: Record
) -> None:
    """Make the block's header, parameters and control words those of a launch."""

    def place(name: str) -> str:
        return offset(e, "%b", e.value(f"zext i32 {launch.load(name)} to i64"))

    def copy(target: str, source: str, size: object) -> None:
        e.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

    block_record.store("loaded", "%number")
    copy("%b", e.value(f"inttoptr i64 {launch.load('template')} to ptr"), TEMPLATE_BYTES)
    params = place("params_at")
    given = offset(e, run.pointer, launch.load("params"))
    copy(params, given, e.value(f"zext i32 {launch.load('params_bytes')} to i64"))
    with e.when(compare(e, "ne", "ptr", run.load("lane"), "null")):
        header.store("nctaid_x", launch.load("width"))  # the template is of no grid
    header.store("params", params)
    header.store("shared", place("shared_at"))
    header.store("locals", place("locals_at"))
    number = e.value("zext i32 %number to i64")
    header.store("grid_id", e.value(f"add i64 {run.load('grid_id')}, {number}"))
    control = offset(e, block_record.pointer, CONTROL)
    at = launch.load("control_at")
    with e.when(compare(e, "ne", "i32", at, NONE)):
        hidden = offset(e, params, e.value(f"zext i32 {at} to i64"))
        store(e, "ptr", control, hidden)
    store(e, "ptr", launch.pointer, offset(e, control, cw.JOB))
    status = offset(e, block_record.pointer, STATUS)
    store(e, "ptr", status, offset(e, control, cw.STATUS))
    store(e, "i32", 1, offset(e, status, cw.LIVE))
    store(e, "i32", 0, offset(e, control, cw.BASE))
    store(e, "i32", 0, offset(e, control, cw.NAMED))  # no SM is named: blocks leave one by one


def _place_block(e: Emitter, header: Record, launch: Record, number: str) -> None:
    """Set the coordinates of raw block ``number``."""
    width = launch.load("width")
    # A grid of one row needs no division, and divisions take longer than the rest of this.
    row, rows_, placed = e.label("row"), e.label("rows"), e.label("placed")
    e.branch(compare(e, "ult", "i32", number, width), row, rows_)
    e.place(row)
    e.jump(placed)
    e.place(rows_)
    height = launch.load("height")
    rest = e.value(f"urem i32 {number}, {width}")
    rows = e.value(f"udiv i32 {number}, {width}")
    lower = e.value(f"urem i32 {rows}, {height}")
    upper = e.value(f"udiv i32 {rows}, {height}")
    e.jump(placed)
    e.place(placed)
    x = e.value(f"phi i32 [ {number}, %{row} ], [ {rest}, %{rows_} ]")
    y = e.value(f"phi i32 [ 0, %{row} ], [ {lower}, %{rows_} ]")
    z = e.value(f"phi i32 [ 0, %{row} ], [ {upper}, %{rows_} ]")
    for axis, value in (("x", x), ("y", y), ("z", z)):
        header.store(f"ctaid_{axis}", value)
