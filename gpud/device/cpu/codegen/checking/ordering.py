"""Which of two accesses comes first: intervals, and the search for races.

Problem: two threads that access the same bytes race unless something orders them, however the
device happens to run them.

Approach: each access leaves its interval and thread in the shadow of the bytes. A later access asks
whether the other one's interval is ordered before its own.

* In one block: an interval ends when the first thread has passed a barrier, or one releases; the
  clock goes on. A thread that has passed a barrier has seen all intervals before the barrier was
  complete. The first thread that passes it tells when that was: threads may come to the next
  barrier before others have run on from this one. Likewise for barriers of a warp. A thread that
  acquires has seen all intervals so far.
* Between blocks of a launch: an interval that has ended by a release has the time of it. A block
  has seen it if it has acquired something after that.

So any release that is followed by any acquire orders two blocks, whatever the variables are: that
misses races, but reports none where the program is right. Launches are ordered by their stream, or
are the client's affair.

Properties:
* ``sound``: accesses that barriers, or releases and acquires, order are not reported;
* a store that does not change memory is no write (its caller does not report it).
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.checked_memory import (
    INTERVAL_BYTES,
    INTERVALS,
    INTERVALS_AT,
    NEXT_INTERVAL,
    SERIAL,
    TIME,
)
from gpud.compiler.abi.check_calls import STRONG, WRITES, Sync
from gpud.device.cpu.abi.linked_memory import arena_at
from gpud.device.cpu.codegen.checking.reports import REPORT
from gpud.device.cpu.codegen.checking.state import (
    ATOMIC,
    FIRST_INTERVAL,
    INTERVAL_SHIFT,
    KEY_MARK,
    MANY,
    SITE_MASK,
    SITE_SHIFT,
    SYNC_FUNCTION,
    THREAD_MASK,
    THREAD_SHIFT,
    CheckState,
)
from gpud.device.cpu.codegen.checking.words import Words
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.errors.findings import FindingKind

__all__ = ["ENTER", "RACE", "define_ordering"]

ENTER = "gpud.check.enter"
"""``void (b)``: to be called first: notices that a new task block has begun."""
RACE = "gpud.check.race"
"""``void (b, thread, writes, reads, count, how, site, address, start, size)``: ``count`` bytes
are accessed whose words begin at the addresses ``writes`` and ``reads``."""
_INTERVAL = "gpud.check.interval"
_ORDERED = "gpud.check.ordered"
_CLOSE = "gpud.check.close"
_RELEASE = "gpud.check.release"
_OPEN = 1 << 63
"""Marks the end of an interval that was not released: the rest is the number of the one before."""

# An interval in the board: number, clock, launch, end, serial, task block.
_NUMBER, _CLOCK, _LAUNCH, _END, _SERIAL, _BLOCK = 0, 4, 8, 16, 24, 28


def define_ordering(ir: IRModule, state: CheckState, *, claims: bool) -> None:
    """Define the functions; ``claims``: the kernel's task block is the one that it has claimed."""
    _define_enter(ir, state, claims=claims)
    _define_interval(ir, state)
    _define_ordered(ir, state)
    _define_close(ir, state)
    _define_release(ir, state)
    _define_sync(ir, state)
    _define_race(ir, state)


def entry_of(w: Words, number: str) -> str:
    """Return the address of an interval's entry."""
    place = w.mul(w.op("and", number, INTERVALS - 1), INTERVAL_BYTES)
    return w.add(place, arena_at(INTERVALS_AT))


def _define_enter(ir: IRModule, state: CheckState, *, claims: bool) -> None:
    e = Emitter(ir, f"define internal void @{ENTER}(ptr %b) nounwind")
    w = Words(e)
    launch = w.header("grid_id")
    if claims:
        number = w.header("claim")
    else:
        row = w.add(w.mul(w.header("ctaid_z"), w.header("nctaid_y")), w.header("ctaid_y"))
        number = w.add(w.mul(row, w.header("nctaid_x")), w.header("ctaid_x"))
    key = w.op("or", number, KEY_MARK << 32)
    same = w.both(
        w.test("eq", w.load(w.block(state.launch)), launch),
        w.test("eq", w.load(w.block(state.task_block)), key),
    )
    with e.when(w.negated(same)):
        w.store(launch, w.block(state.launch))
        w.store(key, w.block(state.task_block))
        w.store(w.add(w.counted(arena_at(SERIAL)), 1), w.block(state.serial))
        w.store(1, w.block(state.clock))
        w.store(0, w.block(state.interval))
        w.store(0, w.block(state.acquired))
        w.store(0, w.block(state.pending))
        ir.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        pointer = w.pointer(w.block(state.barriers))
        size = state.cleared_bytes
        e.do(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 0, i64 {size}, i1 false)")
    e.end("ret void")
    e.finish()


