"""The functions that a checked program calls at its accesses.

An address is looked up in the client's table of arrays, by binary search; if its origin lies in an
array, it must lie in the same one. Then the shadow tells whether what is read was written, and what
races with it. A store is compared afterwards with what was there before: if it has changed nothing,
it is no write as far as races are concerned.

Properties:
* only addresses within the arena are accessed here, whatever the table holds; a snapshot is used
  only if this task block made it;
* the program's access is refused if, and only if, it is reported as out of bounds or after free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.checked_memory import (
    CURRENT,
    MAGIC,
    MOST_ARRAYS,
    ROW,
    ROW_BYTES,
    ROWS_AT,
    SHADOW_FACTOR,
    SPARE,
    STARTS_AT,
    TABLE_BYTES,
)
from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.check_calls import READS, WRITES
from gpud.device.cpu.abi.linked_memory import arena_at, heap_at
from gpud.device.cpu.codegen.checking.ordering import ENTER, RACE
from gpud.device.cpu.codegen.checking.reports import REPORT
from gpud.device.cpu.codegen.checking.state import (
    ACCESS_FUNCTION,
    SHARED_FUNCTION,
    SNAPSHOT_BYTES,
    SNAPSHOT_WORDS,
    STORED_FUNCTION,
    CheckState,
)
from gpud.device.cpu.codegen.checking.words import Words
from gpud.device.cpu.codegen.emit.check_code import grid_sync_words, stack_base
from gpud.device.cpu.ir.emitter import Emitter
from gpud.errors.findings import FindingKind

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.kernel_context import KernelContext

__all__ = ["define_accesses"]

_FIND = "gpud.check.find"
_PREPARE = "gpud.check.prepare"

# A thread's snapshot: the old bytes, then these words.
_ADDRESS, _WRITES, _READS, _WRITTEN, _START, _SIZE = (SNAPSHOT_BYTES + 8 * i for i in range(6))
assert _SIZE + 8 <= 8 * SNAPSHOT_WORDS


def define_accesses(kernel: KernelContext, state: CheckState) -> None:
    """Define the functions for a kernel with an arena."""
    assert kernel.arena is not None
    _define_find(kernel)
    _define_prepare(kernel, state)
    _define_shared(kernel, state)
    _define_access(kernel, state)
    _define_stored(kernel, state)


def _define_find(kernel: KernelContext) -> None:
    """Define ``i64 (b, address)``: the index of the last array that begins at or before it.

    It counts through both tables, and is -1 if there is none.
    """
    e = Emitter(kernel.ir, f"define internal i64 @{_FIND}(ptr %b, i64 %address) nounwind")
    w = Words(e)
    current = w.load(arena_at(CURRENT))
    table = w.op("and", current, 1)
    count = w.op("lshr", current, 32)
    count = w.choose(w.test("ult", count, MOST_ARRAYS), count, MOST_ARRAYS)
    starts = w.add(w.mul(table, TABLE_BYTES), arena_at(STARTS_AT))
    low, high = e.alloca("i64", "low"), e.alloca("i64", "high")
    e.do(f"store i64 0, ptr {low}")
    e.do(f"store i64 {count}, ptr {high}")
    with e.loop() as (again, out):
        first, last = e.value(f"load i64, ptr {low}"), e.value(f"load i64, ptr {high}")
        more = e.label("more")
        e.branch(w.test("ult", first, last), more, out)
        e.place(more)
        middle = w.op("lshr", w.add(first, last), 1)
        start = w.load(w.add(starts, w.mul(middle, 8)))
        before = w.test("ule", start, "%address")
        e.do(f"store i64 {w.choose(before, w.add(middle, 1), first)}, ptr {low}")
        e.do(f"store i64 {w.choose(before, last, middle)}, ptr {high}")
        e.jump(again)
    found = e.value(f"load i64, ptr {low}")
    index = w.add(w.mul(table, MOST_ARRAYS), w.sub(found, 1))
    e.end(f"ret i64 {w.choose(w.test('eq', found, 0), -1, index)}")
    e.finish()


def _define_prepare(kernel: KernelContext, state: CheckState) -> None:
    """Define ``void (b, thread, address, writes, reads, written, how, site, start, size)``.

    It checks a load or an atomic operation for races, and prepares the check after a store.
    ``written`` is the address of the shadow's first part, 0 for shared memory.
    """
    header = (
        f"define internal void @{_PREPARE}(ptr %b, i32 %thread, i64 %address, i64 %writes, "
        "i64 %reads, i64 %written, i32 %how, i32 %site, i64 %at, i64 %array, i64 %size) nounwind"
    )
    e = Emitter(kernel.ir, header)
    w = Words(e)
    how = w.widened("%how")
    count = w.bits(how, 0, 255)
    is_global = w.test("ne", "%written", 0)
    with e.when(w.both(is_global, w.test("ne", w.op("and", how, READS), 0))):
        told = e.alloca("i1", "told")
        e.do(f"store i1 false, ptr {told}")
        with e.count("0", count, "i64") as index:
            place = w.add("%written", index)
            with e.when(w.test("eq", w.load(place, "i8"), 0)):
                e.do(f"store i1 true, ptr {told}")
                w.store(1, place, "i8")
        with e.when(e.value(f"load i1, ptr {told}")):
            e.do(
                f"call void @{REPORT}(ptr %b, i32 %thread, i32 {int(FindingKind.UNINITIALISED)}, "
                "i32 %site, i64 %at, i32 %how, i64 %array, i64 %size, i64 0)"
            )
    later = w.both(
        w.test("eq", w.op("and", how, READS | WRITES), WRITES),
        w.test("ule", count, SNAPSHOT_BYTES),
    )
    keep, now, over = e.label("keep"), e.label("now"), e.label("over")
    e.branch(later, keep, now)
    e.place(keep)
    snapshot = _snapshot(w, state)
    with e.count("0", count, "i64") as index:
        w.store(w.load(w.add("%address", index), "i8"), w.add(snapshot, index), "i8")
    for offset, value in (
        (_ADDRESS, "%address"),
        (_WRITES, "%writes"),
        (_READS, "%reads"),
        (_WRITTEN, "%written"),
        (_START, "%array"),
        (_SIZE, "%size"),
    ):
        w.store(value, w.add(snapshot, offset))
    e.jump(over)
    e.place(now)
    marks = w.both(is_global, w.test("ne", w.op("and", how, WRITES), 0))
    with e.when(marks), e.count("0", count, "i64") as index:
        w.store(1, w.add("%written", index), "i8")
    _race(w, count, "%writes", "%reads", "%at", "%array", "%size")
    e.jump(over)
    e.place(over)
    e.end("ret void")
    e.finish()


def _race(w: Words, count: str, writes: str, reads: str, at: str, start: str, size: str) -> None:
    w.emitter.do(
        f"call void @{RACE}(ptr %b, i32 %thread, i64 {writes}, i64 {reads}, i64 {count}, "
        f"i32 %how, i32 %site, i64 {at}, i64 {start}, i64 {size})"
    )


def _snapshot(w: Words, state: CheckState) -> str:
    """Return the address of the thread's snapshot."""
    skip = w.mul(w.widened("%thread"), 8 * SNAPSHOT_WORDS)
    return w.add(w.block(state.snapshot), skip)


