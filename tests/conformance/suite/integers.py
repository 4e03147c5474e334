"""Integer arithmetic of 16, 32 and 64 bits, with references in Python's own integers.

Source: PTX ISA 9.0, sections 9.7.1 (integer), 9.7.2 (extended precision) and 9.7.6 to 9.7.7
(comparison and logic). Results that the ISA leaves open (division by zero and the one signed
overflow) only have to leave the device alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Array, Case, Expected, Rng, Satisfies
from .sweep import Op, integer_op, sweep


def _edges(bits: int, signed: bool) -> list[int]:
    top = 1 << bits
    values = {
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        31,
        32,
        33,
        0x55,
        0x7FFF,
        0x8000,
        0xFFFF,
        1 << 23,
        (1 << 24) - 1,
    }
    values |= {top // 2 + d for d in (-2, -1, 0, 1)} | {top - d for d in (1, 2, 7)}
    values |= {top // 4 - 1, top // 4, (top - 1) // 3, top // 6, 1 << bits // 2}
    wrapped = sorted({v % top for v in values} | {(1 << bits // 2) - 1})
    return [v - top if signed and v >= top // 2 else v for v in wrapped]


def _draw(rng: Rng, bits: int, signed: bool, count: int) -> Array:
    raw: Array = rng.integers(0, 2**63, count).astype(np.uint64) * np.uint64(2)
    raw = (raw ^ (raw >> np.uint64(31))) >> rng.integers(0, bits, count).astype(np.uint64)
    drawn: Array = raw.astype(f"u{bits // 8}").view(f"{'i' if signed else 'u'}{bits // 8}")
    return drawn


def operands(bits: int, signed: bool, columns: int, *, nonzero: int = -1, rows: int = 150) -> Any:
    """A function that draws ``columns`` arrays: every pair of edge values, then random ones.

    ``nonzero`` is a column whose zeros become ones; where it is -1 besides the lowest number of
    the column before, it becomes 1 too (the one quotient that overflows).
    """
    edges = _edges(bits, signed)
    dtype = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")

    def values(rng: Rng) -> list[Array]:
        arrays = []
        many = len(edges)
        pairs = np.array(
            [(x, y, edges[(i + k + 7) % many]) for i, x in enumerate(edges)
             for k, y in enumerate(edges)],
            dtype,
        )  # fmt: skip
        for column in range(columns):
            arrays.append(np.concatenate([pairs[:, column], _draw(rng, bits, signed, rows)]))
        if nonzero >= 0:
            divisor = arrays[nonzero]
            divisor[divisor == 0] = 1
            if signed:
                lowest = np.iinfo(dtype).min
                divisor[(divisor == -1) & (arrays[nonzero - 1] == lowest)] = 1
        return arrays

    return values


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _clamp(value: int, bits: int) -> int:
    return min(max(value, -(1 << (bits - 1))), (1 << (bits - 1)) - 1)


def _typed(bits: int, signed: bool) -> list[Op]:
    """The arithmetic that exists for every integer type."""
    t = f"{'s' if signed else 'u'}{bits}"
    d = f"{'i' if signed else 'u'}{bits // 8}"
    wide = f"{'i' if signed else 'u'}{bits // 4}"
    ops = [
        integer_op(f"add.{t} d, a, b;", d, lambda a, b, c: a + b),
        integer_op(f"sub.{t} d, a, b;", d, lambda a, b, c: a - b),
        integer_op(f"mul.lo.{t} d, a, b;", d, lambda a, b, c: a * b),
        integer_op(f"mul.hi.{t} d, a, b;", d, lambda a, b, c: a * b >> bits),
        integer_op(f"mad.lo.{t} d, a, b, c;", d, lambda a, b, c: a * b + c),
        integer_op(f"mad.hi.{t} d, a, b, c;", d, lambda a, b, c: (a * b >> bits) + c),
        integer_op(f"sad.{t} d, a, b, c;", d, lambda a, b, c: c + abs(a - b)),
        integer_op(f"div.{t} d, a, b;", d, lambda a, b, c: _truncated(a, b)),
        integer_op(f"rem.{t} d, a, b;", d, lambda a, b, c: a - b * _truncated(a, b)),
        integer_op(f"min.{t} d, a, b;", d, lambda a, b, c: min(a, b)),
        integer_op(f"max.{t} d, a, b;", d, lambda a, b, c: max(a, b)),
    ]
    if signed:
        ops += [
            integer_op(f"neg.{t} d, a;", d, lambda a, b, c: -a),
            integer_op(f"abs.{t} d, a;", d, lambda a, b, c: abs(a)),
        ]
    if bits < 64:
        ops += [
            integer_op(f"mul.wide.{t} d, a, b;", wide, lambda a, b, c: a * b),
            integer_op(
                f"{{ .reg .b{2 * bits} w; cvt.{t[0]}{2 * bits}.{t} w, c;"
                f" mad.wide.{t} d, a, b, w; }}",
                wide,
                lambda a, b, c: a * b + c,
            ),
        ]
    return ops


def _saturating() -> list[Op]:
    return [
        integer_op("add.sat.s32 d, a, b;", "i4", lambda a, b, c: _clamp(a + b, 32)),
        integer_op("sub.sat.s32 d, a, b;", "i4", lambda a, b, c: _clamp(a - b, 32)),
        integer_op(
            "mad.hi.sat.s32 d, a, b, c;", "i4", lambda a, b, c: _clamp((a * b >> 32) + c, 32)
        ),
    ]


def _low24(value: int, signed: bool) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if signed and value >= 1 << 23 else value


def _mul24(signed: bool) -> list[Op]:
    """Products of the low 24 bits; ``hi`` is bits 16 to 47 of the 48-bit product."""
    t, d = ("s32", "i4") if signed else ("u32", "u4")

    def product(a: int, b: int) -> int:
        return _low24(a, signed) * _low24(b, signed)

    ops = [
        integer_op(f"mul24.lo.{t} d, a, b;", d, lambda a, b, c: product(a, b)),
        integer_op(f"mul24.hi.{t} d, a, b;", d, lambda a, b, c: product(a, b) >> 16),
        integer_op(f"mad24.lo.{t} d, a, b, c;", d, lambda a, b, c: product(a, b) + c),
        integer_op(f"mad24.hi.{t} d, a, b, c;", d, lambda a, b, c: (product(a, b) >> 16) + c),
    ]
    if signed:
        ops.append(
            integer_op(
                "mad24.hi.sat.s32 d, a, b, c;",
                d,
                lambda a, b, c: _clamp((product(a, b) >> 16) + c, 32),
            )
        )
    return ops


_HALVES = "mov.b64 {al, ah}, a; mov.b64 {bl, bh}, b; mov.b64 {cl, ch}, c;"
_REGS = ".reg .b32 al, ah, bl, bh, cl, ch, p, q, r, s; "


def _extended() -> list[Op]:
    """Carry chains: 64- and 128-bit arithmetic from 32-bit instructions, and 64-bit carries."""

    def chain(body: str, result: str = "mov.b64 d, {p, q};") -> str:
        return f"{{ {_REGS}{_HALVES}\n        {body}\n        {result} }}"

    product = """mul.lo.u32 p, al, bl; mul.hi.u32 q, al, bl;
        mad.lo.cc.u32 q, al, bh, q; madc.hi.u32 r, al, bh, 0;
        mad.lo.cc.u32 q, ah, bl, q; madc.hi.cc.u32 r, ah, bl, r; addc.u32 s, 0, 0;
        mad.lo.cc.u32 r, ah, bh, r; madc.hi.u32 s, ah, bh, s;"""
    mixed = """mad.lo.cc.u32 p, al, bl, cl; madc.lo.cc.u32 q, ah, bl, ch;
        madc.hi.cc.u32 r, al, bl, 0; madc.lo.u32 s, ah, bh, 7;"""

    def mixed_parts(a: int, b: int, c: int) -> int:
        low, mask = (1 << 32) - 1, (1 << 32) - 1
        al, ah, bl, bh, cl, ch = a & low, a >> 32, b & low, b >> 32, c & low, c >> 32
        p = ((al * bl) & mask) + cl
        q = ((ah * bl) & mask) + ch + (p >> 32)
        r = (al * bl >> 32) + (q >> 32)
        s = ((ah * bh) & mask) + 7 + (r >> 32)
        return p & mask | (q & mask) << 32 | (r & mask) << 64 | (s & mask) << 96

    return [
        integer_op(chain("add.cc.u32 p, al, bl; addc.u32 q, ah, bh;"), "u8", lambda a, b, c: a + b),
        *(
            integer_op(
                chain(
                    f"add.cc.u32 p, al, bl; addc.cc.{t} q, ah, bh; addc.u32 r, 0, 0;",
                    "mov.b32 d, r;",
                ),
                "u4",
                lambda a, b, c: a + b >> 64,
            )
            for t in ("u32", "s32")
        ),
        integer_op(chain("sub.cc.u32 p, al, bl; subc.u32 q, ah, bh;"), "u8", lambda a, b, c: a - b),
        *(
            integer_op(
                chain(
                    f"sub.cc.u32 p, al, bl; subc.cc.{t} q, ah, bh; subc.u32 r, 0, 0;",
                    "mov.b32 d, r;",
                ),
                "u4",
                lambda a, b, c: a - b >> 64,
            )
            for t in ("u32", "s32")
        ),
        integer_op(chain(product), "u8", lambda a, b, c: a * b),
        integer_op(chain(product, "mov.b64 d, {r, s};"), "u8", lambda a, b, c: a * b >> 64),
        integer_op(chain(mixed), "u8", lambda a, b, c: mixed_parts(a, b, c) & (1 << 64) - 1),
        integer_op(
            chain(mixed, "mov.b64 d, {r, s};"),
            "u8",
            lambda a, b, c: mixed_parts(a, b, c) >> 64,
        ),
        integer_op(
            "{ .reg .b64 e; add.cc.u64 e, a, b; addc.u64 d, c, 0; }",
            "u8",
            lambda a, b, c: c + (a + b >> 64),
        ),
        integer_op(
            "{ .reg .b64 e; sub.cc.s64 e, a, b; subc.s64 d, c, 1; }",
            "u8",
            lambda a, b, c: c - 1 - (1 if a < b else 0),
        ),
        # Across kinds the flag is a carry, as NVRTC's division of 128-bit integers has it.
        integer_op(
            "{ .reg .b64 e; sub.cc.u64 e, a, b; addc.u64 d, c, 0; }",
            "u8",
            lambda a, b, c: c + (a >= b),
        ),
        integer_op(
            "{ .reg .b64 e; add.cc.u64 e, a, b; subc.u64 d, c, 0; }",
            "u8",
            lambda a, b, c: c - 1 + (a + b >> 64),
        ),
        integer_op(
            "{ .reg .b64 e; mad.lo.cc.u64 e, a, b, c; madc.hi.u64 d, a, b, 0; }",
            "u8",
            lambda a, b, c: a * b + c >> 64,
        ),
    ]


def _constants() -> list[Op]:
    """Divisors that the compiler knows."""
    return [
        integer_op(f"div.s32 d, a, {n};", "i4", lambda a, b, c, n=n: _truncated(a, n))
        for n in (1, 3, -7, 1 << 20, -(1 << 31))
    ]


def _undefined() -> list[Op]:
    def anything(*_: Array) -> Expected:
        return Satisfies(lambda actual: True, "anything: the quotient is undefined")

    return [
        Op(f"{op}.{t} d, a, b;", f"{t[0].replace('s', 'i')}4", anything)
        for op in ("div", "rem")
        for t in ("s32", "u32")
    ]


def _division_by_zero(rng: Rng) -> list[Array]:
    a = np.array([0, 1, -1, -(2**31), 2**31 - 1, 7] * 3, np.int32)
    b = np.repeat(np.array([0, -1, 0], np.int32), 6)
    return [a, b]


def _relu() -> list[Op]:
    """``min`` and ``max`` with ReLU, and the packed 16-bit forms (PTX 8.0, sm_90)."""

    def halves(word: int, signed: bool) -> tuple[int, int]:
        parts = (word & 0xFFFF, word >> 16 & 0xFFFF)
        if signed:
            return tuple(p - 0x10000 if p >= 0x8000 else p for p in parts)  # type: ignore[return-value]
        return parts

    def packed(text: str, signed: bool, function: Any) -> Op:
        def both(a: int, b: int, c: int) -> int:
            low, high = (
                function(x, y) & 0xFFFF
                for x, y in zip(halves(a, signed), halves(b, signed), strict=True)
            )
            return int(low | high << 16)

        return integer_op(f"{text} d, a, b;", "u4", both)

    return [
        integer_op("min.relu.s32 d, a, b;", "i4", lambda a, b, c: max(min(a, b), 0)),
        integer_op("max.relu.s32 d, a, b;", "i4", lambda a, b, c: max(a, b, 0)),
        integer_op("min.s32.relu d, a, b;", "i4", lambda a, b, c: max(min(a, b), 0)),
        packed("add.u16x2", False, lambda x, y: x + y),
        packed("add.s16x2", True, lambda x, y: x + y),
        packed("min.u16x2", False, min),
        packed("min.s16x2", True, min),
        packed("max.u16x2", False, max),
        packed("max.s16x2", True, max),
        packed("min.s16x2.relu", True, lambda x, y: max(min(x, y), 0)),
        packed("min.relu.s16x2", True, lambda x, y: max(min(x, y), 0)),
        packed("max.relu.s16x2", True, lambda x, y: max(x, y, 0)),
    ]


def _typed_case(bits: int, signed: bool, extra: list[Op]) -> Case:
    t = f"{'s' if signed else 'u'}{bits}"
    dtype = f"{'i' if signed else 'u'}{bits // 8}"
    return sweep(
        f"integer_{t}",
        [*_typed(bits, signed), *extra],
        (dtype,) * 3,
        operands(bits, signed, 3, nonzero=1),
        covers=f"integer.{t}",
    )


# -- integers of 128 bits, which the compiler makes of pairs ------------------------------------

INT128 = r"""
struct Wide { unsigned long long low, high; };
__device__ __noinline__ unsigned __int128 joined(Wide w) {
    return (unsigned __int128)w.high << 64 | w.low;
}
extern "C" __global__ void int128(const Wide* in, Wide* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned __int128 a = joined(in[2 * i]), b = joined(in[2 * i + 1]);
    unsigned __int128 found[6] = {a + b, a * b, a / b, a % b, a >> (i & 127), (a < b) + (a ^ b)};
    for (int k = 0; k < 6; k++) {
        out[6 * i + k] = Wide{(unsigned long long)found[k], (unsigned long long)(found[k] >> 64)};
    }
}
"""
_INT128_COUNT = 192


def _int128_make(rng: np.random.Generator) -> list[Any]:
    given = rng.integers(0, 2**64, (_INT128_COUNT, 2, 2), dtype=np.uint64)
    given[::3, 1, 1] = 0  # divisors of one word, too
    given[:, 1, 0] |= np.uint64(1)
    return [given, np.zeros((_INT128_COUNT, 6, 2), np.uint64)]


def _int128_expect(args: list[Any]) -> dict[int | str, Any]:
    out = np.zeros_like(args[1])
    for i, pair in enumerate(args[0].tolist()):
        a, b = (low | high << 64 for low, high in pair)
        for k, value in enumerate((a + b, a * b, a // b, a % b, a >> (i & 127), (a < b) + (a ^ b))):
            out[i, k] = value & (2**64 - 1), value >> 64 & (2**64 - 1)
    return {1: out}


CASES: tuple[Case, ...] = (
    _typed_case(16, True, []),
    _typed_case(16, False, []),
    _typed_case(32, True, [*_saturating(), *_mul24(True), *_constants()]),
    _typed_case(32, False, _mul24(False)),
    _typed_case(64, True, []),
    _typed_case(64, False, []),
    sweep(
        "integer_carry", _extended(), ("u8",) * 3, operands(64, False, 3), block=120, covers="carry"
    ),
    sweep(
        "integer_packed",
        _relu(),
        ("i4",) * 3,
        operands(32, True, 3),
        arch="compute_90",
        covers="relu packed16",
    ),
    sweep(
        "division_undefined",
        _undefined(),
        ("i4", "i4"),
        _division_by_zero,
        block=32,
        covers="division-by-zero",
    ),
    Case(
        "int128",
        INT128,
        (3,),
        (64,),
        _int128_make,
        _int128_expect,
        covers=frozenset({"integer.128", "call"}),
        long=True,
    ),
)
