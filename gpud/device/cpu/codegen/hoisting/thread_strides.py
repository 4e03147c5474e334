"""Transfer functions of strides: by how much an instruction's result grows between threads.

Terms: see `gpud.device.cpu.codegen.hoisting.affine`. Strides of 32-bit results are modulo 2**32,
given as the signed number of least magnitude; those of 64-bit results are modulo 2**64.

Properties: where `strides_of` gives strides, the result for thread (x, y, z) is the one for (0, 0,
0) plus x, y and z times the strides, modulo the width; provided, where it gives a `Widening`, that
the widened operand stays within 32 bits as an integer for all threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import WORD_BITS
from gpud.device.cpu.codegen.hoisting.stride_arithmetic import (
    FLAT,
    Stride,
    Strides,
    add,
    multiply,
    subtract,
)
from gpud.device.cpu.ir.thread import LLVM_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpud.device.cpu.codegen.emit.kernel_context import KernelContext
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
    from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["Widening", "strides_of"]

_UNIFORM_REGISTERS = ("%ctaid", "%nctaid", "%ntid", "%nwarpid", "%gridid", "%nsmid",
                      "%dynamic_smem", "%total_smem", "%envreg", "%clusterid",
                      "%nclusterid")  # fmt: skip


class Widening(NamedTuple):
    """A 32-bit operand with strides that is widened to 64 bits, and multiplied by ``factor``."""

    operand: ptx.Operand
    signed: bool
    strides: Strides
    factor: Stride = 1


def strides_of(
    code: ThreadCode,
    ins: ptx.Instruction,
    sources: Mapping[str, Strides],
    linear_strides: Strides,
    kernel: KernelContext,
) -> tuple[Strides, Widening | None] | None:
    """Return the strides of the result of ``ins``, None if it may not be affine.

    Args:
        code: reads operands as the first thread has them.
        ins: a pure instruction.
        sources: strides of the registers that it reads.
        linear_strides: strides of the thread's number in its block.
        kernel: whose code this is.
    """
    return _Rules(code, ins, sources, linear_strides, kernel).result()


class _Rules:
    def __init__(
        self,
        code: ThreadCode,
        ins: ptx.Instruction,
        sources: Mapping[str, Strides],
        linear_strides: Strides,
        kernel: KernelContext,
    ) -> None:
        self.code = code
        self.emitter: Emitter = code.emitter
        self.ins = ins
        self.sources = sources
        self.linear_strides = linear_strides
        self.kernel = kernel
        self.bits = 64
        self.widening: Widening | None = None

    def result(self) -> tuple[Strides, Widening | None] | None:
        strides = self._strides()
        return None if strides is None else (strides, self.widening)

    def _strides(self) -> Strides | None:
        ins = self.ins
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        given = [self._operand(o) for o in ins.operands[1:]]
        if any(strides is None for strides in given):
            return None
        known = [strides for strides in given if strides is not None]
        if all(strides == FLAT for strides in known):
            return FLAT
        type_ = modifiers[-1] if modifiers else ""
        if type_ not in WORD_BITS or "sat" in modifiers:
            return None
        self.bits = WORD_BITS[type_]
        if base == "mov" or (base == "gpud" and modifiers[0] == "move"):
            return known[0]
        if base == "cvta":
            return known[0] if self.bits == 64 else None
        if base == "add":
            return self._each(add, known[0], known[1])
        if base == "sub":
            return self._each(subtract, known[0], known[1])
        if base == "neg":
            return self._each(subtract, FLAT, known[0])
        if base == "shl":
            return self._shifted(known)
        if base == "cvt":
            return self._converted(known[0], modifiers)
        if base in ("mul", "mad"):
            return self._product(known, modifiers)
        return None

    def _operand(self, operand: ptx.Operand) -> Strides | None:
        match operand:
            case ptx.Immediate():
                return FLAT
            case ptx.Register(name):
                return self.sources.get(name)
            case ptx.SpecialRegister(name):
                if name.startswith("%tid."):
                    axis = "xyz".find(name[-1])
                    return (int(axis == 0), int(axis == 1), int(axis == 2))
                return FLAT if name.startswith(_UNIFORM_REGISTERS) else None
            case ptx.Symbol(name) | ptx.SymbolOffset(ptx.Symbol(name)):
                return self._symbol(name)
            case ptx.Address(ptx.Symbol(name)):
                # Pure instructions read only parameters from memory.
                return FLAT if name in self.code.places.parameters else None
        return None

    def _symbol(self, name: str) -> Strides | None:
        if name in self.kernel.locals:
            size = self.kernel.local_size
            return tuple(
                linear_stride * size
                for linear_stride in self.linear_strides
                if isinstance(linear_stride, int)
            )  # type: ignore[return-value]
        return FLAT

    # -- arithmetic on strides

    def _each(
        self, rule: Callable[[Emitter, Stride, Stride], Stride], first: Strides, second: Strides
    ) -> Strides:
        made = (self._fit(rule(self.emitter, a, b)) for a, b in zip(first, second, strict=True))
        return tuple(made)  # type: ignore[return-value]

    def _fit(self, stride: Stride) -> Stride:
        """Return the representative of least magnitude modulo 2 to the width."""
        if isinstance(stride, int):
            half = 1 << (self.bits - 1)
            return (stride + half) % (2 * half) - half
        if self.bits == 64:
            return stride
        return self.emitter.value(
            f"sext i32 {self.emitter.value(f'trunc i64 {stride} to i32')} to i64"
        )

    def _number(self, factor: ptx.Operand, type_: str) -> Stride:
        """Return the first thread's value of ``factor``, read as ``type_`` and widened."""
        if not isinstance(factor, ptx.Immediate):
            value = self.code.read(factor, type_)
            return self.code.convert(value, LLVM_TYPE[type_], "i64", signed=type_[0] == "s")
        number = factor.value
        if WORD_BITS[type_] == 32:
            number %= 1 << 32
            if type_[0] == "s" and number >> 31:
                number -= 1 << 32
        return number

    def _scaled(self, strides: Strides, number: Stride) -> Strides:
        made = (self._fit(multiply(self.emitter, stride, number)) for stride in strides)
        return tuple(made)  # type: ignore[return-value]

    def _shifted(self, known: list[Strides]) -> Strides | None:
        amount = self.ins.operands[2]
        if not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < self.bits:
            return None
        return self._scaled(known[0], 1 << amount.value)

    def _converted(self, strides: Strides, modifiers: tuple[str, ...]) -> Strides | None:
        to, of = (WORD_BITS.get(m) for m in (modifiers[-2:] if len(modifiers) > 1 else ("", "")))
        if to is None or of is None or len(modifiers) != 2:
            return None
        self.bits = to
        if to <= of:
            return tuple(self._fit(stride) for stride in strides)  # type: ignore[return-value]
        return self._widened(Widening(self.ins.operands[1], modifiers[-1][0] == "s", strides))

    def _widened(self, widening: Widening) -> Strides:
        if widening.strides != FLAT:
            self.widening = widening
        return widening.strides

    def _product(self, known: list[Strides], modifiers: tuple[str, ...]) -> Strides | None:
        how, type_ = modifiers[0], modifiers[-1]
        if how not in ("lo", "wide") or len(modifiers) != 2:
            return None
        first, second = self.ins.operands[1:3]
        strides, varies, factor = known[0], first, second
        if known[1] != FLAT:
            if known[0] != FLAT:
                return None
            strides, varies, factor = known[1], second, first
        if how == "wide" and self.bits != 32:
            return None
        number = self._number(factor, type_)
        if how == "wide":
            strides = self._widened(Widening(varies, type_[0] == "s", strides, number))
            self.bits = 64
        product = self._scaled(strides, number)
        if len(known) == 2:
            return product
        return self._each(add, product, known[2])
