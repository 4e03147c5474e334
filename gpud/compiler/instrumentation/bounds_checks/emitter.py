"""Emits a bounds check as PTX: the hot part before its accesses, the cold part at the end."""

from __future__ import annotations

from functools import lru_cache

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fault_record import FaultKind
from gpud.compiler.abi.reserved_names import ARENA, FAULT, GRID_SYNC, HEAP, RANGES
from gpud.compiler.instrumentation.bounds_checks.record import BoundsCheck, Member, Range
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER
from gpud.compiler.ptx.model import (
    Address,
    Guard,
    Instruction,
    Label,
    Opcode,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    immediate,
    opcode,
)

__all__ = ["RANGE_BYTES", "STEM", "check_register", "declarations", "emit"]

STEM = "gpud_bounds_"
"""Prefix of the names of all registers and labels of bounds checks, after ``%`` or ``$``."""

_REGISTERS = {
    "b64": ("base", "size", "off", "last", "low", "where", "at"),
    "pred": ("out", "also", "not", "may"),
}
_OF_ROWS = {"b64": ("step", "row")}
_OF_TABLES = {"b64": ("range",)}
RANGE_BYTES = 16
"""Bytes of each range in `RANGES`: address and size."""


def declarations(count: int, *, rows: bool = False, table: bool = False) -> list[Statement]:
    """Return the declarations of the registers of the checks ``0`` to ``count - 1``.

    ``rows``: whether one of them has several rows; ``table``: whether one has a table.
    """
    return [
        RegisterDeclaration(kind, f"%{STEM}{name}_", count)
        for kinds in (_REGISTERS, _OF_ROWS if rows else {}, _OF_TABLES if table else {})
        for kind, names in kinds.items()
        for name in names
    ]


def emit(check: BoundsCheck, line: int = 0) -> tuple[list[Statement], list[Statement]]:
    """Return the hot and cold part of ``check``; ``line`` is that of the access, for messages."""
    return _hot(check, line), _Cold(check, line).body


def _hot(check: BoundsCheck, line: int) -> list[Statement]:
    """Return the statements before the first access."""
    names, guard = _names(check.number), check.guard
    base, size, off, last, out = names.base, names.size, names.off, names.last, names.out
    low, span, align = check.low, check.span, check.align
    body: list[Statement] = [
        Instruction(_LOAD, (base, _BASE), None, line),
        Instruction(_LOAD, (size, _SIZE), None, line),
        Instruction(_SUBTRACT, (off, check.register, base), None, line),
    ]
    if low:
        body.append(Instruction(_ADD, (off, off, immediate(low)), None, line))
    body.append(Instruction(_SUBTRACT, (last, size, immediate(span)), None, line))
    body.append(Instruction(_ABOVE, (out, off, last), None, line))
    start = off
    if check.rows > 1:
        # The first and the last row lie in the arena: so do those between them. A step has less
        # than 40 bits (see `find_checks`), so that nothing wraps around.
        step, behind = check_register("step", check.number), immediate(check.rows - 1)
        body.append(Instruction(_MULTIPLY_ADD, (names.where, step, behind, off), None, line))
        body.append(Instruction(_ABOVE_OR, (out, names.where, last, out), None, line))
        if align > 1:
            start = names.low
            body.append(Instruction(_JOIN, (start, off, step), None, line))
    if align > 1:
        body.append(Instruction(_MASK, (names.low, start, immediate(align - 1)), None, line))
        body.append(Instruction(_ODD_OR, (out, names.low, _ZERO, out), None, line))
    if guard is not None:
        may = guard.register
        if guard.negated:
            may = check_register("not", check.number)
            body.append(Instruction(_NOT, (may, guard.register), None, line))
        body.append(Instruction(_AND, (out, out, may), None, line))
    body.append(Instruction(_BRA, (names.cold,), names.is_out, line))
    body.append(Label(names.warm.name, line))
    return body


