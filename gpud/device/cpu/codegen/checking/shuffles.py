"""Reports shuffles that read a lane outside of their members, or one that the block does not have.

What such a lane gives is undefined, and GPUs differ in it. A lane that would be outside of its
segment reads itself, and is not reported.

Source: PTX ISA 9.0, section 9.7.9.6.
"""

from __future__ import annotations

from gpud.checked_memory import MAGIC
from gpud.compiler.abi.check_calls import SHUFFLE_MODES
from gpud.device.cpu.abi.linked_memory import arena_at
from gpud.device.cpu.codegen.checking.ordering import ENTER
from gpud.device.cpu.codegen.checking.reports import REPORT
from gpud.device.cpu.codegen.checking.state import SHUFFLE_FUNCTION
from gpud.device.cpu.codegen.checking.words import Words
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.errors.findings import FindingKind

__all__ = ["define_shuffles"]

_BYTES = 4


def define_shuffles(ir: IRModule) -> None:
    """Define the function."""
    header = (
        f"define internal void @{SHUFFLE_FUNCTION}(ptr %b, i32 %thread, i32 %mode, i32 %operand, "
        "i32 %bounds, i32 %members, i32 %site) nounwind"
    )
    e = Emitter(ir, header)
    w = Words(e)
    with e.when(w.test("ne", w.load(arena_at()), MAGIC)):
        e.end("ret void")
    e.do(f"call void @{ENTER}(ptr %b)")
    thread, mode = w.widened("%thread"), w.widened("%mode")
    lane = w.op("and", thread, 31)
    by = w.bits(w.widened("%operand"), 0, 31)
    bounds = w.widened("%bounds")
    segment = w.bits(bounds, 8, 31)
    others = w.op("xor", segment, 31)
    least = w.op("and", lane, segment)
    most = w.op("or", least, w.op("and", w.bits(bounds, 0, 31), others))
    sources = {
        "up": w.sub(lane, by),
        "down": w.add(lane, by),
        "bfly": w.op("xor", lane, by),
        "idx": w.op("or", least, w.op("and", by, others)),
    }
    source = lane
    for name, place in sources.items():
        comparison = "sge" if name == "up" else "sle"
        here = w.test("eq", mode, SHUFFLE_MODES.index(name))
        within = w.test(comparison, place, most)
        source = w.choose(w.both(here, within), place, source)
    member = w.op("and", w.op("lshr", w.widened("%members"), source), 1)
    whole = w.add(w.sub(thread, lane), source)
    missing = w.test("uge", whole, w.header("threads"))
    with e.when(w.either(w.test("eq", member, 0), missing)):
        e.do(
            f"call void @{REPORT}(ptr %b, i32 %thread, i32 {int(FindingKind.SHUFFLE)}, i32 %site, "
            f"i64 {source}, i32 {_BYTES}, i64 0, i64 0, i64 0)"
        )
    e.end("ret void")
    e.finish()
