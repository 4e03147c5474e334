"""Which loops wait for other threads.

Problem: threads of a block take turns on one OS thread. A loop that polls memory until another
thread writes it would never end unless its thread steps aside; a loop that only happens to use
atomics should not pay for that.

Approach: a loop *waits* if what decides that it goes on depends on memory that others may change:
on a volatile, relaxed, acquire, ``.cv`` or atomic read, an ``mbarrier`` test, or a call. A
compare-and-swap
whose expected value the loop itself computes anew is a retry, not a wait: it fails only when
somebody else succeeded. A loop with a block-wide barrier on it gives way at the barrier.

Algorithm: backward slice from the loop's exit conditions over the instructions of the loop,
register by register, flow-insensitively.

Source: PTX ISA 9.0, section 8 (memory consistency); Volta's independent thread scheduling.
"""

from __future__ import annotations

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    is_barrier,
    is_call,
    is_volatile_or_atomic_read,
    read,
    written,
)
from gpud.compiler.ptx import model as ptx

__all__ = ["waiting_headers"]


def waiting_headers(flow: ControlFlow) -> frozenset[int]:
    """Header blocks of the loops that wait; a thread steps aside when it goes back to one."""
    found = set()
    for component in flow.loops:
        blocks = set(component.blocks)
        inside = [place.instruction for b in component.blocks for place in flow.blocks[b].places]
        if any(is_barrier(ins) for ins in inside):
            continue
        conditions: set[str] = set()
        for b in component.blocks:
            block = flow.blocks[b]
            last = block.last
            leaves = any(s not in blocks for s in block.successors)
            if leaves and last is not None:
                if last.guard is not None:
                    conditions.add(last.guard.register.name)
                conditions.update(r.name for r in read(last))
        if _reads_shared_state(inside, conditions):
            found.add(component.header)
    return frozenset(found)


def _reads_shared_state(inside: list[ptx.Instruction], conditions: set[str]) -> bool:
    defines: dict[str, list[ptx.Instruction]] = {}
    for ins in inside:
        for register in written(ins):
            defines.setdefault(register.name, []).append(ins)
    work, seen = list(conditions), set(conditions)
    while work:
        for ins in defines.get(work.pop(), ()):
            if is_call(ins):
                return True
            fetches_again = ins.opcode.base == "ld" and ins.opcode.has("cv")
            if fetches_again or (is_volatile_or_atomic_read(ins) and not _is_retry(ins, defines)):
                return True
            for register in read(ins):
                if register.name not in seen:
                    seen.add(register.name)
                    work.append(register.name)
    return False


def _is_retry(ins: ptx.Instruction, defines: dict[str, list[ptx.Instruction]]) -> bool:
    if ins.opcode.base != "atom" or not ins.opcode.has("cas"):
        return False
    expected = ins.operands[2]
    return isinstance(expected, ptx.Register) and expected.name in defines
