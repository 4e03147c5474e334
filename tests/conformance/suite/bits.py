"""Shifts, bit fields, permutes and the other instructions that treat words as bits.

Source: PTX ISA 9.0, sections 9.7.1 (integer and bit field), 9.7.8 (logic and shift), 9.7.9
(``prmt``) and 9.7.17 (video).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Array, Case, Rng
from .integers import operands
from .sweep import Op, integer_op, sweep


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _signed(value: int, bits: int) -> int:
    value &= _mask(bits)
    return value - (1 << bits) if value >> (bits - 1) else value


# -- logic and shifts --------------------------------------------------------------------------


def _logic(bits: int) -> list[Op]:
    d = f"u{bits // 8}"
    ops = [
        integer_op(f"and.b{bits} d, a, b;", d, lambda a, b, s: a & b),
        integer_op(f"or.b{bits} d, a, b;", d, lambda a, b, s: a | b),
        integer_op(f"xor.b{bits} d, a, b;", d, lambda a, b, s: a ^ b),
        integer_op(f"not.b{bits} d, a;", d, lambda a, b, s: ~a),
        integer_op(f"cnot.b{bits} d, a;", d, lambda a, b, s: int(a == 0)),
        integer_op(f"shl.b{bits} d, a, c;", d, lambda a, b, s: a << s if s < bits else 0),
        integer_op(f"shr.u{bits} d, a, c;", d, lambda a, b, s: a >> s),
        integer_op(f"shr.b{bits} d, a, c;", d, lambda a, b, s: a >> s),
        integer_op(f"shr.s{bits} d, a, c;", d, lambda a, b, s: _signed(a, bits) >> s),
        integer_op(f"shl.b{bits} d, a, {bits - 1};", d, lambda a, b, s: a << (bits - 1)),
        integer_op(f"shr.s{bits} d, a, {bits + 9};", d, lambda a, b, s: _signed(a, bits) >> bits),
        *(
            integer_op(f"shr.s{bits} d, a, {n};", d, lambda a, b, s, n=n: _signed(a, bits) >> n)
            for n in (0, 7, bits - 1, bits)
        ),
    ]
    if bits >= 32:
        ops += [
            integer_op(f"popc.b{bits} d, a;", "u4", lambda a, b, s: a.bit_count()),
            integer_op(f"clz.b{bits} d, a;", "u4", lambda a, b, s: bits - a.bit_length()),
            integer_op(f"brev.b{bits} d, a;", d, lambda a, b, s: int(f"{a:0{bits}b}"[::-1], 2)),
        ]
    return ops


_COUNTS = (0, 1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 255, 256, 300, 1000, 1 << 31)


def _shift_values(bits: int) -> Any:
    """Every pair of counts, as low words of b and c, with a few words; then random ones."""
    draw = operands(bits, False, 2)

    def values(rng: Rng) -> list[Array]:
        a, b = draw(rng)
        every = rng.permutation(a)
        pairs = np.array([(m, n) for m in _COUNTS for n in _COUNTS], np.uint64)
        shift = rng.integers(0, bits + 8, a.size).astype(np.uint32)
        shift[: 5 * len(_COUNTS)] = _COUNTS * 5
        first = np.resize(every, len(pairs))
        return [
            np.concatenate([a, first]).astype(a.dtype),
            np.concatenate([b, pairs[:, 0].astype(b.dtype)]),
            np.concatenate([shift, pairs[:, 1].astype(np.uint32)]),
        ]

    return values


# -- funnel shifts, bit fields -----------------------------------------------------------------


def _funnel() -> list[Op]:
    def left(a: int, b: int, shift: int) -> int:
        return (b << 32 | a) << shift >> 32

    def right(a: int, b: int, shift: int) -> int:
        return (b << 32 | a) >> shift

    return [
        integer_op("shf.l.wrap.b32 d, a, b, c;", "u4", lambda a, b, c: left(a, b, c & 31)),
        integer_op("shf.l.clamp.b32 d, a, b, c;", "u4", lambda a, b, c: left(a, b, min(c, 32))),
        integer_op("shf.r.wrap.b32 d, a, b, c;", "u4", lambda a, b, c: right(a, b, c & 31)),
        integer_op("shf.r.clamp.b32 d, a, b, c;", "u4", lambda a, b, c: right(a, b, min(c, 32))),
    ]


def _extract(value: int, position: int, length: int, bits: int, signed: bool) -> int:
    """``bfe``: a field that reaches past the top is filled with the sign (zeros if unsigned)."""
    position, length = position & 255, length & 255
    if length == 0:
        return 0
    if signed:
        sign = value >> min(position + length - 1, bits - 1) & 1
    else:
        sign = 0
    taken = 0
    for i in range(bits):
        inside = i < length and position + i < bits
        taken |= (value >> (position + i) & 1 if inside else sign) << i
    return taken


def _insert(field: int, value: int, position: int, length: int, bits: int) -> int:
    position, length = position & 255, length & 255
    covered = (_mask(length) << position) & _mask(bits)
    return (value & ~covered) | (field << position & covered)


def _fields(bits: int) -> list[Op]:
    d, s = f"u{bits // 8}", f"i{bits // 8}"
    split = ".reg .b32 p, l; and.b32 p, c, 255; shr.u32 l, c, 8; and.b32 l, l, 255;"

    def extract(signed: bool) -> Any:
        return lambda a, b, c: _extract(a, c & 255, c >> 8 & 255, bits, signed)

    def find(signed: bool, shift_amount: bool) -> Any:
        def position(a: int, b: int, c: int) -> int:
            value = _signed(a, bits) if signed else a
            top = (~value if value < 0 else value).bit_length() - 1
            if top < 0:
                return -1
            return bits - 1 - top if shift_amount else top

        return position

    return [
        integer_op(f"{{ {split} bfe.u{bits} d, a, p, l; }}", d, extract(False)),
        integer_op(f"{{ {split} bfe.s{bits} d, a, p, l; }}", s, extract(True)),
        integer_op(
            f"{{ {split} bfi.b{bits} d, a, b, p, l; }}",
            d,
            lambda a, b, c: _insert(a, b, c, c >> 8, bits),
        ),
        # Only the low eight bits of position and length count.
        *(
            integer_op(
                f"{{ .reg .b32 l; cvt.u32.u{bits} l, b; bfe.{t}{bits} d, a, c, l; }}",
                d,
                lambda a, b, c, t=t: _extract(a, c, b, bits, t == "s"),
            )
            for t in "us"
        ),
        integer_op(
            f"{{ .reg .b32 l; cvt.u32.u{bits} l, b; bfi.b{bits} d, {_mask(bits) // 3 * 2:#x},"
            " a, c, l; }",
            d,
            lambda a, b, c: _insert(_mask(bits) // 3 * 2, a, c & 255, b & 255, bits),
        ),
        integer_op(f"bfi.b{bits} d, a, b, 5, 9;", d, lambda a, b, c: _insert(a, b, 5, 9, bits)),
        integer_op(f"bfe.u{bits} d, a, 3, 11;", d, lambda a, b, c: a >> 3 & 2047),
        integer_op(f"bfind.u{bits} d, a;", "u4", find(False, False)),
        integer_op(f"bfind.s{bits} d, a;", "u4", find(True, False)),
        integer_op(f"bfind.shiftamt.u{bits} d, a;", "u4", find(False, True)),
        integer_op(f"bfind.shiftamt.s{bits} d, a;", "u4", find(True, True)),
    ]


def _field_values(bits: int) -> Any:
    """Half of the rows have position and length in c, as the instructions of most ops take them."""
    draw = _shift_values(bits)

    def values(rng: Rng) -> list[Array]:
        a, b, c = draw(rng)
        place = rng.integers(0, 70, a.size) | rng.integers(0, 70, a.size) << 8
        place |= rng.integers(0, 2**16, a.size) << 16
        place[:5] = (0, 32 << 8, 31 | 1 << 8, 255 | 255 << 8, bits << 8)
        drawn = a.size - len(_COUNTS) ** 2
        return [a, b, np.concatenate([place[:drawn].astype(np.uint32), c[drawn:]])]

    return values


# -- permutes and three-input logic ------------------------------------------------------------


def _permute(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    result = 0
    for i in range(4):
        choice = selector >> 4 * i & 15
        byte = source[choice & 7]
        if choice & 8:
            byte = 255 if byte >> 7 else 0
        result |= byte << 8 * i
    return result


_PERMUTE_MODES = {
    # Which of the eight bytes each result byte takes, for the four values of c's low bits.
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _permutes() -> list[Op]:
    ops = [integer_op("prmt.b32 d, a, b, c;", "u4", _permute)]
    for mode, choices in _PERMUTE_MODES.items():

        def chosen(a: int, b: int, c: int, choices: tuple[int, ...] = choices) -> int:
            return _permute(a, b, choices[c & 3])

        ops.append(integer_op(f"prmt.b32.{mode} d, a, b, c;", "u4", chosen))
    for first in range(0, 256, 32):
        tables = range(first, first + 32)

        def looked_up(a: int, b: int, c: int, tables: range = tables) -> int:
            """All tables' results as one number, which any wrong bit changes."""
            minterms = [
                (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c) for k in range(8)
            ]
            total = 0
            for table in tables:
                word = 0
                for k in range(8):
                    if table >> k & 1:
                        word |= minterms[k]
                total = (total * 31 + (word & 0xFFFFFFFF)) & 0xFFFFFFFF
            return total

        steps = " ".join(
            f"lop3.b32 t, a, b, c, {table:#x}; mad.lo.u32 d, d, 31, t;" for table in tables
        )
        text = f"{{ .reg .b32 t; mov.b32 d, 0; {steps} }}"
        ops.append(integer_op(text, "u4", looked_up))
    for name in ("or", "and"):

        def and_predicate(a: int, b: int, c: int, name: str = name) -> int:
            result, q = a & b & c, c & 1
            return result ^ ((result != 0 or q) if name == "or" else (result != 0 and q)) << 31

        ops.append(
            integer_op(
                "{ .reg .pred p, q; .reg .b32 t; and.b32 t, c, 1; setp.ne.u32 q, t, 0;"
                f" lop3.{name}.b32 d|p, a, b, c, 0x80, q; @p xor.b32 d, d, 0x80000000; }}",
                "u4",
                and_predicate,
            )
        )
    return ops


