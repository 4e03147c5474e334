"""Groups the bounds checks of a basic block whose addresses differ only in a parameter.

Problem: ``x[i]`` and ``y[i]`` can be tested together if ``x`` and ``y`` are parameters and ``i`` is
the same; in PTX the addresses are sums of registers.

Approach: local value numbering. An address is decomposed into terms and a constant; two checks are
in one group if their addresses have the same terms except for one, which is a parameter.

Terms: a *sum* is value numbers of terms that are not sums themselves, and an offset; terms with the
same number are equal. A *group* is bounds checks whose sums differ only in a parameter and in the
offset.

Properties: a group is in one basic block, with no call, barrier, collective or branch between its
checks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from gpud.compiler.analysis.cfg import Block, ControlFlow
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    COLLECTIVE,
    TERMINATOR,
    flags,
    state_space,
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.preparation.check_instruction import CheckOperands, decode_check
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check

__all__ = ["CheckGrouping", "GroupMember"]

_WIDE = ("i64", "ptr")
_64_BITS = ("u64", "s64", "b64")
_PURE = frozenset(
    ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "neg", "cvt", "mov")
)
_CONSTANT_REGISTERS = ("%tid.", "%ntid.", "%ctaid.", "%nctaid.")


class _LinearSum(NamedTuple):
    """Sorted value numbers, and the constant added to them; modulo 2**64."""

    numbers: tuple[int, ...]
    offset: int


class GroupMember(NamedTuple):
    """A check of a group: its base is the parameter at ``place`` + ``offset`` + common terms."""

    ins: ptx.Instruction
    place: int
    offset: int


class CheckGrouping:
    """The values of registers within one basic block, as sums, and the groups that follow.

    Args:
        storage: LLVM types of its registers, by name.
        parameters: offsets of its parameters in the parameter buffer, by name.
    """

    def __init__(
        self, flow: ControlFlow, storage: Mapping[str, str], parameters: Mapping[str, int]
    ) -> None:
        self.flow = flow
        self.storage = storage
        self.parameters = parameters
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[int, int] = {}
        """Offset of a parameter in the parameter buffer, by its value number."""
        self._held: dict[str, _LinearSum] = {}
        self._block = 0
        self._makers: dict[str, list[tuple[int, int, ptx.Instruction]]] = {}
        for number in flow.order:
            for at, place in enumerate(flow.blocks[number].places):
                for register in written(place.instruction):
                    made = self._makers.setdefault(register.name, [])
                    made.append((number, at, place.instruction))

    def groups(self, block: Block) -> list[list[GroupMember]]:
        """Return the groups of more than one bounds check in a block, each in program order."""
        self._held = {}
        self._block = block.index
        groups: list[list[GroupMember]] = []
        open_: dict[Hashable, list[GroupMember]] = {}
        for place in block.places:
            ins = place.instruction
            if is_bounds_check(ins):
                one = self._member(ins)
                if one is not None:
                    key, member = one
                    if key not in open_:
                        open_[key] = []
                        groups.append(open_[key])
                    open_[key].append(member)
                continue
            if flags(ins.opcode) & (TERMINATOR | CALL | BARRIER | COLLECTIVE):
                open_.clear()
            self._run(ins)
        return [group for group in groups if len(group) > 1]

    def _member(self, ins: ptx.Instruction) -> tuple[Hashable, GroupMember] | None:
        operands = decode_check(ins)
        if ins.guard is not None or not _in_arena(operands):
            return None
        if not isinstance(operands.base, ptx.Register) or not self._is_wide(operands.base):
            return None
        sum_ = self._of(operands.base)
        bases = [number for number in sum_.numbers if number in self._places]
        if len(bases) != 1:
            return None
        rest = list(sum_.numbers)
        rest.remove(bases[0])
        # The first bounds check represents all: the claim operands are equal, too.
        key = operands.space, operands.align, operands.claim, self._of(operands.claim), tuple(rest)
        return key, GroupMember(ins, self._places[bases[0]], sum_.offset)

    # -- values

    def _number(self, key: Hashable) -> _LinearSum:
        return _LinearSum((self._numbers.setdefault(key, len(self._numbers)),), 0)

    def _unknown(self) -> _LinearSum:
        return self._number(("new", len(self._numbers)))

    def _of(self, operand: ptx.Operand) -> _LinearSum:
        match operand:
            case ptx.Register(name):
                held = self._held.get(name)
                if held is None:
                    held = self._held[name] = self._at_start(name)
                return held
            case ptx.Immediate(kind="int", value=value):
                return _LinearSum((), value % (1 << 64))
            case ptx.Immediate(kind=kind, value=value):
                return self._number(("immediate", kind, value))
            case ptx.SpecialRegister(name) if name.startswith(_CONSTANT_REGISTERS):
                return self._number(("special", name))
        return self._unknown()

    def _at_start(self, name: str) -> _LinearSum:
        place = self._kept_parameter(name, self._block, -1, 4)
        if place is not None:
            return self._parameter(place)
        return self._number(("start", self._block, name))

    def _kept_parameter(self, name: str, block: int, at: int, depth: int) -> int | None:
        """Return the offset of the parameter that a register holds before a program point."""
        made = self._makers.get(name, ())
        if len(made) != 1 or not depth:
            return None
        number, where, ins = made[0]
        earlier = number == block and where < at
        if not earlier and (number == block or not self.flow.dominates(number, block)):
            return None
        if ins.guard is not None or not self._is_wide(ins.operands[0]):
            return None
        place = self._loaded(ins)
        if place is None and self._copies(ins):
            source = ins.operands[1]
            if isinstance(source, ptx.Register):
                return self._kept_parameter(source.name, number, where, depth - 1)
        return place

    def _parameter(self, place: int) -> _LinearSum:
        sum_ = self._number(("parameter", place))
        self._places[sum_.numbers[0]] = place
        return sum_

    # -- instructions

    def _run(self, ins: ptx.Instruction) -> None:
        targets = written(ins)
        known = None
        if len(targets) == 1 and ins.guard is None and ins.operands[0] == targets[0]:
            known = self._result(ins)
        for register in targets:
            self._held[register.name] = self._unknown() if known is None else known

    def _result(self, ins: ptx.Instruction) -> _LinearSum | None:
        base, modifiers, sources = ins.opcode.base, ins.opcode.modifiers, ins.operands[1:]
        if self._is_wide(ins.operands[0]):
            place = self._loaded(ins)
            if place is not None:
                return self._parameter(place)
            if self._copies(ins):
                return self._of(sources[0])
            if base == "add" and modifiers in (("s64",), ("u64",)):
                return self._added(self._word(sources[0]), self._word(sources[1]))
            if base == "mad" and modifiers in (("wide", "u32"), ("wide", "s32")):
                product = self._operation("mul", modifiers, sources[:2], "i64")
                return self._added(product, self._word(sources[2]))
        if base not in _PURE or "cc" in modifiers:
            return None
        target = self._storage(ins.operands[0])
        return self._operation(base, modifiers, sources, "i64" if target == "ptr" else target)

    def _operation(
        self,
        base: str,
        modifiers: tuple[str, ...],
        sources: tuple[ptx.Operand, ...],
        target: str,
    ) -> _LinearSum:
        """Return the sum that an instruction computes; its operands may have other widths."""
        inputs = tuple((self._of(one), self._is_wide(one) or self._storage(one)) for one in sources)
        return self._number((base, modifiers, inputs, target))

    def _word(self, operand: ptx.Operand) -> _LinearSum:
        """Return the sum of a 64-bit operand; a narrower one changes when it is widened."""
        if isinstance(operand, ptx.Register) and not self._is_wide(operand):
            return self._number(("widened", self._of(operand)))
        return self._of(operand)

    @staticmethod
    def _added(first: _LinearSum, second: _LinearSum) -> _LinearSum:
        numbers = sorted((*first.numbers, *second.numbers))
        return _LinearSum(tuple(numbers), (first.offset + second.offset) % (1 << 64))

    def _loaded(self, ins: ptx.Instruction) -> int | None:
        """Return the offset of the parameter that an instruction loads."""
        modifiers = ins.opcode.modifiers
        if ins.opcode.base != "ld" or state_space(ins.opcode) != "param":
            return None
        address = ins.operands[1]
        if modifiers[-1] not in _64_BITS or not isinstance(address, ptx.Address):
            return None
        if not isinstance(address.base, ptx.Symbol) or len(modifiers) != 2:
            return None
        start = self.parameters.get(address.base.name)
        return None if start is None else start + address.offset

    def _copies(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` copies a 64-bit register; global addresses equal generic ones."""
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        source = ins.operands[1] if len(ins.operands) == 2 else None
        if not isinstance(source, ptx.Register) or not self._is_wide(source):
            return False
        if base == "cvta":
            return "global" in modifiers and modifiers[-1] == "u64"
        return base == "mov" and modifiers in (("u64",), ("s64",), ("b64",))

    def _is_wide(self, operand: ptx.Operand) -> bool:
        return self._storage(operand) in _WIDE

    def _storage(self, operand: ptx.Operand) -> str:
        return self.storage[operand.name] if isinstance(operand, ptx.Register) else ""


def _in_arena(operands: CheckOperands) -> bool:
    """Return whether the arena is the likeliest range of the bounds check."""
    if operands.space not in ("global", "generic"):
        return False
    return not operands.origins or operands.origins[0] == "arena"
