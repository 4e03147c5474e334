"""Which parts of a kernel a whole block can run as one, and what is then the same for all threads.

Problem: most of the time all threads of a block take the same way. Running them region by region,
each with its own copy of everything, costs memory traffic and hides from LLVM that control flow
and addresses are common to all.

Approach: plan for the case that the threads stay *together*. Then a block of the kernel is run for
all threads in one loop (a *stage*), what is the same for all is computed once outside it, and
control between stages is plain control flow. Where they part, the block continues thread by thread
(`gpud.device.cpu.codegen.runtime.thread_scheduler`) until all stand at one cut again.

Terms: a register is *uniform* if it holds the same value in all threads as long as they stay
together, otherwise *varying*; a branch on a varying predicate is *folded* if both sides run inside
the loop over threads until they join, *voted* if the threads are asked and part unless they agree;
an *inner* block is one on a side of a folded branch; a *solo* block is never run together.

Algorithm: start with everything uniform, then iterate: sources of variation (thread numbers,
atomics, volatile reads, collectives, calls, local addresses) spread along definitions; a varying
branch whose influence holds no loop and no wait is folded, and all that inner blocks define varies.
Other varying branches are voted, and so are those that ask whether a thread's place in the grid is
within the data: nearly always all answer alike, and without masks their code is twice as fast. The
loop that a thread's own data ends is folded, and so is one over the block's own elements: where
their number is no multiple of the threads, all of them part in every block. A loop that strides by
the whole grid (``i += blockDim.x * gridDim.x``) is voted: few blocks have a round that not all of
their threads run.

Properties:
* no wait, no polling loop and no barrier is in an inner block;
* a uniform register is defined only by instructions that all threads run when they are together,
  or all that may read it.

Source: the analysis is the usual divergence analysis (Coutinho et al., "Divergence Analysis and
Optimizations", PACT 2011), made optimistic by the possibility to part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import (
    ATOMIC,
    BARRIER,
    MEMORY_READ,
    MEMORY_WRITE,
    VOLATILE,
    barrier,
    flags,
    is_call,
    read,
    special_registers,
    state_space,
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.regions import Regions, waits
from gpud.device.cpu.codegen.emit.boundary_guards import may_guard_tile
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_check, prints

__all__ = ["Convergence"]

_PER_THREAD = ("%tid", "%laneid", "%lanemask", "%warpid", "%clock", "%globaltimer")
_WORTH_A_VOTE = 24
"""Instructions behind a guard: fewer are run sooner than the threads can be asked."""
_WORTH_A_TILE = 12
"""The same where none of them need part, and which leaves nothing in registers."""
_INDEX_TYPES = ("s32", "u32", "s64", "u64")
_CARRY = ("addc", "subc", "madc")
_GRID_SIZE = re.compile(r"%gpud_[a-z]+_grid_[xyz]", re.ASCII)
"""Where a kernel that runs task blocks one after another has ``%nctaid``."""
_MOST_DEFINITIONS = 32


class Convergence:
    """What is uniform and how varying branches are taken, for a prepared kernel.

    Args:
        regions: of the kernel.
        private: names of variables that each thread has its own copy of.
        shape_is_one: whether the block has a single thread (everything is uniform then).

    Attributes:
        varying: registers that may differ between threads that are together.
        inner: inner blocks.
        voted: blocks whose branch is voted.
        bodies: what lies behind such a branch, if a part of the threads may run it together, see
            `gpud.device.cpu.codegen.emit.boundary_guards`.
        solo: blocks that are never run together.
    """

    def __init__(self, regions: Regions, private: frozenset[str]) -> None:
        self.regions = regions
        self.flow = regions.flow
        self.private = private
        self.varying: set[str] = set()
        self.inner: set[int] = set()
        self.voted: set[int] = set()
        self.bodies: dict[int, set[int]] = {}
        self._loops_of: dict[int, list[frozenset[int]]] = {}
        for loop in self.flow.loops:
            blocks = frozenset(loop.blocks)
            for number in loop.blocks:
                self._loops_of.setdefault(number, []).append(blocks)
        self._definitions: dict[str, list[tuple[int, ptx.Instruction]]] = {}
        for number in self.flow.order:
            for place in self.flow.blocks[number].places:
                for register in written(place.instruction):
                    self._definitions.setdefault(register.name, []).append(
                        (number, place.instruction)
                    )
        self._headers = {loop.header for loop in self.flow.loops}
        self._solve()
        self.solo = {b for b in self.flow.order if self._must_diverge(self.flow.blocks[b])}

    def definitions_of(self, name: str) -> Sequence[tuple[int, ptx.Instruction]]:
        """The instructions that write a register, each with its block."""
        return self._definitions.get(name, ())

    @property
    def made(self) -> dict[str, list[ptx.Instruction]]:
        """The instructions that write each register."""
        return {name: [ins for _, ins in made] for name, made in self._definitions.items()}

    # -- the fixed point

    def _solve(self) -> None:
        changed = True
        while changed:
            changed = False
            for number in self.flow.order:
                block = self.flow.blocks[number]
                before = len(self.varying), len(self.inner)
                self._propagate(block)
                last = block.last
                if number not in self.inner and last is not None and self.diverges(block):
                    region = self.flow.influence(number)
                    if self._votes(block, region):
                        self.voted.add(number)
                        if may_guard_tile(self.regions, block, region):
                            self.bodies[number] = region
                            # Only some of the threads may have written it.
                            self.varying |= self._left_behind(block, region)
                    else:
                        self.inner |= region
                        self.voted.discard(number)
                changed |= before != (len(self.varying), len(self.inner))
        self.voted -= self.inner
        self.bodies = {n: body for n, body in self.bodies.items() if n in self.voted}

    def _left_behind(self, block: Block, region: set[int]) -> set[str]:
        """The registers that ``region`` writes and what follows ``block``'s branch may read."""
        join = self.flow.post_dominators[block.index]
        if join is None or join == self.flow.exit:
            return set()
        places = (p for number in region for p in self.flow.blocks[number].places)
        names = {r.name for place in places for r in written(place.instruction)}
        return names.intersection(self.regions.live_into(join))

    def diverges(self, block: Block) -> bool:
        """Whether ``block`` ends in a branch (or guarded end) on something varying."""
        last = block.last
        if last is None or len(block.successors) < 2:
            return False
        names = [r.name for r in read(last)]
        return any(name in self.varying for name in names)

    def _propagate(self, block: Block) -> None:
        inner = block.index in self.inner
        wrote_memory = printed = False
        for place in block.places:
            ins = place.instruction
            if inner or self._varies(ins, wrote_memory, printed=printed):
                self.varying.update(r.name for r in written(ins))
            printed = printed or prints(ins)
            if flags(ins.opcode) & (MEMORY_WRITE | ATOMIC) or is_call(ins):
                wrote_memory = True

    def _varies(self, ins: ptx.Instruction, wrote_memory: bool, *, printed: bool) -> bool:
        bits, base = flags(ins.opcode), ins.opcode.base
        if any(r.name in self.varying for r in read(ins)):
            return not self._is_reduction(ins)
        if any(name.startswith(_PER_THREAD) for name in special_registers(ins)):
            return True
        if base == "gpud" and ins.opcode.modifiers[0] == "resume":
            return not self._is_reduction(ins)
        if bits & (ATOMIC | VOLATILE) or is_call(ins) or base in _CARRY or base == "mbarrier":
            return True
        if ins.opcode.has("cc") or base in ("activemask", "elect"):
            return True
        if any(self._names_private(o) for o in ins.operands):
            return True
        if bits & MEMORY_READ and not bits & MEMORY_WRITE:
            if state_space(ins.opcode) in ("param", "const"):
                return False
            if ins.opcode.has("nc"):
                return printed  # its fence must not end the block before that
            return wrote_memory or state_space(ins.opcode) == "local"
        # A register that a guard leaves alone keeps its old value, which is uniform or found above.
        return False

    @staticmethod
    def _is_reduction(ins: ptx.Instruction) -> bool:
        names = ins.opcode.modifiers
        return (
            ins.opcode.base == "gpud"
            and names[0] == "resume"
            and names[1] in ("bar", "barrier")
            and "red" in names
        )

    def _names_private(self, operand: ptx.Operand) -> bool:
        if isinstance(operand, ptx.Address):
            return operand.base is not None and operand.base.name in self.private
        if isinstance(operand, ptx.SymbolOffset):
            return operand.symbol.name in self.private
        return isinstance(operand, ptx.Symbol) and operand.name in self.private

    # -- branches

    def _votes(self, block: Block, region: set[int]) -> bool:
        last = block.last
        heavy = any(
            waits(self.flow.blocks[b].last)
            or b in self.regions.polling
            or self._has_barrier(self.flow.blocks[b])
            for b in region | {block.index}
        )
        for loop in self._loops_of.get(block.index, ()):
            controls = any(s not in loop for s in block.successors)
            if controls:
                # The branch decides whether the loop goes on.
                return heavy or self._is_lockstep_loop(block, loop)
        if last is not None and last.opcode.base == "brx":
            return heavy
        if heavy or not region.isdisjoint(self._headers):
            return True
        size = sum(not is_check(p.instruction) for b in region for p in self.flow.blocks[b].places)
        enough = _WORTH_A_VOTE
        if may_guard_tile(self.regions, block, region):
            enough = enough if self._left_behind(block, region) else _WORTH_A_TILE
        if size < enough or last is None or last.guard is None:
            return False
        return self._is_bounds_guard(last.guard.register)

    def _is_bounds_guard(self, predicate: ptx.Register) -> bool:
        """Whether ``predicate`` asks if a thread's place in the whole grid is within the data.

        That is an integer comparison of something uniform with something made of a uniform
        register and a thread number, such as ``blockIdx.x * blockDim.x + threadIdx.x``, or several
        of them joined. All threads of all but the last blocks answer alike.
        """
        definitions = self.definitions_of(predicate.name)
        if len(definitions) != 1:
            return False
        ins = definitions[0][1]
        sources = read(ins)
        if ins.opcode.base in ("or", "and", "not") and "pred" in ins.opcode.modifiers:
            return all(r.name not in self.varying or self._is_bounds_guard(r) for r in sources)
        if ins.opcode.base != "setp" or ins.opcode.modifiers[-1] not in _INDEX_TYPES:
            return False
        if len(sources) != 2 or ins.opcode.modifiers[0] in ("eq", "ne"):
            return False
        varying = [r for r in sources if r.name in self.varying]
        return len(varying) == 1 and self._is_grid_index(varying[0])

    def _is_grid_index(self, register: ptx.Register) -> bool:
        """Whether ``register`` is made of a uniform register and something of the thread's own."""
        definitions = self.definitions_of(register.name)
        if len(definitions) != 1:
            return False
        ins = definitions[0][1]
        if ins.opcode.base in ("cvt", "mov"):
            return any(self._is_grid_index(r) for r in read(ins))
        if ins.opcode.base not in ("add", "mad", "or"):
            return False
        return any(r.name not in self.varying for r in read(ins))

    @staticmethod
    def _has_barrier(block: Block) -> bool:
        return any(flags(p.instruction.opcode) & BARRIER for p in block.places)

    def _is_lockstep_loop(self, block: Block, loop: frozenset[int]) -> bool:
        """Whether the loop counts rounds in common, or strides by the whole grid."""
        last = block.last
        if last is None or last.guard is None:
            return False
        predicate = last.guard.register.name
        inside = [p.instruction for b in sorted(loop) for p in self.flow.blocks[b].places]
        tests = [i for i in inside if predicate in (r.name for r in written(i))]
        if len(tests) != 1 or tests[0].opcode.base != "setp":
            return False
        if tests[0].opcode.modifiers[-1][0] not in "sub":
            return False
        tested = [r.name for r in read(tests[0]) if r.name in self.varying]
        if not all(self._has_uniform_step(name, inside, frozenset()) for name in tested):
            return False
        own = [n for n in tested if any(n in (r.name for r in written(i)) for i in inside)]
        # A body with ways of its own gains nothing from rounds in common.
        return not own or (
            any(self._is_grid_stride(name, inside) for name in own) and self.inner.isdisjoint(loop)
        )

    def _has_uniform_step(
        self, name: str, inside: list[ptx.Instruction], path: frozenset[str]
    ) -> bool:
        """Whether a register changes from round to round by the same amount in all threads."""
        if name not in self.varying or name in path:
            return True
        return all(
            step.opcode.base in ("add", "sub", "mov")
            and step.guard is None
            and all(self._has_uniform_step(r.name, inside, path | {name}) for r in read(step))
            for step in inside
            if name in (r.name for r in written(step))
        )

    def _is_grid_stride(self, name: str, inside: list[ptx.Instruction]) -> bool:
        """Whether what a register is advanced by is made from the size of the grid."""
        found = {name}
        work = [i for i in inside if name in (r.name for r in written(i))]
        while work and len(found) < _MOST_DEFINITIONS:
            ins = work.pop()
            if any(one.startswith("%nctaid") for one in special_registers(ins)):
                return True
            for register in read(ins):
                if _GRID_SIZE.match(register.name):
                    return True
                if register.name not in found:
                    found.add(register.name)
                    work += [made for _, made in self.definitions_of(register.name)]
        return False

    def _must_diverge(self, block: Block) -> bool:
        """Blocks that only single threads can run: arrivals, traps, varying tables with waits."""
        if block.index in self.inner:
            return False
        for place in block.places:
            ins = place.instruction
            if flags(ins.opcode) & BARRIER and barrier(ins).action == "arrive":
                return True
            if ins.opcode.base == "trap":
                return True
        last = block.last
        return last is not None and last.opcode.base == "brx" and block.index in self.voted

    def is_uniform(self, ins: ptx.Instruction, block: int) -> bool:
        """Whether ``ins`` can run once for all threads, before the loop over them."""
        targets = written(ins)
        if block in self.inner or not targets or waits(ins):
            return False
        bits = flags(ins.opcode)
        if bits & (MEMORY_WRITE | ATOMIC) or is_call(ins):
            return False
        return all(r.name not in self.varying for r in targets)
