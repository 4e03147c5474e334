"""Barrier numbers: those that a kernel uses, and a free one for the persistent loop."""

from __future__ import annotations

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.effects import BARRIER, Barrier, flags

__all__ = ["full_barrier_id", "loop_barrier_id"]

_BARRIER_IDS = 16


def full_barrier_id(parts: Barrier) -> int | None:
    """Return the constant number of a full-block ``sync`` barrier; ``None`` for any other."""
    if parts.action == "sync" and parts.count is None:
        return parts.constant_id
    return None


def loop_barrier_id(call_graph: CallGraph, entry: str, *, share_full: bool = False) -> int | None:
    """Return the lowest barrier number that ``entry`` and its callees certainly do not use.

    With ``share_full`` the numbers of full-block barriers count as free: exit-aware barriers all
    use the loop's number.

    Returns:
        ``None`` if all are used, or if one is in a register that is not constant.
    """
    used: set[int] = set()
    for uses in call_graph.closure(entry):
        if not uses.bits & BARRIER:
            continue
        for ins in uses.noted:
            if flags(ins.opcode) & BARRIER:
                parts = call_graph.barrier(ins, uses)
                number = parts.constant_id
                if number is None:
                    return None
                if not share_full or full_barrier_id(parts) is None:
                    used.add(number)
    return next((number for number in range(_BARRIER_IDS) if number not in used), None)
