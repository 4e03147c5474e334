"""Comparison, selection and predicate logic for every type.

Source: PTX ISA 9.0, sections 9.7.6 (``set``, ``setp``, ``selp``, ``slct``) and 9.3.1 (ordered and
unordered comparison).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from . import exact
from .case import Array, Case, Rng
from .exact import FORMATS
from .integers import operands
from .sweep import Op, sweep

Compare = Callable[[Any, Any], Any]

_ORDERED: dict[str, Compare] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_FLOAT = (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan")


def _of(t: str, name: str, *, ftz: bool = False) -> Compare:
    """A comparison of patterns of type ``t``."""
    f = FORMATS[t]

    def values(patterns: Array) -> Array:
        if ftz:
            patterns = np.where(patterns & f.infinity == 0, patterns & f.sign, patterns)
        return exact.as_double(patterns.astype(f.dtype), f)

    return lambda a, b: exact.compares(name, values(a), values(b))


def _setp(comparison: str, t: str, compare: Compare) -> Op:
    return Op(
        f"{{ .reg .pred p; setp.{comparison}.{t} p, a, b; selp.u32 d, 1, 0, p; }}",
        "u4",
        lambda a, b, *_: compare(a, b).astype(np.uint32),
    )


def _integer_ops(bits: int, signed: bool) -> list[Op]:
    t = f"{'s' if signed else 'u'}{bits}"
    ops = [_setp(name, t, compare) for name, compare in _ORDERED.items()]
    if not signed:
        ops += [_setp(name, t, _ORDERED[same]) for name, same in _UNSIGNED.items()]
        ops += [_setp(name, f"b{bits}", _ORDERED[name]) for name in ("eq", "ne")]
    ops.append(
        Op(
            f"{{ .reg .pred p; setp.lt.{t} p, a, b; selp.b{bits} d, a, b, p; }}",
            f"{'i' if signed else 'u'}{bits // 8}",
            np.minimum,
        )
    )
    ops += [_set("le", f"u32.{t}", operator.le), _set("ne", f"s32.{t}", operator.ne)]
    ops.append(
        Op(
            f"set.gt.f32.{t} d, a, b;",
            "f4",
            lambda a, b: (a > b).astype(np.float32),
        )
    )
    return ops


def _float_ops(t: str) -> list[Op]:
    f = FORMATS[t]
    less, greater, unequal = (_of(t, name) for name in ("lt", "gtu", "ne"))
    ops = [_setp(name, t, _of(t, name)) for name in _FLOAT]
    ops.append(
        Op(
            f"{{ .reg .pred p; setp.gtu.{t} p, a, b; selp.b{f.width} d, a, b, p; }}",
            f.dtype,
            lambda a, b: np.asarray(np.where(greater(a, b), a, b)),
        )
    )
    if t in ("f16", "f32"):
        ops += [_setp(f"{name}.ftz", t, _of(t, name, ftz=True)) for name in ("eq", "ltu", "ge")]
    if t in ("f32", "f64"):
        ops += [
            Op(
                f"{{ .reg .pred p, q; setp.lt.and.{t} p|q, a, b, %always; selp.{t} d, a, b, q; }}",
                f.dtype,
                lambda a, b: np.asarray(np.where(less(a, b), b, a)),
            ),
            _set("ltu", f"u32.{t}", _of(t, "ltu")),
            _set("ge", f"s32.{t}", _of(t, "ge")),
            Op(f"set.ne.f32.{t} d, a, b;", "f4", lambda a, b: unequal(a, b).astype(np.float32)),
        ]
    return ops


def _set(name: str, types: str, compare: Compare) -> Op:
    """``set`` with an integer result: all ones."""
    return Op(
        f"set.{name}.{types} d, a, b;",
        "u4",
        lambda a, b: np.where(compare(a, b), 0xFFFFFFFF, 0).astype(np.uint32),
    )


def _half_ops() -> list[Op]:
    """``set`` of halves, and comparisons of two halves at once: (a, b) with (b, a)."""
    ones = np.uint32(0x3C00)
    swapped = ".reg .b32 x, y; mov.b32 x, {a, b}; mov.b32 y, {b, a};"

    def pair(name: str, low: int, high: int, *, ftz: bool = False) -> Compare:
        compare = _of("f16", name, ftz=ftz)
        return lambda a, b: (
            np.where(compare(a, b), low, 0) | np.where(compare(b, a), high, 0)
        ).astype(np.uint32)

    return [
        Op("set.eq.f16.f16 d, a, b;", "u2",
           lambda a, b: np.where(_of("f16", "eq")(a, b), ones, 0).astype(np.uint16)),
        Op("set.gt.f16.f16 d, a, b;", "u2",
           lambda a, b: np.where(_of("f16", "gt")(a, b), ones, 0).astype(np.uint16)),
        Op(f"{{ {swapped} set.geu.f16x2.f16x2 d, x, y; }}", "u4", pair("geu", 0x3C00, 0x3C000000)),
        Op(f"{{ {swapped} set.le.u32.f16x2 d, x, y; }}", "u4", pair("le", 0xFFFF, 0xFFFF0000)),
        *(
            Op(f"{{ {swapped} .reg .pred p, q; setp.{name}{ftz}.f16x2 p|q, x, y;"
               " selp.u32 d, 1, 0, p; @q or.b32 d, d, 2; }", "u4",
               pair(name, 1, 2, ftz=bool(ftz)))
            for name in ("lt", "gtu")
            for ftz in ("", ".ftz")
        ),
    ]  # fmt: skip


def _choosing_ops() -> list[Op]:
    """``slct`` by an integer and by a float, on single-precision patterns."""
    positive = _of("f32", "ge")
    flushed = _of("f32", "ge", ftz=True)

    def choose(first: int, second: int, holds: Compare) -> Callable[[Array, Array], Array]:
        return lambda a, b: np.where(holds(b, np.zeros_like(b)), first, second).astype(np.uint32)

    return [
        Op("slct.b32.s32 d, 11, 22, b;", "u4",
           lambda a, b: np.where(b.view(np.int32) >= 0, 11, 22).astype(np.uint32)),
        Op("slct.u32.s32 d, a, b, b;", "u4",
           lambda a, b: np.asarray(np.where(b.view(np.int32) >= 0, a, b))),
        Op("slct.f32.f32 d, 0f3F800000, 0f40000000, b;", "u4",
           choose(0x3F800000, 0x40000000, positive)),
        Op("slct.ftz.f32.f32 d, 0f3F800000, 0f40000000, b;", "u4",
           choose(0x3F800000, 0x40000000, flushed)),
        Op("slct.ftz.u32.f32 d, 3, 4, b;", "u4", choose(3, 4, flushed)),
        Op("{ .reg .b64 x, y, w; mov.b64 x, 5; mov.b64 y, 6; slct.u64.f32 w, x, y, b;"
           " cvt.u32.u64 d, w; }", "u4", choose(5, 6, positive)),
    ]  # fmt: skip


def _logic_ops() -> list[Op]:
    """Predicates made of predicates: the third operand of ``setp`` and the logic instructions."""
    negative = ".reg .pred p, q, r, s; setp.lt.s32 p, a, 0; setp.lt.s32 q, b, 0;"

    def op(body: str, function: Callable[[Any, Any], Any]) -> Op:
        return Op(
            f"{{ {negative} {body} selp.u32 d, 1, 0, r; }}",
            "u4",
            lambda a, b: (function(a < 0, b < 0) & np.bool_(True)).astype(np.uint32),
        )

    return [
        op("and.pred r, p, q;", lambda p, q: p & q),
        op("or.pred r, p, q;", lambda p, q: p | q),
        op("xor.pred r, p, q;", lambda p, q: p ^ q),
        op("not.pred r, p;", lambda p, q: ~p),
        op("mov.pred r, q;", lambda p, q: q),
        op("mov.pred r, 1; @p mov.pred r, 0;", lambda p, q: ~p),
        op("not.pred s, q; and.pred r, p, s;", lambda p, q: p & ~q),
        op("setp.lt.or.s32 r, b, 0, !p;", lambda p, q: q | ~p),
        op("setp.ge.xor.s32 r, b, 0, p;", lambda p, q: ~q ^ p),
        op("setp.lt.and.s32 r|s, b, 0, p; @!p mov.pred r, s;", lambda p, q: np.where(p, q, p)),
        op("setp.lt.or.s32 s|r, b, 0, p;", lambda p, q: ~q | p),
        Op(f"{{ {negative} set.lt.and.u32.s32 d, b, 0, !p; }}", "u4",
           lambda a, b: np.where((b < 0) & (a >= 0), 0xFFFFFFFF, 0).astype(np.uint32)),
        Op(f"{{ {negative} mov.b32 d, 0; @p add.u32 d, d, 1; @!q add.u32 d, d, 2; }}", "u4",
           lambda a, b: ((a < 0) + 2 * (b >= 0)).astype(np.uint32)),
    ]  # fmt: skip


def _patterns(f: exact.Format, rng: Rng) -> list[Array]:
    return exact.samples(f, 2, rng)


_ALWAYS = "    .reg .pred %always; setp.eq.u32 %always, 0, 0;"

CASES: tuple[Case, ...] = (
    *(
        sweep(
            f"compare_{'s' if signed else 'u'}{bits}",
            _integer_ops(bits, signed),
            (f"{'i' if signed else 'u'}{bits // 8}",) * 2,
            operands(bits, signed, 2, rows=60),
            covers="setp set selp",
        )
        for bits in (16, 32, 64)
        for signed in (True, False)
    ),
    *(
        sweep(
            f"compare_{t}",
            [*_float_ops(t), *further],
            (FORMATS[t].dtype,) * 2,
            partial(_patterns, FORMATS[t]),
            before=_ALWAYS,
            arch="compute_90" if t.endswith("16") else "compute_75",
            covers="setp set slct ftz nan",
        )
        for t, further in (
            ("f16", _half_ops()),
            ("bf16", []),
            ("f32", _choosing_ops()),
            ("f64", []),
        )
    ),
    sweep(
        "predicate_logic",
        _logic_ops(),
        ("i4", "i4"),
        operands(32, True, 2, rows=60),
        block=56,
        covers="predicates",
    ),
)
