"""cvt: between integers, floats, halves, tf32 and eight-bit floats.

Approach: every float source becomes a float or, where it is f64, a double; every result is one
rounding away from there (`formats`). 64-bit integers and doubles on their way to a narrow float
are first rounded to odd in an intermediate format.

Source: PTX ISA 9.0, section 9.7.9.21.
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.ir.values import Value, constant, intrinsic, read, write
from gpud.device.cpu.lower.compare import read_float
from gpud.device.cpu.lower.floats import formats
from gpud.device.cpu.lower.floats.directed_rounding import directed
from gpud.device.cpu.lower.floats.minifloats import MINIFLOATS, convert_minifloats
from gpud.device.cpu.lower.integers.integer_arithmetic import join_halves
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

_INTEGER_ROUNDING = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_FLOAT_ROUNDING = ("rn", "rz", "rm", "rp", "rna")
_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
_LARGEST = {"f16": 0x7BFF, "bf16": 0x7F7F}


@lowering("cvt")
def _cvt(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    if modifiers.flag("pack"):
        _cvt_pack(thread, ins, modifiers)
        return
    mini = modifiers.choice(*MINIFLOATS)
    if mini:
        other = modifiers.type()
        at = ins.opcode.modifiers.index
        order = (mini, other) if at(mini) < at(other) else (other, mini)
        convert_minifloats(thread, ins, modifiers, *order)
        return
    rounding = modifiers.choice(*_INTEGER_ROUNDING, *_FLOAT_ROUNDING)
    ftz, sat = modifiers.flag("ftz"), modifiers.flag("sat")
    relu, satfinite = modifiers.flag("relu"), modifiers.flag("satfinite")
    source, target = modifiers.type(), modifiers.type()
    modifiers.done(3 if target in ("f16x2", "bf16x2") else 2)
    if source in _INTEGERS and target in _INTEGERS:
        if rounding or ftz or relu or satfinite:
            raise rejected(ins, "integer conversions take no modifier but .sat")
        _integer_to_integer(thread, ins, target, source, sat=sat)
    elif source in _FLOATS and target in _INTEGERS:
        if rounding not in _INTEGER_ROUNDING:
            raise rejected(ins, "it needs .rni, .rzi, .rmi or .rpi")
        value = read_float(thread, ins.operands[1], source, ftz=ftz and source == "f32")
        if rounding != "rzi":  # the conversion itself truncates
            value = intrinsic(_INTEGER_ROUNDING[rounding], value)
        write(thread, ins.operands[0], target, _float_to_integer(value, target, source))
    elif source in _INTEGERS and target in _FLOATS:
        value = read(thread, ins.operands[1], source)
        result = _integer_to_float(ins, value, source, target, rounding)
        _write_float(thread, ins, target, result, sat=sat, relu=False)
    elif target in ("f16x2", "bf16x2") and source == "f32":
        element = target[:-2]
        high, low = (
            _modified(
                _float_to_float(thread, ins, operand, element, "f32", rounding, ftz=ftz),
                element,
                sat=sat,
                relu=relu,
                satfinite=satfinite,
            )
            for operand in (1, 2)
        )
        write(thread, ins.operands[0], "b32", join_halves(low, high))
    elif target == "tf32" and source == "f32":
        value = _to_tf32(read(thread, ins.operands[1], "b32"), rounding, satfinite=satfinite)
        if relu:
            value = value.compare("slt", 0).select(0, value)
            # A negative NaN is a NaN still; it was made canonical (positive) above.
        write(thread, ins.operands[0], "b32", value)
    elif source in _FLOATS and target in _FLOATS:
        result = _float_to_float(thread, ins, 1, target, source, rounding, ftz=ftz)
        _write_float(thread, ins, target, result, sat=sat, relu=relu, satfinite=satfinite, ftz=ftz)
    else:
        raise rejected(ins, f"there is no conversion from .{source} to .{target}")


# -- integers


def _limits(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


def _integer_to_integer(
    thread: Thread, ins: Instruction, target: str, source: str, *, sat: bool
) -> None:
    value = read(thread, ins.operands[1], source)
    if sat:
        value = clamp(value, source, target)
    wanted = LLVM_TYPE[target]
    if int(target[1:]) <= value.width:
        value = value.trunc(wanted)
    else:
        value = value.sext(wanted) if source[0] == "s" else value.zext(wanted)
    write(thread, ins.operands[0], target, value)


def clamp(value: Value, source: str, target: str) -> Value:
    """Clamp an integer of type ``source`` to the range of ``target``, in its own width."""
    (low, high), (least, largest) = _limits(target), _limits(source)
    if source[0] == "s":
        if low > least:
            value = value.max_s(low)
        return value.min_s(high) if high < largest else value
    return value.min_u(high) if high < largest else value


def _cvt_pack(thread: Thread, ins: Instruction, modifiers: Modifiers) -> None:
    """Lower ``cvt.pack.sat.convertType.abType{.cType} d, a, b{, c}``."""
    modifiers.require("sat")
    third = modifiers.flag("b32")
    source, target = (
        modifiers.require("s32"),
        modifiers.require("u16", "s16", "u2", "s2", "u4", "s4", "u8", "s8"),
    )
    modifiers.done(4 if third else 3)
    bits = int(target[1:])
    a, b = (clamp(read(thread, operand, source), source, target) for operand in ins.operands[1:3])
    mask = (1 << bits) - 1
    result = (b & mask) | ((a & mask) << bits)
    if third:
        result = (
            result | (read(thread, ins.operands[3], "b32") << (2 * bits)) if bits < 16 else result
        )
    write(thread, ins.operands[0], "b32", result)


# -- between integers and floats


def _float_to_integer(value: Value, target: str, source: str) -> Value:
    """Return a float truncated and clamped to an integer type; NaN as the ISA says for the types.

    In place of ``llvm.fptosi.sat``, for which LLVM 22 has no vector code.
    """
    low, high = _limits(target)
    bits, wide = int(target[1:]), max(int(target[1:]), 32)
    mantissa = 53 if value.type == "double" else 24
    # The largest number of the float type that is not above ``high``.
    largest = high - (high & ((1 << max(high.bit_length() - mantissa, 0)) - 1))
    inside = value.compare("ogt", float(low)).select(value, float(low))
    inside = inside.compare("olt", float(largest)).select(inside, float(largest))
    # Up to 16 bits the signed conversion serves both, and is the cheaper one.
    signed = target[0] == "s" or bits < 32
    result = inside.cast("fptosi" if signed else "fptoui", f"i{wide}")
    if largest != high:
        result = value.compare("oge", float(high + 1)).select(high, result)
    nan = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
    return value.is_nan().select(nan, result).trunc(LLVM_TYPE[target])


def _integer_to_float(
    ins: Instruction, value: Value, source: str, target: str, rounding: str
) -> Value:
    """Return an integer as f32 or f64, or as i16 bits of f16 or bf16."""
    if rounding not in _FLOAT_ROUNDING[:4]:
        raise rejected(ins, "it needs .rn, .rz, .rm or .rp")
    signed = source[0] == "s"
    to_float = "sitofp" if signed else "uitofp"
    if target == "f64":
        if rounding == "rn" or value.width < 64:
            return value.cast(to_float, "double")
        # The two halves are exact; their sum is rounded once.
        shift = Value.sar if signed else Value.__rshift__
        high = shift(value, 32).cast(to_float, "double") * 2.0**32
        return directed("add", rounding, high, (value & 0xFFFFFFFF).cast("uitofp", "double"))
    if target == "f32" and rounding == "rn":
        return value.cast(to_float, "float")
    wide = formats.widen_int(value, signed=signed)
    if target == "f32":
        return formats.round_double(wide, rounding)
    return formats.round_float(formats.round_to_odd(wide), target, rounding)


# -- between floats


def _float_to_float(
    thread: Thread,
    ins: Instruction,
    operand: int,
    target: str,
    source: str,
    rounding: str,
    *,
    ftz: bool,
) -> Value:
    """Convert a float to f32 or f64, or to i16 bits of f16 or bf16, before .sat and .relu."""
    given = ins.operands[operand]
    if rounding in _INTEGER_ROUNDING:
        if source != target:
            raise rejected(ins, "integer rounding needs the same type twice")
        value = read_float(thread, given, source, ftz=ftz and source == "f32")
        value = intrinsic(_INTEGER_ROUNDING[rounding], value)
        # The result of .rni and its like is an integer, exact in a type of the same size.
        return value if target in ("f32", "f64") else formats.narrow(value, target)
    narrower = _BITS[target] < _BITS[source] or {source, target} == {"f16", "bf16"}
    if narrower and rounding not in _FLOAT_ROUNDING[:4]:
        raise rejected(ins, "it needs .rn, .rz, .rm or .rp")
    if source == target and source in ("f16", "bf16"):
        return read(thread, given, "b16")
    value = read_float(thread, given, source, ftz=ftz and source == "f32")
    if target == "f64":
        return value.cast("fpext", "double")
    if target == "f32":
        return formats.round_double(value, rounding) if source == "f64" else value
    if source == "f64":
        value = formats.round_to_odd(value)
    return formats.round_float(value, target, rounding)


def _modified(value: Value, target: str, *, sat: bool, relu: bool, satfinite: bool) -> Value:
    """Apply .sat, .relu and .satfinite to i16 bits of f16 or bf16."""
    nan = (value & 0x7FFF).compare("ugt", 0x7C00 if target == "f16" else 0x7F80)
    negative = value.compare("slt", 0)
    value = nan.select(formats.NAN["i16"], value)
    if satfinite:
        largest = _LARGEST[target]
        limited = (value & 0x7FFF).min_u(largest) | (value & 0x8000)
        value = nan.select(value, limited)
    if relu:
        value = (negative & ~nan).select(0, value)
    if sat:
        limit = 0x3C00 if target == "f16" else 0x3F80
        value = (nan | negative).select(0, value.min_s(limit))
    return value


def _write_float(
    thread: Thread,
    ins: Instruction,
    target: str,
    value: Value,
    *,
    sat: bool,
    relu: bool,
    satfinite: bool = False,
    ftz: bool = False,
) -> None:
    """Apply the modifiers of the result and write it."""
    if target in ("f16", "bf16"):
        value = _modified(value, target, sat=sat, relu=relu, satfinite=satfinite)
        write(thread, ins.operands[0], "b16", value)
        return
    if relu or satfinite:
        raise rejected(ins, f"modifier .{'relu' if relu else 'satfinite'} is not known here")
    if ftz and target == "f32":
        value = formats.flush(value)
    value = formats.saturate(value) if sat else formats.canonical(value)
    write(thread, ins.operands[0], target, value)


def _to_tf32(bits: Value, rounding: str, *, satfinite: bool) -> Value:
    """Round f32 bits to ten mantissa bits."""
    increment = {
        "rna": lambda: constant(bits.emitter, "i32", 0x1000),
        "rn": lambda: ((bits >> 13) & 1) + 0xFFF,
        "rz": lambda: constant(bits.emitter, "i32", 0),
    }[rounding]()
    magnitude = bits & 0x7FFFFFFF
    infinite = magnitude.eq(0x7F800000)
    rounded = (magnitude + increment) & 0x7FFFE000
    if satfinite:
        rounded = rounded.min_u(0x7F7FE000)
        infinite = constant(bits.emitter, "i1", 0)
    result = infinite.select(magnitude, rounded) | (bits & 0x80000000)
    return magnitude.compare("ugt", 0x7F800000).select(0x7FFFFFFF, result)