class _Cold:
    """Writes the statements for the end of the function."""

    def __init__(self, check: BoundsCheck, line: int) -> None:
        self._check = check
        self._line = line
        self._names = _names(check.number)
        self.body: list[Statement] = [Label(self._names.cold.name, line)]
        if check.rows > 1:
            self._rows(check.members[0])
        elif len(check.members) == 1 and not (check.windows or check.variables or check.table):
            self._only_report(check.members[0])
            return
        else:
            for index, member in enumerate(check.members):
                self._do(_ADD, self._names.where, check.register, immediate(member.low))
                self._member(index, member)
        self._do(_BRA, self._names.warm)

    def _rows(self, member: Member) -> None:
        """Test one row after the other."""
        do, names, number = self._do, self._names, self._check.number
        step, row = check_register("step", number), check_register("row", number)
        again = self._label("again", 0)
        do(_ADD, names.where, self._check.register, immediate(member.low))
        do(_MOVE, row, _ZERO)
        self.body.append(Label(again.name, self._line))
        self._member(0, member)
        do(_ADD, names.where, names.where, step)
        do(_ADD, row, row, immediate(1))
        do(_BELOW, names.out, row, immediate(self._check.rows))
        do(_BRA, again, when=names.is_out)

    def _do(self, op: Opcode, *operands: Operand, when: Guard | None = None) -> None:
        self.body.append(Instruction(op, operands, when, self._line))

    def _label(self, name: str, member: int) -> Symbol:
        return Symbol(f"${STEM}{name}_{self._check.number}_{member}")

    def _report(self, kind: FaultKind, member: Member) -> None:
        own = Tuple((immediate(kind.value), immediate(member.site), self._names.where))
        self._do(_CALL, _FAULT, own)
        self._do(_TRAP)

    def _only_report(self, member: Member) -> None:
        """Report the fault of the only member, for which only the arena is legal."""
        do, names = self._do, self._names
        do(_ADD, names.where, self._check.register, immediate(member.low))
        if member.align > 1:
            inside = self._label("found", 0)
            do(_ABOVE, names.out, names.off, names.last)
            do(_BRA, inside, when=names.is_out)
            self._report(FaultKind.MISALIGNED, member)
            self.body.append(Label(inside.name, self._line))
        self._report(FaultKind.ADDRESS, member)

    def _member(self, index: int, member: Member) -> None:
        """Test the bytes of a member from the address in ``where`` on."""
        check, do, names = self._check, self._do, self._names
        where, off, last, out = names.where, names.off, names.last, names.out
        legal = self._label("found", index)
        do(_SUBTRACT, off, where, names.base)
        do(_SUBTRACT, last, names.size, immediate(member.span))
        do(_WITHIN, out, off, last)
        do(_BRA, legal, when=names.is_out)
        also = check_register("also", check.number)
        for window in check.windows:
            lies = opcode(f"isspacep.{window}")
            do(lies, out, where)
            do(_ADD, off, where, immediate(member.span - 1))
            do(lies, also, off)
            do(_AND, out, out, also)
            do(_BRA, legal, when=names.is_out)
        for variable in check.variables:
            self._variable(variable, member.span, legal)
        if check.table:
            self._table(index, member.span, legal)
        self._report(FaultKind.ADDRESS, member)
        self.body.append(Label(legal.name, self._line))
        if member.align > 1:
            aligned = self._label("next", index)
            do(_MASK, names.low, where, immediate(member.align - 1))
            do(_EVEN, out, names.low, _ZERO)
            do(_BRA, aligned, when=names.is_out)
            self._report(FaultKind.MISALIGNED, member)
            self.body.append(Label(aligned.name, self._line))

    def _table(self, index: int, span: int, legal: Symbol) -> None:
        """Search the table: code whose size does not depend on how many variables there are."""
        do, names = self._do, self._names
        off, size, also = names.off, names.last, check_register("also", self._check.number)
        at, again = check_register("range", self._check.number), self._label("search", index)
        do(_MOVE, at, _ZERO)
        self.body.append(Label(again.name, self._line))
        do(_MOVE, size, Symbol(RANGES))
        do(_ADD, size, size, at)
        do(_LOAD_ENTRY, off, Address(size))
        do(_LOAD_ENTRY, size, Address(size, 8))
        do(_LARGE, also, size, immediate(span))
        do(_SUBTRACT, off, names.where, off)
        do(_SUBTRACT, size, size, immediate(span))
        do(_WITHIN_AND, names.out, off, size, also)
        do(_BRA, legal, when=names.is_out)
        do(_ADD, at, at, immediate(RANGE_BYTES))
        do(_BELOW, names.out, at, immediate(RANGE_BYTES * self._check.table))
        do(_BRA, again, when=names.is_out)

    def _variable(self, variable: Range, span: int, legal: Symbol) -> None:
        do, names = self._do, self._names
        off, where, out = names.off, names.where, names.out
        if variable.name == HEAP:
            last, also = names.last, check_register("also", self._check.number)
            do(_LOAD, off, Address(Symbol(HEAP)))
            do(_SUBTRACT, off, where, off)
            do(_LOAD, last, Address(Symbol(HEAP), 8))
            do(_LARGE, also, last, immediate(span))
            do(_SUBTRACT, last, last, immediate(span))
            do(_WITHIN_AND, out, off, last, also)
            do(_BRA, legal, when=names.is_out)
            return
        if variable.size < span:
            return
        if variable.name == GRID_SYNC:
            do(_ADD, off, JOB_REGISTER, immediate(words.GRID_SYNC))
        else:
            how = "cvta.const.u64" if variable.space == "const" else "mov.u64"
            do(opcode(how), off, Symbol(variable.name))
        do(_SUBTRACT, off, where, off)
        do(_WITHIN, out, off, immediate(variable.size - span))
        do(_BRA, legal, when=names.is_out)


