"""Finds spin loops: loops that wait until another thread block has written global memory.

Problem: a block must not wait for a task block that it has claimed and not begun, so kernels whose
blocks wait for other blocks claim one task block at a time; and a kernel whose blocks wait for
*all* blocks can only run with all of them resident.

Approach: find the loops that read global memory which other blocks may change, and whose exit
conditions depend on the value read.

Terms: a *polling read* is a volatile, relaxed, acquire or atomic read of global or generic memory;
a loop *waits* if one of its exit conditions depends on a polling read inside it, or on a call that
makes one. It is a *grid barrier* if the condition also depends on the size of the grid and the read
makes no progress of its own (a load, a compare-and-swap, an exchange, or an atomic that adds 0).
It waits for *any* block if the data chooses for which: `gpud.compiler.analysis.waiting_cycles`.

Algorithm: backward slice from the conditions of the loop's exits, register by register, flow-
insensitively: for waiting over the instructions of the loop; for the grid's size over the whole
function, but not through addresses and other operands of memory reads (a retry loop on a counter
whose address comes from a grid-stride index is no grid barrier). A loop that ends with a value of
the thread's own, such as the vertex that it hooks to another, is none either: what all blocks wait
for does not depend on a thread's position. A compare-and-swap whose expected value the loop reads
anew fails only where another thread succeeded, so it waits for nobody. Cycles of any shape count as
loops.

Properties:
* every loop that ends only when another block writes memory through such reads is found (a plain
  load in a loop may be hoisted, so correct programs do not wait with one);
* loops that take locks are reported too: that costs speed, never correctness.

Source: PTX ISA 9.0, chapter 8 (memory consistency model).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    CALL,
    MEMORY_READ,
    VOLATILE,
    flags,
    is_call,
    is_volatile_or_atomic_read,
    read,
    special_registers,
    state_space,
    written,
)
from gpud.compiler.analysis.waiting_cycles import poll_of_any_block
from gpud.compiler.ptx.model import Immediate, Instruction, Register

__all__ = ["SpinLoop", "find_spin_loops", "may_change_memory"]

_READ_ONLY_IF_ZERO = ("add", "or", "xor", "max")


@dataclass(frozen=True, slots=True)
class SpinLoop:
    """A loop that waits on ``read``.

    Attributes:
        read: the polling read.
        function: the function with the loop.
        for_grid: it apparently waits for all blocks of the grid.
        for_any: its data chooses for which block it waits.
    """

    read: Instruction
    function: str
    for_grid: bool
    for_any: bool = False


def find_spin_loops(call_graph: CallGraph, entry: str) -> list[SpinLoop]:
    """Return the loops that wait in ``entry`` and in all functions that it can reach."""
    closure = call_graph.closure(entry)
    if not any(uses.bits & VOLATILE or _orders_memory(uses) for uses in closure):
        return []
    sized_by_call = any(_reads_grid_size(uses.specials) for uses in closure[1:])
    loops = []
    for uses in closure:
        if not uses.may_cycle:
            continue
        if uses.bits & (VOLATILE | CALL):
            loops += _spin_loops_of(call_graph.flow(uses.function.name), call_graph, sized_by_call)
        if uses.bits & VOLATILE or _orders_memory(uses):
            name = uses.function.name
            poll = poll_of_any_block(call_graph.flow(name), may_change_memory)
            if poll is not None:
                loops.append(SpinLoop(poll, name, for_grid=False, for_any=True))
    return loops


def _orders_memory(uses: FunctionSummary) -> bool:
    return "membar" in uses.bases or "fence" in uses.bases


def _spin_loops_of(flow: ControlFlow, call_graph: CallGraph, sized_by_call: bool) -> list[SpinLoop]:
    spinning = []
    everywhere: dict[str, list[Instruction]] | None = None
    for component in flow.components:
        inside = [p.instruction for block in component for p in flow.blocks[block].places]
        if not any(_may_poll(ins) for ins in inside):
            continue
        writes = _writes(inside)
        for block in component:
            # Inner cycles matter too: each branch within the cycle may be an inner loop's exit.
            last = flow.blocks[block].last
            if last is None or len(flow.blocks[block].successors) < 2:
                continue
            sliced = _slice((register.name for register in read(last)), writes)
            polls = (ins for ins in sliced if _polls(ins, call_graph))
            poll = next((ins for ins in polls if not _is_retry(ins, flow)), None)
            if poll is None:
                continue
            for_grid = False
            if not _changes_memory(poll):
                if everywhere is None:
                    everywhere = _writes(
                        p.instruction for b in flow.order for p in flow.blocks[b].places
                    )
                condition = _slice(
                    (register.name for register in read(last)), everywhere, through_memory=False
                )
                for_grid = any(
                    _reads_grid_size(special_registers(ins)) or (sized_by_call and is_call(ins))
                    for ins in condition
                ) and not any(map(_is_own_position, condition))
            spinning.append(SpinLoop(poll, flow.function.name, for_grid))
    return spinning


def _may_poll(ins: Instruction) -> bool:
    bits = flags(ins.opcode)
    return bool(bits & CALL) or (bits & (MEMORY_READ | VOLATILE)) == MEMORY_READ | VOLATILE


def _polls(ins: Instruction, call_graph: CallGraph) -> bool:
    """Return whether ``ins`` is a polling read of global memory, or a call that makes one."""
    if is_call(ins):
        return any(
            is_volatile_or_atomic_read(inner) and state_space(inner.opcode) in ("global", "generic")
            for uses in call_graph.call_closure(ins)
            if uses.bits & VOLATILE
            for inner in uses.function.body or ()
            if isinstance(inner, Instruction)
        )
    space = state_space(ins.opcode)
    return is_volatile_or_atomic_read(ins) and space in ("global", "generic")


def _is_retry(ins: Instruction, flow: ControlFlow) -> bool:
    """Return whether ``ins`` is a compare-and-swap with a value that its loop reads anew."""
    if ins.opcode.base != "atom" or not ins.opcode.has("cas") or len(ins.operands) < 4:
        return False
    expected = ins.operands[2]
    if not isinstance(expected, Register):
        return False
    for loop in sorted(flow.loops, key=lambda loop: len(loop.blocks)):
        inside = [p.instruction for block in loop.blocks for p in flow.blocks[block].places]
        if any(one is ins for one in inside):  # the innermost one
            expects = _slice((expected.name,), _writes(inside))
            return any(flags(one.opcode) & MEMORY_READ for one in expects)
    return False


def may_change_memory(ins: Instruction) -> bool:
    """Return whether ``ins`` is an atomic that may change memory."""
    return ins.opcode.base == "atom" and (
        ins.opcode.has("cas") or ins.opcode.has("exch") or _changes_memory(ins)
    )


def _changes_memory(ins: Instruction) -> bool:
    """Return whether a polling read also makes progress of its own, as an atomic addition does."""
    if ins.opcode.base != "atom":
        return False
    if ins.opcode.has("cas") or ins.opcode.has("exch"):
        return False
    operand = ins.operands[2] if len(ins.operands) > 2 else None
    neutral = isinstance(operand, Immediate) and operand.value == 0
    return not (neutral and any(ins.opcode.has(name) for name in _READ_ONLY_IF_ZERO))


def _writes(instructions: Iterable[Instruction]) -> dict[str, list[Instruction]]:
    writes: dict[str, list[Instruction]] = {}
    for ins in instructions:
        for register in written(ins):
            writes.setdefault(register.name, []).append(ins)
    return writes


def _slice(
    names: Iterable[str], writes: dict[str, list[Instruction]], *, through_memory: bool = True
) -> list[Instruction]:
    """Return the instructions on whose results the registers ``names`` depend, nearest first.

    Without ``through_memory`` a read of memory is included, but not what made its operands.
    """
    queue = list(dict.fromkeys(names))
    seen = set(queue)
    instructions: dict[int, Instruction] = {}
    for name in queue:  # grows during the iteration
        for ins in writes.get(name, ()):
            if id(ins) in instructions:
                continue
            instructions[id(ins)] = ins
            if not through_memory and flags(ins.opcode) & (MEMORY_READ | CALL):
                continue
            for register in read(ins):
                if register.name not in seen:
                    seen.add(register.name)
                    queue.append(register.name)
    return list(instructions.values())


def _is_own_position(ins: Instruction) -> bool:
    """Return whether ``ins`` reads the thread's or the block's number."""
    return any(name.startswith(("%tid", "%ctaid")) for name in special_registers(ins))


def _reads_grid_size(specials: Iterable[str]) -> bool:
    return any(name.startswith("%nctaid") for name in specials)
