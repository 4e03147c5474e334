"""Comparison, selection and predicate logic for every type.

Source: PTX ISA 9.0, sections 9.7.6 (``set``, ``setp``, ``selp``, ``slct``) and 9.3.1 (ordered and
unordered comparison).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Case
from .integers import operands
from .reference import flush32
from .sweep import Op, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
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


def _is_nan(a: Array, b: Array) -> Array:
    either: Array = np.isnan(a) | np.isnan(b)
    return either


def _or_unordered(compare: Compare) -> Compare:
    return lambda a, b: compare(a, b) | _is_nan(a, b)


def _float_comparisons() -> dict[str, Compare]:
    table: dict[str, Compare] = dict(_ORDERED)
    table["ne"] = lambda a, b: (a != b) & ~_is_nan(a, b)
    for name, compare in _ORDERED.items():
        table[f"{name}u"] = _or_unordered(compare)
    table["num"] = lambda a, b: ~_is_nan(a, b)
    table["nan"] = _is_nan
    return table


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
    ops.append(
        Op(
            f"set.le.u32.{t} d, a, b;",
            "u4",
            lambda a, b: np.where(a <= b, 0xFFFFFFFF, 0).astype(np.uint32),
        )
    )
    ops.append(
        Op(
            f"set.gt.f32.{t} d, a, b;",
            "f4",
            lambda a, b: (a > b).astype(np.float32),
        )
    )
    return ops


_SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, float("inf"), -float("inf"), float("nan")]


def float_operands(dtype: str, columns: int, extra: int = 100) -> Any:
    """A function that draws float arrays: all pairs of special values, then all magnitudes."""
    kind = np.dtype(dtype)
    tiny, top = float(np.finfo(kind).tiny), float(np.finfo(kind).max)
    edges = [*_SPECIAL, tiny, -tiny, tiny / 4, -tiny / 8, top, -top, 3.0, 1 + 2.0**-9]

    def values(rng: Rng) -> list[Array]:
        pairs = [(x, y, edges[(i + j) % len(edges)]) for i, x in enumerate(edges)
                 for j, y in enumerate(edges)]  # fmt: skip
        grid = np.array(pairs).astype(kind)
        arrays = []
        scale = rng.integers(-6, 7, extra)
        for column in range(columns):
            drawn = rng.standard_normal(extra) * 2.0 ** (scale + rng.integers(-3, 4, extra))
            drawn[: extra // 5] = np.round(drawn[: extra // 5])
            arrays.append(np.concatenate([grid[:, column], drawn.astype(kind)]))
        return arrays

    return values


def _float_ops(t: str, dtype: str) -> list[Op]:
    ops = [_setp(name, t, compare) for name, compare in _float_comparisons().items()]
    width = 8 * np.dtype(dtype).itemsize
    ops += [
        Op(
            f"{{ .reg .pred p, q; setp.lt.and.{t} p|q, a, b, %always; selp.{t} d, a, b, q; }}",
            dtype,
            lambda a, b: np.asarray(np.where(~(a < b), a, b)),
        ),
        Op(
            f"{{ .reg .pred p; setp.gtu.{t} p, a, b; selp.b{width} d, a, b, p; }}",
            dtype,
            lambda a, b: np.asarray(np.where((a > b) | _is_nan(a, b), a, b)),
        ),
        Op(
            f"set.ltu.u32.{t} d, a, b;",
            "u4",
            lambda a, b: np.where((a < b) | _is_nan(a, b), 0xFFFFFFFF, 0).astype(np.uint32),
        ),
        Op(f"set.ne.f32.{t} d, a, b;", "f4",
           lambda a, b: ((a != b) & ~_is_nan(a, b)).astype(np.float32)),
    ]  # fmt: skip
    return ops


def _flushing_ops() -> list[Op]:
    def eq(a: Array, b: Array) -> Array:
        return np.asarray(flush32(a) == flush32(b))

    return [
        _setp("eq.ftz", "f32", eq),
        _setp("ltu.ftz", "f32", lambda a, b: (flush32(a) < flush32(b)) | _is_nan(a, b)),
        Op(
            "set.ge.ftz.f32.f32 d, a, b;",
            "f4",
            lambda a, b: (flush32(a) >= flush32(b)).astype(np.float32),
        ),
        Op("{ .reg .b32 s; mov.b32 s, b; slct.b32.s32 d, 11, 22, s; }", "u4",
           lambda a, b: np.where(b.view(np.int32) >= 0, 11, 22).astype(np.uint32)),
        Op("slct.f32.f32 d, 0f3F800000, 0f40000000, b;", "f4",
           lambda a, b: np.where(b >= 0, 1, 2).astype(np.float32)),
        Op("slct.ftz.u32.f32 d, 3, 4, b;", "u4",
           lambda a, b: np.where(flush32(b) >= 0, 3, 4).astype(np.uint32)),
        Op("{ .reg .b64 x, y, w; mov.b64 x, 5; mov.b64 y, 6; slct.u64.f32 w, x, y, b;"
           " cvt.u32.u64 d, w; }", "u4",
           lambda a, b: np.where(b >= 0, 5, 6).astype(np.uint32)),
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


_ALWAYS = "    .reg .pred %always; setp.eq.u32 %always, 0, 0;"

CASES: tuple[Case, ...] = (
    *(
        sweep(
            f"compare_{'s' if signed else 'u'}{bits}",
            _integer_ops(bits, signed),
            (f"{'i' if signed else 'u'}{bits // 8}",) * 2,
            operands(bits, signed, 2, rows=60),
            covers=frozenset({"setp", "set", "selp"}),
        )
        for bits in (16, 32, 64)
        for signed in (True, False)
    ),
    sweep(
        "compare_f32",
        [*_float_ops("f32", "f4"), *_flushing_ops()],
        ("f4", "f4"),
        float_operands("f4", 2),
        before=_ALWAYS,
        covers=frozenset({"setp", "set", "slct", "ftz", "nan"}),
    ),
    sweep(
        "compare_f64",
        _float_ops("f64", "f8"),
        ("f8", "f8"),
        float_operands("f8", 2),
        before=_ALWAYS,
        covers=frozenset({"setp", "set", "nan"}),
    ),
    sweep(
        "predicate_logic",
        _logic_ops(),
        ("i4", "i4"),
        operands(32, True, 2, rows=60),
        block=56,
        covers=frozenset({"predicates"}),
    ),
)
