"""The persistent form: turns a kernel's body into the body of a loop over task blocks.

Problem: a running kernel's share of the device must change without losing or repeating work. A
launch of one block per task block cannot shrink.

Approach: ``k(params)`` becomes ``k(params, u64 ctl)``. It is launched with as many persistent
blocks as its allocation has room for. Each claims the next task block from a counter in device
memory, runs the original body as that block, and claims again, until none is left or the host has
told it to release. Claims are handed out in order, and a claimed task block always runs: nothing is
lost, repeated or restarted, and kernels whose blocks wait for lower-numbered ones keep working.

Terms: the *leader* is thread (0, 0, 0); a *claim* is a task block's number, or `NOTHING`: leave;
the two *slots* are words in shared memory through which the leader publishes claims.

Algorithm, for every thread; ``slot`` toggles between the two slots::

    slots[1] = NOTHING                        # no previous task block
    head: if leader: slots[slot] = next claim # see `gpud.compiler.passes.forms.claim`
          block-wide barrier                  # all threads have finished the previous task block
          claim = slots[slot]; slot = 1 - slot
          if leader and slots[slot] != NOTHING: job.done += 1   # the previous one
          if claim == NOTHING: leave
          %ctaid = coordinates(claim); old body; ret and exit go to head
    leave: if leader: status.live -= 1

Why one barrier is enough with two slots: the leader can be at most one barrier ahead of a slow
thread, so it writes the other slot while the slow thread still reads this one. With one slot it
would overwrite a claim that the slow thread has not read. The barrier also keeps a fast warp from
writing shared memory that a slow one still uses for the previous task block.

Properties:
* ``only entries``: nothing but entries of the plan changes, and the input is not changed;
* ``exits``: afterwards the only exit of the entry is the leave block;
* ``barrier``: there is one more barrier, not ``.aligned``, of a number that nothing else uses;
* ``coordinates``: the body reads ``%ctaid`` and ``%nctaid`` from registers with the user's values;
* ``launch bounds``, parameters, shared and local variables stay; the slots follow in 16 aligned
  bytes, so that dynamic shared memory stays as aligned as before;
* ``loop state``: one register is live through the body, the slot's address, and where blocks may
  claim in advance a second one, ``ahead``.

The barrier is ``barrier.sync``, because lanes that leave the body early arrive separately. A
``bar.warp.sync`` after it reconverges warps in kernels that need whole warps (``.aligned``
barriers, shuffles). Before it, asynchronous copies into shared memory are waited for, as they are
at the end of a block.

Source: docs/explanation/persistent-form.md; tests/unit/test_claim_protocol.py runs every
interleaving of the loop (right with two slots, wrong with one), also with chunks and claims in
advance; PTX ISA 9.0, sections 9.7.13 (barriers) and 8 (memory model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import CONTROL, LOOP, slots_of
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary, summarize
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import BARRIER, COLLECTIVE, EXIT, FLAGS, RETURN
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.forms.rules import SLOT_BYTES
from gpud.compiler.instrumentation.fault_reports import claim_beside, slot_of
from gpud.compiler.passes.builder import CodeBuilder, map_functions, split_declarations
from gpud.compiler.passes.forms.claim import add_claim
from gpud.compiler.passes.forms.coordinates import compute, replace_specials, used_coordinates
from gpud.compiler.passes.forms.exit_aware import loop_head_barrier
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Parameter,
    Register,
    SpecialRegister,
    Statement,
    Symbol,
    Variable,
    immediate,
    opcode,
)

__all__ = ["claim_and_slot", "pass_persistent"]

_VERSION = (6, 0)  # barrier.sync and bar.warp.sync appeared in PTX 6.0
_EVERY_LANE = -1
_AGAIN = opcode("bra")


def pass_persistent(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Rewrite the entries of ``plan`` into persistent form.

    Args:
        module: flat; functions have their coordinates as parameters, exit-aware barriers are in
            place. Not changed.
        plan: the decision for each entry to rewrite; all of them persistent.
    """
    if not plan:
        return module
    call_graph = call_graph_of(module)

    def change(function: Function) -> Function:
        decision = plan.get(function.name)
        if decision is None or function.kind != "entry" or function.body is None:
            return function
        loop = _loop(_needs(function, decision, call_graph))
        made = _around(function, loop)
        return call_graph.extend(function, made, loop.uses)

    changed = map_functions(module, change)
    return replace(changed, version=max(module.version, _VERSION))


