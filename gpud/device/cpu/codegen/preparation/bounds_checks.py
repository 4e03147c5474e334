"""Inserts bounds checks before accesses to shared, local, constant and parameter memory.

Problem: an out-of-bounds address in one of these spaces would access other memory of this process.
A GPU's hardware detects that; here the code generator must.

Approach: insert a ``gpud.bounds`` for the access's space before each access, unless the symbol and
a constant offset, or the block's shape, prove that it is in bounds. Accesses through one register
in one basic block share a bounds check, which stands before the first of them. For the same reason,
bounds checks of the program are removed if they only guard accesses to the module's variables that
are provably in bounds.

Terms: a *group* is the accesses that share a bounds check.

Properties:
* an access that is not provably in bounds is checked;
* the accesses of a persistent loop to its slots are not checked: the slots are outside the memory
  that the program may access;
* if the first access of a group runs, all of them do, unless the block ends for another reason;
* a store to ``.param`` writes to a struct in local memory that a call passes, never to the kernel's
  own parameters, the last of which is the control word that the persistent loop reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from gpud.compiler.abi.reserved_names import LOOP
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.data_layout import size_and_align, type_bytes
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    COLLECTIVE,
    TERMINATOR,
    flags,
    state_space,
    written,
)
from gpud.compiler.analysis.liveness import Liveness
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Shape, is_dynamic_shared
from gpud.device.cpu.codegen.analysis.register_types import declared_types
from gpud.device.cpu.codegen.analysis.static_ranges import StaticRanges
from gpud.device.cpu.codegen.analysis.thread_constants import ThreadConstants
from gpud.device.cpu.codegen.hoisting.transfer_functions import signed
from gpud.device.cpu.codegen.preparation.check_instruction import (
    NO_CLAIM,
    CheckedMember,
    bounds_check,
    decode_check,
)
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check

__all__ = ["CheckedAccess", "accesses", "insert_bounds_checks"]

_OWN = ("shared", "local", "const", "param")
_WIDEST_HULL = 4096
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_MBARRIER_BYTES = 8
_MAX_DEFINITIONS = 8
_Key = tuple[ptx.Register | ptx.Symbol | None, ptx.Guard | None, str]


class CheckedAccess(NamedTuple):
    """The access that one operand of an instruction makes: ``span`` bytes, aligned to ``align``."""

    space: str
    address: ptx.Address
    span: int
    align: int


def accesses(ins: ptx.Instruction) -> list[CheckedAccess]:
    """List the memory accesses of an instruction, in all spaces."""
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    addresses = [o for o in ins.operands if isinstance(o, ptx.Address)]
    if not addresses:
        return []
    if base in ("ld", "ldu", "st", "atom", "red"):
        size = _type_bytes(modifiers)
        size *= next((_VECTORS[m] for m in modifiers if m in _VECTORS), 1)
        used = ins.opcode.used_of(size)
        return [CheckedAccess(state_space(ins.opcode), addresses[0], used, size)]
    if base == "mbarrier":
        if modifiers[0] == "pending_count":
            return []
        return [
            CheckedAccess(state_space(ins.opcode), addresses[0], _MBARRIER_BYTES, _MBARRIER_BYTES)
        ]
    if base == "cp" and modifiers[:1] == ("async",):
        if "mbarrier" in modifiers:
            space = state_space(ins.opcode)
            return [CheckedAccess(space, addresses[0], _MBARRIER_BYTES, _MBARRIER_BYTES)]
        size = next((o.value for o in ins.operands if isinstance(o, ptx.Immediate)), 0)
        if len(addresses) == 2 and size:
            target, source = addresses
            return [
                CheckedAccess("shared", target, size, size),
                CheckedAccess("global", source, size, size),
            ]
    return []


def _type_bytes(modifiers: tuple[str, ...]) -> int:
    for name in reversed(modifiers):
        if name[:1] in "bsuf" and name.lstrip("bsuf").partition("x")[0].isdigit():
            return type_bytes(name)
    return 1


@dataclass
class _Group:
    """Accesses that share a bounds check, to be inserted at index ``place`` of the new body."""

    place: int
    space: str
    base: ptx.Register | ptx.Symbol | None
    guard: ptx.Guard | None
    line: int
    members: list[CheckedMember] = field(default_factory=list)

    def takes(self, member: CheckedMember) -> bool:
        """Return whether the bounds check can also cover ``member``."""
        others = [*self.members, member]
        low = min(m.low for m in others)
        end = max(m.low + m.span for m in others)
        return end - low <= _WIDEST_HULL and all((m.low - low) % m.align == 0 for m in others)


def insert_bounds_checks(
    module: ptx.Module, function: ptx.Function, shape: Shape | None = None
) -> ptx.Function:
    """Insert bounds checks into ``function``, whose body is flat, before accesses to these spaces.

    ``shape``: of its blocks, if known.
    """
    inside = _InBounds(module, function, shape)
    body: list[ptx.Statement] = []
    groups: list[_Group] = []
    open_: dict[_Key, _Group] = {}
    dropped = False
    for statement in function.body or ():
        if isinstance(statement, ptx.Label):
            open_.clear()
        elif isinstance(statement, ptx.Instruction):
            if is_bounds_check(statement) and inside.is_redundant(statement):
                dropped = True
                continue
            for access in accesses(statement):
                if access.space not in _OWN or inside.holds(statement, access):
                    continue
                base, guard = access.address.base, statement.guard
                member = CheckedMember(access.address.offset, access.span, access.align, -1)
                space = "local" if _writes_param(statement, access) else access.space
                key: _Key = (base, guard, space)
                group = open_.get(key)
                if group is None or not group.takes(member):
                    group = _Group(len(body), space, base, guard, statement.line)
                    open_[key] = group
                    groups.append(group)
                group.members.append(member)
            if flags(statement.opcode) & (TERMINATOR | CALL | BARRIER | COLLECTIVE):
                open_.clear()
            for register in written(statement):
                for key in [k for k in open_ if _mentions(k, register)]:
                    del open_[key]
        body.append(statement)
    if not groups and not dropped:
        return function
    claim = _claim(function)
    for group in reversed(groups):
        made = bounds_check(group.space, group.base, group.members, claim, group.guard, group.line)
        body.insert(group.place, made)
    return replace(function, body=body)


def _writes_param(ins: ptx.Instruction, access: CheckedAccess) -> bool:
    return access.space == "param" and ins.opcode.base not in ("ld", "ldu")


def _is_loop_slot(base: ptx.Register | ptx.Symbol) -> bool:
    """Return whether this is an address in the slots of a persistent loop."""
    return base.name.lstrip("%").startswith(LOOP)


def _mentions(key: _Key, register: ptx.Register) -> bool:
    base, guard, _ = key
    return base == register or (guard is not None and guard.register == register)


def _claim(function: ptx.Function) -> ptx.Operand:
    """Return the task block that the function's own checks report, if it is available there."""
    for statement in function.body or ():
        if isinstance(statement, ptx.Instruction) and statement.opcode.base == "gpud":
            if statement.opcode.modifiers[0] == "bounds":
                return statement.operands[3]
    return NO_CLAIM


