"""Expands ``wmma.load`` and ``wmma.store`` into ordinary accesses of each lane's own elements.

Problem: a warp loads or stores a matrix whose rows or columns lie a stride apart, into fragments
whose layout is the device's own (`gpud.device.cpu.lower.matrix_products`).

Approach: a lane's elements of A and B are successive in a line of memory, those of an accumulator
in a row, so that most fragments are one address and a few words. Where accesses are checked, each
lane checks what it touches itself; the check of whole matrices that a program makes before a load
becomes ``gpud.rows``, and only its site and task block are used here.

Properties: no access without a check before it, in a checked program; every ``gpud.rows`` is gone.

Source: PTX ISA 9.0, section 9.7.14.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.analysis.effects import state_space
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import declared_types
from gpud.device.cpu.codegen.preparation.check_instruction import (
    NO_CLAIM,
    CheckedMember,
    bounds_check,
)
from gpud.device.cpu.lower.matrix_products import BITS, Fragment, wmma_fragment
from gpud.device.cpu.lower.registry import Modifiers, rejected

__all__ = ["expand_fragments"]

_STEM = "%fragment."
_NAMES = {
    **dict.fromkeys(("lane", "number", "line", "from"), "b32"),
    **dict.fromkeys(("base", "at", "stride", "step", "offset"), "b64"),
    **dict.fromkeys(("half0", "half1"), "b16"),
}
_LANES = 32
_WIDEST = 16
"""The alignment in bytes that the program's own checks ask of a row at most."""


def expand_fragments(function: ptx.Function, *, checked: bool) -> ptx.Function:
    """Expand these instructions in ``function``, whose body is flat.

    Raises:
        KernelRejected: a shape or a type is none of the ISA's.
    """
    body = function.body or []
    moves = [s for s in body if isinstance(s, ptx.Instruction) and _is_expanded(s)]
    if not moves:
        return function
    types = declared_types(body)
    made: list[ptx.Statement] = [
        ptx.RegisterDeclaration(kind, f"{_STEM}{name}") for name, kind in _NAMES.items()
    ]
    reported: ptx.Instruction | None = None
    for statement in body:
        if not isinstance(statement, ptx.Instruction):
            made.append(statement)
        elif statement.opcode.text == "gpud.rows":
            reported = statement
        elif _is_expanded(statement):
            made += _Expansion(statement, types, reported, checked=checked).made
            reported = None
        else:
            made.append(statement)
    return replace(function, body=made)


def _is_expanded(ins: ptx.Instruction) -> bool:
    return ins.opcode.base == "wmma" and ins.opcode.modifiers[:1] in (("load",), ("store",))


def _own(name: str) -> ptx.Register:
    return ptx.Register(f"{_STEM}{name}")


def _number(value: int) -> ptx.Immediate:
    return ptx.Immediate(str(value), value)


def _fragment(ins: ptx.Instruction) -> tuple[Fragment, str]:
    """Return the fragment that is moved, and how its lines lie in memory: ``row`` or ``col``."""
    modifiers = Modifiers(ins)
    modifiers.require("load", "store")
    role = modifiers.require("a", "b", "c", "d")
    modifiers.require("sync")
    modifiers.require("aligned")
    lines = modifiers.require("row", "col")
    modifiers.skip("global", "shared")
    type_ = modifiers.require(*BITS)
    shape = next(iter(modifiers.rest), "")
    sizes = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape)
    if sizes is None or len(modifiers.rest) > 1:
        raise rejected(ins, "it has no shape, or more than one")
    m, n, k = map(int, sizes.groups())
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    fragment = wmma_fragment("c" if role in "cd" else role, rows, columns, type_, lines)
    registers = ins.operands[1 if ins.opcode.modifiers[0] == "store" else 0]
    given = len(registers.items) if isinstance(registers, ptx.Vector) else 1
    if fragment.words * 32 // max(32, fragment.bits) != given:
        raise rejected(ins, f"it has {given} registers")
    return fragment, lines


