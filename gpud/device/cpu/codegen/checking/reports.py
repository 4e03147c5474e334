"""Writes findings to the board: each different one once, with how often it was found.

Properties:
* findings that differ in kind, instruction, launch or array are different; the first one's place is
  kept;
* more than `FINDINGS` are dropped.
"""

from __future__ import annotations

from gpud.checked_memory import (
    FINDING,
    FINDING_BYTES,
    FINDINGS,
    FINDINGS_AT,
    INTERVAL_BYTES,
    INTERVALS,
    INTERVALS_AT,
)
from gpud.device.cpu.abi.linked_memory import arena_at
from gpud.device.cpu.codegen.checking.state import (
    INTERVAL_SHIFT,
    SITE_MASK,
    SITE_SHIFT,
    THREAD_MASK,
    THREAD_SHIFT,
    CheckState,
)
from gpud.device.cpu.codegen.checking.words import Words
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["REPORT", "define_report"]

REPORT = "gpud.check.report"
"""``void (b, thread, kind, site, address, how, start, size, word)``: ``word`` is the shadow's word
of the access that this one conflicts with, 0 if there is none."""

_INTERVAL_BLOCK = 28


def define_report(ir: IRModule, state: CheckState) -> None:
    """Define the function."""
    header = (
        f"define internal void @{REPORT}(ptr %b, i32 %thread, i32 %kind, i32 %site, "
        "i64 %address, i32 %how, i64 %array, i64 %size, i64 %word) nounwind cold noinline"
    )
    e = Emitter(ir, header)
    w = Words(e)
    launch = w.load(w.block(state.launch))
    with e.count("0", str(FINDINGS), "i64") as index:
        slot = w.add(w.mul(index, FINDING_BYTES), arena_at(FINDINGS_AT))

        def at(name: str, slot: str = slot) -> str:
            return w.add(slot, FINDING[name][0])

        pointer = w.pointer(slot)
        pair = e.value(f"cmpxchg ptr {pointer}, i32 0, i32 1 acq_rel acquire")
        taken = e.value(f"extractvalue {{ i32, i1 }} {pair}, 1")
        with e.when(taken):
            fields = {
                "kind": w.widened("%kind"),
                "site": w.widened("%site"),
                "thread": w.widened("%thread"),
                "task_block": w.load(w.block(state.task_block)),
                "bytes": w.bits(w.widened("%how"), 0, 255),
                "how": w.widened("%how"),
                "launch": launch,
                "address": "%address",
                "start": "%array",
                "size": "%size",
                "times": "1",
                **_other(w),
            }
            for name, value in fields.items():
                w.store(value, at(name), FINDING[name][1])
            e.do(f"store atomic i32 2, ptr {pointer} release, align 4")
            e.end("ret void")
        same = w.both(
            *(
                w.test("eq", w.load(at(name), FINDING[name][1]), value)
                for name, value in {
                    "kind": w.widened("%kind"),
                    "site": w.widened("%site"),
                    "launch": launch,
                    "start": "%array",
                }.items()
            )
        )
        with e.when(same):
            times = w.load(at("times"), "i32")
            w.store(w.add(times, 1), at("times"), "i32")
            e.end("ret void")
    e.end("ret void")
    e.finish()


def _other(w: Words) -> dict[str, str]:
    """Return the fields about the other access; site ``2**32 - 1`` if there is none."""
    none = w.test("eq", "%word", 0)
    number = w.op("lshr", "%word", INTERVAL_SHIFT)
    place = w.mul(w.op("and", number, INTERVALS - 1), INTERVAL_BYTES)
    entry = w.add(place, arena_at(INTERVALS_AT))
    return {
        "other_site": w.choose(none, 0xFFFFFFFF, w.bits("%word", SITE_SHIFT, SITE_MASK)),
        "other_thread": w.bits("%word", THREAD_SHIFT, THREAD_MASK),
        "other_block": w.load(w.add(entry, _INTERVAL_BLOCK), "i32"),
    }