def claim_and_slot(entry: Function) -> tuple[Register, Register]:
    """Return the registers that hold the claim, and the address of a slot, in a persistent entry.

    Both keep their values throughout the original body. The address, aligned down to `SLOT_BYTES`,
    is that of the slots' variable.
    """
    slot = slot_of(entry.parameters[-1].name)
    return claim_beside(slot), slot


class _Needs(NamedTuple):
    """The properties of an entry on which the code of its loop depends.

    Attributes:
        barrier: the number of the loop's barrier.
        exit_aware: whether threads may leave the body while others wait at barriers in it.
        several: whether blocks may hold task blocks that they have not begun.
        one_row: whether blocks have one row of threads.
        copies: whether the body may leave asynchronous copies in flight.
        lanes: whether the body needs whole warps.
        coordinates: the coordinates that the body reads.
    """

    barrier: int
    exit_aware: bool
    several: bool
    one_row: bool
    copies: bool
    lanes: bool
    coordinates: tuple[str, ...]


def _needs(entry: Function, decision: Decision, call_graph: CallGraph) -> _Needs:
    assert decision.barrier is not None, "a persistent kernel has a barrier for its loop"
    closure = call_graph.closure(entry.name)
    return _Needs(
        decision.barrier,
        decision.exit_aware,
        # A running block could wait for a task block that is held and not begun.
        not decision.waits_on_blocks,
        _is_one_row(entry),
        any(_copies_asynchronously(uses) for uses in closure),
        any(uses.bits & (BARRIER | COLLECTIVE) for uses in closure),
        used_coordinates(closure[0].specials),
    )


def _around(entry: Function, loop: _Loop) -> Function:
    """Return the entry in persistent form: its body in the loop."""
    declarations, body = split_declarations(entry.body or [])
    control = Parameter("u64", loop.control.name)
    slots = Variable("shared", "b8", loop.slots.name, (SLOT_BYTES,), align=SLOT_BYTES)
    inside = _without_exits(replace_specials(body, loop.instead), loop.start)
    return replace(
        entry,
        parameters=(*entry.parameters, control),
        body=[*declarations, slots, *loop.declarations, *loop.head, *inside, *loop.leave],
    )


@lru_cache(maxsize=64)
def _loop(needs: _Needs) -> _Loop:
    """Return the loop for ``needs``; kernels with equal needs (most have) share its statements."""
    return _Loop(needs)


