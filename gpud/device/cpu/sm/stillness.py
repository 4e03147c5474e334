"""Finds persistent blocks that spin without any change, in native code.

Problem: a task block may wait for one that has not begun. If all resident blocks of a run do, it
never ends, and only a timeout would say so. A block that merely polls between pieces of work, or
works long without writing anything, must not be taken for one.

Approach: what a block does next depends on its own memory, on global memory and on clocks alone. A
block that yields from a polling loop has all live values in its memory, so one that is found with
the same memory again, and again, repeats itself until somebody else writes what it reads.

Terms: a block is *still* from when its memory was first found again until it is found changed, or
it does anything but yield from a polling loop.

Algorithm: in every `_PERIOD`-th turn that ends so, a checksum of the block's memory is kept, and
compared with those of the next `_WINDOW` turns: loops that yield at several places repeat with a
longer period. `gpud.device.cpu.scheduling.run` looks at all blocks of a run together.

Properties:
* a block whose loop counts, backs off further, draws random numbers or moves along is not still;
* blocks of kernels that read a clock are never still, nor are those with more memory than
  `WATCHED_BYTES`.
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import (
    Record,
    block_record_of,
    compare,
    launch_of,
    load,
    run_of,
)
from gpud.device.cpu.abi.records import SM
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["WATCHED_BYTES", "define_watch"]

WATCHED_BYTES = 4 << 20
"""Blocks with more memory are not watched: the checksums would take too long."""

_PERIOD, _WINDOW = 2048, 64
"""Turns. A nap of a polling SM takes 0.2 ms, so a block alone is looked at every half a second,
and 64 checksums of a usual block, of 30 kB, take less than a thousandth of that."""

_REPORT_NS = 1_000_000_000
"""A block that has been still for this long is reported to the scheduler of its run."""

_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)


def define_watch(ir: IRModule) -> None:
    """Define ``void @watch(ptr %sm, ptr %b)``, for a block that has yielded from polling."""
    _define_checksum(ir)
    e = Emitter(ir, "define internal void @watch(ptr %sm, ptr %b) nounwind")
    block_record = block_record_of(e)
    turn = e.value(f"add i32 {block_record.load('polled')}, 1")
    block_record.store("polled", turn)
    phase = e.value(f"and i32 {turn}, {_PERIOD - 1}")
    run = run_of(e, block_record)
    watched = compare(e, "ne", "i32", run.load("watched_bytes"), 0)
    early = compare(e, "ule", "i32", phase, _WINDOW)
    with e.when(e.value(f"xor i1 {e.value(f'and i1 {early}, {watched}')}, true")):
        e.end("ret void")
    size = e.value(f"zext i32 {run.load('watched_bytes')} to i64")
    checksum = e.value(f"call i64 @checksum(ptr %b, i64 {size})")
    with e.when(compare(e, "eq", "i32", phase, 0)):
        block_record.store("checksum", checksum)
        block_record.store("found", 0)
        e.end("ret void")
    with e.when(compare(e, "eq", "i64", checksum, block_record.load("checksum"))):
        block_record.store("found", 1)
    with e.when(compare(e, "ne", "i32", phase, _WINDOW)):
        e.end("ret void")
    with e.when(compare(e, "eq", "i32", block_record.load("found"), 0)):
        block_record.store("still_ns", 0)
        e.end("ret void")
    now = e.value("call i64 @now()")
    with e.when(compare(e, "eq", "i64", block_record.load("still_ns"), 0)):
        block_record.store("still_ns", now)
    block_record.store("seen_ns", now)
    spent = e.value(f"sub i64 {now}, {block_record.load('still_ns')}")
    launch = launch_of(e, run, block_record.load("launch"))
    left = compare(e, "ult", "i32", launch.load("next", "monotonic"), launch.load("total"))
    long = compare(e, "ugt", "i64", spent, _REPORT_NS)
    with e.when(e.value(f"and i1 {long}, {left}")):
        Record(e, "%sm", SM).store("spinning", 1)
    e.end("ret void")
    e.finish()


def _define_checksum(ir: IRModule) -> None:
    """Define ``i64 @checksum(ptr %b, i64 %size)`` of ``size`` bytes, a multiple of 8."""
    e = Emitter(ir, "define internal i64 @checksum(ptr %b, i64 %size) nounwind")
    total = e.alloca("i64", "total")
    e.do(f"store i64 0, ptr {total}")
    words = e.value("lshr i64 %size, 3")
    with e.count("0", e.value(f"trunc i64 {words} to i32")) as index:
        word = load(e, "i64", e.value(f"getelementptr i64, ptr %b, i32 {index}"))
        both = e.value(f"xor i64 {load(e, 'i64', total)}, {word}")
        mixed = e.value(f"mul i64 {both}, {_FACTOR}")
        # A product's high bits depend on all of the factors' bits, its low ones do not.
        high = e.value(f"lshr i64 {mixed}, 32")
        e.do(f"store i64 {e.value(f'xor i64 {mixed}, {high}')}, ptr {total}")
    e.end(f"ret i64 {load(e, 'i64', total)}")
    e.finish()
