"""Which loops wait for other threads.

Problem: threads of a block take turns on one OS thread. A loop that polls memory until another
thread writes it would never end unless its thread yields; a loop that only happens to use atomics
should not pay for that.

Approach: a loop *waits* if its exit conditions depend on memory that others may change: on a
volatile, relaxed, acquire, ``.cv`` or atomic read, an ``mbarrier`` test, or a call. A
compare-and-swap whose expected value the loop itself computes anew is a retry, not a wait: it fails
only when another thread succeeded. A loop also waits if what such a load returned decides which of
several values its exits test, and no exit is the thread's own
(`gpud.compiler.analysis.waiting_cycles`). A path around a loop that passes a block-wide barrier
yields there, so only the other paths count.

Algorithm: backward slice from the loop's exit conditions over the instructions of the loop,
register by register, flow-insensitively.

Source: PTX ISA 9.0, section 8 (memory consistency); Volta's independent thread scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpud.compiler.analysis.cfg import ControlFlow, Loop
from gpud.compiler.analysis.effects import (
    is_barrier,
    is_call,
    is_volatile_or_atomic_read,
    is_warp_collective,
    read,
    state_space,
    written,
)
from gpud.compiler.analysis.liveness import Liveness
from gpud.compiler.analysis.spin_loops import may_change_memory
from gpud.compiler.analysis.waiting_cycles import Cycle
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.check_calls import without_checks

__all__ = ["spin_headers"]


def spin_headers(flow: ControlFlow) -> frozenset[int]:
    """Return the header blocks of the loops that wait; a thread yields at the back edge to one."""
    announced = without_checks(flow.function)
    if announced is not flow.function:
        flow = ControlFlow(announced)  # with the same blocks
    headers = set()
    liveness: Liveness | None = None
    for loop in flow.loops:
        blocks = _without_barriers(flow, loop)
        inside = [place.instruction for b in sorted(blocks) for place in flow.blocks[b].places]
        conditions: set[str] = set()
        for b in sorted(blocks):
            block = flow.blocks[b]
            last = block.last
            leaves = any(s not in blocks for s in block.successors)
            if leaves and last is not None:
                if last.guard is not None:
                    conditions.add(last.guard.register.name)
                conditions.update(r.name for r in read(last))
        if _reads_shared_state(inside, conditions):
            headers.add(loop.header)
        elif blocks and any(map(is_volatile_or_atomic_read, inside)):
            liveness = liveness or Liveness(flow)
            cycle = Cycle(flow, sorted(blocks), ("global", "generic", "shared"))
            if cycle.polls_that_decide(liveness, may_change_memory):
                headers.add(loop.header)
    return frozenset(headers)


def _without_barriers(flow: ControlFlow, loop: Loop) -> set[int]:
    """Return the blocks of all paths around ``loop`` that pass no block-wide barrier."""
    passable = {
        b for b in loop.blocks if not any(is_barrier(p.instruction) for p in flow.blocks[b].places)
    }

    def closure(start: Iterable[int], further: Callable[[int], Iterable[int]]) -> set[int]:
        inside, stack = set(), [b for b in start if b in passable]
        while stack:
            block = stack.pop()
            if block not in inside:
                inside.add(block)
                stack.extend(b for b in further(block) if b in passable)
        return inside

    forward = closure((loop.header,), lambda b: flow.blocks[b].successors)
    return forward & closure(loop.latches, lambda b: flow.blocks[b].predecessors)


def _reads_shared_state(inside: list[ptx.Instruction], conditions: set[str]) -> bool:
    defines: dict[str, list[ptx.Instruction]] = {}
    for ins in inside:
        for register in written(ins):
            defines.setdefault(register.name, []).append(ins)
    # The result of a collective depends on the operands of all lanes.
    offered = [r for ins in inside if is_warp_collective(ins) for r in read(ins)]
    fenced = any(ins.opcode.base in ("membar", "fence") for ins in inside)
    work, seen = list(conditions), set(conditions)
    while work:
        for ins in defines.get(work.pop(), ()):
            if is_call(ins):
                return True
            # A plain load counts if a fence makes it see new values each time.
            fetches_again = ins.opcode.base == "ld" and (
                ins.opcode.has("cv")
                or (fenced and state_space(ins.opcode) in ("global", "generic", "shared"))
            )
            if fetches_again or (is_volatile_or_atomic_read(ins) and not _is_retry(ins, defines)):
                return True
            for register in [*read(ins), *(offered if ins.opcode.base == "gpud" else ())]:
                if register.name not in seen:
                    seen.add(register.name)
                    work.append(register.name)
    return False


def _is_retry(ins: ptx.Instruction, defines: dict[str, list[ptx.Instruction]]) -> bool:
    if ins.opcode.base != "atom" or not ins.opcode.has("cas"):
        return False
    expected = ins.operands[2]
    return isinstance(expected, ptx.Register) and expected.name in defines
