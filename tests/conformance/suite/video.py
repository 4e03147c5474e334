"""Dot products of packed integers and the SIMD video instructions.

Source: PTX ISA 9.0, sections 9.7.1 (``dp4a``, ``dp2a``) and 9.7.17 (video).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .integers import operands
from .sweep import Op, integer_op, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _signed(value: int, bits: int) -> int:
    value &= _mask(bits)
    return value - (1 << bits) if value >> (bits - 1) else value


# -- dot products and video instructions -------------------------------------------------------


def _parts(word: int, width: int, signed: bool) -> list[int]:
    pieces = [word >> i & _mask(width) for i in range(0, 32, width)]
    return [_signed(p, width) for p in pieces] if signed else pieces


def _dots() -> list[Op]:
    ops = []
    for ta in "us":
        for tb in "us":
            result = "i4" if "s" in (ta, tb) else "u4"

            def four(a: int, b: int, c: int, sa: bool = ta == "s", sb: bool = tb == "s") -> int:
                pairs = zip(_parts(a, 8, sa), _parts(b, 8, sb), strict=True)
                return c + sum(x * y for x, y in pairs)

            ops.append(integer_op(f"dp4a.{ta}32.{tb}32 d, a, b, c;", result, four))
            for half in ("lo", "hi"):

                def two(
                    a: int,
                    b: int,
                    c: int,
                    sa: bool = ta == "s",
                    sb: bool = tb == "s",
                    first: int = 0 if half == "lo" else 2,
                ) -> int:
                    words, octets = _parts(a, 16, sa), _parts(b, 8, sb)[first : first + 2]
                    return c + sum(x * y for x, y in zip(words, octets, strict=True))

                ops.append(integer_op(f"dp2a.{half}.{ta}32.{tb}32 d, a, b, c;", result, two))
    return ops


def _video() -> list[Op]:
    """SIMD video instructions of two and four lanes, plain and with accumulation.

    Without ``.add`` the third operand supplies the lanes that the destination mask leaves out;
    with the full mask it has no effect.
    """

    def lanes(width: int, function: Any) -> Any:
        def packed(a: int, b: int, c: int) -> int:
            pairs = zip(_parts(a, width, False), _parts(b, width, False), strict=True)
            return sum(
                (function(x, y) & _mask(width)) << i * width for i, (x, y) in enumerate(pairs)
            )

        return packed

    def added(width: int, signed: bool = False) -> Any:
        def total(a: int, b: int, c: int) -> int:
            pairs = zip(_parts(a, width, signed), _parts(b, width, signed), strict=True)
            return c + sum(abs(x - y) for x, y in pairs)

        return total

    ops = []
    for count, width in ((2, 16), (4, 8)):
        t = "u32.u32.u32"
        ops += [
            integer_op(
                f"vabsdiff{count}.{t} d, a, b, c;", "u4", lanes(width, lambda x, y: abs(x - y))
            ),
            integer_op(f"vabsdiff{count}.{t}.add d, a, b, c;", "u4", added(width)),
            integer_op(f"vabsdiff{count}.u32.s32.s32.add d, a, b, c;", "u4", added(width, True)),
        ]
    return ops


def _video_more() -> list[Op]:
    """The rest of the family, which CUDA's ``__vadd4`` and its like expand without."""

    def lanes(width: int, function: Any, signed: bool) -> Any:
        def packed(a: int, b: int, c: int) -> int:
            pairs = zip(_parts(a, width, signed), _parts(b, width, signed), strict=True)
            return sum(
                (function(x, y) & _mask(width)) << i * width for i, (x, y) in enumerate(pairs)
            )

        return packed

    ops = []
    for count, width in ((2, 16), (4, 8)):
        for name, function in (
            ("vadd", lambda x, y: x + y),
            ("vsub", lambda x, y: x - y),
            ("vmin", min),
            ("vmax", max),
        ):
            for sign in "us":
                t = f"{sign}32"
                ops.append(
                    integer_op(
                        f"{name}{count}.{t}.{t}.{t} d, a, b, c;",
                        "u4",
                        lanes(width, function, sign == "s"),
                    )
                )
    return ops


CASES: tuple[Case, ...] = (
    sweep(
        "dot_products",
        _dots(),
        ("u4", "u4", "u4"),
        operands(32, False, 3),
        covers=frozenset({"dp4a", "dp2a"}),
    ),
    sweep(
        "video",
        _video(),
        ("u4", "u4", "u4"),
        operands(32, False, 3),
        covers=frozenset({"video"}),
    ),
    sweep(
        "video_simd",
        _video_more(),
        ("u4", "u4", "u4"),
        operands(32, False, 3),
        covers=frozenset({"video"}),
    ),
)
