"""Uniformity: the registers with one value for a whole thread block, or for a whole warp.

Problem: whether some threads can exit, or skip a barrier, while others reach it depends on which
branches all threads of a block, or of a warp, take together.

Approach: every register gets the highest `Level` that any of its writes can give it, wherever it is
(flow-insensitive: compilers write nearly every register once). A rise is propagated to the results
of instructions that read the register, and, through branches, to registers written in the region
that the branch controls.

Terms: a value is *uniform* if all threads of a block that compute it get the same, *warp-uniform*
if all lanes of each warp do, *divergent* otherwise; a branch has the level of its condition. Some
values are warp-uniform only for some shapes of thread block: `ShapeRule` says for which.

Algorithm: optimistic data flow; all registers start uniform. Sources of divergence: ``%tid``,
``%laneid`` and clocks, volatile and atomic reads, local memory, loads from non-uniform addresses,
results and parameters of functions. Synchronisation dependence: if a branch is not uniform, the
registers written in the region it decides about (`ControlFlow.influence`) rise to its level when
they have several writes, or when the branch leaves a loop around the write (threads then hold
values of different iterations). The indices of `gpud.compiler.analysis.thread_indices` give the
usual ``threadIdx.x / 32`` and ``threadIdx.x < 32`` their warp-uniformity.

Properties:
* a value computed only from parameters, ``%ctaid``, ``%ntid`` and constants is uniform;
* the result of a block-wide reduction is uniform whatever its input;
* values merged after a divergent branch are divergent, merged after a uniform one they are not;
* a plain load at a uniform address is uniform: programs without data races cannot tell.

Source: Karrenberg and Hack, "Improving Performance of OpenCL on CPUs", 2012 (divergence analysis);
Rosemann, Moll and Hack, "An Abstract Interpretation for SPMD Divergence on Reducible Control Flow
Graphs", 2021 (synchronisation and temporal divergence).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpud.compiler.analysis.block_shape import ShapeRule
from gpud.compiler.analysis.bodies import declarations
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    COLLECTIVE,
    FLAGS,
    MEMORY_READ,
    VOLATILE,
    barrier,
    read,
    special_registers,
    state_space,
    written,
)
from gpud.compiler.analysis.thread_indices import REFINED, ThreadIndices
from gpud.compiler.ptx.model import Address, Instruction, Opcode, Symbol, Variable

__all__ = ["Level", "ShapeRule", "Uniformity"]


class Level(IntEnum):
    """How uniform a value is among threads; larger is less uniform."""

    UNIFORM = 0
    WARP = 1
    DIVERGENT = 2


Known = tuple[Level, ShapeRule]
"""A level and the block shapes for which it holds; ``DIVERGENT`` holds for any."""

# Internally, a level and its shapes are one integer, so that the join of two is a bitwise or:
# bit 0 warp-uniform, the shapes from bit 1 on, and all bits for divergent.
_UNIFORM = 0
_WARP = 1
_DIVERGENT = 0xFF

_UNIFORM_SPECIALS = (
    "%ctaid", "%nctaid", "%ntid", "%gridid", "%envreg", "%nwarpid", "%nsmid",
    "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size", "%reserved_smem_offset",
    "%cluster", "%ncluster", "%is_explicit_cluster", "%current_graph_exec", "WARP_SZ",
)  # fmt: skip
_FULL_MASKS = (-1, 0xFFFFFFFF)
_SOURCES = ("alloca", "createpolicy", "mbarrier")
_CARRIES = ("add", "sub", "mad", "addc", "subc", "madc")
_CARRY = "%%carry"  # the condition code that add.cc writes and addc reads


_Write = tuple[Instruction, list[str], list[str], bool, bool]
"""An instruction, the registers that it writes and reads, and two of its `_Traits`."""


class _Traits(NamedTuple):
    """What an opcode says of its instructions.

    ``is_source``: their results may be less alike than what they read. ``joins``: a result is as
    alike as what they read.
    """

    is_source: bool
    joins: bool
    reads_carry: bool
    writes_carry: bool


def _traits(op: Opcode) -> _Traits:
    bits = FLAGS[op.text]
    exchanges = bits & (CALL | BARRIER | COLLECTIVE)
    return _Traits(
        bool(exchanges or bits & MEMORY_READ or op.base in _SOURCES),
        not exchanges and op.base not in REFINED,
        op.base in _CARRIES and op.base[-1] == "c",
        op.base in _CARRIES and op.has("cc"),
    )


class Uniformity:
    """Levels of the registers and branches of one function.

    Args:
        flow: the function's control flow.
    """

    def __init__(self, flow: ControlFlow) -> None:
        self.flow = flow
        function = flow.function
        self._is_entry = function.kind == "entry"
        self._parameters = frozenset(p.name for p in function.parameters)
        self._has_local = not self._is_entry or any(
            isinstance(s, Variable) and s.space == "local"
            for s in declarations(function.body or ())
        )
        self._known: dict[str, int] = {}
        self._writes: list[_Write] = []
        self._guards: dict[str, list[int]] = {}
        self._written_in: dict[int, list[str]] = {}
        self._risen = False
        self._marks: dict[tuple[int, int], int] = {}
        self.definitions = Definitions(())
        self._collect()
        self._thread_indices = ThreadIndices(self.definitions)
        self._run()

    # -- results -------------------------------------------------------------------------------

    def of(self, name: str) -> Known:
        """Return the level of the register called ``name`` and the shapes for which it holds."""
        return _decode(self._known.get(name, _UNIFORM))

    def is_uniform(self, name: str) -> bool:
        """Return whether all threads of a block see the same value in the register ``name``."""
        return self._known.get(name, _UNIFORM) == _UNIFORM

    def guard(self, ins: Instruction) -> Known:
        """Return the level of the guard of ``ins``; without a guard it is uniform."""
        return _decode(self._guard(ins))

    def branch(self, block: int) -> Known:
        """Return the level of the branch that ends ``block``; uniform if it has one successor."""
        return _decode(self._branch(block))

    def _guard(self, ins: Instruction) -> int:
        if ins.guard is None:
            return _UNIFORM
        known = self._known.get(ins.guard.register.name, _UNIFORM)
        return _WARP if known == _DIVERGENT and ins.opcode.has("uni") else known

    def _branch(self, block: int) -> int:
        last = self.flow.blocks[block].last
        if last is None or len(self.flow.blocks[block].successors) < 2:
            return _UNIFORM
        known = self._guard(last)
        if last.opcode.base == "brx":
            for register in read(last):
                known |= self._known.get(register.name, _UNIFORM)
        return known

    # -- data flow -----------------------------------------------------------------------------

    def _collect(self) -> None:
        """Collect writers of registers, and what they read."""
        known: dict[str, _Traits] = {}
        definitions, writes, carried = self.definitions, self._writes, False
        for block in self.flow.order:
            names: list[str] = []
            places = self.flow.blocks[block].places
            for place in places:
                ins = place.instruction
                traits = known.get(ins.opcode.text)
                if traits is None:
                    traits = known[ins.opcode.text] = _traits(ins.opcode)
                targets = written(ins)
                if not targets and not traits.writes_carry:
                    continue
                definitions.add(ins, targets)
                results = [register.name for register in targets]
                sources = [register.name for register in read(ins)]
                # Registers alone, most often.
                others = len(results) + len(sources) < len(ins.operands) + (ins.guard is not None)
                is_source = traits.is_source or (others and bool(special_registers(ins)))
                if traits.reads_carry:
                    sources.append(_CARRY)
                if traits.writes_carry:
                    if carried:
                        definitions.several.add(_CARRY)
                    carried = True
                    results.append(_CARRY)
                writes.append((ins, results, sources, is_source, traits.joins and not is_source))
                names += results
            self._written_in[block] = names
            if len(self.flow.blocks[block].successors) > 1:
                for register in read(places[-1].instruction):
                    self._guards.setdefault(register.name, []).append(block)

    def _run(self) -> None:
        """Go over the writes in the order of the code until no level rises any more."""
        known, open_ = self._known, self._writes
        self._risen = True
        while self._risen:
            self._risen = False
            below: list[_Write] = []
            for write in open_:
                ins, results, sources, is_source, joins = write
                level = _UNIFORM
                for name in sources:
                    level |= known.get(name, _UNIFORM)
                if not joins and (level or is_source):
                    level = self._result(ins, sources)
                if level:
                    for name in results:
                        self._raise(name, level)
                if level != _DIVERGENT:  # it can rise no further
                    below.append(write)
            open_ = below

    def _raise(self, name: str, reached: int) -> None:
        known = self._known
        pending = [(name, reached)]
        while pending:
            name, reached = pending.pop()
            old = known.get(name, _UNIFORM)
            new = old | reached
            if new == old:
                continue
            known[name] = new
            self._risen = True
            for block in self._guards.get(name, ()):
                level = self._branch(block)
                if level:
                    pending.extend(
                        (other, level) for other in self._control_dependents(block, level)
                    )

    def _control_dependents(self, branch: int, level: int) -> list[str]:
        """Return the registers that depend on the direction of ``branch``, which has ``level``.

        Blocks that a branch of that level was found to control before are left out.
        """
        region = self.flow.influence(branch)
        loop: tuple[int, ...] = ()
        if branch in region:
            loop = next((c for c in self.flow.components if branch in c), ())
        names: list[str] = []
        for mark, blocks in ((0, sorted(region)), (1, [b for b in loop if b in region])):
            for block in blocks:
                old = self._marks.get((mark, block), _UNIFORM)
                if old | level == old:
                    continue
                self._marks[mark, block] = old | level
                written_here = self._written_in[block]
                names += [n for n in written_here if mark == 1 or n in self.definitions.several]
        return names

    # -- transfer ------------------------------------------------------------------------------

    def _result(self, ins: Instruction, sources: list[str]) -> int:
        bits = FLAGS[ins.opcode.text]
        if bits & (CALL | BARRIER):
            full = bits & BARRIER and barrier(ins).count is None
            return _UNIFORM if full else _DIVERGENT
        shape = self._thread_indices.warp_uniform(ins)
        if shape is not None:
            return _WARP | shape << 1 | self._guard(ins)
        known = self._operands(ins, sources)
        if bits & COLLECTIVE:
            return self._collective(ins, known)
        if bits & MEMORY_READ and not self._plain_load(ins, bits):
            return _DIVERGENT
        if ins.opcode.base in _SOURCES:
            return _DIVERGENT
        return known

    def _operands(self, ins: Instruction, sources: list[str]) -> int:
        known = _UNIFORM
        for name in sources:
            known |= self._known.get(name, _UNIFORM)
        for name in special_registers(ins):
            if name in ("%tid.y", "%tid.z"):
                known |= _WARP | ShapeRule.ROWS << 1
            elif not name.startswith(_UNIFORM_SPECIALS):
                return _DIVERGENT
        return known

    def _plain_load(self, ins: Instruction, bits: int) -> bool:
        """Return whether threads that load from the same address must get the same value."""
        if bits & VOLATILE:
            return False
        space = state_space(ins.opcode)
        if space == "param":
            source = ins.operands[-1]
            base = source.base if isinstance(source, Address) else None
            if isinstance(base, Symbol):
                return self._is_entry and base.name in self._parameters
            return self._is_entry
        if space == "local":
            return False
        return space != "generic" or not self._has_local

    def _collective(self, ins: Instruction, known: int) -> int:
        """Return the level of a collective's result, from that of its operands.

        Exchanging a uniform value keeps it; votes and sums of a full warp are warp-uniform.
        """
        base, operands, constant = ins.opcode.base, ins.operands, self.definitions.constant
        if base not in ("shfl", "vote", "redux"):
            return _DIVERGENT
        keeps = base == "shfl" or (base == "vote" and not ins.opcode.has("ballot"))
        if keeps and known != _DIVERGENT:
            return known
        if constant(operands[-1]) not in _FULL_MASKS:
            return _DIVERGENT
        broadcast = base == "shfl" and ins.opcode.has("idx") and len(operands) == 5
        if broadcast:
            broadcast = constant(operands[2]) is not None and constant(operands[3]) == 31
        return _WARP if broadcast or base != "shfl" else _DIVERGENT


def _decode(known: int) -> Known:
    if known == _DIVERGENT:
        return Level.DIVERGENT, ShapeRule.ANY
    return Level(known & _WARP), ShapeRule(known >> 1)
