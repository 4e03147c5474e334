"""Fault reports: merges their calls at the end of a function, and splits them again.

Problem: a call needs its arguments in certain registers. With one call of `FAULT` for every access,
an assembler allocates registers in the hot code to suit calls that almost never happen: 5 to 30
registers more per thread, as measured with ptxas.

Approach: a function has one call of each reporting function, its *tail*; a report moves its own
arguments to registers and jumps to the tail. Devices that treat a report as one instruction split
the tails again first.

Algorithm. With the *context* that only the entry's form knows, ``ctl``, ``claim`` and ``slots``,
``call gpud_fault, (kind, site, address); trap;`` becomes::

        mov.b32 %gpud_report_kind, kind;
        mov.b32 %gpud_report_site, site;
        mov.b64 %gpud_report_address, address;
        bra $gpud_report_fault;
    ...
    $gpud_report_fault:
        call gpud_fault, (ctl, claim, slots, %gpud_report_kind, %gpud_report_site,
                          %gpud_report_address);
        trap;

In persistent form the tail reads the claim from the slot that still holds it until the task block
is over, so that the claim's register need not be live until then.

Properties:
    inverse: `split_tails` undoes `merge_tails`, except for the context of the calls and what
        follows them;
    cheap: a report extends the live range of no register but those of its own arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import ASSERT, CONTROL, FAULT, NORETURN
from gpud.compiler.analysis.bodies import calls, ends_in_terminator
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    opcode,
)

__all__ = ["CONTEXT", "claim_beside", "merge_tails", "slot_of", "split_tails"]

CONTEXT: Final = ("ctl", "claim", "slots")
"""The first arguments of every report: see `gpud.compiler.passes.runtime.fault_functions`."""

_OWN: Final = {
    FAULT: (("kind", "b32"), ("site", "b32"), ("address", "b64")),
    ASSERT: (
        ("site", "b32"),
        ("message", "b64"),
        ("file", "b64"),
        ("line", "b32"),
        ("function", "b64"),
    ),
}
_STEM = "gpud_report_"
_LABELS: Final = {name: f"${_STEM}{name.removeprefix('gpud_')}" for name in _OWN}
_NAMES: Final = {label: name for name, label in _LABELS.items()}
_JUMPS: Final = {name: (Symbol(label),) for name, label in _LABELS.items()}
_MOVES: Final = {
    name: tuple((Register(f"%{_STEM}{key}"), kind, opcode(f"mov.{kind}")) for key, kind in own)
    for name, own in _OWN.items()
}
_NOTHING = Immediate(str(words.NOTHING), words.NOTHING)
_TRAP = Instruction(opcode("trap"))
_BRA = opcode("bra")


def claim_beside(slot: Register) -> Register:
    """Return the register with a loop's claim, from the register with its slot's address."""
    return Register(slot.name.removesuffix("_slot") + "_claim")


def slot_of(control: str) -> Register:
    """Return the register with a loop's slot address, from the name of its hidden parameter."""
    return Register(f"%{control.removesuffix(CONTROL)}_slot")


def merge_tails(body: Sequence[Statement], context: tuple[Operand, ...]) -> list[Statement]:
    """Return ``body`` with ``context`` added to calls of `NORETURN`, and with jumps to tails."""
    made: list[Statement] = []
    tails: dict[str, None] = {}
    registers: dict[str, str] = {}
    done = 0
    for at, call in calls(body):
        target = callee(call)
        if not isinstance(target, Symbol) or target.name not in NORETURN:
            continue
        made += body[done:at]
        done, line, name, given = at + 1, call.line, target.name, _arguments(call)
        if name not in _OWN or call.guard is not None or body[done : done + 1] != [_TRAP]:
            made.append(_completed(call, context))
            continue
        done += 1
        tails[name] = None
        for (register, kind, move), value in zip(_MOVES[name], given, strict=True):
            registers[register.name] = kind
            made.append(Instruction(move, (register, value), None, line))
        made.append(Instruction(_BRA, _JUMPS[name], None, line))
    made += body[done:]
    if not tails:
        return made
    if not ends_in_terminator(made):
        made.append(Instruction(opcode("ret")))
    for name in tails:
        made += _tail(name, context, registers)
    return [*(RegisterDeclaration(kind, name) for name, kind in registers.items()), *made]


