"""Emits a fence as PTX: the hot part before its accesses, the cold part for the function's end."""

from __future__ import annotations

from functools import lru_cache

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fault_record import FaultKind
from gpud.compiler.abi.reserved_names import ARENA, FAULT, GRID_SYNC, HEAP
from gpud.compiler.instrumentation.fences.record import Fence, Range
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER
from gpud.compiler.ptx.model import (
    Address,
    Guard,
    Instruction,
    Label,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    immediate,
    opcode,
)

__all__ = ["STEM", "declarations", "emit", "fence_register"]

STEM = "gpud_fence_"
"""Prefix of the names of all registers and labels of fences, after ``%`` or ``$``."""

_REGISTERS = {
    "b64": ("base", "size", "off", "last", "low", "where", "at"),
    "pred": ("out", "also", "not", "may"),
}


def declarations(count: int) -> list[Statement]:
    """The declarations of the registers of the fences ``0`` to ``count - 1``."""
    return [
        RegisterDeclaration(kind, f"%{STEM}{name}_", count)
        for kind, names in _REGISTERS.items()
        for name in names
    ]


def emit(fence: Fence, line: int = 0) -> tuple[list[Statement], list[Statement]]:
    """The hot and the cold part of ``fence``; ``line`` is that of the access, for messages."""
    return _Writer(fence, line).hot(), _Writer(fence, line).cold()


class _Writer:
    """Writes the parts of one fence."""

    def __init__(self, fence: Fence, line: int) -> None:
        self._fence = fence
        self._line = line
        self.body: list[Statement] = []

    def _register(self, name: str) -> Register:
        return fence_register(name, self._fence.number)

    def _label(self, name: str, member: int | None = None) -> Symbol:
        which = f"{self._fence.number}" if member is None else f"{self._fence.number}_{member}"
        return Symbol(f"${STEM}{name}_{which}")

    def _do(self, text: str, *operands: Operand, when: Register | None = None) -> None:
        guard = None if when is None else Guard(when)
        self.body.append(Instruction(opcode(text), operands, guard, self._line))

    def hot(self) -> list[Statement]:
        """The statements before the first access."""
        fence, do = self._fence, self._do
        first, align = fence.low, fence.align
        base, size, off, last, low = map(self._register, ("base", "size", "off", "last", "low"))
        out = self._register("out")
        do("ld.const.u64", base, _BASE)
        do("ld.const.u64", size, _SIZE)
        do("sub.s64", off, fence.register, base)
        if first:
            do("add.s64", off, off, immediate(first))
        do("sub.s64", last, size, immediate(fence.span))
        do("setp.gt.u64", out, off, last)
        if align > 1:
            do("and.b64", low, off, immediate(align - 1))
            do("setp.ne.or.s64", out, low, immediate(0), out)
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
        """The statements for the end of the function."""
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
        """One member for which only the arena is legal: threads that come here have a fault."""
        do, member = self._do, self._fence.members[0]
        where, out, found = self._register("where"), self._register("out"), self._label("found", 0)
        do("add.s64", where, self._fence.register, immediate(member.low))
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
        do("add.s64", where, fence.register, immediate(member.low))
        do("sub.s64", off, where, base)
        do("sub.s64", last, size, immediate(member.span))
        do("setp.le.u64", out, off, last)
        do("bra", found, when=out)
        for window in fence.windows:
            do(f"isspacep.{window}", out, where)
            do("add.s64", off, where, immediate(member.span - 1))
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
            do("and.b64", low, where, immediate(member.align - 1))
            do("setp.eq.s64", out, low, immediate(0))
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
            do("setp.ge.u64", also, last, immediate(span))
            do("sub.s64", last, last, immediate(span))
            do("setp.le.and.u64", out, off, last, also)
            do("bra", found, when=out)
            return
        if variable.size < span:
            return
        if variable.name == GRID_SYNC:
            do("add.s64", off, JOB_REGISTER, immediate(words.GRID_SYNC))
        else:
            how = "cvta.const.u64" if variable.space == "const" else "mov.u64"
            do(how, off, Symbol(variable.name))
        do("sub.s64", off, where, off)
        do("setp.le.u64", out, off, immediate(variable.size - span))
        do("bra", found, when=out)

    def _arguments(self, kind: FaultKind, site: int) -> Tuple:
        return Tuple((immediate(kind), immediate(site), self._register("where")))


@lru_cache(maxsize=8192)
def fence_register(name: str, number: int) -> Register:
    """The register ``name``, one of ``_REGISTERS``, of fence ``number``."""
    return Register(f"%{STEM}{name}_{number}")


_BASE, _SIZE = Address(Symbol(ARENA)), Address(Symbol(ARENA), 8)
