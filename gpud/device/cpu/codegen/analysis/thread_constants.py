"""Register values that are known for each thread of a block, for all blocks and inputs.

Problem: ``s[2 * t - (t & 7)]`` stays inside of an array for all threads, but bounds of its parts do
not show it: interval arithmetic subtracts the minimum of one part from the maximum of the other.
Also, which threads pass a comparison of thread numbers decides which threads have work. Approach: a
block's shape is known at compile time, so such a register is computed for all threads.

Terms: *values* are a symbol or nothing, and one number for each thread, in order of thread numbers:
the offset from the symbol's address, modulo 2 to the power of the register's width. The numbers of
threads that are not *known* are meaningless.

Properties:
* a register with values holds them wherever the program reads it: it has one definition, which
  dominates its readers, and so have all registers that it is computed from;
* at most `_MAX_NUMBERS` numbers are computed for a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import WARP, Shape
from gpud.device.cpu.codegen.analysis.register_types import INTEGER_BITS

__all__ = ["Mask", "ThreadConstants", "Values", "value_of"]

Mask = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.uint64]

_BITS = INTEGER_BITS | {"pred": 1}
_MAX_NUMBERS = 200_000
_MAX_DEPTH = 40

_RULES: Mapping[str, Callable[[_Numbers, _Numbers], _Numbers]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Mask]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


class Values(NamedTuple):
    """Values as defined in the module's terms; ``name`` is the symbol, "" if there is none."""

    name: str
    bits: int
    numbers: _Numbers
    known: Mask


_Read = Callable[[str], Values | None]


class ThreadConstants:
    """The known values of registers of one kernel.

    Args:
        made: all definitions, by register.
        unset: registers that some path reads before writing them.
    """

    def __init__(
        self,
        made: Mapping[str, Sequence[ptx.Instruction]],
        unset: Collection[str],
        shape: Shape,
    ) -> None:
        self.shape = shape
        self._made = made
        self._unset = unset
        self._found: dict[str, Values | None] = {}
        self._left = _MAX_NUMBERS
        self._depth = 0

    def of(self, name: str) -> Values | None:
        """Return the values of a register, known in all threads; None if it may hold others."""
        if name not in self._found:
            self._found[name] = None  # ends the recursion for cyclic definitions
            if self._depth < _MAX_DEPTH:
                self._depth += 1
                self._found[name] = self._register(name)
                self._depth -= 1
        return self._found[name]

    def _register(self, name: str) -> Values | None:
        made = self._made.get(name, ())
        if len(made) != 1 or name in self._unset or self._left < self.shape.threads:
            return None
        ins = made[0]
        if ins.guard is not None or ins.operands[:1] != (ptx.Register(name),):
            return None
        result = value_of(ins, self.shape, self.of)
        if result is not None:
            self._left -= self.shape.threads
        return result


def value_of(ins: ptx.Instruction, shape: Shape, read: _Read) -> Values | None:
    """Return the values that an instruction writes, in the threads that run it; None if unknown.

    Args:
        ins: any; its guard is ignored.
        shape: of the block.
        read: the values of a register.
    """
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    bits = _BITS.get(modifiers[-1]) if modifiers else None
    if bits is None or not ins.operands or not isinstance(ins.operands[0], ptx.Register):
        return None
    given = [_operand(operand, bits, shape, read) for operand in ins.operands[1:4]]
    sources = [one for one in given if one is not None]
    if base in ("mul", "mad"):
        more = None if base == "mul" else ins.operands[3]
        return _product(given, more, modifiers, shape, read)
    if len(sources) != len(ins.operands) - 1:
        return None
    if base == "cvt":
        return _converted(sources[0], modifiers)
    if base == "setp":
        return _compared(sources, modifiers)
    if len(modifiers) != 1:
        return None
    if base == "mov" and len(sources) == 1:
        return sources[0]
    if base in ("shl", "shr"):
        return _shifted(base, modifiers[0], sources[0], ins.operands[2])
    if base in _RULES and len(sources) == 2:
        return _joined(base, sources[0], sources[1])
    return None