def _define_stored(kernel: KernelContext, state: CheckState) -> None:
    header = (
        f"define internal void @{STORED_FUNCTION}(ptr %b, i32 %thread, i32 %how, i32 %site) "
        "nounwind"
    )
    e = Emitter(kernel.ir, header)
    w = Words(e)
    snapshot = _snapshot(w, state)
    address, writes, reads, written, start, size = (
        w.load(w.add(snapshot, offset))
        for offset in (_ADDRESS, _WRITES, _READS, _WRITTEN, _START, _SIZE)
    )
    with e.when(w.test("ne", address, 0)):
        w.store(0, w.add(snapshot, _ADDRESS))
        count = w.bits(w.widened("%how"), 0, 255)
        changed = e.alloca("i64", "changed")
        e.do(f"store i64 0, ptr {changed}")
        with e.count("0", count, "i64") as index:
            now = w.load(w.add(address, index), "i8")
            before = w.load(w.add(snapshot, index), "i8")
            so_far = e.value(f"load i64, ptr {changed}")
            different = w.op("or", so_far, w.op("xor", now, before))
            e.do(f"store i64 {different}, ptr {changed}")
            with e.when(w.test("ne", written, 0)):
                w.store(1, w.add(written, index), "i8")
        with e.when(w.test("ne", e.value(f"load i64, ptr {changed}"), 0)):
            shared = w.sub(address, w.header("shared"))
            at = w.choose(w.test("eq", written, 0), shared, address)
            _race(w, count, writes, reads, at, start, size)
    e.end("ret void")
    e.finish()