class _InBounds:
    """Decides which accesses are in bounds of one variable or parameter for all inputs."""

    def __init__(self, module: ptx.Module, function: ptx.Function, shape: Shape | None) -> None:
        self._function = function
        self._in: dict[str, set[str]] = {"shared": set(), "global": set()}
        self._sizes: dict[str, tuple[int, int]] = {}
        for item in module.items:
            if isinstance(item, ptx.Variable):
                self._add(item)
        for statement in function.body or ():
            if isinstance(statement, ptx.Variable):
                self._add(statement)
        for parameter in (*function.parameters, *function.returns):
            self._sizes[parameter.name] = size_and_align(parameter)
        self._constant = {p.name for p in function.parameters} if function.kind == "entry" else ()
        self._made: dict[str, list[ptx.Instruction]] = {}
        for statement in function.body or ():
            if isinstance(statement, ptx.Instruction):
                for register in written(statement):
                    self._made.setdefault(register.name, []).append(statement)
        # In a kernel, an uninitialised register is 0.
        known = shape is not None and function.kind == "entry"
        self._shape = shape if known else None
        self._ranges = None if self._shape is None else StaticRanges(self._made, self._shape)

    @cached_property
    def _values(self) -> ThreadConstants | None:
        if self._shape is None:
            return None
        return ThreadConstants(self._made, self._unset, self._shape)

    @cached_property
    def _types(self) -> dict[str, str]:
        return declared_types(self._function.body or ())

    @cached_property
    def _unset(self) -> frozenset[str]:
        """Registers that some path reads before writing them."""
        liveness = Liveness(ControlFlow(self._function))
        return frozenset(one.name for one in liveness.registers(liveness.live_in[0]))

    def _add(self, variable: ptx.Variable) -> None:
        if is_dynamic_shared(variable):
            return
        if variable.space in self._in:
            self._in[variable.space].add(variable.name)
        self._sizes[variable.name] = size_and_align(variable)

    def holds(self, ins: ptx.Instruction, access: CheckedAccess) -> bool:
        """Return whether the access is provably in bounds and aligned."""
        base, offset = access.address.base, access.address.offset
        if base is None:
            return False
        if access.space == "shared":
            if (
                _is_loop_slot(base)
                or self._is_bounded_index(access)
                or self._is_in_bounds_per_thread(access)
            ):
                return True
        places = self._places(base, 8) if isinstance(base, ptx.Register) else {(base.name, 0)}
        if _writes_param(ins, access) and any(name in self._constant for name, _ in places):
            return False
        return bool(places) and all(
            self._within(name, start + offset, access) for name, start in places
        )

    def is_redundant(self, ins: ptx.Instruction) -> bool:
        """Return whether a program's check provably covers the module's variables only."""
        operands = decode_check(ins)
        base = operands.base
        if not isinstance(base, ptx.Register):
            return False
        places = self._places(base, 8)
        for member in operands.members:
            access = CheckedAccess(
                "global", ptx.Address(base, member.low), member.span, member.align
            )
            inside = bool(places) and all(
                name in self._in["global"] and self._within(name, start + member.low, access)
                for name, start in places
            )
            if not inside and not (
                self._is_bounded_index(access) and self._holds_whole_address(base)
            ):
                return False
        return True

    def _holds_whole_address(self, register: ptx.Register) -> bool:
        """Return whether ``register``, whose range has a symbol, always holds a whole address."""
        assert self._ranges is not None
        work, seen = [register.name], {register.name}
        while work:
            name = work.pop()
            if name in self._unset or self._types.get(name, "")[1:] != "64":
                return False
            for ins in self._made.get(name, ()):
                wide = ins.opcode.modifiers[-1][1:] == "64" or ins.opcode.has("wide")
                if not wide or ins.guard is not None:
                    return False
                for source in ins.operands[1:]:
                    extent = self._ranges.of(source)
                    if isinstance(source, ptx.Register) and (extent is None or extent.name):
                        if source.name not in seen:
                            seen.add(source.name)
                            work.append(source.name)
        return True

    def _is_bounded_index(self, access: CheckedAccess) -> bool:
        """Return whether the access is to an array of its space at an index never too large."""
        base, offset = access.address.base, access.address.offset
        if self._ranges is None or not isinstance(base, ptx.Register) or offset < 0:
            return False
        extent = self._ranges.of(base)
        if (
            extent is None
            or extent.name not in self._in[access.space]
            or extent.step % access.align
        ):
            return False
        return self._within(extent.name, offset, access) and self._within(
            extent.name, offset + extent.most // access.align * access.align, access
        )

    def _is_in_bounds_per_thread(self, access: CheckedAccess) -> bool:
        """Return whether all threads access a shared array in bounds, at an index computed here."""
        base, offset = access.address.base, access.address.offset
        if self._values is None or not isinstance(base, ptx.Register):
            return False
        values = self._values.of(base.name)
        if values is None or values.name not in self._in["shared"]:
            return False
        distinct = set(values.numbers.tolist())
        numbers = {signed(n, 64) if values.bits == 64 else n for n in distinct}
        return all(self._within(values.name, number + offset, access) for number in numbers)

    def _within(self, name: str, first: int, access: CheckedAccess) -> bool:
        size_and_alignment = self._sizes.get(name)
        if size_and_alignment is None:
            return access.space == "param"  # a scalar of a call, which is a register by now
        size, align = size_and_alignment
        aligned = first % access.align == 0 and align % access.align == 0
        return aligned and first >= 0 and first + access.span <= size

    def _places(self, register: ptx.Register, depth: int) -> set[tuple[str, int]]:
        """Return all (variable, offset) that the register can point to; empty if not known."""
        made = self._made.get(register.name, ())
        if not made or not depth or len(made) > _MAX_DEFINITIONS:
            return set()
        if register.name in self._unset:
            return set()
        places: set[tuple[str, int]] = set()
        toggles: list[int] = []
        for ins in made:
            base, sources = ins.opcode.base, ins.operands[1:]
            if ins.guard is not None:
                return set()
            if base == "xor" and sources[0] == register and isinstance(sources[1], ptx.Immediate):
                toggles.append(sources[1].value)
                continue
            more = self._made_at(base, sources, depth)
            if not more:
                return set()
            places |= more
        return self._toggled(places, toggles)

    def _made_at(
        self, base: str, sources: tuple[ptx.Operand, ...], depth: int
    ) -> set[tuple[str, int]]:
        match base, sources:
            case "mov", (ptx.Symbol(name),):
                return {(name, 0)}
            case "mov", (ptx.SymbolOffset(ptx.Symbol(name), offset),):
                return {(name, offset)}
            case "mov", (ptx.Register() as source,):
                return self._places(source, depth - 1)
            case "selp", (ptx.Register() as one, ptx.Register() as other, _):
                places = [self._places(source, depth - 1) for source in (one, other)]
                return places[0] | places[1] if all(places) else set()
            case "add", (ptx.Register() as source, ptx.Immediate(value=value)):
                return {(name, at + value) for name, at in self._places(source, depth - 1)}
        return set()

    def _toggled(self, places: set[tuple[str, int]], toggles: list[int]) -> set[tuple[str, int]]:
        """Close ``places`` under flipping the bits ``toggles`` of the addresses."""
        for toggle in toggles:
            for name, at in list(places):
                _, align = self._sizes.get(name, (0, 1))
                # Below the variable's alignment the address has the bits of the offset.
                if not (0 <= toggle < align and 0 <= at < align):
                    return set()
                places.add((name, at ^ toggle))
        return places
