"""Merged bounds checks: one test for all arrays that a diverged thread accesses at one index.

Problem: a diverged thread tests each of its bounds checks where it stands. In a kernel that reads
and writes many arrays at ``array[i]`` this costs more than the computation.

Approach: if the arrays are parameters, their distances are the same for all threads. If the
elements of the lowest and of the highest array are within the arena, then so are those between.
What depends on parameters only is computed before the loop over threads; one comparison per thread
is left. If it fails, all bounds checks of the group are checked there, in program order.

Terms: an address is decomposed into a *sum*: value numbers of terms that are not sums, and an
offset; terms with the same number are equal. Bounds checks whose sums differ only in a parameter
and in the offset are a *group*, which is tested where its first check stands.

Properties:
* a group is in one basic block, in which all of its accesses run if the first does, or the task
  block has ended for another reason;
* an access is reported if and only if it is illegal, before any access of its group happens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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
from gpud.device.cpu.codegen.emit.addresses import header_field
from gpud.device.cpu.codegen.emit.check_code import (
    bounds_of,
    check_exactly,
    start_count,
)
from gpud.device.cpu.codegen.preparation.check_instruction import CheckOperands, decode_check
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.region_writer import KernelContext
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
    from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["MergedChecks"]

_WIDE = ("i64", "ptr")
_64_BITS = ("u64", "s64", "b64")
_PURE = frozenset(
    ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "neg", "cvt", "mov")
)
_FAR_SHIFT = 57
"""No arena has 2 to the power of this many bytes; five bits above are left for a misalignment."""
_CONSTANT_REGISTERS = ("%tid.", "%ntid.", "%ctaid.", "%nctaid.")


class _LinearSum(NamedTuple):
    """Sorted value numbers, and the constant added to them; modulo 2**64."""

    numbers: tuple[int, ...]
    offset: int


class _Member(NamedTuple):
    """A check of a group: its base is the parameter at ``place`` + ``offset`` + common terms."""

    ins: ptx.Instruction
    place: int
    offset: int


@dataclass
class _Group:
    members: list[_Member] = field(default_factory=list)
    bias: str = ""
    """i64: added to the first bounds check's base, gives the lowest hull's offset in the arena."""
    room: str = ""
    """i64: the limit of that offset, in multiples of the alignment."""


class MergedChecks:
    """The groups of some blocks of a kernel.

    Args:
        kernel: whose.
        blocks: numbers of these blocks.
        e: the function being written; values that the groups share are computed at its current
            position.
        code: any thread there.
    """

    def __init__(
        self, kernel: KernelContext, blocks: Sequence[int], emitter: Emitter, code: ThreadCode
    ) -> None:
        self.kernel = kernel
        self.emitter = emitter
        self._groups: dict[int, _Group] = {}
        self._tested: set[int] = set()
        if kernel.arena is None:
            return
        sums = _ValueNumbering(kernel.regions.flow, kernel.storage, kernel.parameters)
        for number in blocks:
            for group in sums.groups(kernel.regions.flow.blocks[number]):
                self._groups[id(group.members[0].ins)] = group
                self._tested.update(id(member.ins) for member in group.members)
                self._prepare(group, code)

    def covers(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` is a check of a group: then emit only `test` for it."""
        return id(ins) in self._tested

    # -- before the loop over threads

    def _prepare(self, group: _Group, code: ThreadCode) -> None:
        emitter = self.emitter
        for name in ("umin", "umax"):
            emitter.module.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
        first, operands = group.members[0], decode_check(group.members[0].ins)
        bounds = bounds_of(code, operands)
        values = {place: self._parameter(place) for place in {m.place: None for m in group.members}}
        span, hulls = 0, dict[tuple[int, int], None]()
        for member in group.members:
            part = decode_check(member.ins)
            span = max(span, part.span)
            hulls[member.place, member.offset + part.low] = None
        lowest = highest = bits = ""
        for place, offset in hulls:
            at = emitter.value(f"add i64 {values[place]}, {_wrapped(offset - int(bounds.first))}")
            lowest = (
                emitter.value(f"call i64 @llvm.umin.i64(i64 {lowest}, i64 {at})") if lowest else at
            )
            highest = (
                emitter.value(f"call i64 @llvm.umax.i64(i64 {highest}, i64 {at})")
                if highest
                else at
            )
            bits = emitter.value(f"or i64 {bits}, {at}") if bits else at
        base = emitter.value(f"add i64 {values[first.place]}, {_wrapped(first.offset)}")
        group.bias = emitter.value(f"sub i64 {lowest}, {base}")
        length = emitter.value(f"sub i64 {highest}, {lowest}")
        if operands.align > 1:
            # A misaligned parameter counts as far away; a select would be evaluated per thread.
            odd = emitter.value(f"and i64 {bits}, {operands.align - 1}")
            length = emitter.value(
                f"or i64 {length}, {emitter.value(f'shl i64 {odd}, {_FAR_SHIFT}')}"
            )
        emitter.module.declare("declare i64 @llvm.usub.sat.i64(i64, i64)")
        room = emitter.value(
            f"call i64 @llvm.usub.sat.i64(i64 {start_count(emitter, bounds, span)}, i64 {length})"
        )
        if operands.align > 1:
            up = emitter.value(f"add i64 {room}, {operands.align - 1}")
            room = emitter.value(f"lshr i64 {up}, {operands.align.bit_length() - 1}")
        group.room = room

    def _parameter(self, place: int) -> str:
        emitter = self.emitter
        pointer = emitter.value(
            f"getelementptr i8, ptr {header_field(emitter, 'params')}, i64 {place}"
        )
        return emitter.value(f"load i64, ptr {pointer}, align 1, !invariant.load !0")

    # -- for a thread

    def test(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Emit the test of the group whose first check is ``ins``; nothing for its other checks."""
        group = self._groups.get(id(ins))
        if group is None:
            return
        emitter, operands = self.emitter, decode_check(ins)
        assert isinstance(operands.base, ptx.Register)
        base = code.read(operands.base, "u64")
        off = emitter.value(f"add i64 {base}, {group.bias}")
        if operands.align > 1:
            bits = operands.align.bit_length() - 1
            emitter.module.declare("declare i64 @llvm.fshr.i64(i64, i64, i64)")
            off = emitter.value(f"call i64 @llvm.fshr.i64(i64 {off}, i64 {off}, i64 {bits})")
        out = emitter.value(f"icmp uge i64 {off}, {group.room}")
        cold, warm, end = emitter.label("cold"), emitter.label("warm"), emitter.label("end")
        emitter.branch_unlikely(out, cold, warm)
        emitter.place(cold)
        first = group.members[0]
        start = emitter.value(f"add i64 {self._parameter(first.place)}, {_wrapped(first.offset)}")
        common = emitter.value(f"sub i64 {base}, {start}")
        for member in group.members:
            part = decode_check(member.ins)
            at = emitter.value(f"add i64 {self._parameter(member.place)}, {common}")
            hull = emitter.value(f"add i64 {at}, {_wrapped(member.offset + part.low)}")
            check_exactly(code, member.ins, hull, end)
        emitter.jump(warm)
        emitter.place(end)
        code.fail()
        emitter.place(warm)


class _ValueNumbering:
    """Local value numbering: the values of registers within one basic block, as sums."""

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

    def groups(self, block: Block) -> list[_Group]:
        """Return the groups of more than one bounds check in a block."""
        self._held = {}
        self._block = block.index
        groups: list[_Group] = []
        open_: dict[Hashable, _Group] = {}
        for place in block.places:
            ins = place.instruction
            if is_bounds_check(ins):
                one = self._member(ins)
                if one is not None:
                    key, member = one
                    if key not in open_:
                        open_[key] = _Group()
                        groups.append(open_[key])
                    open_[key].members.append(member)
                continue
            if flags(ins.opcode) & (TERMINATOR | CALL | BARRIER | COLLECTIVE):
                open_.clear()
            self._run(ins)
        return [group for group in groups if len(group.members) > 1]

    def _member(self, ins: ptx.Instruction) -> tuple[Hashable, _Member] | None:
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
        return key, _Member(ins, self._places[bases[0]], sum_.offset)

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


# -- helpers -----------------------------------------------------------------------------------


def _in_arena(operands: CheckOperands) -> bool:
    """Return whether the arena is the likeliest range of the bounds check."""
    if operands.space not in ("global", "generic"):
        return False
    return not operands.origins or operands.origins[0] == "arena"


def _wrapped(number: int) -> int:
    """Return ``number`` modulo 2**64, as LLVM writes an i64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
