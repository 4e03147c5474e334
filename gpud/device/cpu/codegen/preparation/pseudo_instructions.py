"""Folds checks, polls and terminators of rewritten programs into single pseudo-instructions.

Problem: the compiler's passes insert sequences with branches into a program: a bounds check before
each memory access, a poll of the kill flag in each loop, calls of functions that record a fault and
never return. As control flow they would split every block and hide from the code generator that
threads run in lockstep.

Approach: before any analysis, each becomes one instruction:

* ``gpud.bounds`` for a bounds check, see `gpud.device.cpu.codegen.preparation.check_instruction`;
* ``gpud.poll``: the block ends here if its job was killed; with the modifier ``each`` every thread
  looks, since what follows is costly, and the others' turns come only after it;
* ``gpud.target [site], value, claim, targets``: the block ends here if ``value`` is none of the
  named functions, or not less than the number if there is one instead;
* ``gpud.claim`` for the load with which each thread of a persistent block reads its task block: it
  also writes the block's header, for failures that no instruction of the program reports;
* ``trap`` with operands for whatever ends the block, see
  `gpud.device.cpu.codegen.emit.fault_reports`.

Code that becomes unreachable is removed.

Properties: a function without any of these is returned as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpud.compiler.abi.reserved_names import FAULT, NORETURN, PRINT
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    MEMORY_READ,
    TERMINATOR,
    callee,
    flags,
    is_call,
    state_space,
)
from gpud.compiler.instrumentation import bounds_checks, kill_polls, target_checks
from gpud.compiler.instrumentation.fault_reports import claim_beside, slot_of, split_tails
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.fault_reports import BREAKPOINT, RAW_ASSERT
from gpud.device.cpu.codegen.preparation.check_instruction import NO_CLAIM, from_program

__all__ = [
    "ENDINGS",
    "checks_after_prints",
    "fold_pseudos",
    "is_bounds_check",
    "is_check",
    "is_poll",
    "is_poll_of_each",
    "is_target",
    "prints",
]

ENDINGS = NORETURN
"""Functions whose calls become traps."""

_PRINTERS = (ptx.Symbol("vprintf"), ptx.Symbol(PRINT))

_OWN_ARGUMENTS = 3
"""Number of arguments of `FAULT` before a context is added: kind, site, address."""


def is_check(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` is a bounds check or a poll: it ends the block or does nothing."""
    return is_bounds_check(ins) or is_poll(ins)