def _define_interval(ir: IRModule, state: CheckState) -> None:
    """Define ``i64 (b)``: the number of the block's current interval, which it begins if needed."""
    e = Emitter(ir, f"define internal i64 @{_INTERVAL}(ptr %b) nounwind")
    w = Words(e)
    place = w.block(state.interval)
    with e.when(w.test("eq", w.load(place), 0)):
        counted = w.add(w.counted(arena_at(NEXT_INTERVAL)), FIRST_INTERVAL)
        number = w.op("and", counted, 0xFFFFFFFF)
        entry = entry_of(w, number)
        w.store(0, entry, "i32")  # not valid while it is written
        w.store(w.load(w.block(state.clock)), w.add(entry, _CLOCK), "i32")
        w.store(w.load(w.block(state.launch)), w.add(entry, _LAUNCH))
        pending = w.block(state.pending)
        w.store(w.op("or", w.load(pending), -_OPEN), w.add(entry, _END))
        w.store(number, pending)
        w.store(w.load(w.block(state.serial)), w.add(entry, _SERIAL), "i32")
        w.store(w.load(w.block(state.task_block)), w.add(entry, _BLOCK), "i32")
        w.store(number, entry, "i32")
        w.store(number, place)
    e.end(f"ret i64 {w.load(place)}")
    e.finish()


def _define_ordered(ir: IRModule, state: CheckState) -> None:
    """Define ``i1 (b, thread, word, shared)``: whether a shadow's access comes before now.

    ``shared``: it is of shared memory, which other task blocks have used only before.
    """
    header = f"define internal i1 @{_ORDERED}(ptr %b, i32 %thread, i64 %word, i1 %shared) nounwind"
    e = Emitter(ir, header)
    w = Words(e)

    def returns(condition: str, result: str) -> None:
        with e.when(condition):
            e.end(f"ret i1 {result}")

    returns(w.test("eq", "%word", 0), "true")
    number = w.op("lshr", "%word", INTERVAL_SHIFT)
    entry = entry_of(w, number)
    returns(w.test("ne", w.load(entry, "i32"), number), "true")
    launch = w.load(w.block(state.launch))
    returns(w.test("ne", w.load(w.add(entry, _LAUNCH)), launch), "true")
    mine, other = e.label("mine"), e.label("other")
    serial = w.bits(w.load(w.block(state.serial)), 0, 0xFFFFFFFF)
    e.branch(w.test("eq", w.load(w.add(entry, _SERIAL), "i32"), serial), mine, other)
    e.place(mine)
    thread = w.widened("%thread")
    their = w.bits("%word", THREAD_SHIFT, THREAD_MASK)
    alone = w.test("eq", w.bits("%word", 0, MANY), 0)
    returns(w.both(w.test("eq", their, thread), alone), "true")
    clock = w.load(w.add(entry, _CLOCK), "i32")
    skip = w.mul(thread, 4)
    returns(w.test("ult", clock, w.load(w.add(w.block(state.sync), skip), "i32")), "true")
    seen = w.load(w.add(w.block(state.warp_sync), skip), "i32")
    same_warp = w.test("eq", w.op("lshr", their, 5), w.op("lshr", thread, 5))
    e.end(f"ret i1 {w.both(same_warp, w.test('ult', clock, seen))}")
    e.place(other)
    returns("%shared", "true")
    end = w.load(w.add(entry, _END))
    acquired = w.load(w.block(state.acquired))
    e.end(f"ret i1 {w.test('ule', end, acquired)}")
    e.finish()


