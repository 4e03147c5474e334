"""Divergence analysis: which registers are uniform, and which blocks can run in lockstep.

Problem: most of the time all threads of a block take the same path. Running them region by region,
each with its own copy of everything, costs memory traffic and hides from LLVM that control flow and
addresses are uniform.

Approach: assume that the threads stay in *lockstep*. Then a block of the kernel is run for all
threads in one loop (a *stage*), uniform values are computed once outside it, and control between
stages is plain control flow. Where the threads diverge, the block continues thread by thread
(`gpud.device.cpu.codegen.runtime.thread_scheduler`) until all reach one cut again.

Terms: a register is *uniform* if it holds the same value in all threads while they are in lockstep,
otherwise *varying*; a branch on a varying predicate is *folded* if both sides run inside the loop
over threads until they join, *voted* if the threads vote and diverge unless they agree; an *inner*
block is one on a side of a folded branch; a *solo* block never runs in lockstep.

Algorithm: start with everything uniform, then iterate: variation spreads from its sources (thread
numbers, atomics, volatile reads, collectives, calls, local addresses) along definitions; a varying
branch whose influence region has no loop and no wait is folded, and everything that inner blocks
define varies. Other varying branches are voted. So are those that test whether a thread's index in
the grid is within the data: nearly always all threads agree, and without masks their code is twice
as fast. A loop whose end depends on a thread's own data is folded, and so is one over the block's
own elements: if their number is not a multiple of the threads, the threads would diverge in every
block. A loop that strides by the whole grid (``i += blockDim.x * gridDim.x``) is voted: few blocks
have an iteration that not all of their threads run.

Properties:
* no wait, no polling loop and no barrier is in an inner block;
* a uniform register is defined only by instructions that all threads run when they are in lockstep,
  or that all threads run which may read it.

Source: the analysis is the usual divergence analysis (Coutinho et al., "Divergence Analysis and
Optimizations", PACT 2011), made optimistic since threads can still diverge at run time.
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
from gpud.device.cpu.codegen.analysis.regions import CodeRegions, waits
from gpud.device.cpu.codegen.emit.boundary_guards import may_guard_tile
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_check, prints

__all__ = ["Convergence"]

_PER_THREAD = ("%tid", "%laneid", "%lanemask", "%warpid", "%clock", "%globaltimer")
_MIN_VOTED_INSTRUCTIONS = 24
"""Minimum instructions behind a guard for a vote; fewer are cheaper to mask."""
_MIN_TILED_INSTRUCTIONS = 12
"""The same for a body that a tile can run in lockstep and that defines no register used later."""
_INDEX_TYPES = ("s32", "u32", "s64", "u64")
_CARRY = ("addc", "subc", "madc")
_GRID_SIZE = re.compile(r"%gpud_[a-z]+_grid_[xyz]", re.ASCII)
"""Registers that hold ``%nctaid`` in a kernel that runs several task blocks in turn."""
_MAX_DEFINITIONS = 32


class Convergence:
    """Uniform registers and the treatment of varying branches of a prepared kernel.

    Args:
        private: names of variables that each thread has its own copy of.

    Attributes:
        varying: registers that may differ between threads in lockstep.
        inner: inner blocks.
        voted: blocks whose branch is voted.
        bodies: by voted block, the blocks that a tile of the threads may run in lockstep, see
            `gpud.device.cpu.codegen.emit.boundary_guards`.
        solo: blocks that never run in lockstep.
    """

    def __init__(self, regions: CodeRegions, private: frozenset[str]) -> None:
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
        """Return the instructions that write a register, each with its block."""
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
                            self.varying |= self._live_after_branch(block, region)
                    else:
                        self.inner |= region
                        self.voted.discard(number)
                changed |= before != (len(self.varying), len(self.inner))
        self.voted -= self.inner
        self.bodies = {n: body for n, body in self.bodies.items() if n in self.voted}

    def _live_after_branch(self, block: Block, region: set[int]) -> set[str]:
        """Return the registers that ``region`` writes and code after its branch may read."""
        join = self.flow.post_dominators[block.index]
        if join is None or join == self.flow.exit:
            return set()
        places = (p for number in region for p in self.flow.blocks[number].places)
        names = {r.name for place in places for r in written(place.instruction)}
        return names.intersection(self.regions.live_into(join))

    def diverges(self, block: Block) -> bool:
        """Return whether ``block`` ends in a branch (or guarded end) on a varying predicate."""
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
                return printed  # its bounds check must not end the block before that
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
        enough = _MIN_VOTED_INSTRUCTIONS
        if may_guard_tile(self.regions, block, region):
            enough = enough if self._live_after_branch(block, region) else _MIN_TILED_INSTRUCTIONS
        if size < enough or last is None or last.guard is None:
            return False
        return self._is_bounds_guard(last.guard.register)

    def _is_bounds_guard(self, predicate: ptx.Register) -> bool:
        """Return whether ``predicate`` tests if a thread's index in the grid is within the data.

        That is an integer comparison of a uniform value with the sum of a uniform register and a
        thread number, such as ``blockIdx.x * blockDim.x + threadIdx.x``, or several of them
        combined. All threads of all but the last blocks agree.
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
        """Return whether ``register`` combines a uniform register with a varying value."""
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
        """Return whether all threads count the iterations alike, or it strides by the grid."""
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
        # A body with branches of its own gains nothing from iterations in lockstep.
        return not own or (
            any(self._is_grid_stride(name, inside) for name in own) and self.inner.isdisjoint(loop)
        )

    def _has_uniform_step(
        self, name: str, inside: list[ptx.Instruction], path: frozenset[str]
    ) -> bool:
        """Return whether a register changes by the same amount in all threads in each iteration."""
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
        """Return whether a register's increment is computed from the size of the grid."""
        names = {name}
        work = [i for i in inside if name in (r.name for r in written(i))]
        while work and len(names) < _MAX_DEFINITIONS:
            ins = work.pop()
            if any(one.startswith("%nctaid") for one in special_registers(ins)):
                return True
            for register in read(ins):
                if _GRID_SIZE.match(register.name):
                    return True
                if register.name not in names:
                    names.add(register.name)
                    work += [made for _, made in self.definitions_of(register.name)]
        return False

    def _must_diverge(self, block: Block) -> bool:
        """Return whether ``block`` cannot run in lockstep: arrivals, traps, tables with waits."""
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
        """Return whether ``ins`` can run once for all threads, before the loop over them."""
        targets = written(ins)
        if block in self.inner or not targets or waits(ins):
            return False
        bits = flags(ins.opcode)
        if bits & (MEMORY_WRITE | ATOMIC) or is_call(ins):
            return False
        return all(r.name not in self.varying for r in targets)
