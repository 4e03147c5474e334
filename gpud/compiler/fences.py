"""Fences: the check that stands before an access to memory, as PTX and as one record.

Problem: an access that misses its session's arena must not happen. The check is PTX, so that every
device can run it as it stands; but a device that knows a faster way (the CPU device does) must be
able to find every check, know exactly what it means, and put its own in its place.

Approach: one canonical sequence of instructions for a `Fence`, written by `emit`. `recognise`
reads it back: it guesses the record from a few operands, emits that, and compares statement by
statement, so what it returns is what stands there and nothing else. `fold` replaces it.

Terms: a *member* is one access that the fence stands for: bytes ``[register + low, register + low
+ span)``, whose first must be a multiple of ``align``. The *hull* of a fence is the range from its
first member's byte to its last. A *window* is a range of generic addresses that means other
memory: ``shared``, ``local``, ``param``. The *hot* part stands before the first of the accesses;
the *cold* part at the end of the function, and is only reached if the hot one finds something.

Algorithm. Hot: one unsigned comparison tells whether the hull lies in the arena (offset from the
base > size - span: out), one more whether its first byte is aligned; a guard of the accesses takes
part in the predicate, so nothing is found for threads that make no access. Cold: each member for
itself, in order: in the arena, in one of the windows (first and last byte), in one of the module's
variables? If not, or if it is not aligned, ``call gpud_fault`` with the member's site and address.
If all members are legal, back to the hot part's end. Where the arena alone is legal for the one
member, there is nothing more to find out than which fault it is, and no way back.

Properties:
* ``inverse``: `recognise` of what `emit` made gives the same record, after printing and parsing;
* ``exact``: the fault is reported if and only if some member is illegal, and names the first;
* the hot part has no branch but the one to the cold part; the cold part writes no register of the
  program's;
* all registers begin with ``%gpud_fence_``, all labels with ``$gpud_fence_``, and end with the
  fence's number, unique in its function.

Source: design, section 4.3; PTX ISA 9.0, sections 5.1 (state spaces) and 9.7.9 (``isspacep``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise

from gpud.compiler.control_words import FaultKind
from gpud.compiler.names import ARENA, FAULT, HEAP
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
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

__all__ = [
    "Fence",
    "Found",
    "Member",
    "Range",
    "declarations",
    "emit",
    "fold",
    "recognise",
]

_STEM = "gpud_fence_"
_REGISTERS = {
    "b64": ("base", "size", "off", "last", "low", "where", "at"),
    "pred": ("out", "also", "not", "may"),
}
_HOT_LEAST, _HOT_MOST = 6, 12  # statements of a hot part, with room to spare
_START = re.compile(rf"%{_STEM}base_(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """One access: ``span`` bytes from ``register + low`` on, aligned to ``align``.

    ``site`` is its number in the program's table of sites.
    """

    low: int
    span: int
    align: int
    site: int

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.low + self.span


@dataclass(frozen=True, slots=True)
class Range:
    """A module variable that an access may mean: ``space`` is ``global`` or ``const``.

    `HEAP` with size 0 stands for the range that the variable of that name describes.
    """

    name: str
    space: str
    size: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The check before one access, or before several through the same register.

    ``members`` are in the order of the accesses. ``guard`` is the guard of all of them. A window
    or variable that is not listed is not legal, and one that is smaller than every member is not
    listed. With several members, the hull's alignment is the greatest of theirs, and implies each.
    """

    number: int
    register: Register
    members: tuple[Member, ...]
    guard: Guard | None = None
    windows: tuple[str, ...] = ()
    variables: tuple[Range, ...] = ()

    @property
    def low(self) -> int:
        """The hull's first byte, from ``register``."""
        return min(member.low for member in self.members)

    @property
    def span(self) -> int:
        """The hull's length in bytes."""
        return max(member.end for member in self.members) - self.low

    @property
    def align(self) -> int:
        """What ``register + low`` must be a multiple of."""
        return max(member.align for member in self.members)

    @property
    def site(self) -> int:
        """The first member's site."""
        return self.members[0].site

    @property
    def generic(self) -> bool:
        """Whether the accesses are generic: they may mean other memory than global."""
        return bool(self.windows)

    @property
    def space(self) -> str:
        """``"generic"`` or ``"global"``."""
        return "generic" if self.windows else "global"


@dataclass(frozen=True, slots=True)
class Found:
    """A fence in a body: its record, and where its two parts start and stop."""

    fence: Fence
    hot: tuple[int, int]
    cold: tuple[int, int]


# -- emitting ----------------------------------------------------------------------------------


def declarations(count: int) -> list[Statement]:
    """The declarations of the registers of the fences ``0`` to ``count - 1``."""
    return [
        RegisterDeclaration(kind, f"%{_STEM}{name}_", count)
        for kind, names in _REGISTERS.items()
        for name in names
    ]


