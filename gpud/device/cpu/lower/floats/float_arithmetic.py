"""f32 and f64 arithmetic: add, sub, mul, fma, mad, div, sqrt, rcp, min, max, abs, neg, copysign.

Results are correctly rounded, ``fma`` and ``mad`` with a single rounding. NaN results of add, sub,
mul and fma are those of the CPU here, and replaced by the GPU's where they are observable
(`gpud.device.cpu.codegen.analysis.canonical_nans`); the other instructions give the canonical NaN
themselves.

Source: PTX ISA 9.0, section 9.7.3 (floating point), 9.7.5 (mixed precision).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, intrinsic, read, write
from gpud.device.cpu.lower.compare import read_float
from gpud.device.cpu.lower.floats.directed_rounding import directed
from gpud.device.cpu.lower.floats.formats import (
    canonical,
    canonical_root,
    flush,
    flush_bits,
    saturate,
)
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

__all__ = ["gross_approximation", "minimum_maximum", "mixed_precision", "read_double_high"]

_ROUNDINGS = ("rn", "rz", "rm", "rp")


def _arithmetic(base: str, mode: str, operands: list[Value]) -> Value:
    """Emit add, sub, mul or fma in a rounding mode."""
    if base == "sub":
        base, operands = "add", [operands[0], -operands[1]]
    if mode != "rn":
        return directed(base, mode, *operands)
    if base == "add":
        return operands[0] + operands[1]
    if base == "mul":
        return operands[0] * operands[1]
    return operands[0].fma(operands[1], operands[2])


@lowering("add", "sub", "mul", "fma", "mad", types="f32 f64")
def _add_mul(thread: Thread, ins: Instruction) -> None:
    base = {"mad": "fma"}.get(ins.opcode.base, ins.opcode.base)
    modifiers = Modifiers(ins)
    mode = (
        modifiers.require(*_ROUNDINGS)
        if base == "fma"
        else modifiers.choice(*_ROUNDINGS, default="rn")
    )
    ftz, sat, type_ = modifiers.flag("ftz"), modifiers.flag("sat"), modifiers.type()
    modifiers.done(4 if base == "fma" else 3)
    if type_ == "f64" and (ftz or sat):
        raise rejected(ins, "modifiers .ftz and .sat need .f32")
    values = [read_float(thread, operand, type_, ftz=ftz) for operand in ins.operands[1:]]
    result = _finish(_arithmetic(base, mode, values), ftz=ftz, sat=sat)
    write(thread, ins.operands[0], type_, result)


def _finish(result: Value, *, ftz: bool, sat: bool) -> Value:
    if ftz:
        result = flush(result)
    return saturate(result) if sat else result


def mixed_precision(thread: Thread, ins: Instruction) -> None:
    """Lower ``add.f32.f16 d, a, c`` and ``fma.f32.f16 d, a, b, c``: halves in, float c and d."""
    base = ins.opcode.base
    modifiers = Modifiers(ins)
    mode, sat = modifiers.choice(*_ROUNDINGS, default="rn"), modifiers.flag("sat")
    half, type_ = modifiers.type(), modifiers.type()
    modifiers.done(4 if base == "fma" else 3)
    if type_ != "f32" or base not in ("add", "sub", "fma"):
        raise rejected(ins, f"there is no .{type_}.{half} form")
    values = [read_float(thread, operand, half) for operand in ins.operands[1:-1]]
    values.append(read(thread, ins.operands[-1], "f32"))
    write(
        thread, ins.operands[0], "f32", _finish(_arithmetic(base, mode, values), ftz=False, sat=sat)
    )


@lowering("add", "sub", "mul", "fma", types="f32x2")
def _pairs(thread: Thread, ins: Instruction) -> None:
    base = ins.opcode.base
    modifiers = Modifiers(ins)
    mode, ftz = modifiers.choice(*_ROUNDINGS, default="rn"), modifiers.flag("ftz")
    modifiers.require("f32x2")
    modifiers.done(4 if base == "fma" else 3)
    packed = [read(thread, operand, "b64") for operand in ins.operands[1:]]
    result = constant(thread.emitter, "i64", 0)
    for shift in (0, 32):
        values = [(value >> shift).trunc("i32").as_type("float") for value in packed]
        if ftz:
            values = [flush(value) for value in values]
        half = _finish(_arithmetic(base, mode, values), ftz=ftz, sat=False)
        result = result | (half.bits().zext("i64") << shift)
    write(thread, ins.operands[0], "b64", result)


# -- division and roots


@lowering("div", "rcp", "sqrt", types="f32 f64")
def _divide_root(thread: Thread, ins: Instruction) -> None:
    base = ins.opcode.base
    modifiers = Modifiers(ins)
    mode = modifiers.require(*_ROUNDINGS, "approx", "full")
    ftz, type_ = modifiers.flag("ftz"), modifiers.type()
    modifiers.done(3 if base == "div" else 2)
    if mode == "full" and (base, type_) != ("div", "f32"):
        raise rejected(ins, "only div.f32 has a .full form")
    if type_ == "f64" and mode == "approx":
        if base != "rcp" or not ftz:
            raise rejected(ins, "there is no .approx form for .f64")
        write(
            thread,
            ins.operands[0],
            "f64",
            gross_approximation("rcp", read_double_high(thread, ins)),
        )
        return
    if type_ == "f64" and ftz:
        raise rejected(ins, "modifier .ftz is not known here")
    values = [read_float(thread, operand, type_, ftz=ftz) for operand in ins.operands[1:]]
    if base == "rcp":
        values.insert(0, values[0].constant(1.0))
    if mode in ("rz", "rm", "rp"):
        result = directed("sqrt" if base == "sqrt" else "div", mode, *values)
    elif base == "sqrt":
        result = values[0].unary("sqrt")
    elif (base, mode) == ("div", "approx"):
        # The GPU multiplies with a reciprocal whose subnormal results are flushed; the ISA shows
        # that for 2**126 < |b| < 2**128: zero, and NaN for an infinite a.
        result = values[0] * flush(values[1].constant(1.0) / values[1])
    else:
        result = values[0] / values[1]
    if ftz:
        result = flush(result)
    result = canonical_root(result) if base == "sqrt" else canonical(result)
    write(thread, ins.operands[0], type_, result)


def read_double_high(thread: Thread, ins: Instruction) -> Value:
    """Read operand 1 as a double of which only the high 32 bits count, subnormals flushed."""
    bits = read(thread, ins.operands[1], "b64") & 0xFFFFFFFF00000000
    return flush(bits.as_type("double"))


def gross_approximation(base: str, value: Value) -> Value:
    """Lower rcp or rsqrt .approx.ftz.f64: the result's low 32 bits are zero."""
    root = value.unary("sqrt") if base == "rsqrt" else value
    exact = flush(root.constant(1.0) / root)
    high = exact.bits() & 0xFFFFFFFF00000000
    return exact.is_nan().select(0x7FFFFFFF00000000, high).as_type("double")


