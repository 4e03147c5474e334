"""By how much an instruction's result grows from one thread to the next.

Terms: see `gpud.device.cpu.codegen.early`. A *slope* is a number where it is known when code is
generated, otherwise an LLVM i64. Results of 32 bits have slopes modulo 2**32, given as the signed
number of least magnitude; those of 64 bits have slopes modulo 2**64.

Properties: where `slopes_of` gives slopes, the result for thread (x, y, z) is the one for (0, 0, 0)
plus x, y and z times the slopes, modulo the width; provided, where it gives a `Widening`, that the
widened operand stays within 32 bits as an integer for all threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.thread import LLVM_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpud.device.cpu.codegen.body import ThreadCode
    from gpud.device.cpu.codegen.emitter import Emitter
    from gpud.device.cpu.codegen.pieces import KernelCode

__all__ = ["Slope", "Slopes", "Widening", "slopes_of"]

Slope = int | str
Slopes = tuple[Slope, Slope, Slope]
_FLAT: Slopes = (0, 0, 0)

_INTEGERS = {f"{kind}{bits}": bits for kind in "sub" for bits in (32, 64)}
_SAME_IN_A_BLOCK = ("%ctaid", "%nctaid", "%ntid", "%nwarpid", "%gridid", "%nsmid", "%dynamic_smem",
                    "%total_smem", "%envreg", "%clusterid", "%nclusterid")  # fmt: skip


class Widening(NamedTuple):
    """A 32-bit operand with slopes that is made 64 bits wide, and multiplied by ``factor``."""

    operand: ptx.Operand
    signed: bool
    slopes: Slopes
    factor: Slope = 1


def slopes_of(
    code: ThreadCode,
    ins: ptx.Instruction,
    sources: Mapping[str, Slopes],
    strides: Slopes,
    kernel: KernelCode,
) -> tuple[Slopes, Widening | None] | None:
    """The slopes of what ``ins`` writes, None if it may have none.

    Args:
        code: reads operands as the first thread has them.
        ins: a pure instruction.
        sources: slopes of the registers that it reads.
        strides: slopes of the thread's number in its block.
        kernel: whose code this is.
    """
    return _Rules(code, ins, sources, strides, kernel).result()


class _Rules:
    def __init__(
        self,
        code: ThreadCode,
        ins: ptx.Instruction,
        sources: Mapping[str, Slopes],
        strides: Slopes,
        kernel: KernelCode,
    ) -> None:
        self.code = code
        self.e: Emitter = code.e
        self.ins = ins
        self.sources = sources
        self.strides = strides
        self.kernel = kernel
        self.bits = 64
        self.widening: Widening | None = None

    def result(self) -> tuple[Slopes, Widening | None] | None:
        slopes = self._slopes()
        return None if slopes is None else (slopes, self.widening)

    def _slopes(self) -> Slopes | None:
        ins = self.ins
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        given = [self._operand(o) for o in ins.operands[1:]]
        if any(slopes is None for slopes in given):
            return None
        known = [slopes for slopes in given if slopes is not None]
        if all(slopes == _FLAT for slopes in known):
            return _FLAT
        type_ = modifiers[-1] if modifiers else ""
        if type_ not in _INTEGERS or "sat" in modifiers:
            return None
        self.bits = _INTEGERS[type_]
        if base == "mov" or (base == "gpud" and modifiers[0] == "move"):
            return known[0]
        if base == "cvta":
            return known[0] if self.bits == 64 else None
        if base == "add":
            return self._each(_plus, known[0], known[1])
        if base == "sub":
            return self._each(_minus, known[0], known[1])
        if base == "neg":
            return self._each(_minus, _FLAT, known[0])
        if base == "shl":
            return self._shifted(known)
        if base == "cvt":
            return self._converted(known[0], modifiers)
        if base in ("mul", "mad"):
            return self._product(known, modifiers)
        return None

    def _operand(self, operand: ptx.Operand) -> Slopes | None:
        match operand:
            case ptx.Immediate():
                return _FLAT
            case ptx.Register(name):
                return self.sources.get(name)
            case ptx.SpecialRegister(name):
                if name.startswith("%tid."):
                    axis = "xyz".find(name[-1])
                    return (int(axis == 0), int(axis == 1), int(axis == 2))
                return _FLAT if name.startswith(_SAME_IN_A_BLOCK) else None
            case ptx.Symbol(name) | ptx.Conjunction(ptx.Symbol(name)):
                return self._symbol(name)
            case ptx.Address(ptx.Symbol(name)):
                # Only parameters are read by pure instructions.
                return _FLAT if name in self.code.places.parameters else None
        return None

    def _symbol(self, name: str) -> Slopes | None:
        if name in self.kernel.locals:
            size = self.kernel.local_size
            return tuple(stride * size for stride in self.strides if isinstance(stride, int))  # type: ignore[return-value]
        return _FLAT

    # -- arithmetic on slopes

    def _each(
        self, rule: Callable[[Emitter, Slope, Slope], Slope], first: Slopes, second: Slopes
    ) -> Slopes:
        made = (self._fit(rule(self.e, a, b)) for a, b in zip(first, second, strict=True))
        return tuple(made)  # type: ignore[return-value]

    def _fit(self, slope: Slope) -> Slope:
        """The representative of least magnitude modulo 2 to the width."""
        if isinstance(slope, int):
            half = 1 << (self.bits - 1)
            return (slope + half) % (2 * half) - half
        if self.bits == 64:
            return slope
        return self.e.value(f"sext i32 {self.e.value(f'trunc i64 {slope} to i32')} to i64")

    def _number(self, factor: ptx.Operand, type_: str) -> Slope:
        """What the first thread has in ``factor``, read as ``type_`` and widened."""
        if not isinstance(factor, ptx.Immediate):
            value = self.code.read(factor, type_)
            return self.code.convert(value, LLVM_TYPE[type_], "i64", signed=type_[0] == "s")
        number = factor.value
        if _INTEGERS[type_] == 32:
            number %= 1 << 32
            if type_[0] == "s" and number >> 31:
                number -= 1 << 32
        return number

    def _times(self, slopes: Slopes, number: Slope) -> Slopes:
        made = (self._fit(_times(self.e, slope, number)) for slope in slopes)
        return tuple(made)  # type: ignore[return-value]

    def _shifted(self, known: list[Slopes]) -> Slopes | None:
        amount = self.ins.operands[2]
        if not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < self.bits:
            return None
        return self._times(known[0], 1 << amount.value)

    def _converted(self, slopes: Slopes, modifiers: tuple[str, ...]) -> Slopes | None:
        to, of = (_INTEGERS.get(m) for m in (modifiers[-2:] if len(modifiers) > 1 else ("", "")))
        if to is None or of is None or len(modifiers) != 2:
            return None
        self.bits = to
        if to <= of:
            return tuple(self._fit(slope) for slope in slopes)  # type: ignore[return-value]
        return self._widened(Widening(self.ins.operands[1], modifiers[-1][0] == "s", slopes))

    def _widened(self, widening: Widening) -> Slopes:
        if widening.slopes != _FLAT:
            self.widening = widening
        return widening.slopes

    def _product(self, known: list[Slopes], modifiers: tuple[str, ...]) -> Slopes | None:
        how, type_ = modifiers[0], modifiers[-1]
        if how not in ("lo", "wide") or len(modifiers) != 2:
            return None
        first, second = self.ins.operands[1:3]
        slopes, varies, factor = known[0], first, second
        if known[1] != _FLAT:
            if known[0] != _FLAT:
                return None
            slopes, varies, factor = known[1], second, first
        if how == "wide" and self.bits != 32:
            return None
        number = self._number(factor, type_)
        if how == "wide":
            slopes = self._widened(Widening(varies, type_[0] == "s", slopes, number))
            self.bits = 64
        product = self._times(slopes, number)
        if len(known) == 2:
            return product
        return self._each(_plus, product, known[2])


def _plus(e: Emitter, first: Slope, second: Slope) -> Slope:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0 or second == 0:
        return second if first == 0 else first
    return e.value(f"add i64 {first}, {second}")


def _minus(e: Emitter, first: Slope, second: Slope) -> Slope:
    if isinstance(first, int) and isinstance(second, int):
        return first - second
    return first if second == 0 else e.value(f"sub i64 {first}, {second}")


def _times(e: Emitter, slope: Slope, factor: Slope) -> Slope:
    if isinstance(slope, int) and isinstance(factor, int):
        return slope * factor
    if slope == 0 or factor == 0:
        return 0
    if 1 in (slope, factor):
        return factor if slope == 1 else slope
    return e.value(f"mul i64 {slope}, {factor}")
