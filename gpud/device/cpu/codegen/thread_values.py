"""What registers hold in each thread of a block, where that is the same for all blocks and inputs.

Problem: ``s[2 * t - (t & 7)]`` stays inside of an array for all threads, but bounds of its parts do
not tell: the least of one is taken from with the greatest of the other. Approach: a block's shape
is known when code is generated, so such an index is simply computed, for all threads.

Terms: *values* are a symbol or nothing, and one number for each thread, in order of thread numbers:
what is added to the symbol's address, modulo 2 to the power of the register's width.

Properties:
* a register with values holds them wherever the program reads it: it has one definition, that every
  path to a reader passes, as has all that it is made from;
* no more than `_MOST` numbers are computed for a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.interval_rules import signed
from gpud.device.cpu.codegen.layout import WARP
from gpud.device.cpu.codegen.places import Shape

__all__ = ["ThreadValues", "Values"]

_BITS = {f"{kind}{bits}": bits for kind in "sub" for bits in (32, 64)}
_MOST = 200_000
_DEEPEST = 40

_Rule = Callable[[int, int], int]
_RULES: dict[str, _Rule] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


class Values(NamedTuple):
    """See the module's terms; ``name`` is the symbol, "" if there is none."""

    name: str
    bits: int
    numbers: list[int]


class ThreadValues:
    """The values of registers of one kernel.

    Args:
        made: all definitions, by register.
        unset: registers that some path reads before it has written them.
        shape: of the kernel's blocks.
    """

    def __init__(
        self,
        made: Mapping[str, Sequence[ptx.Instruction]],
        unset: Collection[str],
        shape: Shape,
    ) -> None:
        self._made = made
        self._unset = unset
        self._shape = shape
        self._known: dict[str, Values | None] = {}
        self._left = _MOST
        self._depth = 0

    def of(self, name: str) -> Values | None:
        """The values of a register, None if it may hold others."""
        if name not in self._known:
            self._known[name] = None  # for definitions that read it
            if self._depth < _DEEPEST:
                self._depth += 1
                self._known[name] = self._register(name)
                self._depth -= 1
        return self._known[name]

    def _register(self, name: str) -> Values | None:
        made = self._made.get(name, ())
        if len(made) != 1 or name in self._unset or self._left < self._shape.threads:
            return None
        ins = made[0]
        if ins.guard is not None or ins.operands[:1] != (ptx.Register(name),):
            return None
        result = self._result(ins)
        if result is not None:
            self._left -= self._shape.threads
        return result

    # -- operands

    def _operand(self, operand: ptx.Operand, bits: int) -> Values | None:
        match operand:
            case ptx.Register(name):
                found = self.of(name)
                return found if found is not None and found.bits == bits else None
            case ptx.Immediate(kind="int", value=value):
                return Values("", bits, [value % (1 << bits)] * self._shape.threads)
            case ptx.Symbol(name):
                return Values(name, bits, [0] * self._shape.threads)
            case ptx.SpecialRegister(name):
                numbers = self._special(name)
                return None if numbers is None else Values("", bits, numbers)
        return None

    def _special(self, name: str) -> list[int] | None:
        shape, threads = self._shape, range(self._shape.threads)
        match name:
            case "%tid.x":
                return [t % shape.x for t in threads]
            case "%tid.y":
                return [t // shape.x % shape.y for t in threads]
            case "%tid.z":
                return [t // (shape.x * shape.y) for t in threads]
            case "%laneid":
                return [t % WARP for t in threads]
        return None

    # -- instructions

    def _result(self, ins: ptx.Instruction) -> Values | None:
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        bits = _BITS.get(modifiers[-1]) if modifiers else None
        if bits is None:
            return None
        if base == "cvt":
            return self._converted(ins, modifiers, bits)
        if base in ("mul", "mad"):
            return self._product(ins, modifiers, bits)
        if len(modifiers) != 1:
            return None
        given = [self._operand(operand, bits) for operand in ins.operands[1:]]
        known = [one for one in given if one is not None]
        if len(known) != len(given):
            return None
        if base == "mov" and len(known) == 1:
            return known[0]
        if base in ("shl", "shr"):
            return self._shifted(base, modifiers[0], known[0], ins.operands[2])
        if base in _RULES and len(known) == 2:
            return _joined(base, known[0], known[1])
        return None

    @staticmethod
    def _shifted(base: str, type_: str, values: Values, amount: ptx.Operand) -> Values | None:
        bits = values.bits
        if values.name or not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < bits:
            return None
        if base == "shl":
            numbers = [(n << amount.value) % (1 << bits) for n in values.numbers]
        elif type_[0] == "s":
            numbers = [(signed(n, bits) >> amount.value) % (1 << bits) for n in values.numbers]
        else:
            numbers = [n >> amount.value for n in values.numbers]
        return Values("", bits, numbers)

    def _converted(
        self, ins: ptx.Instruction, modifiers: tuple[str, ...], bits: int
    ) -> Values | None:
        to = _BITS.get(modifiers[0])
        values = self._operand(ins.operands[1], bits)
        if len(modifiers) != 2 or to is None or values is None or values.name:
            return None
        wide = modifiers[1][0] == "s"
        numbers = [(signed(n, bits) if wide else n) % (1 << to) for n in values.numbers]
        return Values("", to, numbers)

    def _product(
        self, ins: ptx.Instruction, modifiers: tuple[str, ...], bits: int
    ) -> Values | None:
        if len(modifiers) != 2 or modifiers[0] not in ("lo", "wide"):
            return None
        if modifiers[0] == "wide" and bits != 32:
            return None
        first, second = (self._operand(operand, bits) for operand in ins.operands[1:3])
        if first is None or second is None or first.name or second.name:
            return None
        to = 64 if modifiers[0] == "wide" else bits
        with_sign = modifiers[1][0] == "s"
        factors = [
            [signed(n, bits) for n in one.numbers] if with_sign else one.numbers
            for one in (first, second)
        ]
        made = [a * b % (1 << to) for a, b in zip(*factors, strict=True)]
        product = Values("", to, made)
        if ins.opcode.base == "mul":
            return product
        more = self._operand(ins.operands[3], to)
        return None if more is None else _joined("add", product, more)


def _joined(base: str, first: Values, second: Values) -> Values | None:
    if (second.name or first.name) and (base != "add" or (second.name and first.name)):
        return None
    rule, modulus = _RULES[base], 1 << first.bits
    numbers = [rule(a, b) % modulus for a, b in zip(first.numbers, second.numbers, strict=True)]
    return Values(first.name or second.name, first.bits, numbers)
