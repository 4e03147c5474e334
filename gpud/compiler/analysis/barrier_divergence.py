"""Finds barriers and warp collectives that some threads may reach after others have exited.

Problem: in persistent form a thread that has finished its task block waits at the loop's head
instead of exiting. On hardware, barriers and lane masks do not count exited threads, but they do
count waiting ones: a kernel whose threads may exit before a barrier that others still reach would
hang.

Approach: some threads can have exited, or be on the way to their exit, when others are at
instruction X only if a divergent branch decides whether X runs, or how often. So X is at risk from
branch B if B is not uniform and X is in B's region of influence; a predicated X is at risk from its
own guard.

Terms: a *hazard* is such a pair, with the kind of X: a full-block barrier, another barrier
(counted, named by a register, or reducing), or a warp collective. For barriers a branch is harmless
if it is uniform in the block; for collectives, if it is uniform in each warp.

Properties:
* if no barrier is at risk, all threads of a block run the same sequence of full-block barriers;
* a barrier in a uniform loop, or after divergent paths have joined again, is not at risk;
* a call has the hazards of everything that its callees do;
* a collective whose mask is the ballot of the very condition that leads to it is not at risk: the
  mask names exactly the lanes that reach it.

It is not enough to examine branches of which one side leads straight to the exit: compilers give
functions one ``ret``, so threads that leave a loop early join the others only there.

Source: PTX ISA 9.0, sections 9.7.13 (barriers; "exited" threads) and 9.7.9 (``shfl.sync`` masks).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpud.compiler.analysis.barrier_ids import full_barrier_id
from gpud.compiler.analysis.block_shape import ShapeRule
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    COLLECTIVE,
    flags,
)
from gpud.compiler.analysis.uniformity import Level, Uniformity
from gpud.compiler.ptx.model import Instruction, Register

__all__ = [
    "DivergenceHazard",
    "DivergenceHazards",
    "SyncKind",
    "find_divergence_hazards",
]


class SyncKind(Enum):
    """The kind of an instruction at which threads synchronise."""

    FULL_BARRIER = "full-block barrier"
    OTHER_BARRIER = "counted, named or reducing barrier"
    COLLECTIVE = "warp collective"


@dataclass(frozen=True, slots=True)
class DivergenceHazard:
    """``instruction`` may be reached after some threads have exited, because of ``branch``."""

    kind: SyncKind
    instruction: Instruction
    branch: Instruction
    function: str


@dataclass(slots=True)
class DivergenceHazards:
    """All hazards of a kernel, at most one for each kind and function.

    ``shape`` is that of the blocks for which no other collective is at risk.
    """

    hazards: list[DivergenceHazard]
    shape: ShapeRule

    def first(self, kind: SyncKind) -> DivergenceHazard | None:
        """Return the first hazard of a kind."""
        return next((hazard for hazard in self.hazards if hazard.kind is kind), None)


def find_divergence_hazards(call_graph: CallGraph, entry: str) -> DivergenceHazards:
    """Return the hazards in ``entry`` and in all functions that it can reach."""
    hazards = DivergenceHazards([], ShapeRule.ANY)
    for uses in call_graph.closure(entry):
        if uses.bits & (BARRIER | COLLECTIVE | CALL):
            sync_points = {
                id(ins): kinds
                for ins in uses.noted
                if (kinds := _sync_kinds(ins, uses, call_graph))
            }
            if sync_points:
                _add_hazards_of(call_graph.flow(uses.function.name), sync_points, hazards)
    return hazards


def _sync_kinds(
    ins: Instruction, uses: FunctionSummary, call_graph: CallGraph
) -> tuple[SyncKind, ...]:
    """Return the kinds of synchronisation that ``ins`` performs, itself or in its callees."""
    bits = flags(ins.opcode)
    if bits & BARRIER:
        full = full_barrier_id(call_graph.barrier(ins, uses)) is not None
        return (SyncKind.FULL_BARRIER if full else SyncKind.OTHER_BARRIER,)
    if bits & COLLECTIVE:
        return (SyncKind.COLLECTIVE,)
    if not bits & CALL:
        return ()
    kinds: dict[SyncKind, None] = {}
    for called in call_graph.call_closure(ins):
        for inner in called.noted:
            if not flags(inner.opcode) & CALL:
                kinds.update(dict.fromkeys(_sync_kinds(inner, called, call_graph)))
    return tuple(kinds)


def _add_hazards_of(
    flow: ControlFlow, sync_points: dict[int, tuple[SyncKind, ...]], hazards: DivergenceHazards
) -> None:
    """Add the hazards of one function; ``sync_points`` are by the identity of the instruction."""
    at: dict[int, list[Instruction]] = {}
    for block in flow.order:
        here = [
            p.instruction for p in flow.blocks[block].places if id(p.instruction) in sync_points
        ]
        if here:
            at[block] = here
    if not at:
        return
    uniformity = Uniformity(flow)
    name = flow.function.name
    seen: set[SyncKind] = set()

    def add_if_divergent(
        ins: Instruction, branch: Instruction, level: Level, shape: ShapeRule
    ) -> None:
        for kind in sync_points[id(ins)]:
            if kind in seen or level is Level.UNIFORM:
                continue
            if kind is SyncKind.COLLECTIVE:
                if level is Level.WARP:
                    hazards.shape |= shape
                    continue
                if _mask_is_branch_ballot(ins, branch, uniformity):
                    continue
            seen.add(kind)
            hazards.hazards.append(DivergenceHazard(kind, ins, branch, name))

    for here in at.values():
        for ins in here:
            if ins.guard is not None:
                add_if_divergent(ins, ins, *uniformity.guard(ins))
    for block in flow.order:
        last = flow.blocks[block].last
        if last is None or len(flow.blocks[block].successors) < 2:
            continue
        level, shape = uniformity.branch(block)
        if level is Level.UNIFORM:
            continue
        for inside in sorted(flow.influence(block).intersection(at)):
            for ins in at[inside]:
                add_if_divergent(ins, last, level, shape)


def _mask_is_branch_ballot(ins: Instruction, branch: Instruction, uniformity: Uniformity) -> bool:
    """Return whether the mask of ``ins`` is the ballot of the condition of ``branch``.

    ``mask = __ballot_sync(~0, c); if (c) { ... __shfl_sync(mask, ...) }``. The direction of the
    branch need not be checked: a lane may not run a collective whose mask does not name it.
    """
    if ins.opcode.base not in ("shfl", "vote", "match", "redux", "bar") or branch.guard is None:
        return False
    mask = ins.operands[-1]
    if not isinstance(mask, Register):
        return False
    ballot = uniformity.definitions.of(mask)
    if ballot is None or not (ballot.opcode.base == "vote" and ballot.opcode.has("ballot")):
        return False
    condition = ballot.operands[1]
    return isinstance(condition, Register) and uniformity.definitions.same_condition(
        condition, branch.guard.register
    )