def _find_nth_set(mask: int, base: int, offset: int) -> int:
    """``fns``: the position of the nth set bit from ``base``, upward or downward."""
    if offset == 0:
        return base if mask >> base & 1 else -1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [i for i in places if mask >> i & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else -1


def _misc() -> list[Op]:
    ops = [
        *(
            integer_op(
                f"bmsk.{mode}.b32 d, a, b;",
                "u4",
                lambda a, b, c, wrap=mode == "wrap": _bit_mask(a, b, wrap),
            )
            for mode in ("clamp", "wrap")
        ),
        integer_op("bmsk.clamp.b32 d, b, c;", "u4", lambda a, b, c: _bit_mask(b, c, False)),
        integer_op("bmsk.wrap.b32 d, b, c;", "u4", lambda a, b, c: _bit_mask(b, c, True)),
        *(
            integer_op(
                f"szext.{mode}.{t}32 d, a, {n};",
                "u4",
                lambda a, b, c, mode=mode, t=t, n=n: _extend(
                    a, (b if n == "b" else c) & (31 if mode == "wrap" else -1), t == "s"
                ),
            )
            for mode in ("clamp", "wrap")
            for t in "us"
            for n in "bc"
        ),
    ]
    for offset in (0, 1, 2, 3, 5, 16, 32, 33, -1, -2, -7, -32, -(1 << 31)):

        def nth(a: int, b: int, c: int, offset: int = offset) -> int:
            return _find_nth_set(a, c & 31, offset)

        ops.append(
            integer_op(
                f"{{ .reg .b32 p; and.b32 p, c, 31; fns.b32 d, a, p, {offset}; }}", "u4", nth
            )
        )
    ops.append(
        integer_op(
            "{ .reg .b32 p, n; and.b32 p, b, 31; shr.s32 n, c, 26; fns.b32 d, a, p, n; }",
            "u4",
            lambda a, b, c: _find_nth_set(a, b & 31, _signed(c, 32) >> 26),
        )
    )
    return ops


def _bit_mask(position: int, width: int, wrap: bool) -> int:
    if wrap:
        return _mask(width & 31) << (position & 31)
    return _mask(min(width, 32)) << min(position, 32)


def _extend(value: int, width: int, signed: bool) -> int:
    if width >= 32:
        return value
    if width == 0:
        return 0
    return _signed(value, width) if signed else value & _mask(width)


CASES: tuple[Case, ...] = (
    *(
        sweep(
            f"logic_b{bits}",
            _logic(bits),
            (f"u{bits // 8}", f"u{bits // 8}", "u4"),
            _shift_values(bits),
            covers=f"logic.b{bits}",
        )
        for bits in (16, 32, 64)
    ),
    *(
        sweep(
            f"fields_b{bits}",
            _fields(bits),
            (f"u{bits // 8}", f"u{bits // 8}", "u4"),
            _field_values(bits),
            covers="bfe bfi bfind",
        )
        for bits in (32, 64)
    ),
    sweep("funnel_shift", _funnel(), ("u4", "u4", "u4"), _shift_values(32), block=56, covers="shf"),
    sweep(
        "permute",
        _permutes(),
        ("u4", "u4", "u4"),
        operands(32, False, 3),
        version="8.6",
        covers="prmt lop3",
    ),
    sweep("bit_masks", _misc(), ("u4", "u4", "u4"), _shift_values(32), covers="fns bmsk szext"),
)
