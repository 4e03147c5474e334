"""Checks, polls and ends of rewritten programs as single instructions of the CPU device's own.

Problem: the compiler's passes put sequences with branches into a program: a fence before each
access to memory, a poll for the kill flag in each loop, calls of functions that record a fault and
never return. As control flow they would cut every block in pieces and hide from the code generator
that threads stay together.

Approach: before anything else is looked at, each becomes one instruction:

* ``gpud.fence`` for a fence, see `gpud.device.cpu.codegen.preparation.fence_instruction`;
* ``gpud.poll``: the block ends here if its job was killed;
* ``gpud.target [site], value, claim, targets``: the block ends here if ``value`` is none of the
  functions named, or not less than the one number there is;
* ``gpud.claim`` for the load with which each thread of a persistent block learns its task block: it
  notes it in the block's header, too, for failures of which no instruction of the program tells;
* ``trap`` with operands for whatever ends the block, see
  `gpud.device.cpu.codegen.emit.fault_reports`.

What nothing leads to any more is dropped.

Properties: a function without any of these is returned as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpud.compiler.abi.reserved_names import FAULT, NORETURN, PRINT
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import MEMORY_READ, callee, flags, is_call, state_space
from gpud.compiler.instrumentation import fences, kill_polls, target_checks
from gpud.compiler.instrumentation.fault_reports import claim_beside, slot_of, split_tails
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.fault_reports import BREAKPOINT, RAW_ASSERT
from gpud.device.cpu.codegen.preparation.fence_instruction import NO_CLAIM, from_program

__all__ = [
    "ENDINGS",
    "fences_after_prints",
    "fold_pseudos",
    "is_check",
    "is_fence",
    "is_poll",
    "is_target",
    "prints",
]

ENDINGS = NORETURN
"""Functions that are not called as functions here."""

_PRINTERS = (ptx.Symbol("vprintf"), ptx.Symbol(PRINT))

_OWN_ARGUMENTS = 3
"""Of `FAULT`: kind, site, address."""


def is_check(ins: ptx.Instruction) -> bool:
    """Whether ``ins`` is a fence or a poll: it ends the block or does nothing."""
    return is_fence(ins) or is_poll(ins)


def prints(ins: ptx.Instruction) -> bool:
    """Whether ``ins`` is a ``printf``: what it said is kept, whatever ends the block then."""
    return is_call(ins) and callee(ins) in _PRINTERS


def fences_after_prints(stage: Sequence[ptx.Instruction], uniform: Collection[int]) -> set[int]:
    """Fences that must not end the block before what it printed is said, by identity.

    None where a load that runs once for all threads, ``uniform`` ones by identity, stands behind
    them: it runs before the loop that prints, and its fence before it.
    """
    first = next((n for n, ins in enumerate(stage) if prints(ins)), len(stage))
    behind = stage[first:]
    for ins in behind:
        if id(ins) in uniform and not is_check(ins) and flags(ins.opcode) & MEMORY_READ:
            if state_space(ins.opcode) not in ("param", "const"):
                return set()
    return {id(i) for i in behind if is_fence(i) and i.opcode.modifiers[1] in ("global", "generic")}


def fold_pseudos(function: ptx.Function, *, fenced: bool) -> ptx.Function:
    """``function``, whose body is flat, with these sequences replaced.

    ``fenced``: keep fences; otherwise they are taken away.
    """
    polled = kill_polls.fold(
        split_tails(_with_claim(function)),
        lambda _: ptx.Instruction(ptx.opcode("gpud.poll"), (), None, function.line),
    )
    plain, claims, contexts = _without_context(polled)
    if function.kind == "func":
        claims = {}  # an argument for what the block's header says, too
    folded = fences.fold(plain, lambda found: from_program(found, claims.get(found.site, NO_CLAIM)))
    folded = target_checks.fold(folded, lambda found, line: _target(found, line, claims))
    kept = [_with_context(s, contexts) for s in folded.body or [] if fenced or not is_fence(s)]
    body = _fold_terminators(kept if folded is not plain else polled.body or [])
    if body == function.body:
        return function
    return _without_dead_code(_with_body(function, body))


def _target(
    found: target_checks.Check, line: int, claims: Mapping[int, ptx.Operand]
) -> ptx.Instruction:
    """The pseudo-instruction for a check of the program's; its first operand is no result."""
    length = found.length
    legal: tuple[ptx.Operand, ...] = tuple(map(ptx.Symbol, found.functions))
    if length is not None:
        legal = (ptx.Immediate(str(length), length),)
    claim = claims.get(found.site, NO_CLAIM)
    operands = (ptx.Address(None, found.site), found.value, claim, *legal)
    return ptx.Instruction(ptx.opcode("gpud.target"), operands, found.guard, line)


def _with_claim(function: ptx.Function) -> ptx.Function:
    """``function`` with ``gpud.claim`` where a persistent loop reads its claim."""
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
    """``function`` with fences as they were made first, the task block by site, and what was taken.

    The last is all arguments of a report by those that were left.
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
    """A report that belongs to no fence, with what `_without_context` has taken from it."""
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
    """Whether ``ins`` is a check of where a jump or call goes."""
    return ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "target"


def is_fence(statement: ptx.Statement) -> bool:
    """Whether ``statement`` is a ``gpud.fence``."""
    return (
        isinstance(statement, ptx.Instruction)
        and statement.opcode.base == "gpud"
        and statement.opcode.modifiers[0] == "fence"
    )


def is_poll(ins: ptx.Instruction) -> bool:
    """Whether ``ins`` is a ``gpud.poll``."""
    return ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "poll"


def _fold_terminators(body: list[ptx.Statement]) -> list[ptx.Statement]:
    result: list[ptx.Statement] = []
    for statement in body:
        end = _end(statement) if isinstance(statement, ptx.Instruction) else None
        result.append(end or statement)
    return result


def _end(ins: ptx.Instruction) -> ptx.Instruction | None:
    """``ins`` as a trap with operands, if it ends the block."""
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
    """``function`` without the blocks that control cannot reach; declarations stay."""
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
