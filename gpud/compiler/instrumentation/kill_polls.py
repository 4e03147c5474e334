"""Kill polls: checks whether a running block is to end, as PTX and as one pseudo-instruction.

Problem: a kernel in an endless loop can only be ended with its whole context, unless it polls a
flag. The poll is PTX, so that every device can run it unchanged; a device with a cheaper way must
be able to find every poll.

Approach: one canonical sequence, written by `emit` and `leave`, found by `fold`::

        ld.volatile.global.u32 %gpud_kill_N, [%gpud_kill_job+28];
        setp.ne.u32 %gpud_kill_on_N, %gpud_kill_N, 0;
        @%gpud_kill_on_N bra $gpud_kill_leave;
    ...
    $gpud_kill_leave:
        call gpud_leave, ();
        trap;

N is unique in the function. `gpud.compiler.passes.runtime.fault_lowering` sets ``%gpud_kill_job``
to the address of the job record.

Properties:
    inverse: `fold` finds every poll that `emit` made, after printing and parsing, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import LEAVE
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    opcode,
)

__all__ = ["JOB_REGISTER", "declarations", "emit", "fold", "has_job", "leave", "with_job"]

JOB_REGISTER = Register("%gpud_kill_job")
"""The register with the job record's address, in bodies that declare it (`with_job`)."""

_FLAG, _ON, _LABEL = "%gpud_kill_", "%gpud_kill_on_", "$gpud_kill_leave"
_LENGTH = 3


def declarations(count: int) -> list[Statement]:
    """Return the declarations of the registers of polls ``0`` to ``count - 1``."""
    return [
        RegisterDeclaration("b32", _FLAG, count),
        RegisterDeclaration("pred", _ON, count),
    ]


def has_job(body: Iterable[Statement]) -> bool:
    """Return whether ``body`` declares `JOB_REGISTER`."""
    for statement in body:
        if isinstance(statement, Instruction):
            break  # declarations come first
        if isinstance(statement, RegisterDeclaration) and statement.name == JOB_REGISTER.name:
            return True
    return False


def with_job(body: list[Statement]) -> list[Statement]:
    """Return ``body`` with a declaration of `JOB_REGISTER`, unless it has one."""
    return body if has_job(body) else [RegisterDeclaration("b64", JOB_REGISTER.name), *body]


def emit(number: int) -> list[Statement]:
    """Return the statements of poll ``number`` of a function."""
    flag, on = Register(f"{_FLAG}{number}"), Register(f"{_ON}{number}")
    zero = Immediate("0", 0)
    return [
        Instruction(opcode("ld.volatile.global.u32"), (flag, Address(JOB_REGISTER, words.KILL))),
        Instruction(opcode("setp.ne.u32"), (on, flag, zero)),
        Instruction(opcode("bra"), (Symbol(_LABEL),), Guard(on)),
    ]


def leave() -> list[Statement]:
    """Return the statements, for the end of a function, to which its polls branch."""
    return [
        Label(_LABEL),
        Instruction(opcode("call"), (Symbol(LEAVE), Tuple(()))),
        Instruction(opcode("trap")),
    ]


def fold(function: Function, instead: Callable[[int], Statement]) -> Function:
    """Return ``function`` with ``instead(number)`` in place of every poll; the same object if none.

    The statements of `leave` and the declarations of the polls' registers stay.
    """
    made: list[Statement] = []
    body = function.body or []
    at = polls = 0
    while at < len(body):
        number = _number(body[at])
        if number is not None and body[at : at + _LENGTH] == emit(number):
            made.append(instead(number))
            at += _LENGTH
            polls += 1
        else:
            made.append(body[at])
            at += 1
    return replace(function, body=made) if polls else function


def _number(statement: Statement) -> int | None:
    """Return the number of the poll whose first statement may be ``statement``, else None."""
    if type(statement) is not Instruction or statement.opcode.text != "ld.volatile.global.u32":
        return None
    target = statement.operands[0]
    if not isinstance(target, Register) or not target.name.startswith(_FLAG):
        return None
    digits = target.name.removeprefix(_FLAG)
    return int(digits) if digits.isdecimal() else None