# -- minimum, maximum, signs


def minimum_maximum(base: str, a: Value, b: Value, *, nan: bool) -> Value:
    """Return the smaller or larger of two floats; -0 < +0; NaN loses unless ``nan``.

    Which NaN it is that wins is open. Comparisons and selections, since LLVM 22 lowers
    ``llvm.maximumnum`` and ``llvm.maximum`` wrongly for AVX-512 where it knows that one operand is
    never NaN. Where the processor flushes subnormals there may be none among the operands: they
    would compare as zeros, which LLVM does not know of constants.
    """
    first = a.compare("ult" if base == "min" else "ugt", b).select(a, b).bits()
    # Equal are the zeros, of which the sign counts, and what has equal bits.
    same = a.bits() | b.bits() if base == "min" else a.bits() & b.bits()
    chosen = a.eq(b).select(same, first)
    # Where either is NaN, ``chosen`` is ``a``.
    return (b if nan else a).is_nan().select(b.bits(), chosen).as_type(a.type)


@lowering("min", "max", types="f32 f64")
def _min_max(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    ftz, nan = modifiers.flag("ftz"), modifiers.flag("NaN")
    xorsign, absolute = modifiers.flag("xorsign"), modifiers.flag("abs")
    type_ = modifiers.type()
    count = len(ins.operands)
    modifiers.done(4 if count == 4 else 3)
    if type_ == "f64" and (ftz or nan or xorsign or absolute or count == 4):
        raise rejected(ins, "this modifier needs .f32")
    if xorsign != (absolute and count == 3):
        raise rejected(ins, ".xorsign and .abs belong together, but with three sources")
    values = [read(thread, operand, type_) for operand in ins.operands[1:]]
    if ftz:
        values = [flush_bits(value) for value in values]
    magnitudes = [intrinsic("fabs", value) for value in values] if absolute else values
    result = magnitudes[0]
    for value in magnitudes[1:]:
        result = minimum_maximum(ins.opcode.base, result, value, nan=nan)
    if xorsign:
        sign = (values[0].bits() ^ values[1].bits()).as_type("float")
        result = intrinsic("copysign", result, sign)
    write(thread, ins.operands[0], type_, canonical(result))


@lowering("abs", "neg", types="f32 f64")
def _abs_neg(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    ftz, type_ = modifiers.flag("ftz"), modifiers.type()
    modifiers.done(2)
    if type_ == "f64" and ftz:
        raise rejected(ins, "modifier .ftz needs .f32")
    a = read(thread, ins.operands[1], type_)
    result = -a if ins.opcode.base == "neg" else intrinsic("fabs", a)
    write(thread, ins.operands[0], type_, flush_bits(result) if ftz else result)


@lowering("copysign", types="f32 f64")
def _copysign(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(3)
    sign, magnitude = (read(thread, operand, type_) for operand in ins.operands[1:])
    write(thread, ins.operands[0], type_, intrinsic("copysign", magnitude, sign))