def _define_shared(kernel: KernelContext, state: CheckState) -> None:
    header = (
        f"define internal void @{SHARED_FUNCTION}(ptr %b, i32 %thread, i64 %place, i32 %how, "
        "i32 %site) nounwind"
    )
    e = Emitter(kernel.ir, header)
    w = Words(e)
    w.store(0, w.add(_snapshot(w, state), _ADDRESS))
    _without_board(w, "ret void")
    e.do(f"call void @{ENTER}(ptr %b)")
    place = w.bits("%place", 0, 0xFFFFFFFF)
    end = w.add(place, w.bits(w.widened("%how"), 0, 255))
    size = w.header("shared_size")
    watched = w.choose(w.test("ult", size, state.shared_bytes), size, state.shared_bytes)
    with e.when(w.test("ule", end, watched)):  # otherwise its bounds check ends the block
        writes = w.add(w.block(state.shared), w.mul(place, 8))
        reads = w.add(writes, 8 * state.shared_bytes)
        address = w.add(w.header("shared"), place)
        e.do(
            f"call void @{_PREPARE}(ptr %b, i32 %thread, i64 {address}, i64 {writes}, i64 {reads}, "
            f"i64 0, i32 %how, i32 %site, i64 {place}, i64 0, i64 0)"
        )
    e.end("ret void")
    e.finish()


def _without_board(w: Words, end: str) -> None:
    """Return at once in a session that has no board."""
    with w.emitter.when(w.test("ne", w.load(arena_at()), MAGIC)):
        w.emitter.end(end)


