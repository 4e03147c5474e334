"""ex2, lg2, sin, cos, tanh, rsqrt .approx: polynomials that LLVM can vectorise.

Problem: calls of the C library's functions keep a loop over threads scalar, and so do branches on
special values.

Approach: the classical one. Reduce the argument exactly, evaluate a minimax polynomial with fused
multiply-adds, restore exponent or sign with integer arithmetic, and handle special values with
selects.

Terms:
    magic: 1.5 * 2**23. Adding it to a float of magnitude below 2**22 rounds that to an integer,
        which then stands in the low bits of the sum's pattern; subtracting it again gives the
        integer as a float.

Algorithms, largest errors measured on 4 million arguments, and the ISA's bounds:
    ex2: x = n + f, |f| <= 1/2; 2**f by degree 6; times 2**n in two steps, each a normal number, so
        that subnormal results are rounded once. 0.95 ulp; bound 2 ulp.
    lg2: x = m * 2**e, m in [sqrt(1/2), sqrt(2)); (m-1) * P(m-1) + e with P of degree 8. 2**-23.6
        absolute in (0.5, 2), 2**-23.8 relative elsewhere; bounds 2**-22 for both.
    sin, cos: r = x - q * pi in three parts, |r| <= pi/2, q an integer (sin) or a half of an odd
        one (cos); an odd polynomial of degree 9 in r; the sign from the parity of q. 2**-23 up to
        100 pi, 2**-22.4 up to 10**6; bounds 2**-20.5 up to 2 pi, 2**-14.7 up to 100 pi. From 10**7
        on no digit is right, but the result stays in [-1, 1].
    tanh: continued fraction to the seventh order, 1 beyond +-4.97. 2**-13.3 relative; bound 2**-11.
    rsqrt: 1 / sqrt(x), two correctly rounded operations. 2**-23.4; bound 2**-22.9.

Source: PTX ISA 9.0, sections 9.7.3.15 to 9.7.3.22; coefficients by the Remez algorithm in double
precision, rounded to float; J.-M. Muller, "Elementary Functions", chapters 3, 4 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, intrinsic, write
from gpud.device.cpu.lower.compare import read_float
from gpud.device.cpu.lower.floats.float_arithmetic import gross_approximation, read_double_high
from gpud.device.cpu.lower.floats.formats import canonical, flush
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

__all__ = ["exponential", "hyperbolic_tangent"]

_MAGIC = 12582912.0
_MAGIC_BITS = 0x4B400000

# (2**f - 1) / f on [-1/2, 1/2]
_EX2 = (
    0.6931471824645996,
    0.24022647738456726,
    0.055503323674201965,
    0.009618435986340046,
    0.0013398851733654737,
    0.00015353599155787379,
)
# log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1]
_LG2 = (
    1.4426950216293335,
    -0.7213473320007324,
    0.48091062903404236,
    -0.3607036769390106,
    0.28791624307632446,
    -0.23894481360912323,
    0.21571560204029083,
    -0.20726975798606873,
    0.1258370578289032,
)
# (sin(r) / r - 1) / r**2 as a polynomial in r**2 on [0, (pi/2)**2]
_SIN = (
    -0.16666656732559204,
    0.008333016186952591,
    -0.0001980650267796591,
    2.5997967441071523e-06,
)
_ONE_OVER_PI = 0.31830987334251404
# pi as the sum of three floats
_PI = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)
# tanh(x) / x = P(x**2) / Q(x**2)
_TANH_P = (1.0, 17325.0 / 135135.0, 378.0 / 135135.0, 1.0 / 135135.0)
_TANH_Q = (1.0, 62370.0 / 135135.0, 3150.0 / 135135.0, 28.0 / 135135.0)
_TANH_ONE = 4.97


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial by Horner's scheme, coefficients from the constant up."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.fma(x, coefficient)
    return result


def _power_of_two(n: Value) -> Value:
    """Return 2**n as a float for an i32 in -126..127."""
    return ((n + 127) << 23).as_type("float")


def exponential(x: Value) -> Value:
    """Return 2**x of a float."""
    x = x.compare("ogt", 129.0).select(129.0, x)
    x = x.compare("olt", -160.0).select(-160.0, x)
    shifted = x + _MAGIC
    n = shifted.bits() - _MAGIC_BITS
    f = x - (shifted - _MAGIC)
    power = _polynomial(f, _EX2).fma(f, 1.0)
    half = n.sar(1)
    return power * _power_of_two(half) * _power_of_two(n - half)


def _logarithm(x: Value) -> Value:
    """Return log2 of a float."""
    # Subnormal numbers are scaled into the normal range first.
    small = x.compare("olt", 2.0**-126)
    bits = small.select(x * 2.0**24, x).bits()
    # 0x3F3504F3 is sqrt(1/2): the exponent of the result is taken relative to it.
    exponent = (bits - 0x3F3504F3).sar(23)
    mantissa = (bits - (exponent << 23)).as_type("float")
    f = mantissa - 1.0
    bias = small.select(f.constant(-24.0), 0.0)
    e = exponent.cast("sitofp", "float") + bias
    result = _polynomial(f, _LG2).fma(f, e)
    result = x.eq(0.0).select(float("-inf"), result)
    result = x.compare("olt", 0.0).select(float("nan"), result)
    # +Inf and NaN are their own logarithm.
    return x.compare("ult", float("inf")).select(x.is_nan().select(x, result), x)


def _sine(x: Value, *, cosine: bool) -> Value:
    """Return sine or cosine of a float in radians."""
    turns = x.fma(_ONE_OVER_PI, -0.5) if cosine else x * _ONE_OVER_PI
    shifted = turns + _MAGIC
    q = shifted - _MAGIC
    if cosine:
        q = q + 0.5
    r = x
    for part in _PI:
        r = q.fma(-part, r)
    # Far beyond the range the reduction leaves nothing of use; NaN passes.
    r = intrinsic("fabs", r).compare("ogt", 2.0).select(0.0, r)
    square = r * r
    result = (_polynomial(square, _SIN) * square).fma(r, r)
    # Rounding must not lead out of [-1, 1].
    result = result.compare("ogt", 1.0).select(1.0, result)
    result = result.compare("olt", -1.0).select(-1.0, result)
    odd = shifted.bits() << 31
    if cosine:
        odd = odd ^ 0x80000000
    result = (result.bits() ^ odd).as_type("float")
    if cosine:
        return result
    # Zeros keep their sign, subnormals their value.
    return intrinsic("fabs", x).compare("olt", 2.0**-12).select(x, result)


def hyperbolic_tangent(x: Value) -> Value:
    """Return tanh of a float."""
    square = x * x
    result = x * (_polynomial(square, _TANH_P) / _polynomial(square, _TANH_Q))
    large = intrinsic("fabs", x).compare("ogt", _TANH_ONE)
    return large.select(intrinsic("copysign", x.constant(1.0), x), result)


@lowering("ex2", "lg2", "sin", "cos", "tanh", types="f32")
def _approximations(thread: Thread, ins: Instruction) -> None:
    base = ins.opcode.base
    modifiers = Modifiers(ins)
    modifiers.require("approx")
    ftz = modifiers.flag("ftz")
    modifiers.require("f32")
    modifiers.done(2)
    if ftz and base == "tanh":
        raise rejected(ins, "tanh has no .ftz")
    x = read_float(thread, ins.operands[1], "f32", ftz=ftz)
    if base == "ex2":
        result = exponential(x)
    elif base == "lg2":
        result = _logarithm(x)
    elif base == "tanh":
        result = hyperbolic_tangent(x)
    else:
        result = _sine(x, cosine=base == "cos")
    result = canonical(result)
    write(thread, ins.operands[0], "f32", flush(result) if ftz else result)


@lowering("rsqrt", types="f32 f64")
def _rsqrt(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    modifiers.require("approx")
    ftz, type_ = modifiers.flag("ftz"), modifiers.type()
    modifiers.done(2)
    if type_ == "f64" and ftz:
        write(
            thread,
            ins.operands[0],
            "f64",
            gross_approximation("rsqrt", read_double_high(thread, ins)),
        )
        return
    x = read_float(thread, ins.operands[1], type_, ftz=ftz)
    root = x.unary("sqrt")
    write(thread, ins.operands[0], type_, canonical(root.constant(1.0) / root))
