"""Expands warp-level moves of 8x8 matrices into shuffles and ordinary accesses.

Problem: ``ldmatrix``, ``stmatrix`` and ``movmatrix`` belong to tensor cores, which the CPU device
does not have. But compilers also use them to change data layouts in kernels without any matrix
product: Triton does in every reduction over a transposed tile.

Approach: they only move data, so each is expanded to instructions that the device supports. Lane 8
j + r holds the address of row r of matrix j, and lane l owns two elements of row l / 4, from column
2 (l % 4) on; with ``.trans``, of column l / 4. So a lane gets the address of the row that it needs
by ``shfl.sync.idx``, and reads or writes there itself.

Properties: a function without these instructions is returned unchanged; shapes other than 8x8
elements of 16 bits, and generic addresses, are left in place and refused later.

Source: PTX ISA 9.0, chapter 9.7, "Warp Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import declared_types

__all__ = ["expand_matrices"]

_BASES = frozenset(("ldmatrix", "stmatrix", "movmatrix"))
_ROWS, _COLUMNS = 8, 8
_STEM = "%matrix."
_NAMES = ("at", "lane", "row", "column", "from", "next", "low", "high")
_KINDS = {**dict.fromkeys(_NAMES, "b32"), "half0": "b16", "half1": "b16"}


def expand_matrices(function: ptx.Function) -> ptx.Function:
    """Expand these instructions in ``function``, whose body is flat."""
    body = function.body or []
    moves = [s for s in body if isinstance(s, ptx.Instruction) and _is_expanded(s)]
    if not moves:
        return function
    types = declared_types(body)
    made: list[ptx.Statement] = [
        ptx.RegisterDeclaration(kind, f"{_STEM}{name}") for name, kind in _KINDS.items()
    ]
    for statement in body:
        if isinstance(statement, ptx.Instruction) and _is_expanded(statement):
            made += _Expansion(statement, types).made
        else:
            made.append(statement)
    return replace(function, body=made)


def _is_expanded(ins: ptx.Instruction) -> bool:
    opcode = ins.opcode
    placed = opcode.base == "movmatrix" or opcode.has("shared") or opcode.has("shared::cta")
    return opcode.base in _BASES and opcode.has("m8n8") and opcode.modifiers[-1] == "b16" and placed


def _own(name: str) -> ptx.Register:
    return ptx.Register(f"{_STEM}{name}")


def _number(value: int) -> ptx.Immediate:
    return ptx.Immediate(str(value), value)


class _Expansion:
    """The expansion of one instruction."""

    def __init__(self, ins: ptx.Instruction, types: Mapping[str, str]) -> None:
        self.ins = ins
        self.made: list[ptx.Statement] = []
        self._add("mov.u32", _own("lane"), ptx.SpecialRegister("%laneid"))
        if ins.opcode.base == "movmatrix":
            self._transpose(*ins.operands)
            return
        reads = ins.opcode.base == "ldmatrix"
        registers, address = ins.operands if reads else reversed(ins.operands)
        items = registers.items if isinstance(registers, ptx.Vector) else (registers,)
        assert isinstance(address, ptx.Address)
        self._address(address, types)
        transposed = ins.opcode.has("trans")
        # The row of each matrix that this lane needs, and the byte offset in it.
        self._add("shr.u32", _own("row"), _own("lane"), _number(2))
        self._add("and.b32", _own("column"), _own("lane"), _number(3))
        if transposed:
            self._add("mov.b32", _own("low"), _own("row"))
            self._add("shl.b32", _own("row"), _own("column"), _number(1))
            self._add("shl.b32", _own("column"), _own("low"), _number(1))
        else:
            self._add("shl.b32", _own("column"), _own("column"), _number(2))
        for number, item in enumerate(items):
            if transposed:
                self._halves(item, number, reads=reads)
            else:
                self._place("from", _ROWS * number)
                self._access("b32", item, "from", reads=reads)

    def _add(self, text: str, *operands: ptx.Operand) -> None:
        ins = self.ins
        self.made.append(ptx.Instruction(ptx.opcode(text), operands, ins.guard, ins.line))

    def _address(self, address: ptx.Address, types: Mapping[str, str]) -> None:
        """Compute this lane's address in the shared window into ``at``."""
        base = address.base
        if isinstance(base, ptx.Register) and types.get(base.name, "").endswith("64"):
            self._add("cvt.u32.u64", _own("at"), base)
        else:
            self._add("mov.u32", _own("at"), _number(0) if base is None else base)
        if address.offset:
            self._add("add.s32", _own("at"), _own("at"), _number(address.offset))

    def _place(self, name: str, row: int) -> None:
        """Compute into ``name`` the address of this lane's part of its row, ``row`` rows on."""
        self._add("add.s32", _own(name), _own("row"), _number(row))
        self._fetch(name, _own("at"))
        self._add("add.s32", _own(name), _own(name), _own("column"))

    def _fetch(self, name: str, value: ptx.Operand) -> None:
        """Replace the lane number in ``name`` by that lane's ``value``."""
        clamp, everyone = _number(31), _number(-1)
        self._add("shfl.sync.idx.b32", _own(name), value, _own(name), clamp, everyone)

    def _access(self, kind: str, item: ptx.Operand, name: str, *, reads: bool) -> None:
        place = ptx.Address(_own(name))
        operands = (item, place) if reads else (place, item)
        self._add(f"{'ld' if reads else 'st'}.shared.{kind}", *operands)

    def _halves(self, item: ptx.Operand, number: int, *, reads: bool) -> None:
        pair = ptx.Vector((_own("half0"), _own("half1")))
        if not reads:
            self._add("mov.b32", pair, item)
        for half, name in enumerate(("from", "next")):
            self._place(name, _ROWS * number + half)
            self._access("b16", pair.items[half], name, reads=reads)
        if reads:
            self._add("mov.b32", item, pair)

    def _transpose(self, result: ptx.Operand, source: ptx.Operand) -> None:
        """Transpose: element (r, c) is in lane 4 r + c / 2, half c % 2; c is this lane's l / 4."""
        self._add("and.b32", _own("from"), _own("lane"), _number(3))
        self._add("shl.b32", _own("from"), _own("from"), _number(3))
        self._add("shr.u32", _own("row"), _own("lane"), _number(3))
        self._add("add.s32", _own("from"), _own("from"), _own("row"))
        self._add("add.s32", _own("next"), _own("from"), _number(_COLUMNS // 2))
        self._add("and.b32", _own("column"), _own("lane"), _number(4))
        self._add("shl.b32", _own("column"), _own("column"), _number(2))
        for name, half in (("from", "low"), ("next", "high")):
            self._fetch(name, source)
            self._add("shr.u32", _own(half), _own(name), _own("column"))
        self._add("prmt.b32", result, _own("low"), _own("high"), _number(0x5410))
