"""Expands bulk copies between global and shared memory into loops of ordinary accesses.

Problem: ``cp.async.bulk`` and ``cp.reduce.async.bulk`` move any number of bytes, and tell an
mbarrier when they are done. Each byte must be checked, and the length is known only when the
program runs.

Approach: the thread that issues a copy makes it there and then, 16 bytes at a time, by loads and
stores that are checked like those of the program; then it completes the transaction on the
mbarrier. So waiting for a group of copies is a no-op. Reductions apply ``red`` element by element.
Lengths are multiples of 16, as the ISA has it; what is left of others is not copied.

Properties: a function without bulk copies is returned unchanged; an illegal address is reported
before any byte of its 16 is touched; copies to several blocks of a cluster and with byte masks are
left in place, and refused later.

Source: PTX ISA 9.0, sections 9.7.9.25.5 (``cp.async.bulk``, ``cp.reduce.async.bulk``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import declared_types
from gpud.device.cpu.codegen.preparation.check_instruction import (
    NO_CLAIM,
    CheckedMember,
    bounds_check,
)

__all__ = ["expand_bulk_copies"]

_STEM = "%bulk."
_PIECE = 16
_KINDS = {
    **dict.fromkeys(("to", "from", "wide0", "wide1"), "b64"),
    **dict.fromkeys(("left", "word0", "word1", "word2", "word3"), "b32"),
    "over": "pred",
}
_COMPLETION = ("mbarrier::complete_tx::bytes", "bulk_group")
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_WORDS = ("u32", "s32", "b32", "f32")
_HALVES = ("f16", "bf16")


def expand_bulk_copies(function: ptx.Function, *, checked: bool) -> ptx.Function:
    """Expand these instructions in ``function``, whose body is flat.

    ``checked``: whether global accesses are checked; those of shared memory are later.
    """
    body = function.body or []
    found = [s for s in body if isinstance(s, ptx.Instruction) and _parts(s) is not None]
    if not found:
        return function
    types = declared_types(body)
    made: list[ptx.Statement] = [
        ptx.RegisterDeclaration(kind, f"{_STEM}{name}") for name, kind in _KINDS.items()
    ]
    for number, statement in enumerate(body):
        parts = _parts(statement) if isinstance(statement, ptx.Instruction) else None
        if parts is None or not isinstance(statement, ptx.Instruction):
            made.append(statement)
        else:
            made += _Expansion(statement, number, parts, types, checked=checked).made
    return replace(function, body=made)


class _Parts:
    """The parts of a bulk copy: the spaces, the completion, the operation and the type."""

    def __init__(self, to: str, of: str, completion: str, operation: str, type_: str) -> None:
        self.to, self.of = to, of
        self.completion = completion
        self.operation, self.type = operation, type_


def _parts(ins: ptx.Instruction) -> _Parts | None:
    """Return the parts of a copy that is expanded here."""
    if ins.opcode.base != "cp":
        return None
    rest = [m for m in ins.opcode.modifiers if m != "L2::cache_hint"]
    reduces = rest[:1] == ["reduce"]
    if rest[reduces : reduces + 2] != ["async", "bulk"]:
        return None
    rest = rest[reduces + 2 :]
    spaces = [m.partition("::")[0] for m in rest[:2]]
    if sorted(spaces) not in (["global", "shared"], ["shared", "shared"]):
        return None
    if len(rest) < 3 or rest[2] not in _COMPLETION:
        return None
    completion, rest = rest[2], rest[3:]
    if (completion == "bulk_group") != (spaces[0] == "global"):
        return None
    operation = type_ = ""
    if reduces:
        if len(rest) < 2 or rest[0] not in _OPERATIONS:
            return None
        operation, type_, noftz = rest[0], rest[-1], rest[1:-1]
        if type_[:1] not in "usfb" or noftz not in ([], ["noftz"]):
            return None
        rest = []
    wanted = 3 + (completion != "bulk_group") + ins.opcode.has("L2::cache_hint")
    places = (*ins.operands[:2], *ins.operands[3 : 3 + (completion != "bulk_group")])
    if rest or len(ins.operands) != wanted:
        return None
    if not all(isinstance(place, ptx.Address) for place in places):
        return None
    return _Parts(spaces[0], spaces[1], completion, operation, type_)


def _own(name: str) -> ptx.Register:
    return ptx.Register(f"{_STEM}{name}")


def _number(value: int) -> ptx.Immediate:
    return ptx.Immediate(str(value), value)


class _Expansion:
    """The expansion of one instruction, the ``number``-th statement of its function."""

    def __init__(
        self,
        ins: ptx.Instruction,
        number: int,
        parts: _Parts,
        types: Mapping[str, str],
        *,
        checked: bool,
    ) -> None:
        self.made: list[ptx.Statement] = []
        self._line = ins.line
        self._checked = checked
        again, end = f"$bulk.{number}.again", f"$bulk.{number}.end"
        skip = f"$bulk.{number}.skip"
        if ins.guard is not None:
            negated = replace(ins.guard, negated=not ins.guard.negated)
            self._add("bra", ptx.Symbol(skip), guard=negated)
        for name, operand in zip(("to", "from"), ins.operands[:2], strict=True):
            assert isinstance(operand, ptx.Address)
            self._address(name, operand, types)
        self._add("mov.u32", _own("left"), ins.operands[2])
        self.made.append(ptx.Label(again, self._line))
        self._add("setp.lt.u32", _own("over"), _own("left"), _number(_PIECE))
        self._add("bra", ptx.Symbol(end), guard=ptx.Guard(_own("over")))
        self._piece(parts)
        self._add("add.s64", _own("to"), _own("to"), _number(_PIECE))
        self._add("add.s64", _own("from"), _own("from"), _number(_PIECE))
        self._add("sub.s32", _own("left"), _own("left"), _number(_PIECE))
        self._add("bra", ptx.Symbol(again))
        self.made.append(ptx.Label(end, self._line))
        if parts.completion != "bulk_group":
            self._add("mbarrier.complete_tx.shared.b64", ins.operands[3], ins.operands[2])
        if ins.guard is not None:
            self.made.append(ptx.Label(skip, self._line))

    def _add(self, text: str, *operands: ptx.Operand, guard: ptx.Guard | None = None) -> None:
        self.made.append(ptx.Instruction(ptx.opcode(text), operands, guard, self._line))

    def _address(self, name: str, address: ptx.Address, types: Mapping[str, str]) -> None:
        base = address.base
        if isinstance(base, ptx.Register) and not types.get(base.name, "").endswith("64"):
            self._add("cvt.u64.u32", _own(name), base)
        else:
            self._add("mov.u64", _own(name), _number(0) if base is None else base)
        if address.offset:
            self._add("add.s64", _own(name), _own(name), _number(address.offset))

    def _piece(self, parts: _Parts) -> None:
        """Move or add 16 bytes."""
        for space, name in ((parts.of, "from"), (parts.to, "to")):
            if space == "global" and self._checked:
                member = CheckedMember(0, _PIECE, _PIECE, -1)
                self.made.append(
                    bounds_check("global", _own(name), [member], NO_CLAIM, line=self._line)
                )
        words = ptx.Vector(tuple(_own(f"word{n}") for n in range(4)))
        wide = ptx.Vector(tuple(_own(f"wide{n}") for n in range(2)))
        source, target = ptx.Address(_own("from")), ptx.Address(_own("to"))
        if not parts.operation:
            self._add(f"ld.{parts.of}.v4.b32", words, source)
            self._add(f"st.{parts.to}.v4.b32", target, words)
            return
        if parts.type in _WORDS or parts.type in _HALVES:
            values, kind, step = words, "v4.b32", 4
        else:
            values, kind, step = wide, "v2.b64", 8
        type_ = f"noftz.{parts.type}x2" if parts.type in _HALVES else parts.type
        self._add(f"ld.{parts.of}.{kind}", values, source)
        for at, value in enumerate(values.items):
            place = ptx.Address(_own("to"), at * step)
            self._add(f"red.relaxed.gpu.{parts.to}.{parts.operation}.{type_}", place, value)
