"""Finds cycles that can end only when a block that the data chooses writes memory.

Problem: persistent blocks run task blocks in ascending order, so a task block may wait for a lower
one, or for whoever holds a lock, but not for any that its data names: that one may not have begun.
A colouring kernel that waits until its neighbours of higher priority have a colour would hang with
fewer blocks than its grid has. Retries, locks and searches look alike, and must stay resizable.

Approach: such a cycle only looks, and looks at the same places again and again.

Terms: a *poll* is a volatile, relaxed or acquire load of global memory, an atomic that changes
nothing, or, in a cycle with a fence, a plain load; an *exit* of a cycle is a branch out of it that
does not lead to a trap; what an exit *depends on* is the backward slice of its condition within the
cycle: through registers, through shared memory, and through branches that decide whether a value is
written. What a cycle *carries* is computed from its own value in the iteration before. An exit is
the thread's *own* if it depends on something carried that depends on no poll, a counter, or on a
clock.

Algorithm: a natural loop (or a cycle of another shape) waits for a block that the data chooses if

* it has exits, and none of them is the thread's own;
* they depend on polls, and on no atomic that changes memory (a lock that the thread may take, or a
  retry, which fails only where another thread succeeded) and no call;
* the address of one of these polls is computed from an index that was loaded from global memory,
  and not from something carried: it is a walk along links or a search, which looks elsewhere each
  time.

Properties:
* a cycle that ends by a counter of its own is not reported;
* a cycle whose exit depends on a compare-and-swap, an exchange or another atomic that changes
  memory is not reported;
* polls at addresses made from positions and parameters alone, as scans make, are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    CALL,
    MEMORY_READ,
    flags,
    is_call,
    is_volatile_or_atomic_read,
    read,
    special_registers,
    state_space,
    written,
)
from gpud.compiler.analysis.graph import immediate_dominators, strong_components
from gpud.compiler.analysis.liveness import Liveness
from gpud.compiler.ptx.model import Address, Instruction, Register

__all__ = ["Cycle", "orders_memory", "poll_of_any_block"]

_GLOBAL = ("global", "generic")
_COPIES = ("mov", "selp", "cvt", "cvta")
_SCALING = ("shl", "mul", "mad", "cvt")
_CLOCKS = ("%clock", "%globaltimer")

Writes = dict[str, list[Instruction]]


def poll_of_any_block(
    flow: ControlFlow, changes_memory: Callable[[Instruction], bool]
) -> Instruction | None:
    """Return a poll with which a cycle of ``flow`` waits for a block that its data chooses.

    Args:
        flow: the function.
        changes_memory: whether an atomic makes progress of its own, or may take a lock.
    """
    loops = [loop.blocks for loop in flow.loops]
    cycles = [Cycle(flow, blocks) for blocks in loops]
    cycles += [Cycle(flow, blocks) for blocks in flow.components if blocks not in loops]
    if not any(cycle.polls for cycle in cycles):
        return None
    whole = _writes(p.instruction for b in flow.order for p in flow.blocks[b].places)
    liveness: Liveness | None = None
    for cycle in cycles:
        chosen = [poll for poll in cycle.polls if _is_chosen_by_data(_address(poll), whole)]
        if not chosen:
            continue
        liveness = liveness or Liveness(flow)
        decisive = cycle.polls_that_decide(liveness, changes_memory)
        for poll in chosen:
            if any(poll is one for one in decisive):
                if not cycle.carried(cycle.slice(_address(poll)), liveness):
                    return poll
    return None


class Cycle:
    """A cycle of the control flow, and what its exits depend on.

    Args:
        flow: the function.
        blocks: of the cycle, sorted.
        spaces: the state spaces in which a read may be a poll.
    """

    def __init__(
        self, flow: ControlFlow, blocks: Sequence[int], spaces: Sequence[str] = _GLOBAL
    ) -> None:
        self._flow = flow
        self._spaces = spaces
        self.blocks = frozenset(blocks)
        self._order = blocks
        self.inside = [p.instruction for b in blocks for p in flow.blocks[b].places]
        self._heads = {
            b for b in blocks if any(p not in self.blocks for p in flow.blocks[b].predecessors)
        } or {blocks[0]}

    @cached_property
    def writes(self) -> Writes:
        """The instructions that write each register."""
        return _writes(self.inside)

    @cached_property
    def block_of(self) -> dict[int, int]:
        """The block of each instruction, by the instruction's identity."""
        return {id(p.instruction): b for b in self._order for p in self._flow.blocks[b].places}

    @cached_property
    def _rereads(self) -> bool:
        return any(orders_memory(ins) for ins in self.inside)

    @cached_property
    def polls(self) -> list[Instruction]:
        """Its polls, and other atomics."""
        return [ins for ins in self.inside if self._polls(ins)]

    def _polls(self, ins: Instruction) -> bool:
        if not flags(ins.opcode) & MEMORY_READ or state_space(ins.opcode) not in self._spaces:
            return False
        if is_volatile_or_atomic_read(ins):
            return True
        return self._rereads and ins.opcode.base == "ld" and not ins.opcode.has("nc")

    def polls_that_decide(
        self, liveness: Liveness, changes_memory: Callable[[Instruction], bool]
    ) -> list[Instruction]:
        """Return the polls on which its exits depend; none if it may end without others."""
        polls: list[Instruction] = []
        for branch in self._exits():
            slice_ = self.slice(register.name for register in read(branch))
            for ins in slice_:
                if is_call(ins) or changes_memory(ins):
                    return []
                if any(name.startswith(_CLOCKS) for name in special_registers(ins)):
                    return []
            for ins in self.carried(slice_, liveness):
                if ins.opcode.base in _COPIES or flags(ins.opcode) & MEMORY_READ:
                    continue
                if not any(map(self._polls, self.slice(r.name for r in written(ins)))):
                    return []
            polls += [ins for ins in slice_ if self._polls(ins)]
        return polls

    def carried(self, slice_: list[Instruction], liveness: Liveness) -> list[Instruction]:
        """Return the instructions of ``slice_`` that compute values of their own values before."""
        number = {id(ins): place for place, ins in enumerate(slice_)}
        sources = []
        for ins in slice_:
            found = {
                number[id(one)]
                for register in read(ins)
                for one in self.writes.get(register.name, ())
                if id(one) in number
            }
            sources.append(sorted(found))
        root = len(slice_)
        live = {
            register.name
            for head in self._heads
            for register in liveness.registers(liveness.live_in[head])
        }
        carried: list[Instruction] = []
        for component in strong_components([*sources, range(root)], root):
            first = component[0]
            if len(component) == 1 and (first == root or first not in sources[first]):
                continue
            members = [slice_[place] for place in component]
            if any(register.name in live for ins in members for register in written(ins)):
                carried += members
        return carried

    def _exits(self) -> list[Instruction]:
        exits = []
        for b in self._order:
            block = self._flow.blocks[b]
            out = [s for s in block.successors if s not in self.blocks]
            leaves = any(s == self._flow.exit or not self._flow.blocks[s].traps for s in out)
            if leaves and block.last is not None and not block.traps:
                exits.append(block.last)
        return exits

    def slice(self, names: Iterable[str]) -> list[Instruction]:
        """Return the instructions of the cycle on which the registers ``names`` depend."""
        queue = list(dict.fromkeys(names))
        seen = set(queue)
        found: dict[int, Instruction] = {}
        for name in queue:  # grows during the iteration
            work = list(self.writes.get(name, ()))
            while work:
                ins = work.pop()
                if id(ins) in found:
                    continue
                found[id(ins)] = ins
                for register in read(ins):
                    if register.name not in seen:
                        seen.add(register.name)
                        queue.append(register.name)
                work += self._deciding.get(self.block_of[id(ins)], ())
                if flags(ins.opcode) & MEMORY_READ and state_space(ins.opcode) == "shared":
                    work += self._shared_stores
        return list(found.values())

    @cached_property
    def _shared_stores(self) -> list[Instruction]:
        return [
            ins
            for ins in self.inside
            if ins.opcode.base in ("st", "atom", "red") and state_space(ins.opcode) == "shared"
        ]

    @cached_property
    def _deciding(self) -> dict[int, list[Instruction]]:
        """The branches that decide whether an iteration passes a block, by block.

        Control dependence within one iteration: exits are not taken, the next one ends it.
        """
        place = {b: number for number, b in enumerate(self._order)}
        end = len(place)
        ways = []
        for b in self._order:
            inside = [s for s in self._flow.blocks[b].successors if s in self.blocks]
            ways.append([end if s in self._heads else place[s] for s in inside] or [end])
        backward: list[list[int]] = [[] for _ in range(end + 1)]
        for number, out in enumerate(ways):
            for one in out:
                backward[one].append(number)
        above = immediate_dominators(backward, end)
        deciding: dict[int, list[Instruction]] = {}
        for number, b in enumerate(self._order):
            last = self._flow.blocks[b].last
            if last is None or len(ways[number]) < 2:
                continue
            for one in ways[number]:
                at: int | None = one
                while at not in (None, end, above[number]):
                    assert at is not None
                    branches = deciding.setdefault(self._order[at], [])
                    if last not in branches:
                        branches.append(last)
                    at = above[at]
        return deciding