class _Names:
    """The registers and labels that bounds checks of one number have in common."""

    __slots__ = ("base", "cold", "is_out", "last", "low", "off", "out", "size", "warm", "where")

    def __init__(self, number: int) -> None:
        self.base = check_register("base", number)
        self.size = check_register("size", number)
        self.off = check_register("off", number)
        self.last = check_register("last", number)
        self.low = check_register("low", number)
        self.where = check_register("where", number)
        self.out = check_register("out", number)
        self.is_out = Guard(self.out)
        self.cold = Symbol(f"${STEM}cold_{number}")
        self.warm = Symbol(f"${STEM}warm_{number}")


@lru_cache(maxsize=1024)
def _names(number: int) -> _Names:
    return _Names(number)


def is_of_a_check(label: str) -> bool:
    """Return whether a loop that begins at this label is a check's own, over rows or variables."""
    return label.startswith((f"${STEM}again_", f"${STEM}search_"))


def check_register(name: str, number: int) -> Register:
    """Return the register ``name``, one of ``_REGISTERS``, of the check ``number``."""
    return Register(f"%{STEM}{name}_{number}")


_BASE, _SIZE = Address(Symbol(ARENA)), Address(Symbol(ARENA), 8)
_FAULT, _ZERO = Symbol(FAULT), immediate(0)
_LOAD, _LOAD_ENTRY = opcode("ld.const.u64"), opcode("ld.global.u64")
_ADD, _SUBTRACT, _MASK = opcode("add.s64"), opcode("sub.s64"), opcode("and.b64")
_ABOVE, _WITHIN, _BELOW = opcode("setp.gt.u64"), opcode("setp.le.u64"), opcode("setp.lt.u64")
_LARGE, _WITHIN_AND = opcode("setp.ge.u64"), opcode("setp.le.and.u64")
_ABOVE_OR, _MULTIPLY_ADD = opcode("setp.gt.or.u64"), opcode("mad.lo.s64")
_JOIN, _MOVE = opcode("or.b64"), opcode("mov.u64")
_ODD_OR, _EVEN = opcode("setp.ne.or.s64"), opcode("setp.eq.s64")
_NOT, _AND = opcode("not.pred"), opcode("and.pred")
_BRA, _CALL, _TRAP = opcode("bra"), opcode("call"), opcode("trap")
