"""cvt to and from packed floats of eight, six and four bits.

Each format has a sign, ``exponent`` and ``mantissa`` bits with IEEE subnormals. Only e5m2 has
infinities; e4m3 has one NaN, the others have none. Conversions to them always saturate
(``.satfinite``) and round to nearest even.

Source: PTX ISA 9.0, sections 5.2.3 (alternate formats) and 9.7.9.21 (cvt).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.floats.formats import narrow, widen
from gpud.device.cpu.lower.integers.integer_arithmetic import join_halves, split_halves
from gpud.device.cpu.lower.registry import Modifiers, rejected

__all__ = ["MINIFLOATS", "convert_minifloats", "widen_minifloat"]


@dataclass(frozen=True, slots=True)
class _Format:
    """``largest`` and ``nan`` are bit patterns without sign; ``slot`` is bits a value takes."""

    exponent: int
    mantissa: int
    largest: int
    nan: int | None
    slot: int = 8

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign_shift(self) -> int:
        return self.exponent + self.mantissa


MINIFLOATS = {
    "e4m3x2": _Format(4, 3, 0x7E, 0x7F),
    "e5m2x2": _Format(5, 2, 0x7B, 0x7F),
    "e2m3x2": _Format(2, 3, 0x1F, None),
    "e3m2x2": _Format(3, 2, 0x1F, None),
    "e2m1x2": _Format(2, 1, 0x7, None, slot=4),
}
"""The packed pair types."""


def convert_minifloats(
    thread: Thread, ins: Instruction, modifiers: Modifiers, target: str, source: str
) -> None:
    """Lower ``cvt`` to a pair of minifloats from f32, f16x2 or bf16x2, and from one to f16x2.

    Raises:
        KernelRejected: the types or modifiers do not go together.
    """
    modifiers.require("rn")
    relu = modifiers.flag("relu")
    if source in MINIFLOATS:
        if target != "f16x2":
            raise rejected(ins, f"there is no conversion from .{source} to .{target}")
        modifiers.done(2)
        format_ = MINIFLOATS[source]
        packed = read(thread, ins.operands[1], "b16")
        parts = (packed >> shift for shift in (0, format_.slot))
        halves = (_to_half(part & ((1 << format_.slot) - 1), format_, relu=relu) for part in parts)
        write(thread, ins.operands[0], "b32", join_halves(*halves))
        return
    modifiers.require("satfinite")
    format_ = MINIFLOATS[target]
    if source == "f32":
        modifiers.done(3)
        high, low = (read(thread, operand, "f32") for operand in ins.operands[1:])
    elif source in ("f16x2", "bf16x2"):
        modifiers.done(2)
        low, high = (
            widen(half, source[:-2]) for half in split_halves(read(thread, ins.operands[1], "b32"))
        )
    else:
        raise rejected(ins, f"there is no conversion from .{source} to .{target}")
    low_bits, high_bits = (_from_float(value, format_, relu=relu) for value in (low, high))
    result = low_bits | (high_bits << format_.slot)
    type_ = "b8" if format_.slot == 4 else "b16"
    write(thread, ins.operands[0], type_, result.trunc("i" + type_[1:]))


def widen_minifloat(bits: Value, type_: str) -> Value:
    """Return the float of one minifloat, in an i32: ``type_`` is ``e4m3`` or ``e5m2``."""
    return widen(_to_half(bits, MINIFLOATS[f"{type_}x2"], relu=False), "f16")


def _from_float(value: Value, format_: _Format, *, relu: bool) -> Value:
    """Return the bits (i32) of a float rounded to a format."""
    bits = value.bits()
    magnitude = bits & 0x7FFFFFFF
    cut = 23 - format_.mantissa
    half = (1 << (cut - 1)) - 1
    normal = (magnitude + half + ((magnitude >> cut) & 1)) >> cut
    normal = normal - ((127 - format_.bias) << format_.mantissa)
    # Below the least normal number, adding 2**k leaves a float whose last bit is the format's.
    exponent = 1 - format_.bias - format_.mantissa + 23
    magic = magnitude.constant((exponent + 127) << 23)
    small = (magnitude.as_type("float") + magic.as_type("float")).bits() - magic
    least_normal = (127 + 1 - format_.bias) << 23
    result = magnitude.compare("ult", least_normal).select(small, normal)
    result = result.min_u(format_.largest)
    negative = bits.compare("slt", 0)
    sign = negative.select(result.constant(1 << format_.sign_shift), 0)
    result = negative.select(0, result) if relu else result | sign
    nan = format_.largest if format_.nan is None else format_.nan
    return magnitude.compare("ugt", 0x7F800000).select(nan, result)


def _to_half(bits: Value, format_: _Format, *, relu: bool) -> Value:
    """Return the f16 bits of a value; every value of every format is exact in f16."""
    wide = bits.zext("i32")
    magnitude = wide & ((1 << format_.sign_shift) - 1)
    scaled = (magnitude << (23 - format_.mantissa)).as_type("float") * 2.0 ** (127 - format_.bias)
    half = narrow(scaled, "f16").zext("i32")
    if format_.exponent == 5:
        half = magnitude.compare("uge", 0x7C).select(0x7C00, half)
        half = magnitude.compare("ugt", 0x7C).select(0x7FFF, half)
        negative = (wide >> format_.sign_shift).ne(0) & magnitude.compare("ule", 0x7C)
    elif format_.nan is not None:
        half = magnitude.eq(format_.nan).select(0x7FFF, half)
        negative = (wide >> format_.sign_shift).ne(0) & magnitude.ne(format_.nan)
    else:
        negative = (wide >> format_.sign_shift).ne(0)
    result = negative.select(0, half) if relu else negative.select(half | 0x8000, half)
    return result.trunc("i16")