class _Expansion:
    """The expansion of one instruction.

    Args:
        reported: the check of the whole matrix before it.
        checked: whether accesses are checked.
    """

    def __init__(
        self,
        ins: ptx.Instruction,
        types: Mapping[str, str],
        reported: ptx.Instruction | None,
        *,
        checked: bool,
    ) -> None:
        self.ins = ins
        self.made: list[ptx.Statement] = []
        self._checked = checked and state_space(ins.opcode) in ("global", "generic")
        self._reported = reported
        self._reads = ins.opcode.modifiers[0] == "load"
        self._fragment, lines = _fragment(ins)
        registers, address = ins.operands[:2] if self._reads else ins.operands[1::-1]
        self._items = registers.items if isinstance(registers, ptx.Vector) else (registers,)
        assert isinstance(address, ptx.Address)
        self._start(address, types, lines)
        if lines == self._fragment.lines:
            self._successive()
        else:
            self._apart()

    def _add(self, text: str, *operands: ptx.Operand) -> None:
        ins = self.ins
        self.made.append(ptx.Instruction(ptx.opcode(text), operands, ins.guard, ins.line))

    def _start(self, address: ptx.Address, types: Mapping[str, str], lines: str) -> None:
        """Compute the matrix's address, and the distance of its lines in elements."""
        base = address.base
        if isinstance(base, ptx.Register) and not types.get(base.name, "").endswith("64"):
            self._add("cvt.u64.u32", _own("base"), base)
        else:
            self._add("mov.u64", _own("base"), _number(0) if base is None else base)
        if address.offset:
            self._add("add.s64", _own("base"), _own("base"), _number(address.offset))
        self._add("mov.u32", _own("lane"), ptx.SpecialRegister("%laneid"))
        if len(self.ins.operands) > 2:
            stride = self.ins.operands[2]
            if isinstance(stride, ptx.Immediate):
                self._add("mov.u64", _own("stride"), _number(stride.value & 0xFFFFFFFF))
            else:
                self._add("cvt.u64.u32", _own("stride"), stride)
        else:
            fragment = self._fragment
            length = fragment.columns if lines == "row" else fragment.rows
            self._add("mov.u64", _own("stride"), _number(length))

    # -- where a lane's elements are

    def _place(self, slot: int, length: int) -> None:
        """Compute the line of the element in ``slot``, and its place in the line into ``from``."""
        fragment = self._fragment
        elements = fragment.rows * fragment.columns
        self._add("shl.b32", _own("number"), _own("lane"), _number(_log(fragment.slots)))
        if slot:
            self._add("add.s32", _own("number"), _own("number"), _number(slot))
        self._add("and.b32", _own("number"), _own("number"), _number(elements - 1))
        self._add("shr.u32", _own("line"), _own("number"), _number(_log(length)))
        self._add("and.b32", _own("from"), _own("number"), _number(length - 1))

    def _locate(self, line: str, place: str) -> None:
        """Compute the address of an element into ``at``."""
        self._add("cvt.u64.u32", _own("offset"), _own(line))
        self._add("mul.lo.s64", _own("offset"), _own("offset"), _own("stride"))
        self._add("cvt.u64.u32", _own("at"), _own(place))
        self._add("add.s64", _own("offset"), _own("offset"), _own("at"))
        bits = _log(self._fragment.bits) - 3
        if bits:
            how = "shl.b64" if bits > 0 else "shr.u64"
            self._add(how, _own("offset"), _own("offset"), _number(abs(bits)))
        self._add("add.s64", _own("at"), _own("base"), _own("offset"))

    def _successive(self) -> None:
        """Move whole words: a lane's elements follow each other in one or several lines."""
        fragment = self._fragment
        length = fragment.columns if fragment.lines == "row" else fragment.rows
        run = min(length, fragment.slots)
        unit = max(32, fragment.bits)
        words = run * fragment.bits // unit
        for part in range(fragment.slots // run):
            self._place(part * run, length)
            self._locate("line", "from")
            self._check(words * unit // 8)
            for word in range(words):
                self._access(f"b{unit}", self._items[part * words + word], word * unit // 8)

    def _apart(self) -> None:
        """Move element by element: a lane has part of a row, and memory is column by column."""
        fragment = self._fragment
        self._place(0, fragment.columns)
        self._locate("from", "line")
        self._add("shl.b64", _own("step"), _own("stride"), _number(_log(fragment.bits) - 3))
        for slot in range(fragment.slots):
            if slot:
                self._add("add.s64", _own("at"), _own("at"), _own("step"))
            self._check(fragment.bits // 8)
            if fragment.bits != 16:
                self._access(f"b{fragment.bits}", self._items[slot], 0)
                continue
            item, half = self._items[slot // 2], slot % 2
            pair = ptx.Vector((_own("half0"), _own("half1")))
            if not self._reads and not half:
                self._add("mov.b32", pair, item)
            self._access("b16", pair.items[half], 0)
            if self._reads and half:
                self._add("mov.b32", item, pair)

    # -- accesses

    def _check(self, span: int) -> None:
        if not self._checked:
            return
        site = -1
        claim: ptx.Operand = NO_CLAIM
        if self._reported is not None:
            number, claim = self._reported.operands
            assert isinstance(number, ptx.Immediate)
            site = number.value
        member = CheckedMember(0, span, min(span, _WIDEST), site)
        space = state_space(self.ins.opcode)
        ins = self.ins
        self.made.append(bounds_check(space, _own("at"), [member], claim, ins.guard, ins.line))

    def _access(self, kind: str, item: ptx.Operand, offset: int) -> None:
        space = state_space(self.ins.opcode)
        where = "" if space == "generic" else f".{space}"
        place = ptx.Address(_own("at"), offset)
        operands = (item, place) if self._reads else (place, item)
        self._add(f"{'ld' if self._reads else 'st'}{where}.{kind}", *operands)


def _log(power_of_two: int) -> int:
    return power_of_two.bit_length() - 1