def emit(fence: Fence, line: int = 0) -> tuple[list[Statement], list[Statement]]:
    """The hot and the cold part of ``fence``; ``line`` is the access's, for messages."""
    return _Writer(fence, line).hot(), _Writer(fence, line).cold()


class _Writer:
    """Writes the parts of one fence."""

    def __init__(self, fence: Fence, line: int) -> None:
        self._fence = fence
        self._line = line
        self.body: list[Statement] = []

    def _register(self, name: str) -> Register:
        return _named(name, self._fence.number)

    def _label(self, name: str, member: int | None = None) -> Symbol:
        which = f"{self._fence.number}" if member is None else f"{self._fence.number}_{member}"
        return Symbol(f"${_STEM}{name}_{which}")

    def _do(self, text: str, *operands: Operand, when: Register | None = None) -> None:
        guard = None if when is None else Guard(when)
        self.body.append(Instruction(opcode(text), operands, guard, self._line))

    def hot(self) -> list[Statement]:
        """What stands before the first access."""
        fence, do = self._fence, self._do
        base, size, off, last, low = map(self._register, ("base", "size", "off", "last", "low"))
        out = self._register("out")
        do("ld.const.u64", base, _BASE)
        do("ld.const.u64", size, _SIZE)
        do("sub.s64", off, fence.register, base)
        if fence.low:
            do("add.s64", off, off, _integer(fence.low))
        do("sub.s64", last, size, _integer(fence.span))
        do("setp.gt.u64", out, off, last)
        if fence.align > 1:
            do("and.b64", low, off, _integer(fence.align - 1))
            do("setp.ne.or.s64", out, low, _integer(0), out)
        if fence.guard is not None:
            may = fence.guard.register
            if fence.guard.negated:
                may = self._register("not")
                do("not.pred", may, fence.guard.register)
            do("and.pred", out, out, may)
        do("bra", self._label("cold"), when=out)
        self.body.append(Label(self._label("warm").name, self._line))
        return self.body

    def cold(self) -> list[Statement]:
        """What stands at the end of the function."""
        self.body.append(Label(self._label("cold").name, self._line))
        fence = self._fence
        if len(fence.members) == 1 and not fence.windows and not fence.variables:
            self._only_report()
            return self.body
        for index in range(len(fence.members)):
            self._member(index)
        self._do("bra", self._label("warm"))
        return self.body

    def _only_report(self) -> None:
        """One member that may mean the arena alone: whoever comes here has found a fault."""
        do, member = self._do, self._fence.members[0]
        where, out, found = self._register("where"), self._register("out"), self._label("found", 0)
        do("add.s64", where, self._fence.register, _integer(member.low))
        if member.align > 1:
            do("setp.gt.u64", out, self._register("off"), self._register("last"))
            do("bra", found, when=out)
            do("call", Symbol(FAULT), self._arguments(FaultKind.MISALIGNED, member.site))
            do("trap")
            self.body.append(Label(found.name, self._line))
        do("call", Symbol(FAULT), self._arguments(FaultKind.ADDRESS, member.site))
        do("trap")

    def _member(self, index: int) -> None:
        fence, do = self._fence, self._do
        member = fence.members[index]
        base, size, off, last, low = map(self._register, ("base", "size", "off", "last", "low"))
        where, out, also = map(self._register, ("where", "out", "also"))
        found = self._label("found", index)
        do("add.s64", where, fence.register, _integer(member.low))
        do("sub.s64", off, where, base)
        do("sub.s64", last, size, _integer(member.span))
        do("setp.le.u64", out, off, last)
        do("bra", found, when=out)
        for window in fence.windows:
            do(f"isspacep.{window}", out, where)
            do("add.s64", off, where, _integer(member.span - 1))
            do(f"isspacep.{window}", also, off)
            do("and.pred", out, out, also)
            do("bra", found, when=out)
        for variable in fence.variables:
            self._variable(variable, member.span, found)
        do("call", Symbol(FAULT), self._arguments(FaultKind.ADDRESS, member.site))
        do("trap")
        self.body.append(Label(found.name, self._line))
        if member.align > 1:
            aligned = self._label("next", index)
            do("and.b64", low, where, _integer(member.align - 1))
            do("setp.eq.s64", out, low, _integer(0))
            do("bra", aligned, when=out)
            do("call", Symbol(FAULT), self._arguments(FaultKind.MISALIGNED, member.site))
            do("trap")
            self.body.append(Label(aligned.name, self._line))

    def _variable(self, variable: Range, span: int, found: Symbol) -> None:
        do, off, where, out = self._do, *map(self._register, ("off", "where", "out"))
        if variable.name == HEAP:
            last, also = self._register("last"), self._register("also")
            do("ld.const.u64", off, Address(Symbol(HEAP)))
            do("sub.s64", off, where, off)
            do("ld.const.u64", last, Address(Symbol(HEAP), 8))
            do("setp.ge.u64", also, last, _integer(span))
            do("sub.s64", last, last, _integer(span))
            do("setp.le.and.u64", out, off, last, also)
            do("bra", found, when=out)
            return
        if variable.size < span:
            return
        how = "cvta.const.u64" if variable.space == "const" else "mov.u64"
        do(how, off, Symbol(variable.name))
        do("sub.s64", off, where, off)
        do("setp.le.u64", out, off, _integer(variable.size - span))
        do("bra", found, when=out)

    def _arguments(self, kind: FaultKind, site: int) -> Tuple:
        return Tuple((_integer(int(kind)), _integer(site), self._register("where")))