def _define_access(kernel: KernelContext, state: CheckState) -> None:
    assert kernel.arena is not None
    arena_bytes = kernel.arena.size
    header = (
        f"define internal i64 @{ACCESS_FUNCTION}(ptr %b, i32 %thread, i64 %address, i64 %origin, "
        "i32 %how, i32 %site) nounwind"
    )
    e = Emitter(kernel.ir, header)
    w = Words(e)
    w.store(0, w.add(_snapshot(w, state), _ADDRESS))
    _without_board(w, "ret i64 %address")
    e.do(f"call void @{ENTER}(ptr %b)")
    count = w.bits(w.widened("%how"), 0, 255)
    start_slot, row_slot = e.alloca("i64", "start"), e.alloca("i64", "row")

    def find(address: str) -> str:
        """Look an address up; return an i1: whether an array has it."""
        index = e.value(f"call i64 @{_FIND}(ptr %b, i64 {address})")
        none = w.test("eq", index, -1)
        known = w.choose(none, 0, index)
        row = w.add(w.mul(known, ROW_BYTES), arena_at(ROWS_AT))
        start = w.load(w.add(w.mul(known, 8), arena_at(STARTS_AT)))
        e.do(f"store i64 {w.choose(none, 0, row)}, ptr {row_slot}")
        e.do(f"store i64 {w.choose(none, 0, start)}, ptr {start_slot}")
        end = w.load(w.add(row, ROW["end"][0]))
        return w.both(w.negated(none), w.test("ult", address, end))

    known, unknown, elsewhere = e.label("known"), e.label("unknown"), e.label("elsewhere")
    by_address, outside = e.label("address"), e.label("outside")
    e.branch(find("%origin"), known, by_address)
    e.place(by_address)
    e.branch(find("%address"), known, unknown)
    e.place(unknown)
    _accept_others(kernel, w, elsewhere)
    e.jump(outside)
    e.place(elsewhere)
    shared = w.sub("%address", w.header("shared"))
    with e.when(w.test("ult", shared, w.header("shared_size"))):
        e.do(
            f"call void @{SHARED_FUNCTION}(ptr %b, i32 %thread, i64 {shared}, i32 %how, i32 %site)"
        )
    e.end("ret i64 %address")

    e.place(outside)
    _refuse(w, FindingKind.OUT_OF_BOUNDS, row_slot, start_slot)

    e.place(known)
    row, start = e.value(f"load i64, ptr {row_slot}"), e.value(f"load i64, ptr {start_slot}")
    size = w.sub(w.load(w.add(row, ROW["end"][0])), start)
    offset = w.sub("%address", start)
    fits = w.both(w.test("ule", count, size), w.test("ule", offset, w.sub(size, count)))
    inside, live, sane = e.label("inside"), e.label("live"), e.label("sane")
    e.branch(fits, inside, outside)
    e.place(inside)
    freed = e.label("freed")
    e.branch(w.test("eq", w.load(w.add(row, ROW["freed"][0]), "i32"), 0), live, freed)
    e.place(freed)
    _refuse(w, FindingKind.USE_AFTER_FREE, row_slot, start_slot)

    e.place(live)
    pad = w.op("and", w.add(size, 63), -64)
    first = w.sub(start, arena_at())
    in_arena = w.both(
        w.test("ult", first, arena_bytes),
        w.test("ult", size, arena_bytes),
        w.test("ule", w.add(first, w.mul(pad, SHADOW_FACTOR)), arena_bytes),
    )
    strange = e.label("strange")
    e.branch(in_arena, sane, strange)
    e.place(strange)
    e.end("ret i64 %address")
    e.place(sane)
    written = w.add(w.add(start, pad), offset)
    writes = w.add(w.add(start, w.mul(pad, 2)), w.mul(offset, 8))
    reads = w.add(w.add(start, w.mul(pad, 10)), w.mul(offset, 8))
    e.do(
        f"call void @{_PREPARE}(ptr %b, i32 %thread, i64 %address, i64 {writes}, i64 {reads}, "
        f"i64 {written}, i32 %how, i32 %site, i64 %address, i64 {start}, i64 {size})"
    )
    e.end("ret i64 %address")
    e.finish()


def _refuse(w: Words, kind: FindingKind, row_slot: str, start_slot: str) -> None:
    """Report the access at an array, or at none, and return another address."""
    e = w.emitter
    row, start = e.value(f"load i64, ptr {row_slot}"), e.value(f"load i64, ptr {start_slot}")
    size = e.alloca("i64", "size")
    e.do(f"store i64 0, ptr {size}")
    with e.when(w.test("ne", row, 0)):
        long = w.sub(w.load(w.add(row, ROW["end"][0])), start)
        e.do(f"store i64 {long}, ptr {size}")
    known = e.value(f"load i64, ptr {size}")
    e.do(
        f"call void @{REPORT}(ptr %b, i32 %thread, i32 {int(kind)}, i32 %site, i64 %address, "
        f"i32 %how, i64 {start}, i64 {known}, i64 0)"
    )
    e.end(f"ret i64 {arena_at(SPARE)}")


def _accept_others(kernel: KernelContext, w: Words, elsewhere: str) -> None:
    """Go to ``elsewhere`` if the address lies in legal memory that is no array."""
    e = w.emitter
    places = kernel.places(e, "%thread")
    ranges = [
        (w.header("data"), str(kernel.module.data.size)),
        (w.header("shared"), places.shared_size()),
        places.local_range(),
        places.param_range(),
    ]
    if kernel.frames:
        ranges.append((stack_base(kernel, e), str(kernel.frames)))
    if kernel.syncs_grid:
        ranges.append((grid_sync_words(kernel, e), str(words.GRID_SYNC_BYTES)))
    if kernel.heap is not None:
        ranges.append((heap_at(), str(kernel.heap.size)))
    for first, size in ranges:
        no = e.label("no")
        e.branch(w.test("ult", w.sub("%address", first), size), elsewhere, no)
        e.place(no)
