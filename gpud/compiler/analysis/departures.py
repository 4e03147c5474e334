"""Barriers and warp collectives that some threads may have left behind when others reach them.

Problem: in persistent form a thread that has finished its task block waits at the loop's head
instead of exiting. Hardware no longer counts exited threads at barriers and in lane masks, but it
does count waiting ones: a kernel whose threads may leave before a barrier that others still reach
would hang.

Approach: a thread can be gone, or on its way out, when others meet at instruction X only if a
branch that they do not take together decides whether X runs, or how often. So X is in danger from
branch B if B is not uniform and X is in B's region of influence; a predicated X is in danger from
its own guard.

Terms: *danger* is such a pair, with what X is: a full-block barrier, another barrier (counted,
named by a register, or reducing), or a warp collective. For barriers a branch must be taken
together by the whole block to be harmless; for collectives, by each warp.

Properties:
* if no barrier is in danger, all threads of a block run the same sequence of full-block barriers;
* a barrier in a uniform loop, or after threads of different ways have met again, is not in danger;
* the danger of a call is that of everything its callees do;
* a collective whose mask is the ballot of the very condition that leads to it is not in danger: it
  names exactly the lanes that come.

It is not enough to look at branches one of whose sides leads straight to the exit: compilers give
functions one ``ret``, so threads that leave a loop early meet the others again only there.

Source: PTX ISA 9.0, sections 9.7.13 (barriers; "exited" threads) and 9.7.9 (``shfl.sync`` masks).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    COLLECTIVE,
    Barrier,
    flags,
)
from gpud.compiler.analysis.shape import Shape
from gpud.compiler.analysis.survey import Survey, Uses
from gpud.compiler.analysis.uniformity import Level, Uniformity
from gpud.compiler.ptx.model import Instruction, Register

__all__ = ["Danger", "Dangers", "Meeting", "find_dangers", "full_barrier_id", "loop_barrier_id"]

_BARRIER_IDS = 16


class Meeting(Enum):
    """Where threads meet."""

    FULL_BARRIER = "full-block barrier"
    OTHER_BARRIER = "counted, named or reducing barrier"
    COLLECTIVE = "warp collective"


@dataclass(frozen=True, slots=True)
class Danger:
    """``meeting`` may be reached after some threads have left, because of ``branch``."""

    kind: Meeting
    meeting: Instruction
    branch: Instruction
    function: str


@dataclass(slots=True)
class Dangers:
    """All dangers of a kernel, at most one for each kind and function.

    ``shape``: the block shapes for which no further collective is in danger.
    """

    found: list[Danger]
    shape: Shape

    def first(self, kind: Meeting) -> Danger | None:
        """The first danger of a kind."""
        return next((danger for danger in self.found if danger.kind is kind), None)


def find_dangers(survey: Survey, entry: str) -> Dangers:
    """The dangers in ``entry`` and in all functions that it can reach."""
    dangers = Dangers([], Shape.ANY)
    for uses in survey.closure(entry):
        if uses.bits & (BARRIER | COLLECTIVE | CALL):
            meetings = {
                id(ins): kinds for ins in uses.noted if (kinds := _meets(ins, uses, survey))
            }
            if meetings:
                _look(survey.flow(uses.function.name), meetings, dangers)
    return dangers


def _meets(ins: Instruction, uses: Uses, survey: Survey) -> tuple[Meeting, ...]:
    """The ways in which threads meet at ``ins``."""
    bits = flags(ins.opcode)
    if bits & BARRIER:
        full = full_barrier_id(survey.barrier(ins, uses)) is not None
        return (Meeting.FULL_BARRIER if full else Meeting.OTHER_BARRIER,)
    if bits & COLLECTIVE:
        return (Meeting.COLLECTIVE,)
    if not bits & CALL:
        return ()
    kinds: dict[Meeting, None] = {}
    for called in survey.call_closure(ins):
        for inner in called.noted:
            if not flags(inner.opcode) & CALL:
                kinds.update(dict.fromkeys(_meets(inner, called, survey)))
    return tuple(kinds)


def _look(flow: ControlFlow, meetings: dict[int, tuple[Meeting, ...]], dangers: Dangers) -> None:
    """Add the dangers of one function, whose meetings are given by instruction identity."""
    at: dict[int, list[Instruction]] = {}
    for block in flow.order:
        here = [p.instruction for p in flow.blocks[block].places if id(p.instruction) in meetings]
        if here:
            at[block] = here
    if not at:
        return
    uniformity = Uniformity(flow)
    name = flow.function.name
    seen: set[Meeting] = set()

    def judge(ins: Instruction, branch: Instruction, level: Level, shape: Shape) -> None:
        for kind in meetings[id(ins)]:
            if kind in seen or level is Level.UNIFORM:
                continue
            if kind is Meeting.COLLECTIVE:
                if level is Level.WARP:
                    dangers.shape |= shape
                    continue
                if _names_who_comes(ins, branch, uniformity):
                    continue
            seen.add(kind)
            dangers.found.append(Danger(kind, ins, branch, name))

    for here in at.values():
        for ins in here:
            if ins.guard is not None:
                judge(ins, ins, *uniformity.guard(ins))
    for block in flow.order:
        last = flow.blocks[block].last
        if last is None or len(flow.blocks[block].successors) < 2:
            continue
        level, shape = uniformity.branch(block)
        if level is Level.UNIFORM:
            continue
        for inside in sorted(flow.influence(block).intersection(at)):
            for ins in at[inside]:
                judge(ins, last, level, shape)


def _names_who_comes(ins: Instruction, branch: Instruction, uniformity: Uniformity) -> bool:
    """Whether the mask of ``ins`` is the ballot of the condition by which ``branch`` leads to it.

    ``mask = __ballot_sync(~0, c); if (c) { ... __shfl_sync(mask, ...) }``. Which way the branch
    goes need not be checked: a lane may not run a collective whose mask does not name it.
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


# -- barrier numbers ---------------------------------------------------------------------------


def full_barrier_id(parts: Barrier) -> int | None:
    """The number of a full-block ``sync`` barrier that states it; ``None`` for any other."""
    if parts.action == "sync" and parts.count is None:
        return parts.constant_id
    return None


def loop_barrier_id(survey: Survey, entry: str, *, share_full: bool = False) -> int | None:
    """The lowest barrier number that ``entry`` and its callees surely leave free.

    With ``share_full`` the numbers of full-block barriers count as free: exit-aware barriers all
    use the loop's number.

    Returns:
        ``None`` if all are used, or if one is named by a register that is not a constant.
    """
    used: set[int] = set()
    for uses in survey.closure(entry):
        if not uses.bits & BARRIER:
            continue
        for ins in uses.noted:
            if flags(ins.opcode) & BARRIER:
                parts = survey.barrier(ins, uses)
                number = parts.constant_id
                if number is None:
                    return None
                if not share_full or full_barrier_id(parts) is None:
                    used.add(number)
    return next((number for number in range(_BARRIER_IDS) if number not in used), None)