def orders_memory(ins: Instruction) -> bool:
    """Return whether ``ins`` makes plain loads after it read memory again."""
    return ins.opcode.base in ("membar", "fence")


def _writes(instructions: Iterable[Instruction]) -> Writes:
    writes: Writes = {}
    for ins in instructions:
        for register in written(ins):
            writes.setdefault(register.name, []).append(ins)
    return writes


def _address(poll: Instruction) -> list[str]:
    """Return the names of the registers of which the address of a read is made."""
    addresses = [operand for operand in poll.operands if isinstance(operand, Address)]
    return [one.base.name for one in addresses if isinstance(one.base, Register)]


def _is_chosen_by_data(address: Iterable[str], writes: Writes) -> bool:
    """Return whether an index that was loaded from global memory is part of an address.

    A pointer that was loaded, such as a member of a structure, is none: it is added as it is.
    """
    queue = [(name, False) for name in address]
    seen = set(queue)
    for name, scaled in queue:  # grows during the iteration
        for ins in writes.get(name, ()):
            if flags(ins.opcode) & (MEMORY_READ | CALL):
                narrow = not any(ins.opcode.has(type_) for type_ in ("b64", "s64", "u64"))
                if ins.opcode.base == "ld" and state_space(ins.opcode) in _GLOBAL:
                    if scaled or narrow:
                        return True
                continue
            scales = scaled or ins.opcode.base in _SCALING
            for register in read(ins):
                if (register.name, scales) not in seen:
                    seen.add((register.name, scales))
                    queue.append((register.name, scales))
    return False