def prints(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` is a ``printf``: its output is kept if the block ends afterwards."""
    return is_call(ins) and callee(ins) in _PRINTERS


def checks_after_prints(stage: Sequence[ptx.Instruction], uniform: Collection[int]) -> set[int]:
    """Return the checks, by identity, that must not end the block before an earlier ``printf``.

    None if a load that runs once for all threads (``uniform`` ones, by identity) follows them: it
    runs before the loop that prints, and its bounds check before it.
    """
    first = next((n for n, ins in enumerate(stage) if prints(ins)), len(stage))
    behind = stage[first:]
    for ins in behind:
        if id(ins) in uniform and not is_check(ins) and flags(ins.opcode) & MEMORY_READ:
            if state_space(ins.opcode) not in ("param", "const"):
                return set()
    return {
        id(i)
        for i in behind
        if is_bounds_check(i) and i.opcode.modifiers[1] in ("global", "generic")
    }


def fold_pseudos(function: ptx.Function, *, checked: bool) -> ptx.Function:
    """Replace these sequences in ``function``, whose body is flat.

    ``checked``: keep bounds checks; otherwise they are removed.
    """
    polled = kill_polls.fold(
        split_tails(_with_claim(function)),
        lambda _: ptx.Instruction(ptx.opcode("gpud.poll"), (), None, function.line),
    )
    polled = _with_polls_of_each(polled)
    plain, claims, contexts = _without_context(polled)
    if function.kind == "func":
        claims = {}  # no argument needed: the block's header has it
    folded = bounds_checks.fold(
        plain, lambda check: from_program(check, claims.get(check.site, NO_CLAIM))
    )
    folded = target_checks.fold(folded, lambda check, line: _target(check, line, claims))
    kept = [
        _with_context(s, contexts) for s in folded.body or [] if checked or not is_bounds_check(s)
    ]
    body = _fold_terminators(kept if folded is not plain else polled.body or [])
    if body == function.body:
        return function
    return _without_dead_code(_with_body(function, body))


def _target(
    check: target_checks.TargetCheck, line: int, claims: Mapping[int, ptx.Operand]
) -> ptx.Instruction:
    """Build the pseudo-instruction for a target check of the program. It has no result operand."""
    length = check.length
    legal: tuple[ptx.Operand, ...] = tuple(map(ptx.Symbol, check.functions))
    if length is not None:
        legal = (ptx.Immediate(str(length), length),)
    claim = claims.get(check.site, NO_CLAIM)
    operands = (ptx.Address(None, check.site), check.value, claim, *legal)
    return ptx.Instruction(ptx.opcode("gpud.target"), operands, check.guard, line)


def _with_claim(function: ptx.Function) -> ptx.Function:
    """Replace the load with which a persistent loop reads its claim by ``gpud.claim``."""
    if function.kind != "entry" or not function.parameters:
        return function
    slot = slot_of(function.parameters[-1].name)
    operands = (claim_beside(slot), ptx.Address(slot))
    claim = ptx.opcode("gpud.claim")
    body: list[ptx.Statement] = [
        replace(s, opcode=claim)
        if isinstance(s, ptx.Instruction) and s.operands == operands and s.opcode.base == "ld"
        else s
        for s in function.body or []
    ]
    return function if body == function.body else _with_body(function, body)


_Operands = tuple[ptx.Operand, ...]


def _without_context(
    function: ptx.Function,
) -> tuple[ptx.Function, dict[int, ptx.Operand], dict[_Operands, _Operands]]:
    """Restore bounds checks to their original form, without the context added to their reports.

    Returns the function, the task block by site, and the removed context: the full arguments of a
    report by its remaining ones.
    """
    claims: dict[int, ptx.Operand] = {}
    contexts: dict[_Operands, _Operands] = {}
    body: list[ptx.Statement] = []
    for statement in function.body or []:
        if isinstance(statement, ptx.Instruction) and is_call(statement):
            arguments = statement.operands[-1]
            if (
                callee(statement) == ptx.Symbol(FAULT)
                and isinstance(arguments, ptx.Tuple)
                and len(arguments.items) > _OWN_ARGUMENTS
            ):
                own = arguments.items[-_OWN_ARGUMENTS:]
                site = own[1]
                if isinstance(site, ptx.Immediate):
                    claims[site.value] = arguments.items[1]
                contexts[own] = arguments.items
                operands = (*statement.operands[:-1], ptx.Tuple(own))
                body.append(
                    ptx.Instruction(statement.opcode, operands, statement.guard, statement.line)
                )
                continue
        body.append(statement)
    return _with_body(function, body), claims, contexts


def _with_context(statement: ptx.Statement, contexts: dict[_Operands, _Operands]) -> ptx.Statement:
    """Restore the context that `_without_context` removed from a report outside any check."""
    if not isinstance(statement, ptx.Instruction) or not is_call(statement):
        return statement
    if callee(statement) != ptx.Symbol(FAULT):
        return statement
    last = statement.operands[-1]
    whole = contexts.get(last.items) if isinstance(last, ptx.Tuple) else None
    if whole is None:
        return statement
    operands = (*statement.operands[:-1], ptx.Tuple(whole))
    return ptx.Instruction(statement.opcode, operands, statement.guard, statement.line)


def is_target(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` checks the target of a jump or call."""
    return ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "target"


def is_bounds_check(statement: ptx.Statement) -> bool:
    """Return whether ``statement`` is a ``gpud.bounds``."""
    return (
        isinstance(statement, ptx.Instruction)
        and statement.opcode.base == "gpud"
        and statement.opcode.modifiers[0] == "bounds"
    )


def is_poll(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` is a ``gpud.poll``."""
    return ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "poll"


def is_poll_of_each(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` is a ``gpud.poll`` of each thread."""
    return is_poll(ins) and ins.opcode.modifiers[-1] == "each"


def _with_polls_of_each(function: ptx.Function) -> ptx.Function:
    """Return the function with the polls of each thread: those not at the end of a loop."""
    body = list(function.body or ())
    for at, (one, following) in enumerate(pairwise(body)):
        if isinstance(one, ptx.Instruction) and is_poll(one):
            ends = not isinstance(following, ptx.Instruction) or (
                flags(following.opcode) & TERMINATOR
            )
            if not ends:
                body[at] = ptx.Instruction(ptx.opcode("gpud.poll.each"), (), None, one.line)
    return function if body == function.body else replace(function, body=body)


def _fold_terminators(body: list[ptx.Statement]) -> list[ptx.Statement]:
    result: list[ptx.Statement] = []
    for statement in body:
        end = _as_trap(statement) if isinstance(statement, ptx.Instruction) else None
        result.append(end or statement)
    return result


def _as_trap(ins: ptx.Instruction) -> ptx.Instruction | None:
    """Return ``ins`` as a trap with operands, if it ends the block."""
    trap = ptx.opcode("trap")
    if ins.opcode.base == "brkpt":
        return ptx.Instruction(trap, (ptx.Symbol(BREAKPOINT),), ins.guard, ins.line)
    if not is_call(ins):
        return None
    target = callee(ins)
    if not isinstance(target, ptx.Symbol) or target.name not in ENDINGS | {RAW_ASSERT}:
        return None
    last = ins.operands[-1]
    arguments = last.items if isinstance(last, ptx.Tuple) else ()
    return ptx.Instruction(trap, (target, *arguments), ins.guard, ins.line)


def _without_dead_code(function: ptx.Function) -> ptx.Function:
    """Remove unreachable blocks from ``function``; declarations stay."""
    flow = ControlFlow(function)
    dead: set[int] = set()
    for block in flow.blocks:
        if block.index not in flow.reachable:
            dead.update(range(block.start, block.stop))
    body = [
        statement
        for position, statement in enumerate(function.body or [])
        if position not in dead or not isinstance(statement, ptx.Instruction | ptx.Label)
    ]
    return _with_body(function, body)


def _with_body(function: ptx.Function, body: list[ptx.Statement]) -> ptx.Function:
    return replace(function, body=body)
