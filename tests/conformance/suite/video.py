"""Dot products of packed integers and the scalar and SIMD video instructions.

Source: PTX ISA 9.0, sections 9.7.1 (``dp4a``, ``dp2a``) and 9.7.17 (video).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

from .case import Case
from .integers import operands
from .sweep import Op, integer_op, sweep

Binary = Callable[[int, int], int]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _parts(word: int, width: int, signed: bool) -> list[int]:
    pieces = [word >> i & ((1 << width) - 1) for i in range(0, 32, width)]
    return [_signed(p, width) for p in pieces] if signed else pieces


def _saturate(value: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(value, low), high)


# -- dot products ------------------------------------------------------------------------------


def _dots() -> list[Op]:
    ops = []
    for ta, tb in itertools.product("us", "us"):
        result = "i4" if "s" in (ta, tb) else "u4"

        def dot(
            a: int, b: int, c: int, width: int = 8, first: int = 0,
            signs: tuple[bool, bool] = (ta == "s", tb == "s"),
        ) -> int:  # fmt: skip
            left, right = _parts(a, width, signs[0]), _parts(b, 8, signs[1])[first:]
            return c + sum(x * y for x, y in zip(left, right, strict=False))

        ops.append(integer_op(f"dp4a.{ta}32.{tb}32 d, a, b, c;", result, dot))
        for half, first in (("lo", 0), ("hi", 2)):

            def two(a: int, b: int, c: int, first: int = first, dot: Any = dot) -> int:
                return int(dot(a, b, c, 16, first))

            ops.append(integer_op(f"dp2a.{half}.{ta}32.{tb}32 d, a, b, c;", result, two))
    return ops


# -- scalar video: a selected byte, half or word of each operand -------------------------------

_OPERATIONS: dict[str, Binary] = {
    "add": operator.add,
    "sub": operator.sub,
    "absdiff": lambda a, b: abs(a - b),
    "min": min,
    "max": max,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


def _width(selector: str) -> int:
    return {"": 32, "h": 16, "b": 8}[selector[:1]]


def _part(word: int, selector: str, t: str) -> int:
    """The selected byte, half or word as an integer of type ``t``."""
    bits = _width(selector)
    return _parts(word, bits, t[0] == "s")[int(selector[1:] or 0)]


def _finish(result: int, c: int, to: str, sat: bool, second: str, target: str) -> int:
    """Saturation, then the second operation or the merge into a part of ``c``."""
    signed, bits = to == "s32", _width(target)
    if sat:
        result = _saturate(result, bits, signed)
    value = result & 0xFFFFFFFF
    if second == "add":
        return value + c
    if second:
        first, other = (_signed(v, 32) if signed else v for v in (value, c))
        return (min if second == "min" else max)(first, other)
    if target:
        shift = int(target[1:]) * bits
        mask = ((1 << bits) - 1) << shift
        return value << shift & mask | c & ~mask
    return value


# types of result and operands, .sat, second operation, selectors of d, a and b
_FORMS = (
    ("s32", "s32", "s32", "", "", "", "", ""),
    ("u32", "u32", "u32", ".sat", "", "", "", ""),
    ("s32", "u32", "s32", ".sat", "add", "", "b3", "h1"),
    ("u32", "s32", "u32", "", "min", "", "h0", ""),
    ("s32", "s32", "s32", "", "min", "", "", "h0"),
    ("u32", "u32", "u32", "", "max", "", "b1", ""),
    ("s32", "s32", "u32", "", "max", "", "", "b2"),
    ("u32", "u32", "s32", ".sat", "", "b1", "", "b0"),
    ("s32", "s32", "s32", ".sat", "", "h1", "h1", ""),
)


def _dotted(text: str) -> str:
    return f".{text}" if text else ""


def _scalar() -> list[Op]:
    ops = []
    for base, form in itertools.product(("add", "sub", "absdiff", "min", "max"), _FORMS):
        to, x, y, sat, second, target, first, other = form

        def scalar(a: int, b: int, c: int, base: str = base, form: tuple[str, ...] = form) -> int:
            to, x, y, sat, second, target, first, other = form
            exact = _OPERATIONS[base](_part(a, first, x), _part(b, other, y))
            return _finish(exact, c, to, bool(sat), second, target)

        third = ", c" if second or target else ""
        ops.append(
            integer_op(
                f"v{base}.{to}.{x}.{y}{sat}{_dotted(second)}"
                f" d{_dotted(target)}, a{_dotted(first)}, b{_dotted(other)}{third};",
                "u4",
                scalar,
            )
        )
    return ops


def _shifts_and_sets() -> list[Op]:
    ops = []
    for left, wrap, x in itertools.product((True, False), (True, False), ("u32", "s32")):

        def shifted(
            a: int, b: int, c: int, left: bool = left, wrap: bool = wrap, x: str = x
        ) -> int:
            count = b & 31 if wrap else min(b & 0xFF, 32)
            return _part(a, "", x) << count if left else _part(a, "", x) >> count

        name, mode = "vshl" if left else "vshr", "wrap" if wrap else "clamp"
        ops.append(integer_op(f"{name}.u32.{x}.u32.{mode} d, a, b.b0;", "u4", shifted))
    ops.append(
        integer_op(
            "vshl.s32.s32.u32.sat.clamp.add d, a, b.b0, c;",
            "u4",
            lambda a, b, c: _saturate(_signed(a, 32) << min(b & 0xFF, 32), 32, True) + c,
        )
    )
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        holds: Any = getattr(operator, name)
        ops.append(
            integer_op(
                f"vset.s32.u32.{name}.add d, a.h0, b.h1, c;",
                "u4",
                lambda a, b, c, holds=holds: (
                    c + holds(_part(a, "h0", "s32"), _part(b, "h1", "u32"))
                ),
            )
        )
    return ops


# The instruction, its operands, and which of them is subtracted.
_PRODUCTS = (
    ("vmad.u32.u32.u32", "h0", "h1", ""),
    ("vmad.s32.s32.s32.sat.shr7", "h1", "h0", ""),
    ("vmad.s32.s32.s32", "b0", "", "a"),
    ("vmad.s32.u32.u32.sat", "b3", "b2", "c"),
    ("vmad.u32.u32.u32.po.shr15", "", "h0", ""),
)


def _products() -> list[Op]:
    ops = []
    for text, first, other, minus in _PRODUCTS:
        _, _, x, y, *modifiers = text.split(".")

        def product(
            a: int, b: int, c: int, x: str = x, y: str = y, first: str = first,
            other: str = other, minus: str = minus, modifiers: list[str] = modifiers,
        ) -> int:  # fmt: skip
            signed = "s32" in (x, y) or bool(minus)
            addend = -c & 0xFFFFFFFF if minus == "c" else c
            total = _part(a, first, x) * _part(b, other, y) * (-1 if minus == "a" else 1)
            total += (_signed(addend, 32) if signed else addend) + ("po" in modifiers)
            total >>= 7 if "shr7" in modifiers else 15 if "shr15" in modifiers else 0
            return _saturate(total, 32, signed) if "sat" in modifiers else total

        sign = {letter: "-" if letter == minus else "" for letter in "ac"}
        ops.append(
            integer_op(
                f"{text} d, {sign['a']}a{_dotted(first)}, b{_dotted(other)}, {sign['c']}c;",
                "u4",
                product,
            )
        )
    return ops


# -- SIMD video: two halves or four bytes ------------------------------------------------------

# types of result and operands, .sat, .add, and whether lanes are selected and masked
_LANES = (
    ("u32", "u32", "u32", "", "", False),
    ("s32", "s32", "s32", "", "", False),
    ("s32", "s32", "s32", ".sat", "", False),
    ("u32", "s32", "u32", ".sat", "", False),
    ("u32", "u32", "u32", "", ".add", False),
    ("u32", "s32", "s32", "", ".add", False),
    ("s32", "u32", "s32", "", ".add", False),
    ("u32", "u32", "u32", "", ".add", True),
    ("s32", "s32", "s32", "", "", True),
)
_MASK = {2: ".h1", 4: ".b20"}
_SELECTORS = {2: (".h03", ".h21"), 4: (".b7012", ".b4563")}


def _chosen(a: int, b: int, selector: str, word: int, count: int, t: str) -> list[int]:
    """The lanes that ``selector`` takes of both operands, those of one without it."""
    every = [lane for one in (a, b) for lane in _parts(one, 32 // count, t == "s32")]
    places = [int(digit) for digit in reversed(selector[2:])]
    return [every[n] for n in places or range(word * count, (word + 1) * count)]


def _simd(count: int) -> list[Op]:
    ops = []
    bits = 32 // count
    field = (1 << bits) - 1
    for base, form in itertools.product(_OPERATIONS, _LANES):
        to, x, y, sat, add, selects = form
        first, other = _SELECTORS[count] if selects else ("", "")
        mask = _MASK[count] if selects else ""

        def packed(
            a: int, b: int, c: int, base: str = base, form: tuple[Any, ...] = form,
            first: str = first, other: str = other, mask: str = mask,
        ) -> int:  # fmt: skip
            to, x, y, sat, add, _ = form
            left, right = _chosen(a, b, first, 0, count, x), _chosen(a, b, other, 1, count, y)
            total = c
            for n, pair in enumerate(zip(left, right, strict=True)):
                lane = _OPERATIONS[base](*pair)
                if sat:
                    lane = _saturate(lane, bits, to == "s32")
                if mask and str(n) not in mask[2:]:
                    continue
                at = n * bits
                total = total + lane if add else total & ~(field << at) | (lane & field) << at
            return total

        ops.append(
            integer_op(
                f"v{base}{count}.{to}.{x}.{y}{sat}{add} d{mask}, a{first}, b{other}, c;",
                "u4",
                packed,
            )
        )

    def less(a: int, b: int, c: int) -> int:
        pairs = zip(_parts(a, bits, True), _parts(b, bits, False), strict=True)
        return sum((x < y) << n * bits for n, (x, y) in enumerate(pairs))

    ops.append(integer_op(f"vset{count}.s32.u32.lt d, a, b, c;", "u4", less))
    return ops


def _case(name: str, ops: list[Op], feature: str) -> Case:
    inputs = ("u4", "u4", "u4")
    return sweep(name, ops, inputs, operands(32, False, 3), covers=feature)


CASES: tuple[Case, ...] = (
    _case("dot_products", _dots(), "dp4a dp2a"),
    _case("video", [*_scalar(), *_shifts_and_sets(), *_products()], "video"),
    _case("video_halves", _simd(2), "video"),
    _case("video_bytes", _simd(4), "video"),
)