@lru_cache(maxsize=8192)
def _named(name: str, number: int) -> Register:
    return Register(f"%{_STEM}{name}_{number}")


@lru_cache(maxsize=4096)
def _integer(value: int) -> Immediate:
    return Immediate(str(value), value)


_BASE, _SIZE = Address(Symbol(ARENA)), Address(Symbol(ARENA), 8)


# -- recognising -------------------------------------------------------------------------------


def recognise(function: Function) -> list[Found]:
    """The fences of a flat function, in body order of their hot parts."""
    body = function.body or []
    starts = [index for index, statement in enumerate(body) if _number(statement) is not None]
    if not starts:
        return []
    labels = {s.name: index for index, s in enumerate(body) if type(s) is Label}
    found = (_read(body, start, labels) for start in starts)
    return [one for one in found if one is not None]


def fold(function: Function, instead: Callable[[Fence], Statement]) -> Function:
    """``function`` with every hot part replaced by one statement, without cold parts.

    The declarations of the fences' registers stay. The same object if there are no fences.
    """
    body = function.body or []
    fences = recognise(function)
    if not fences:
        return function
    made: list[Statement] = []
    at = 0
    cuts = [(one.hot, one.fence) for one in fences] + [(one.cold, None) for one in fences]
    for (start, stop), fence in sorted(cuts, key=lambda cut: cut[0]):
        made += body[at:start]
        if fence is not None:
            made.append(instead(fence))
        at = stop
    made += body[at:]
    return replace(function, body=made)


def _number(statement: Statement) -> int | None:
    """The number of the fence that may start with ``statement``."""
    if type(statement) is not Instruction or statement.opcode.text != "ld.const.u64":
        return None
    target = statement.operands[0]
    match = _START.fullmatch(target.name) if isinstance(target, Register) else None
    return int(match[1]) if match else None


def _read(body: Sequence[Statement], start: int, labels: Mapping[str, int]) -> Found | None:
    """The fence whose hot part starts at ``start``, if what stands there is one."""
    number = _number(body[start])
    assert number is not None
    cold = labels.get(f"${_STEM}cold_{number}")
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
        elif isinstance(statement, Label) and statement.name.startswith(f"${_STEM}cold_"):
            break
    if len(guess.members) == 1 and not guess.members[0].span:
        guess.read_hot(hot)
    if not isinstance(register, Register) or not guess.members:
        return None
    smallest = min(range(len(guess.members)), key=lambda index: guess.members[index].span)
    fence = Fence(
        number,
        register,
        tuple(guess.members),
        guard,
        tuple(guess.windows[0]),
        tuple(guess.variables[smallest]),
    )
    first, second = emit(fence)
    if body[start : start + len(first)] != first or body[cold : cold + len(second)] != second:
        return None
    return Found(fence, (start, start + len(first)), (cold, cold + len(second)))


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
    """The members of a cold part, as far as a few operands tell: `_read` compares the rest."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.windows: list[list[str]] = []
        self.variables: list[list[Range]] = []
        self._name = Range("", "", 0)
        self._sited = False

    def read(self, ins: Instruction) -> bool:
        """Whether ``ins`` can belong to the cold part, and more can follow."""
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
        elif text in ("mov.u64", "cvta.const.u64") and isinstance(last, Symbol):
            self._name = Range(last.name, "const" if text[0] == "c" else "global", 0)
        elif text == "ld.const.u64" and last == Address(Symbol(HEAP)):
            self.variables[-1].append(Range(HEAP, "global", 0))
        elif text == "setp.le.u64" and _is(operands[0], "out") and value is not None:
            self.variables[-1].append(replace(self._name, size=value + self.members[-1].span))
        elif text == "and.b64" and _is(operands[0], "low") and value is not None:
            self._change(align=value + 1)
        elif text == "call" and isinstance(last, Tuple) and not self._sited:
            site = last.items[1] if len(last.items) > 1 else None
            if isinstance(site, Immediate):
                self._change(site=site.value)
                self._sited = True
        return True

    def read_hot(self, hot: Sequence[Instruction]) -> None:
        """Length and alignment of the only member, which its hot part states too."""
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
    return isinstance(operand, Register) and operand.name.startswith(f"%{_STEM}{name}_")