def _define_close(ir: IRModule, state: CheckState) -> None:
    """Define ``void (b)``: advance the clock, and so end the current interval."""
    e = Emitter(ir, f"define internal void @{_CLOSE}(ptr %b) nounwind")
    w = Words(e)
    clock = w.block(state.clock)
    w.store(w.add(w.load(clock), 1), clock)
    w.store(0, w.block(state.interval))
    e.end("ret void")
    e.finish()


def _define_release(ir: IRModule, state: CheckState) -> None:
    """Define ``void (b)``: give the block's intervals since the last release their end."""
    e = Emitter(ir, f"define internal void @{_RELEASE}(ptr %b) nounwind")
    w = Words(e)
    now = w.add(w.counted(arena_at(TIME)), 1)
    pending = w.block(state.pending)
    with e.loop() as (again, out):
        number = w.load(pending)
        some = e.label("some")
        e.branch(w.test("eq", number, 0), out, some)
        e.place(some)
        w.store(0, pending)
        entry = entry_of(w, number)
        kept = e.label("kept")
        # The ring may have overwritten it, and so all that follow.
        e.branch(w.test("eq", w.load(entry, "i32"), number), kept, out)
        e.place(kept)
        end = w.add(entry, _END)
        w.store(w.bits(w.load(end), 0, 0xFFFFFFFF), pending)
        w.store(now, end)
        e.jump(again)
    e.end("ret void")
    e.finish()


def _define_sync(ir: IRModule, state: CheckState) -> None:
    header = (
        f"define internal void @{SYNC_FUNCTION}(ptr %b, i32 %thread, i32 %what, i32 %barrier) "
        "nounwind"
    )
    e = Emitter(ir, header)
    w = Words(e)
    e.do(f"call void @{ENTER}(ptr %b)")
    what, thread = w.widened("%what"), w.widened("%thread")
    clock = w.block(state.clock)
    skip = w.mul(thread, 4)
    arrived = w.add(w.block(state.arrived), skip)

    def on(*kinds: Sync) -> str:
        return w.either(*(w.test("eq", what, int(kind)) for kind in kinds))

    def passed(completed: str, seen: int) -> None:
        """Have the thread see all before the barrier's completion, which it may be first to see."""
        known = w.load(completed, "i32")
        with e.when(w.test("ule", known, w.load(arrived, "i32"))):
            e.do(f"call void @{_CLOSE}(ptr %b)")
            w.store(w.load(clock), completed, "i32")
        w.store(w.load(completed, "i32"), w.add(w.block(seen), skip), "i32")

    with e.when(on(Sync.ARRIVE, Sync.WARP_ARRIVE)):
        w.store(w.load(clock), arrived, "i32")
    with e.when(on(Sync.PASS)):
        number = w.bits(w.widened("%barrier"), 0, 15)
        passed(w.add(w.block(state.barriers), w.mul(number, 4)), state.sync)
    with e.when(on(Sync.WARP_PASS)):
        passed(w.add(w.block(state.warps), w.mul(w.op("lshr", thread, 5), 4)), state.warp_sync)
    with e.when(on(Sync.RELEASE)):
        e.do(f"call void @{_CLOSE}(ptr %b)")
        e.do(f"call void @{_RELEASE}(ptr %b)")
    with e.when(on(Sync.ACQUIRE)):
        w.store(w.load(clock), w.add(w.block(state.sync), skip), "i32")
        w.store(w.load(arena_at(TIME)), w.block(state.acquired))
    e.end("ret void")
    e.finish()


