"""Checks a launch record of a lane, and makes a `LAUNCH` of it, in native code.

The record was copied out of the ring, which a stranger writes at any time: what is checked is the
copy. Only the parameters that do not fit into the record are copied from the ring afterwards, as
many bytes as the launch site says; what they hold is the kernel's matter.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.record_access import (
    Record,
    compare,
    launch_of,
    load,
    offset,
    store,
)
from gpud.device.cpu.abi.records import LANE, LANE_COPY, LAUNCH_BYTES, RUN
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.lane_reports import RingError
from gpud.wire import lane_ring as ring

__all__ = ["copy", "define_accept", "lane_of", "slot_address", "wide"]


def define_accept(ir: IRModule) -> None:
    """Define ``i32 @lane_accept(ptr %lane, ptr %run, i32 %at, i32 %there)``.

    It checks the launch record that was copied, of ``%there`` slots that are written, and makes the
    run's `LAUNCH` ``%at`` of it. It returns how many slots the record takes; 0 if it is wrong.
    """
    _define_divide(ir)
    _define_accept(ir)


def _define_divide(ir: IRModule) -> None:
    """Define ``void @put_divider(ptr %at, i32 %by)``: see `gpud.compiler.abi.fast_division`."""
    e = Emitter(ir, "define internal void @put_divider(ptr %at, i32 %by) nounwind")
    zeros = e.value(f"call i32 @llvm.ctlz.i32(i32 {e.value('sub i32 %by, 1')}, i1 false)")
    shift = e.value(f"sub i32 32, {zeros}")
    power = e.value(f"shl i64 1, {wide(e, e.value(f'add i32 31, {shift}'))}")
    quotient = e.value(f"udiv i64 {power}, {wide(e, '%by')}")
    multiplier = e.value(f"trunc i64 {e.value(f'add i64 {quotient}, 1')} to i32")
    store(e, "i32", multiplier, "%at")
    store(e, "i32", shift, offset(e, "%at", 4))
    e.end("ret void")
    e.finish()


def _define_accept(ir: IRModule) -> None:
    ir.declare("declare i32 @llvm.ctlz.i32(i32, i1)")
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
    skip = e.value(f"mul i64 {wide(e, site)}, {LAUNCH_BYTES}")
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
    plane = e.value(f"mul i64 {wide(e, grid[0])}, {wide(e, grid[1])}")
    refuse_if(compare(e, "ugt", "i64", plane, cw.MAX_TASK_BLOCKS), RingError.GRID, grid[1])
    every = e.value(f"mul i64 {plane}, {wide(e, grid[2])}")
    refuse_if(compare(e, "ugt", "i64", every, cw.MAX_TASK_BLOCKS), RingError.GRID, grid[2])
    total = e.value(f"trunc i64 {every} to i32")
    inline = compare(e, "ule", "i32", own, ring.INLINE_BYTES)
    rest = e.value(f"sub i32 {own}, {ring.INLINE_BYTES}")
    above = e.value(f"udiv i32 {e.value(f'add i32 {rest}, {ring.SLOT_BYTES - 1}')}, 128")
    more = e.value(f"select i1 {inline}, i32 0, i32 {above}")
    slots = e.value(f"add i32 {more}, 1")
    refuse_if(compare(e, "ugt", "i32", slots, "%there"), RingError.CUT, slots)

    # Not the users: a late block may be counting itself just now, and out again.
    copy(e, launch.pointer, image, launch.fields["users"][0])
    launch.store("params", params_at)
    launch.store("number", number)
    launch.store("total", total)
    launch.store("width", total)
    launch.store("height", 1)
    for axis, extent in enumerate(grid):
        store(e, "i32", extent, offset(e, launch.pointer, cw.GRID + 4 * axis))
    flat = compare(e, "eq", "i64", every, wide(e, grid[0]))
    flags = e.value(f"select i1 {flat}, i32 {cw.ONE_DIMENSIONAL}, i32 0")
    store(e, "i32", flags, offset(e, launch.pointer, cw.FLAGS))
    for axis, at in enumerate((cw.X_DIVIDER, cw.Y_DIVIDER)):
        to = offset(e, launch.pointer, at)
        e.do(f"call void @put_divider(ptr {to}, i32 {grid[axis]})")
    params = offset(e, "%run", params_at)
    first = e.value(f"select i1 {inline}, i32 {own}, i32 {ring.INLINE_BYTES}")
    copy(e, params, offset(e, copied, ring.INLINE_AT), wide(e, first))
    with e.count("0", more) as index:
        second = e.value(f"add i32 {lane.load('tail')}, 1")
        place = e.value(f"add i32 {second}, {index}")
        source = slot_address(e, lane.load("ring"), place)
        done = e.value(f"mul i32 {index}, {ring.SLOT_BYTES}")
        left = e.value(f"sub i32 {rest}, {done}")
        last = compare(e, "ult", "i32", left, ring.SLOT_BYTES)
        part = e.value(f"select i1 {last}, i32 {left}, i32 {ring.SLOT_BYTES}")
        to = offset(e, params, wide(e, e.value(f"add i32 {done}, {ring.INLINE_BYTES}")))
        copy(e, to, source, wide(e, part), volatile=True)
    lane.store("site", site)
    e.end(f"ret i32 {slots}")
    e.finish()


def slot_address(e: Emitter, shared: str, number: str) -> str:
    """Return the address of a slot of the ring, by its count."""
    place = wide(e, e.value(f"and i32 {number}, {ring.SLOTS - 1}"))
    skip = e.value(f"mul i64 {place}, {ring.SLOT_BYTES}")
    return offset(e, shared, e.value(f"add i64 {skip}, {ring.SLOTS_AT}"))


def lane_of(e: Emitter, run: Record) -> Record:
    """Return the lane of a run."""
    return Record(e, run.load("lane"), LANE)


def wide(e: Emitter, value: str) -> str:
    """Return a word as one of 64 bits."""
    return e.value(f"zext i32 {value} to i64")


def copy(e: Emitter, target: str, source: str, size: object, *, volatile: bool = False) -> None:
    """Copy memory."""
    flag = "true" if volatile else "false"
    e.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 {flag})")