def _operand(operand: ptx.Operand, bits: int, shape: Shape, read: _Read) -> Values | None:
    threads = shape.threads
    match operand:
        case ptx.Register(name):
            values = read(name)
            return values if values is not None and values.bits == bits else None
        case ptx.Immediate(kind="int", value=value):
            return _all(np.full(threads, value % (1 << bits), np.uint64), bits)
        case ptx.Symbol(name):
            return _all(np.zeros(threads, np.uint64), bits)._replace(name=name)
        case ptx.SpecialRegister(name):
            numbers = _special(name, shape)
            return None if numbers is None else _all(numbers, bits)
    return None


def _all(numbers: _Numbers, bits: int) -> Values:
    return Values("", bits, numbers, np.ones(len(numbers), np.bool_))


def _special(name: str, shape: Shape) -> _Numbers | None:
    thread = np.arange(shape.threads, dtype=np.uint64)
    row, plane, warp = (np.uint64(n) for n in (shape.x, shape.y, WARP))
    match name:
        case "%tid.x":
            return thread % row
        case "%tid.y":
            return thread // row % plane
        case "%tid.z":
            return thread // row // plane
        case "%ntid.x" | "%ntid.y" | "%ntid.z":
            return np.full(shape.threads, getattr(shape, name[-1]), np.uint64)
        case "%laneid":
            return thread % warp
        case "%warpid":
            return thread // warp
    return None


# -- instructions ------------------------------------------------------------------------------


def _truncated(numbers: _Numbers, bits: int) -> _Numbers:
    return numbers & np.uint64((1 << bits) - 1)


def _signed(numbers: _Numbers, bits: int) -> npt.NDArray[np.int64]:
    shift = 64 - bits
    return (numbers << np.uint64(shift)).view(np.int64) >> np.int64(shift)


def _extended(numbers: _Numbers, bits: int, type_: str) -> _Numbers:
    """Extend to 64 bits, by the sign if the type is signed."""
    return _signed(numbers, bits).view(np.uint64) if type_[0] == "s" else numbers


def _shifted(base: str, type_: str, values: Values, amount: ptx.Operand) -> Values | None:
    bits = values.bits
    if values.name or not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < bits:
        return None
    by = np.uint64(amount.value)
    if base == "shl":
        numbers = values.numbers << by
    elif type_[0] == "s":
        numbers = (_signed(values.numbers, bits) >> by.astype(np.int64)).view(np.uint64)
    else:
        numbers = values.numbers >> by
    return values._replace(numbers=_truncated(numbers, bits))


def _converted(values: Values, modifiers: tuple[str, ...]) -> Values | None:
    to = _BITS.get(modifiers[0])
    if len(modifiers) != 2 or to is None or values.name:
        return None
    numbers = _extended(values.numbers, values.bits, modifiers[1])
    return values._replace(bits=to, numbers=_truncated(numbers, to))


def _compared(sources: Sequence[Values], modifiers: tuple[str, ...]) -> Values | None:
    compare = _COMPARISONS.get(modifiers[0])
    if compare is None or len(modifiers) != 2 or len(sources) != 2:
        return None
    first, second = sources
    if first.name or second.name:
        return None
    given = [
        _signed(one.numbers, one.bits) if modifiers[1][0] == "s" else one.numbers for one in sources
    ]
    held = compare(*given).astype(np.uint64)
    return Values("", 1, held, first.known & second.known)


def _product(
    given: Sequence[Values | None],
    more: ptx.Operand | None,
    modifiers: tuple[str, ...],
    shape: Shape,
    read: _Read,
) -> Values | None:
    if len(modifiers) != 2 or modifiers[0] not in ("lo", "wide"):
        return None
    first, second = given[:2]
    if first is None or second is None or first.name or second.name:
        return None
    to = 2 * first.bits if modifiers[0] == "wide" else first.bits
    if to > 64:
        return None
    factors = [_extended(one.numbers, one.bits, modifiers[1]) for one in (first, second)]
    made = Values("", to, _truncated(factors[0] * factors[1], to), first.known & second.known)
    if more is None:
        return made
    added = _operand(more, to, shape, read)
    return None if added is None else _joined("add", made, added)


def _joined(base: str, first: Values, second: Values) -> Values | None:
    if (second.name or first.name) and (base != "add" or (second.name and first.name)):
        return None
    numbers = _truncated(_RULES[base](first.numbers, second.numbers), first.bits)
    name = first.name or second.name
    return Values(name, first.bits, numbers, first.known & second.known)
