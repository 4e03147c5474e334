"""Keeps a run's work within its quota: it pauses on an SM after it has had time there.

Problem: a quota of 1/4 SM gives a run 8 of 32 slices, which is few resident blocks. A GPU works at
them side by side, so that few blocks do little. An SM's thread works at one after the other, and
would give all of its time to a run that is alone there.

Approach: the generic cell rate algorithm (ITU-T Recommendation I.371). A run's *rate* on an SM is
its quota in CapSM, by the part of its blocks that it has there. A turn of t ns at rate r is paid
t / r ns after its beginning, or after the time at which what was before is paid, if that is later.
Until then the run has no turn on this SM. A run that comes late, since others had their turns,
is in credit by that, up to `_CREDIT_NS`.

Properties:
* with a quota of C a run has C SMs' time, alone or not, on one SM or several, however few blocks
  it has; also one of short launches, since blocks stay until their last turn is paid;
* a run without a quota, or with a whole SM on this one, is neither measured nor held back;
* released blocks, and runs that must end, do not pause: nobody waits for them longer.
"""

from __future__ import annotations

from gpud.device.cpu.abi.record_access import (
    Record,
    block_record_of,
    compare,
    run_of,
    share_of,
)
from gpud.device.cpu.abi.records import NONE
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["WHOLE", "define_is_paused", "pay"]

WHOLE = 1 << 16
"""The rate of a run that may have all of an SM's time, in the unit of ``SHARE.rate``."""

_CREDIT_NS = 100_000_000
"""Longer than other runs' turns and the operating system keep a run from its own; a run whose
kernel waited for long has no more than this at once."""


def define_is_paused(ir: IRModule) -> None:
    """Define ``i1 @is_paused(ptr %b)``: whether a block's run has turns to pay for on its SM."""
    ir.declare("declare i64 @llvm.umax.i64(i64, i64)")
    e = Emitter(ir, "define internal i1 @is_paused(ptr %b) nounwind")
    block_record = block_record_of(e)
    share = share_of(e, block_record)
    with e.when(compare(e, "eq", "i32", share.load("rate", "monotonic"), 0)):
        e.end("ret i1 false")
    goes_on = compare(e, "eq", "i32", run_of(e, block_record).load("stop", "monotonic"), 0)
    kept = compare(e, "ne", "i32", block_record.load("index", "monotonic"), NONE)
    due = compare(e, "ult", "i64", e.value("call i64 @now()"), share.load("paid_ns"))
    stays = e.value(f"and i1 {goes_on}, {kept}")
    e.end(f"ret i1 {e.value(f'and i1 {due}, {stays}')}")
    e.finish()


def pay(e: Emitter, share: Record, rate: str, began: str, took: str) -> None:
    """Have a run pause for a turn.

    Args:
        e: emits the code.
        share: what the run has of the SM.
        rate: ``share``'s, which is not 0.
        began: when the turn began, in ns.
        took: how long it has lasted, in ns.
    """
    paid = share.load("paid_ns")
    credit = e.value(f"sub i64 {began}, {_CREDIT_NS}")
    later = e.value(f"call i64 @llvm.umax.i64(i64 {paid}, i64 {credit})")
    first = compare(e, "eq", "i64", paid, 0)
    start = e.value(f"select i1 {first}, i64 {began}, i64 {later}")
    whole = e.value(f"mul i64 {took}, {WHOLE}")
    price = e.value(f"udiv i64 {whole}, {e.value(f'zext i32 {rate} to i64')}")
    share.store("paid_ns", e.value(f"add i64 {start}, {price}"))