def split_tails(function: Function) -> Function:
    """Return ``function`` with a call in place of every jump to a tail, without the tails.

    The same object if there are no tails. In persistent form the calls get the loop's claim
    register.
    """
    body = function.body or []
    tails: dict[str, tuple[Operand, ...]] = {}
    made: list[Statement] = []
    at = 0
    while at < len(body):
        statement = body[at]
        if type(statement) is Label and statement.name in _NAMES:
            name = _NAMES[statement.name]
            while _reported(body[at]) != name:
                at += 1
            call = body[at]
            assert isinstance(call, Instruction)
            tails[name] = _context(_arguments(call)[: len(CONTEXT)])
            at += 2
            continue
        made.append(statement)
        at += 1
    return replace(function, body=_apart(made, tails)) if tails else function


# -- helpers -----------------------------------------------------------------------------------


def _register(key: str) -> Register:
    return Register(f"%{_STEM}{key}")


def _reported(statement: Statement) -> str | None:
    """Return the reporting function that ``statement`` calls with all arguments, else None."""
    if type(statement) is not Instruction or not is_call(statement) or statement.guard is not None:
        return None
    target = callee(statement)
    if not isinstance(target, Symbol) or target.name not in _OWN:
        return None
    complete = len(_arguments(statement)) == len(CONTEXT) + len(_OWN[target.name])
    return target.name if complete else None


def _completed(call: Instruction, context: tuple[Operand, ...]) -> Instruction:
    given = _arguments(call)
    if not given:  # nothing is recorded
        context = (context[0], _NOTHING, context[2])
    operands = (callee(call), Tuple((*context, *given)))
    return Instruction(call.opcode, operands, call.guard, call.line)


def _arguments(call: Instruction) -> tuple[Operand, ...]:
    last = call.operands[-1]
    return last.items if isinstance(last, Tuple) else ()


def _tail(name: str, context: tuple[Operand, ...], registers: dict[str, str]) -> list[Statement]:
    made: list[Statement] = [Label(_LABELS[name])]
    ctl, claim, slots = context
    if isinstance(slots, Register) and claim == claim_beside(slots):
        place, claim = _register("place"), _register("claim")
        registers |= {place.name: "b32", claim.name: "b32"}
        made += [
            Instruction(opcode("xor.b32"), (place, slots, Immediate("4", 4))),
            Instruction(opcode("ld.shared.u32"), (claim, Address(place))),
        ]
    own = (register for register, _, _ in _MOVES[name])
    arguments = Tuple((ctl, claim, slots, *own))
    return [*made, Instruction(opcode("call"), (Symbol(name), arguments)), replace(_TRAP)]


def _context(given: tuple[Operand, ...]) -> tuple[Operand, ...]:
    ctl, claim, slots = given
    if claim == _register("claim") and isinstance(slots, Register):
        claim = claim_beside(slots)
    return ctl, claim, slots


def _apart(body: list[Statement], tails: dict[str, tuple[Operand, ...]]) -> list[Statement]:
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, RegisterDeclaration) and statement.name.startswith(f"%{_STEM}"):
            continue
        name = _jump(statement)
        if name is None or name not in tails:
            made.append(statement)
            continue
        assert isinstance(statement, Instruction)
        count = len(_OWN[name])
        moves = made[-count:]
        del made[-count:]
        own = (move.operands[1] for move in moves if isinstance(move, Instruction))
        operands = (Symbol(name), Tuple((*tails[name], *own)))
        made.append(Instruction(opcode("call"), operands, None, statement.line))
        made.append(Instruction(opcode("trap"), (), None, statement.line))
    return made


def _jump(statement: Statement) -> str | None:
    """Return the reporting function to whose tail ``statement`` jumps, else None."""
    if type(statement) is not Instruction or statement.opcode.text != "bra":
        return None
    target = statement.operands[0]
    return _NAMES.get(target.name) if isinstance(target, Symbol) else None
