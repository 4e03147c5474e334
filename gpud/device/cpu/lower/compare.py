"""Comparison and selection: setp, set, selp, slct, testp.

Source: PTX ISA 9.0, sections 9.7.5 (comparison), 9.7.7 (half precision) and 9.7.3.2 (testp).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction, Operand, Pair
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, read, write
from gpud.device.cpu.lower.floats.formats import flush, flush_half, widen
from gpud.device.cpu.lower.integers.integer_arithmetic import join_halves, split_halves
from gpud.device.cpu.lower.registry import Modifiers, lowering, rejected

__all__ = ["read_float"]

_ORDERED = ("eq", "lt", "le", "gt", "ge")
_FLOAT_PREDICATE = {
    **{name: "o" + name for name in _ORDERED},
    "ne": "one",
    **{name + "u": "u" + name for name in (*_ORDERED, "ne")},
    "num": "ord",
    "nan": "uno",
}
_UNSIGNED_PREDICATE = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_COMPARISONS = tuple(_FLOAT_PREDICATE) + tuple(_UNSIGNED_PREDICATE)
_HALF = ("f16", "bf16")
_HALF_PAIR = ("f16x2", "bf16x2")


def read_float(thread: Thread, operand: Operand, type_: str, *, ftz: bool = False) -> Value:
    """Return an operand of type f16, bf16, f32 or f64 as a float or double."""
    if type_ in _HALF:
        bits = read(thread, operand, "b16")
        return widen(flush_half(bits) if ftz and type_ == "f16" else bits, type_)
    value = read(thread, operand, type_)
    return flush(value) if ftz else value


def _predicate(ins: Instruction, comparison: str, type_: str) -> str:
    """Return the LLVM predicate of a PTX comparison on a type."""
    if type_[0] in "fb" and "f" in type_:
        predicate = _FLOAT_PREDICATE.get(comparison)
    elif comparison in ("eq", "ne"):
        predicate = comparison
    elif comparison in _ORDERED and type_[0] in "us":
        predicate = type_[0] + comparison
    else:
        predicate = _UNSIGNED_PREDICATE.get(comparison) if type_[0] == "u" else None
    if predicate is None:
        raise rejected(ins, f".{comparison} does not compare .{type_}")
    return predicate


def _compare(
    thread: Thread, ins: Instruction, comparison: str, type_: str, *, ftz: bool
) -> list[Value]:
    """Return the i1 results of comparing the operands: one, or (low, high) of a packed type."""
    first, second = ins.operands[1:3]
    if type_ in _HALF_PAIR:
        element = type_[:-2]
        pairs = zip(
            split_halves(read(thread, first, "b32")),
            split_halves(read(thread, second, "b32")),
            strict=True,
        )
        predicate = _predicate(ins, comparison, element)
        results = []
        for halves in pairs:
            flushed = map(flush_half, halves) if ftz and element == "f16" else halves
            a, b = (widen(half, element) for half in flushed)
            results.append(a.compare(predicate, b))
        return results
    predicate = _predicate(ins, comparison, type_)
    if "f" in type_:
        a, b = (read_float(thread, operand, type_, ftz=ftz) for operand in (first, second))
    else:
        a, b = (read(thread, operand, type_) for operand in (first, second))
    return [a.compare(predicate, b)]


@lowering("setp")
def _setp(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    comparison = modifiers.require(*_COMPARISONS)
    combine, ftz, type_ = (
        modifiers.choice("and", "or", "xor"),
        modifiers.flag("ftz"),
        modifiers.type(),
    )
    modifiers.done(4 if combine else 3)
    results = _compare(thread, ins, comparison, type_, ftz=ftz)
    target = ins.operands[0]
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    if len(results) == 1 and len(targets) == 2:
        results.append(~results[0])
    if len(results) != len(targets):
        raise rejected(ins, "it needs two destinations p|q")
    if combine:
        c = read(thread, ins.operands[3], "pred")
        results = [result.op(combine, c) for result in results]
    for where, result in zip(targets, results, strict=True):
        write(thread, where, "pred", result)


_SET_TRUE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}


@lowering("set")
def _set(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    comparison = modifiers.require(*_COMPARISONS)
    combine, ftz = modifiers.choice("and", "or", "xor"), modifiers.flag("ftz")
    source, target = modifiers.type(), modifiers.type()
    modifiers.done(4 if combine else 3)
    results = _compare(thread, ins, comparison, source, ftz=ftz)
    if combine:
        c = read(thread, ins.operands[3], "pred")
        results = [result.op(combine, c) for result in results]
    wide = "i32" if target in ("u32", "s32", "f32") and len(results) == 1 else "i16"
    yes = _SET_TRUE.get(target, -1)
    chosen = [result.select(constant(thread.emitter, wide, yes), 0) for result in results]
    value = join_halves(*chosen) if len(chosen) == 2 else chosen[0]
    if value.width == 16 and target in _HALF_PAIR:
        raise rejected(ins, f".{source} operands do not give .{target}")
    write(thread, ins.operands[0], f"b{value.width}", value)


@lowering("selp")
def _selp(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    type_ = modifiers.type()
    modifiers.done(4)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:3])
    write(thread, ins.operands[0], type_, read(thread, ins.operands[3], "pred").select(a, b))


@lowering("slct")
def _slct(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    ftz, selector, type_ = modifiers.flag("ftz"), modifiers.type(), modifiers.type()
    modifiers.done(4)
    a, b = (read(thread, operand, type_) for operand in ins.operands[1:3])
    if selector == "s32":
        chosen = read(thread, ins.operands[3], "s32").compare("sge", 0)
    elif selector == "f32":
        chosen = read_float(thread, ins.operands[3], "f32", ftz=ftz).compare("oge", 0.0)
    else:
        raise rejected(ins, "the selector must be .s32 or .f32")
    write(thread, ins.operands[0], type_, chosen.select(a, b))


@lowering("testp")
def _testp(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    kind = modifiers.require("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    type_ = modifiers.type()
    modifiers.done(2)
    infinite, least = {
        "f32": (0x7F800000, 0x00800000),
        "f64": (0x7FF << 52, 1 << 52),
    }.get(type_, (0, 0))
    if not infinite:
        raise rejected(ins, "it tests .f32 and .f64")
    magnitude = read(thread, ins.operands[1], type_.replace("f", "b")) & (
        (1 << (int(type_[1:]) - 1)) - 1
    )
    result = {
        "finite": lambda: magnitude.compare("ult", infinite),
        "infinite": lambda: magnitude.eq(infinite),
        "number": lambda: magnitude.compare("ule", infinite),
        "notanumber": lambda: magnitude.compare("ugt", infinite),
        # The ISA counts both zeros as normal.
        "normal": lambda: (magnitude - least).compare("ult", infinite - least) | magnitude.eq(0),
        "subnormal": lambda: (magnitude - 1).compare("ult", least - 1),
    }[kind]()
    write(thread, ins.operands[0], "pred", result)
