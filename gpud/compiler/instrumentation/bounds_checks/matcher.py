"""Finds bounds checks in PTX: reconstructs a record from a few operands, emits it, and compares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from gpud.compiler.abi.reserved_names import GRID_SYNC, HEAP
from gpud.compiler.instrumentation.bounds_checks.emitter import RANGE_BYTES, STEM, emit
from gpud.compiler.instrumentation.bounds_checks.record import BoundsCheck, Member, Range
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Operand,
    Register,
    Statement,
    Symbol,
    Tuple,
)

__all__ = ["CheckMatch", "fold", "recognise"]

_HOT_LEAST, _HOT_MOST = 6, 16  # statements of a hot part; the bounds are not tight
_START = re.compile(rf"%{STEM}base_(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckMatch:
    """A bounds check in a body: its record, and the (start, stop) positions of its two parts."""

    check: BoundsCheck
    hot: tuple[int, int]
    cold: tuple[int, int]


def recognise(function: Function) -> list[CheckMatch]:
    """Return the bounds checks of a flat function, in the order of their hot parts."""
    body = function.body or []
    starts = [index for index, statement in enumerate(body) if _number(statement) is not None]
    if not starts:
        return []
    labels = {s.name: index for index, s in enumerate(body) if type(s) is Label}
    matches = (_read(body, start, labels) for start in starts)
    return [one for one in matches if one is not None]


def fold(function: Function, instead: Callable[[BoundsCheck], Statement]) -> Function:
    """Return ``function`` with ``instead(check)`` for every hot part, without the cold parts.

    The declarations of the checks' registers stay. The same object if there are no checks.
    """
    body = function.body or []
    checks = recognise(function)
    if not checks:
        return function
    made: list[Statement] = []
    at = 0
    cuts = [(one.hot, one.check) for one in checks] + [(one.cold, None) for one in checks]
    for (start, stop), check in sorted(cuts, key=lambda cut: cut[0]):
        made += body[at:start]
        if check is not None:
            made.append(instead(check))
        at = stop
    made += body[at:]
    return replace(function, body=made)


def _number(statement: Statement) -> int | None:
    """Return the number of the check whose first statement may be ``statement``, else None."""
    if type(statement) is not Instruction or statement.opcode.text != "ld.const.u64":
        return None
    target = statement.operands[0]
    match = _START.fullmatch(target.name) if isinstance(target, Register) else None
    return int(match[1]) if match else None


def _read(body: Sequence[Statement], start: int, labels: Mapping[str, int]) -> CheckMatch | None:
    """Return the check whose hot part starts at ``start``, None if the code there is not one."""
    number = _number(body[start])
    assert number is not None
    cold = labels.get(f"${STEM}cold_{number}")
    hot = [s for s in body[start : start + _HOT_MOST] if isinstance(s, Instruction)]
    if cold is None or len(hot) < _HOT_LEAST:
        return None
    if len(hot[2].operands) < 2:
        return None
    register, guard = hot[2].operands[1], _guard_of(hot)
    guess = _Guess()
    for statement in islice(body, cold + 1, None):
        if isinstance(statement, Instruction):
            if not guess.read(statement):
                break
        elif isinstance(statement, Label) and statement.name.startswith(f"${STEM}cold_"):
            break
    if len(guess.members) == 1 and not guess.members[0].span:
        guess.read_hot(hot)
    if not isinstance(register, Register) or not guess.members:
        return None
    smallest = min(range(len(guess.members)), key=lambda index: guess.members[index].span)
    check = BoundsCheck(
        number,
        register,
        tuple(guess.members),
        guard,
        tuple(guess.windows[0]),
        tuple(guess.variables[smallest]),
        guess.rows,
        guess.table,
    )
    first, second = emit(check)
    if body[start : start + len(first)] != first or body[cold : cold + len(second)] != second:
        return None
    return CheckMatch(check, (start, start + len(first)), (cold, cold + len(second)))


def _guard_of(hot: Sequence[Instruction]) -> Guard | None:
    for before, ins in pairwise(hot):
        if ins.opcode.base == "bra":
            return None
        if ins.opcode.text == "and.pred" and len(ins.operands) > 2:
            may = ins.operands[2]
            if before.opcode.text == "not.pred":
                may = before.operands[1]
                return Guard(may, negated=True) if isinstance(may, Register) else None
            return Guard(may) if isinstance(may, Register) else None
    return None


class _Guess:
    """The members of a cold part, reconstructed from a few operands; `_read` compares the rest."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.windows: list[list[str]] = []
        self.variables: list[list[Range]] = []
        self.rows = 1
        self.table = 0
        self._name = Range("", "", 0)
        self._sited = False

    def read(self, ins: Instruction) -> bool:
        """Read an instruction of a cold part; False if the cold part ends with it."""
        text, operands = ins.opcode.text, ins.operands
        last = operands[-1] if operands else None
        value = last.value if isinstance(last, Immediate) else None
        if text == "add.s64" and _is(operands[0], "where") and value is not None:
            self.members.append(Member(value, 0, 1, 0))
            self._sited = False
            self.windows.append([])
            self.variables.append([])
        elif not self.members or (text == "bra" and ins.guard is None):
            return False
        elif text == "sub.s64" and _is(operands[0], "last") and value is not None:
            self._change(span=value)
        elif ins.opcode.base == "isspacep" and _is(operands[0], "out"):
            self.windows[-1].append(text.removeprefix("isspacep."))
        elif text == "setp.lt.u64" and _is(operands[1], "range") and value is not None:
            self.table = value // RANGE_BYTES
        elif text in ("mov.u64", "cvta.const.u64") and isinstance(last, Symbol):
            self._name = Range(last.name, "const" if text[0] == "c" else "global", 0)
        elif text == "add.s64" and operands[1] == JOB_REGISTER:
            self._name = Range(GRID_SYNC, "global", 0)
        elif text == "ld.const.u64" and last == Address(Symbol(HEAP)):
            self.variables[-1].append(Range(HEAP, "global", 0))
        elif text == "setp.le.u64" and _is(operands[0], "out") and value is not None:
            self.variables[-1].append(replace(self._name, size=value + self.members[-1].span))
        elif text == "and.b64" and _is(operands[0], "low") and value is not None:
            self._change(align=value + 1)
        elif text == "setp.lt.u64" and _is(operands[1], "row") and value is not None:
            self.rows = value
        elif text == "call" and isinstance(last, Tuple) and not self._sited:
            site = last.items[1] if len(last.items) > 1 else None
            if isinstance(site, Immediate):
                self._change(site=site.value)
                self._sited = True
        return True

    def read_hot(self, hot: Sequence[Instruction]) -> None:
        """Read length and alignment of the only member from the hot part."""
        for ins in hot:
            if ins.opcode.base == "bra" or not ins.operands:
                return
            last = ins.operands[-1]
            if ins.opcode.text == "sub.s64" and isinstance(last, Immediate):
                self._change(span=last.value)
            elif ins.opcode.text == "and.b64" and isinstance(last, Immediate):
                self._change(align=last.value + 1)

    def _change(self, **values: int) -> None:
        self.members[-1] = replace(self.members[-1], **values)


def _is(operand: Operand, name: str) -> bool:
    return isinstance(operand, Register) and operand.name.startswith(f"%{STEM}{name}_")
