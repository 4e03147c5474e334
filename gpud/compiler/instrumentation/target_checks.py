"""Target checks: the checks before indirect jumps and calls, as PTX and as records.

Problem: a jump through a table or a call through a pointer must only go to targets that the program
names. The check is PTX, so that every device can run it unchanged; a device that compares the
pointer anyway (the CPU device does) must be able to find every check.

Approach: one canonical sequence for a `TargetCheck`, written by `emit`. `fold` reads it back: it
reconstructs the record from a few operands, emits that again, and compares statement by statement.

Algorithm::

    brx.idx i, table        ->  cvt.u64.u32 value, i;
                                setp.ge.u32 bad, i, length;      @bad bra miss;  brx.idx i, table
    call (r), p, (a), proto ->  mov t, f1; setp.ne bad, p, t;
                                mov t, f2; setp.ne.and bad, p, t, bad; ...
                                @bad bra miss;                   call (r), p, (a), proto
    miss, at the end:           call gpud_fault, (TARGET, site, value or p); trap

The guard of the jump or call is part of the first comparison. Terms: the *hot* part stands before
the jump or call, the *cold* part at the end of the function.

Properties:
* ``inverse``: `fold` finds every check that `emit` made, after printing and parsing, nothing else;
* all registers begin with ``%gpud_target_``, all labels with ``$gpud_target_``; the labels end with
  the check's number, unique in its function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpud.compiler.abi.fault_record import FaultKind
from gpud.compiler.abi.reserved_names import FAULT
from gpud.compiler.ptx.model import (
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    immediate,
    opcode,
)

__all__ = ["TargetCheck", "declarations", "emit", "fold"]

_STEM = "gpud_target_"
_BAD, _FUNCTION, _VALUE = (Register(f"%{_STEM}{name}") for name in ("bad", "function", "value"))
_KINDS = {_BAD: "pred", _FUNCTION: "b64", _VALUE: "b64"}
_MISS = f"${_STEM}miss_"
_COLD_LENGTH = 3
_SITE = 1
"""Index of the site among the arguments of a report."""


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """The check before one indirect jump or call.

    ``value`` is the pointer of a call, which must be one of ``functions``, or the index of a jump,
    which must be less than ``length``. ``guard`` is that of the jump or call; ``site`` its number
    in the program's site table.
    """

    number: int
    value: Operand
    site: int
    functions: tuple[str, ...] = ()
    length: int | None = None
    guard: Guard | None = None


def declarations() -> list[Statement]:
    """Return the declarations of the registers of all checks of a function."""
    return [RegisterDeclaration(kind, register.name) for register, kind in _KINDS.items()]


def emit(check: TargetCheck, line: int = 0) -> tuple[list[Statement], list[Statement]]:
    """Return the hot and the cold part of ``check``; ``line`` is that of the jump or call."""
    hot: list[Statement] = []
    value = reported = check.value
    relation, kind, others = "ne", "u64", list[Operand](map(Symbol, check.functions))
    if check.length is not None:
        hot.append(Instruction(opcode("cvt.u64.u32"), (_VALUE, value)))
        reported, relation, kind = _VALUE, "ge", "u32"
        others = [immediate(check.length)]
    elif not others:  # nothing is a target
        relation, others = "eq", [value]
    held: Operand | None = None
    if check.guard is not None:
        held = Not(check.guard.register) if check.guard.negated else check.guard.register
    for other in others:
        if isinstance(other, Symbol):
            hot.append(Instruction(opcode("mov.u64"), (_FUNCTION, other)))
            other = _FUNCTION  # noqa: PLW2901
        combined, rest = ("", ()) if held is None else (".and", (held,))
        how = opcode(f"setp.{relation}{combined}.{kind}")
        hot.append(Instruction(how, (_BAD, value, other, *rest)))
        held = _BAD
    miss = f"{_MISS}{check.number}"
    hot.append(Instruction(opcode("bra"), (Symbol(miss),), Guard(_BAD)))
    cold: list[Statement] = [
        Label(miss),
        Instruction(
            opcode("call"),
            (Symbol(FAULT), Tuple((immediate(FaultKind.TARGET), immediate(check.site), reported))),
            None,
            line,
        ),
        Instruction(opcode("trap"), (), None, line),
    ]
    return hot, cold


def fold(function: Function, instead: Callable[[TargetCheck, int], Statement]) -> Function:
    """Return ``function`` with ``instead(check, line)`` for every hot part, without the cold parts.

    The line is that of the report. The declarations of the checks' registers stay. The same object
    if there are no checks.
    """
    body = function.body or []
    labels = {
        s.name: at for at, s in enumerate(body) if type(s) is Label and s.name.startswith(_MISS)
    }
    if not labels:
        return function
    cuts: list[tuple[int, int, Statement | None]] = []
    at = 0
    while at < len(body):
        start = at
        while _is_own(body[at]) and _miss(body[at]) is None and at + 1 < len(body):
            at += 1
        cold = labels.get(_miss(body[at]) or "")
        at += 1
        if cold is None:
            continue
        check = _guess(body[start:at], body[cold : cold + _COLD_LENGTH])
        if check is not None:
            report = body[cold + 1]
            cuts.append((start, at, instead(check, report.line)))
            cuts.append((cold, cold + _COLD_LENGTH, None))
    if not cuts:
        return function
    made: list[Statement] = []
    done = 0
    for start, stop, statement in sorted(cuts, key=lambda cut: cut[0]):
        made += body[done:start]
        if statement is not None:
            made.append(statement)
        done = stop
    return replace(function, body=made + body[done:])


def _is_own(statement: Statement) -> bool:
    """Return whether ``statement`` can be part of a hot part, except its last instruction."""
    if type(statement) is not Instruction or not statement.operands:
        return False
    target = statement.operands[0]
    return isinstance(target, Register) and target in _KINDS


def _miss(statement: Statement) -> str | None:
    """Return the label of the cold part to which ``statement`` branches, else None."""
    if type(statement) is not Instruction or statement.guard != Guard(_BAD):
        return None
    target = statement.operands[0]
    return target.name if isinstance(target, Symbol) and target.name.startswith(_MISS) else None


def _guess(hot: Sequence[Statement], cold: Sequence[Statement]) -> TargetCheck | None:
    """Return the check with these two parts, None if they are not exactly those of a check."""
    if len(cold) < _COLD_LENGTH or not isinstance(cold[1], Instruction):
        return None
    last = cold[1].operands[-1] if cold[1].operands else None
    site = last.items[_SITE] if isinstance(last, Tuple) and len(last.items) > _SITE else None
    code = [one for one in hot if isinstance(one, Instruction)]
    tests = [one for one in code if one.opcode.base == "setp"]
    if not tests or not isinstance(site, Immediate):
        return None
    _, value, other, *held = tests[0].operands
    guard: Guard | None = None
    if held:
        negated = isinstance(held[0], Not)
        register = held[0].operand if isinstance(held[0], Not) else held[0]
        if not isinstance(register, Register) or register == _BAD:
            return None
        guard = Guard(register, negated)
    named = (one.operands[1] for one in code if one.opcode.base == "mov")
    assert isinstance(cold[0], Label)
    number = cold[0].name.removeprefix(_MISS)
    if not number.isdecimal():
        return None
    check = TargetCheck(
        int(number),
        value,
        site.value,
        tuple(one.name for one in named if isinstance(one, Symbol)),
        other.value if isinstance(other, Immediate) else None,
        guard,
    )
    return check if emit(check) == (list(hot), list(cold)) else None