class _Loop:
    """The loop around a body.

    Attributes:
        control: the hidden parameter.
        slots: the variable with the slots.
        start: the label at which the next task block is claimed.
        declarations: the declarations of the loop's registers.
        head: the statements before the body.
        instead: the registers that replace coordinates in the body.
        leave: the statements after the body.
        uses: the summary of all its statements.
    """

    def __init__(self, needs: _Needs) -> None:
        code = self._code = CodeBuilder(LOOP)  # no program defines a name that begins so
        self._needs = needs
        self.control = Symbol(f"{LOOP}{CONTROL}")
        self.slots = Symbol(slots_of(self.control.name))
        self.start = code.label("head")
        self._leave = code.label("leave")
        leader = self._claim()
        claim, job = code.register("claim"), code.register("job", "b64")
        self.instead = compute(code, claim, job, needs.coordinates)
        self.head, code.body = code.body, []
        self._leave_loop(leader)
        self.leave = code.body
        self.declarations = code.declarations
        again = Instruction(_AGAIN, (self.start,))
        self.uses = summarize([*self.declarations, *self.head, again, *self.leave])

    def _claim(self) -> Register:
        """Append the code that claims a task block or leaves; returns the leader's predicate."""
        code, needs = self._code, self._needs
        slot, claim = code.register("slot"), code.register("claim")
        code("mov.u32", slot, self.slots)
        # Every thread stores the same value; all of them are done by the first barrier.
        code("st.shared.u32", Address(slot, 4), words.NOTHING)
        code.place(self.start)
        leader = self._find_leader()
        if needs.copies:  # the previous task block may have left copies in flight
            code("cp.async.wait_all")
        add_claim(code, self.control, leader, slot, claim, several=needs.several)
        self._meet(slot, claim)
        self._count(leader[0], slot)
        over = code.register("over", "pred")
        code("setp.eq.u32", over, claim, words.NOTHING)
        code("bra", self._leave, when=over)
        return leader[0]

    # -- parts of the loop, in order -----------------------------------------------------------

    def _find_leader(self) -> tuple[Register, Register]:
        """Return the leader's predicate, and a register that is 0 in the leader only.

        Computed again in every iteration: cheaper than a predicate that is live through the body.
        """
        code = self._code
        leader, thread, other = (
            code.register("leader", "pred"),
            code.register("thread"),
            code.register("other"),
        )
        code("mov.u32", thread, SpecialRegister("%tid.x"))
        for letter in "" if self._needs.one_row else "yz":
            code("mov.u32", other, SpecialRegister(f"%tid.{letter}"))
            code("or.b32", thread, thread, other)
        code("setp.eq.u32", leader, thread, 0)
        return leader, thread

    def _meet(self, slot: Register, claim: Register) -> None:
        code, needs = self._code, self._needs
        if needs.exit_aware:
            loop_head_barrier(code, needs.barrier)
        else:
            code("barrier.sync", needs.barrier)
        if needs.lanes:
            code("bar.warp.sync", immediate(_EVERY_LANE))
        code("ld.shared.u32", claim, Address(slot))
        code("xor.b32", slot, slot, 4)

    def _count(self, leader: Register, slot: Register) -> None:
        """Append the code that counts the previous task block, without a branch in the warp."""
        code = self._code
        previous, counted = code.register("previous"), code.register("counted", "pred")
        code("mov.u32", previous, immediate(words.NOTHING))
        code("ld.shared.u32", previous, Address(slot), when=leader)
        code("setp.ne.u32", counted, previous, immediate(words.NOTHING))
        own = code.register("own", "b64")
        code("red.global.add.u32", Address(own, words.DONE), 1, when=counted)

    def _leave_loop(self, leader: Register) -> None:
        code = self._code
        ctl, status = code.register("control", "b64"), code.register("status", "b64")
        gone = code.label("gone")
        code.place(self._leave)
        code("bra", gone, unless=leader)
        code("ld.param.u64", ctl, Address(self.control))
        code("ld.global.nc.u64", status, Address(ctl, words.STATUS))
        # Without a memory fence: the block's writes are visible when the launch is over, not now.
        code("red.global.add.u32", Address(status, words.LIVE), immediate(-1))
        code.place(gone)
        code("ret")


# -- helpers -----------------------------------------------------------------------------------


def _without_exits(body: list[Statement], start: Symbol) -> list[Statement]:
    """Return ``body`` with branches to ``start`` for ``ret`` and ``exit``, and at its end."""
    made: list[Statement] = []
    for statement in body:
        if type(statement) is Instruction and FLAGS[statement.opcode.text] & (RETURN | EXIT):
            statement = Instruction(_AGAIN, (start,), statement.guard, statement.line)  # noqa: PLW2901
        made.append(statement)
    last = next((s for s in reversed(made) if isinstance(s, Instruction | Label)), None)
    ends = isinstance(last, Instruction) and last.guard is None
    if not (ends and isinstance(last, Instruction) and last.opcode.base in ("bra", "trap")):
        made.append(Instruction(_AGAIN, (start,)))
    return made


def _is_one_row(entry: Function) -> bool:
    """Return whether the kernel requires blocks whose y and z are 1."""
    required = next((text for text in entry.attributes if text.startswith(".reqntid")), None)
    if required is None:
        return False
    sizes = [int(size) for size in required.removeprefix(".reqntid").split(",")]
    return all(size == 1 for size in sizes[1:])


def _copies_asynchronously(uses: FunctionSummary) -> bool:
    return "cp" in uses.bases and any(
        op.base == "cp" and op.has("async") and not op.has("bulk") for op in uses.opcodes.values()
    )
