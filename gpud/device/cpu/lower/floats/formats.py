"""Floating-point formats: flushing, NaN, saturation, and exact rounding from a wider format.

Problem: PTX rounds to f16, bf16 and f32 in four directions from operands of any type, flushes
subnormal numbers on request, and gives one canonical NaN. CPUs support little of that directly: the
rounding mode is global state that keeps LLVM from vectorising, and `half`/`bfloat` in LLVM IR
become calls to library functions on CPUs without the instructions.

Approach: `half` and `bfloat` never occur; those numbers are i16 bit patterns. A result is first
rounded to nearest, then compared with what it should be, and moved to the neighbouring number if
it lies on the wrong side.

Terms:
    residual: the sign of (exact value - rounded value), known from a comparison in the wider
        format, or from an error term where the wider value is itself rounded.
    round to odd: of the two neighbours of an inexact value take the one whose last bit is 1. A
        second rounding to a format with at least two bits fewer then gives what a single rounding
        of the exact value would, in every direction.

Algorithm (`adjust_rounding`): with the magnitude in the low bits and the sign on top, as in every
IEEE format, the next number away from zero is bits + 1 and the next towards zero is bits - 1; from
infinity back to the largest finite number too, and from zero to the least subnormal.

Properties: exact in all directions, for subnormal results and for overflow; no rounding mode is
read or written; only integer and float selects, so that loops over threads vectorise.

Source: PTX ISA 9.0, section 9.7.3 (rounding, subnormals, NaN); S. Boldo and G. Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
"""

from __future__ import annotations

from gpud.device.cpu.ir.values import Value, intrinsic

__all__ = [
    "NAN",
    "adjust_rounding",
    "canonical",
    "canonical_root",
    "flush",
    "flush_bits",
    "flush_half",
    "narrow",
    "round_double",
    "round_float",
    "round_to_odd",
    "saturate",
    "widen",
    "widen_int",
]

NAN = {"i16": 0x7FFF, "float": 0x7FFFFFFF, "double": 0x7FFFFFFFFFFFFFFF}
"""Canonical NaN bits of f16 and bf16, f32 and f64."""

_INFINITY = {"float": 0x7F800000, "double": 0x7FF << 52}
_SIGN = {"float": 0x80000000, "double": 1 << 63}


def _nan(like: Value) -> Value:
    """Return the canonical NaN of a float value's type."""
    bits = like.bits().constant(NAN[like.type])
    return Value(like.emitter, like.type, f"bitcast ({bits.type} {bits.text} to {like.type})")


def canonical(value: Value) -> Value:
    """Return ``value`` with every NaN replaced by the one that NVIDIA GPUs produce."""
    return value.is_nan().select(_nan(value), value)


def canonical_root(value: Value) -> Value:
    """Make the NaNs of a square root canonical.

    LLVM 22's code generator folds ``select(x < 0, NaN, sqrt(x))``, to which it reduces the
    plain form, to ``sqrt(x)``; with integer comparisons it does not.
    """
    bits = value.bits()
    magnitude = bits & (_SIGN[value.type] - 1)
    nan = magnitude.compare("ugt", _INFINITY[value.type])
    return nan.select(NAN[value.type], bits).as_type(value.type)


def flush(value: Value) -> Value:
    """Return ``value`` with subnormal numbers replaced by a zero of the same sign (``.ftz``)."""
    if value.type == "float" and value.emitter.module.flushes:
        return value
    return flush_bits(value)


def flush_bits(value: Value) -> Value:
    """Return the same, whether the processor flushes or not: of what is moved, not computed."""
    bits = value.bits()
    small = (bits & _INFINITY[value.type]).eq(0)
    return small.select(bits & _SIGN[value.type], bits).as_type(value.type)


def saturate(value: Value) -> Value:
    """Return ``value`` clamped to [+0, 1]; NaN gives +0 (``.sat``)."""
    positive = value.compare("ogt", 0.0).select(value, 0.0)
    return positive.compare("olt", 1.0).select(positive, 1.0)


# -- f16 and bf16 as i16


def flush_half(bits: Value) -> Value:
    """Return an f16 pattern with subnormals replaced by a zero of their sign."""
    return (bits & 0x7C00).eq(0).select(bits & 0x8000, bits)


