"""Static upper bounds of the values of registers, for all inputs of the program.

Problem: ``array[threadIdx.x ^ 4]`` in shared memory needs no check if a block has no more threads
than the array has elements. Approach: follow all definitions of a register to thread numbers,
constants, masks, and loaded bytes.

Terms: a *range* is a symbol or nothing, plus a number from 0 to ``most`` that is a multiple of
``step``, a power of two.

Properties:
* a register with a range holds such a value once it has been defined, before that 0 or part of it;
* all numbers are less than half of what their type can hold: no instruction on the way wraps
  around, and it does not matter whether its type is signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import WARP, Shape
from gpud.device.cpu.codegen.analysis.register_types import INTEGER_BITS

__all__ = ["StaticRange", "StaticRanges"]

_MAX_BITS = 31
_ANY_STEP = 1 << 30
_LOADED = {"u8": 8, "b8": 8, "u16": 16, "b16": 16}
_MAX_DEFINITIONS = 8


class StaticRange(NamedTuple):
    """A range as defined in the module's terms; ``name`` is the symbol, "" if there is none."""

    name: str
    most: int
    step: int


class StaticRanges:
    """The ranges of registers of one kernel.

    Args:
        made: all definitions, by register.
    """

    def __init__(self, made: Mapping[str, Sequence[ptx.Instruction]], shape: Shape) -> None:
        self._made = made
        self._shape = shape
        self._known: dict[str, StaticRange | None] = {}

    def of(self, operand: ptx.Operand) -> StaticRange | None:
        """Return the range of a value, None if it is unbounded."""
        match operand:
            case ptx.Register(name):
                if name not in self._known:
                    self._known[name] = None  # ends the recursion for cyclic definitions
                    self._known[name] = self._register(name)
                return self._known[name]
            case ptx.Immediate(kind="int", value=value):
                return StaticRange("", value, value & -value or _ANY_STEP) if value >= 0 else None
            case ptx.Symbol(name):
                return StaticRange(name, 0, _ANY_STEP)
            case ptx.SpecialRegister(name):
                return self._special(name)
        return None

    def _register(self, name: str) -> StaticRange | None:
        made = self._made.get(name, ())
        if not 0 < len(made) <= _MAX_DEFINITIONS:
            return None
        result: StaticRange | None = None
        for ins in made:
            extent = self._result(ins)
            if extent is None or extent.most >> _limit(ins):
                return None
            if result is not None and result.name != extent.name:
                return None
            result = extent if result is None else _either(result, extent)
        return result

    def _special(self, name: str) -> StaticRange | None:
        shape = self._shape
        threads = {"x": shape.x, "y": shape.y, "z": shape.z}
        base, _, axis = name.partition(".")
        match base:
            case "%tid" if axis in threads:
                return StaticRange("", threads[axis] - 1, 1 if threads[axis] > 1 else _ANY_STEP)
            case "%ntid" if axis in threads:
                return StaticRange("", threads[axis], threads[axis] & -threads[axis])
            case "%laneid":
                return StaticRange("", WARP - 1, 1)
            case "%warpid":
                return StaticRange("", (shape.threads - 1) // WARP, 1)
        return None

    # -- instructions

    def _result(self, ins: ptx.Instruction) -> StaticRange | None:
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        if base == "ld":
            bits = _LOADED.get(modifiers[-1], 0)
            return StaticRange("", (1 << bits) - 1, 1) if bits else None
        if not modifiers or modifiers[-1] not in (*INTEGER_BITS, "u8") or len(ins.operands) < 2:
            return None
        if not isinstance(ins.operands[0], ptx.Register):
            return None
        sources = [self.of(one) for one in ins.operands[1:]]
        if base == "cvt":
            return self._converted(modifiers, sources[0])
        if base in ("mul", "mad"):
            if modifiers[:-1] not in (("lo",), ("wide",)):
                return None
            return self._product(sources)
        if len(modifiers) != 1 or modifiers[0] not in INTEGER_BITS:
            return None
        return self._simple(base, modifiers[0], sources, ins.operands[1:])

    def _simple(
        self,
        base: str,
        type_: str,
        sources: list[StaticRange | None],
        operands: tuple[ptx.Operand, ...],
    ) -> StaticRange | None:
        if base == "mov":
            return sources[0]
        if base in ("and", "rem", "bfe"):
            return self._bounded_by_operand(base, type_, sources, operands)
        first, second = sources[0], sources[1] if len(sources) > 1 else None
        if first is None or second is None:
            return None
        number = operands[1].value if isinstance(operands[1], ptx.Immediate) else -1
        if base == "add":
            return _sum(first, second)
        if first.name or second.name:
            return None
        step = min(first.step, second.step)
        match base:
            case "or" | "xor":
                return StaticRange("", (1 << max(first.most, second.most).bit_length()) - 1, step)
            case "shl" if 0 <= number < _MAX_BITS:
                return StaticRange("", first.most << number, first.step << number)
            case "shr" if 0 <= number < _MAX_BITS:
                return StaticRange("", first.most >> number, max(1, first.step >> number))
            case "div" if number > 0:
                return StaticRange("", first.most // number, 1)
            case "min":
                return StaticRange("", min(first.most, second.most), step)
            case "max":
                return StaticRange("", max(first.most, second.most), step)
        return None

    @staticmethod
    def _bounded_by_operand(
        base: str,
        type_: str,
        sources: list[StaticRange | None],
        operands: tuple[ptx.Operand, ...],
    ) -> StaticRange | None:
        """Return the range of an instruction that one operand bounds, whatever the other is."""
        last = operands[-1]
        number = last.value if isinstance(last, ptx.Immediate) else -1
        if base == "bfe":
            fits = type_ == "u32" and 0 <= number < _MAX_BITS
            return StaticRange("", (1 << number) - 1, 1) if fits else None
        if base == "rem":
            signed = type_[0] == "s" and sources[0] is None
            return StaticRange("", number - 1, 1) if number > 0 and not signed else None
        known = [one for one in sources if one is not None and not one.name]
        if not known:
            return None
        step = max(one.step for one in known)
        return StaticRange("", min(one.most for one in known), step)

    @staticmethod
    def _converted(modifiers: tuple[str, ...], source: StaticRange | None) -> StaticRange | None:
        if len(modifiers) != 2 or modifiers[0] not in INTEGER_BITS:
            return None
        given = modifiers[1]
        if given in ("u8", "u16"):
            most = (1 << int(given[1:])) - 1
            whole = source is not None and not source.name and source.most <= most
            return source if whole else StaticRange("", most, 1)
        if source is None or source.most >> (INTEGER_BITS[given] - 1):
            return None
        return source

    @staticmethod
    def _product(sources: list[StaticRange | None]) -> StaticRange | None:
        first, second, *more = sources
        if first is None or second is None or first.name or second.name:
            return None
        step = min(first.step * second.step, _ANY_STEP)
        product = StaticRange("", first.most * second.most, step)
        if not more:
            return product
        return None if more[0] is None else _sum(product, more[0])


def _limit(ins: ptx.Instruction) -> int:
    """Return the maximum number of bits of the result."""
    type_ = ins.opcode.modifiers[0 if ins.opcode.base == "cvt" else -1]
    return min(_MAX_BITS, INTEGER_BITS.get(type_, _MAX_BITS + 1) - 1)


def _sum(first: StaticRange, second: StaticRange) -> StaticRange | None:
    if first.name and second.name:
        return None
    step = min(first.step, second.step)
    return StaticRange(first.name or second.name, first.most + second.most, step)


def _either(first: StaticRange, second: StaticRange) -> StaticRange:
    return StaticRange(first.name, max(first.most, second.most), min(first.step, second.step))