def _define_race(ir: IRModule, state: CheckState) -> None:
    header = (
        f"define internal void @{RACE}(ptr %b, i32 %thread, i64 %writes, i64 %reads, i64 %count, "
        "i32 %how, i32 %site, i64 %address, i64 %array, i64 %size) nounwind"
    )
    e = Emitter(ir, header)
    w = Words(e)
    how, thread = w.widened("%how"), w.widened("%thread")
    writes = w.test("ne", w.op("and", how, WRITES), 0)
    strong = w.test("ne", w.op("and", how, STRONG), 0)
    shared = w.test("eq", "%array", 0)
    interval = e.value(f"call i64 @{_INTERVAL}(ptr %b)")
    site = w.bits(w.widened("%site"), 0, SITE_MASK)
    head = w.op("or", w.op("shl", interval, INTERVAL_SHIFT), w.op("shl", thread, THREAD_SHIFT))
    tail = w.op("or", w.op("shl", site, SITE_SHIFT), w.choose(strong, ATOMIC, 0))
    mine = w.op("or", head, tail)
    told = e.alloca("i1", "told")
    e.do(f"store i1 false, ptr {told}")

    def races(word: str) -> str:
        """Return an i1: whether the word's access and this one are not ordered, nor both atomic."""
        slot = e.alloca("i1", "races")
        e.do(f"store i1 false, ptr {slot}")
        atomic = w.test("ne", w.op("and", word, ATOMIC), 0)
        # Quick for what this thread did itself, since it last synchronised.
        own = w.test("ult", w.op("xor", word, mine), 1 << THREAD_SHIFT)
        own = w.both(own, w.test("eq", w.op("and", word, MANY), 0))
        skip = w.either(own, w.test("eq", word, 0), w.both(atomic, strong))
        with e.when(w.negated(skip)):
            ordered = e.value(f"call i1 @{_ORDERED}(ptr %b, i32 %thread, i64 {word}, i1 {shared})")
            e.do(f"store i1 {w.negated(ordered)}, ptr {slot}")
        return e.value(f"load i1, ptr {slot}")

    def tell(kind: FindingKind, word: str) -> None:
        """Report a race, once for each access."""
        known = e.value(f"load i1, ptr {told}")
        with e.when(w.negated(known)):
            e.do(f"store i1 true, ptr {told}")
            e.do(
                f"call void @{REPORT}(ptr %b, i32 %thread, i32 {int(kind)}, i32 %site, "
                f"i64 %address, i32 %how, i64 %array, i64 %size, i64 {word})"
            )

    # Neighbouring bytes mostly have the same words: each different one is looked up once.
    seen = {name: e.alloca("i64", name) for name in ("write", "read")}
    known = {name: e.alloca("i1", f"{name}.known") for name in ("write", "read")}
    for slot in seen.values():
        e.do(f"store i64 0, ptr {slot}")
    for slot in known.values():
        e.do(f"store i1 false, ptr {slot}")

    def looked_up(name: str, word: str, ask: Callable[[str], str]) -> str:
        """Return ``ask(word)``, an i1, as it was for the byte before if the word is the same."""
        with e.when(w.test("ne", word, e.value(f"load i64, ptr {seen[name]}"))):
            e.do(f"store i64 {word}, ptr {seen[name]}")
            e.do(f"store i1 {ask(word)}, ptr {known[name]}")
        return e.value(f"load i1, ptr {known[name]}")

    def later(word: str) -> str:
        ordered = e.value(f"call i1 @{_ORDERED}(ptr %b, i32 %thread, i64 {word}, i1 {shared})")
        return w.negated(ordered)

    with e.count("0", "%count", "i64") as index:
        skip = w.mul(index, 8)
        written, read = w.add("%writes", skip), w.add("%reads", skip)
        last_write, last_read = w.load(written), w.load(read)
        yes, no, done = e.label("write"), e.label("read"), e.label("done")
        with e.when(looked_up("write", last_write, races)):
            with e.when(writes):
                tell(FindingKind.WRITE_WRITE, last_write)
            with e.when(w.negated(writes)):
                tell(FindingKind.READ_WRITE, last_write)
        e.branch(writes, yes, no)
        e.place(yes)
        with e.when(looked_up("read", last_read, races)):
            tell(FindingKind.READ_WRITE, last_read)
        w.store(mine, written)
        e.jump(done)
        e.place(no)
        # Another thread that has read it too must be remembered: its word stays, and is marked.
        now = w.test("ult", w.op("xor", last_read, mine), 1 << INTERVAL_SHIFT)
        many = w.test("ne", w.op("and", last_read, MANY), 0)
        own = w.test("ult", w.op("xor", last_read, mine), 1 << THREAD_SHIFT)
        with e.when(w.negated(w.both(now, w.either(many, own)))):
            shared_read = looked_up("read", last_read, later)
            w.store(w.choose(shared_read, w.op("or", last_read, MANY), mine), read)
        e.jump(done)
        e.place(done)
    e.end("ret void")
    e.finish()