def widen(bits: Value, format_: str) -> Value:
    """Return the float of an i16 pattern of ``format_`` (``f16`` or ``bf16``); NaN stays NaN."""
    wide = bits.zext("i32")
    if format_ == "bf16":
        return (wide << 16).as_type("float")
    sign = (wide & 0x8000) << 16
    # The exponent bias differs by 112. Scaling also normalises subnormal halves.
    magnitude = (wide & 0x7FFF) << 13
    scaled = (magnitude.as_type("float") * 2.0**112).bits()
    special = magnitude.compare("uge", 0x0F800000)
    return (special.select(scaled | 0x7F800000, scaled) | sign).as_type("float")


def narrow(value: Value, format_: str) -> Value:
    """Return a float rounded to nearest even as an i16 pattern of ``format_``; NaN is canonical."""
    bits = value.bits()
    magnitude = bits & 0x7FFFFFFF
    if format_ == "bf16":
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        sign = (bits >> 16) & 0x8000
        normal = (magnitude + (0xFFF - (112 << 23)) + ((magnitude >> 13) & 1)) >> 13
        # Adding 0.5 leaves a float whose last bit is worth 2**-24, as in a subnormal half.
        small = (magnitude.as_type("float") + 0.5).bits() - 0x3F000000
        finite = magnitude.compare("ult", 0x38800000).select(small, normal)
        # Everything that rounds to 65536 or more, infinity included, is infinity.
        rounded = magnitude.compare("uge", 0x477FF000).select(0x7C00, finite) | sign
    return magnitude.compare("ugt", 0x7F800000).select(0x7FFF, rounded).trunc("i16")


def adjust_rounding(mode: str, bits: Value, below: Value, above: Value) -> Value:
    """Move a result rounded to nearest to its neighbour where ``mode`` asks for it.

    Args:
        mode: ``rn``, ``rz``, ``rm`` or ``rp``.
        bits: the result as an integer, sign on top.
        below: i1, the result is below the exact value.
        above: i1, the result is above the exact value.
    """
    if mode == "rn":
        return bits
    negative = bits.compare("slt", 0)
    if mode == "rz":
        shrink = negative.select(below, above)
        return shrink.select(bits - 1, bits)
    if mode == "rp":
        return below.select(negative.select(bits - 1, bits + 1), bits)
    return above.select(negative.select(bits + 1, bits - 1), bits)


def round_float(value: Value, format_: str, mode: str) -> Value:
    """Round a float to ``format_`` (``f16`` or ``bf16``) in ``mode``; return the i16 pattern."""
    bits = narrow(value, format_)
    if mode == "rn":
        return bits
    back = widen(bits, format_)
    return adjust_rounding(mode, bits, back.compare("olt", value), back.compare("ogt", value))


def round_double(value: Value, mode: str, residual: Value | None = None) -> Value:
    """Return a double rounded to float in ``mode``.

    ``residual`` is the exact value less ``value``: a double of less than half a unit in its last
    place, or NaN where ``value`` is not finite.
    """
    nearest = value.cast("fptrunc", "float")
    if mode == "rn":
        assert residual is None
        return nearest
    back = nearest.cast("fpext", "double")
    below, above = back.compare("olt", value), back.compare("ogt", value)
    if residual is not None:
        same = back.eq(value)
        below = below | (same & residual.compare("ogt", 0.0))
        above = above | (same & residual.compare("olt", 0.0))
    return adjust_rounding(mode, nearest.bits(), below, above).as_type("float")


def round_to_odd(value: Value) -> Value:
    """Return a double rounded to odd as a float, to be rounded again to f16 or bf16."""
    nearest = value.cast("fptrunc", "float")
    back = nearest.cast("fpext", "double")
    bits = nearest.bits()
    above = intrinsic("fabs", back).compare("ogt", intrinsic("fabs", value))
    inexact = back.compare("one", value)
    towards_zero = above.select(bits - 1, bits)
    return inexact.select(towards_zero | 1, bits).as_type("float")


def widen_int(value: Value, *, signed: bool) -> Value:
    """Return an integer as a double that rounds to narrower formats as the integer itself would.

    Exact up to 53 bits; beyond, the last bit is set if any lower bit was lost (round to odd).
    """
    to_double = "sitofp" if signed else "uitofp"
    exact = value.cast(to_double, "double")
    if value.width < 64:
        return exact
    shift = Value.sar if signed else Value.__rshift__
    cut = shift(value, 11) | (value & 0x7FF).ne(0).zext("i64")
    scaled = cut.cast(to_double, "double") * 2048.0
    if signed:
        fits = (value + (1 << 52)).compare("ult", 1 << 53)
    else:
        fits = value.compare("ult", 1 << 53)
    return fits.select(exact, scaled)
