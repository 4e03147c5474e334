"""``cvt`` to and from pairs: halves, bytes, TensorFloat-32, and floats of eight, six and four bits.

References are exact (`exact`). Source: PTX ISA 9.0, sections 5.2.3 (alternate formats) and 9.7.9.21
(``cvt``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from . import exact
from .case import Array, Case, Rng
from .conversions import as_float, as_integer, clamp, convert, whole
from .exact import F16, F32, FORMATS, Format
from .floats import patterns
from .sweep import Op, integer_op, sweep

# -- packed ------------------------------------------------------------------------------------


def _packed() -> list[Op]:
    """Two single-precision numbers in one word: the first operand on top."""
    ops = []
    for t, mode, relu in itertools.product(("f16", "bf16"), ("rn", "rz"), ("", ".relu")):
        half = convert(f".{mode}{relu}", FORMATS[t], F32)
        ops.append(
            integer_op(
                f"cvt.{mode}{relu}.{t}x2.f32 d, a, b;",
                "u4",
                lambda a, b, half=half: half(b) | half(a) << 16,
            )
        )
    tf32 = Format(8, 10)
    for modifier, mode in (("rna", "rna"), ("rn", "rn"), ("rz", "rz")):

        def kept(a: int, b: int, mode: Any = mode) -> int:
            return F32.nan if F32.is_nan(a) else as_float(tf32, F32, a, mode) << 13

        ops.append(integer_op(f"cvt.{modifier}.tf32.f32 d, a;", "u4", kept))

    def pack(bits: int) -> Callable[[int, int], int]:
        def packed(a: int, b: int) -> int:
            low, high = (clamp(as_integer(F32, x, "rz", 32, True), bits, False) for x in (b, a))
            # The third operand, here b's pattern, moves up.
            return low | high << bits | (b << 16 if bits == 8 else 0)

        return packed

    ops.append(integer_op("cvt.pack.sat.u16.s32 d, p, q;", "u4", pack(16)))
    ops.append(integer_op("cvt.pack.sat.u8.s32.b32 d, p, q, b;", "u4", pack(8)))
    return ops


_PACK_INPUTS = "    .reg .b32 p, q; cvt.rzi.s32.f32 p, a; cvt.rzi.s32.f32 q, b;"  # for cvt.pack


# -- floats of eight, six and four bits, in pairs ----------------------------------------------

# exponent bits, mantissa bits, largest number's pattern, NaN's pattern if there is one
_MINI: dict[str, tuple[int, int, int, int | None]] = {
    "e4m3": (4, 3, 0x7E, 0x7F),
    "e5m2": (5, 2, 0x7B, 0x7F),
    "e2m3": (2, 3, 0x1F, None),
    "e3m2": (3, 2, 0x1F, None),
    "e2m1": (2, 1, 0x7, None),
}


def _to_mini(t: str) -> Callable[[int], int]:
    """Nearest by distance, ties to the even pattern."""
    exponent, mantissa, largest, nan = _MINI[t]
    small = Format(exponent, mantissa)
    # One more exponent has room for the finite numbers of the top binade.
    wide = Format(8, mantissa)

    def encoded(x: int) -> int:
        if F32.is_nan(x):
            return largest if nan is None else nan
        sign = small.sign if x & F32.sign else 0
        x &= ~F32.sign
        if F32.is_infinite(x):
            return largest | sign
        number, power = F32.decode(x)
        least = small.least_exponent - mantissa
        if power + number.bit_length() - 1 < small.least_exponent:  # units of the least subnormal
            return whole(number, power - least, "rn") | sign
        bias = (wide.least_exponent - small.least_exponent) << mantissa
        return min(wide.encode(number, power) + bias, largest) | sign

    return encoded


def _of_mini(t: str) -> Callable[[int], int]:
    exponent, mantissa, largest, _ = _MINI[t]
    small = Format(exponent, mantissa)

    def decoded(x: int) -> int:
        sign = 0x8000 if x & small.sign else 0
        magnitude = x & (small.sign - 1)
        if magnitude <= largest:
            return F16.encode(*small.decode(magnitude)) | sign
        return F16.infinity | sign if t == "e5m2" and magnitude == 0x7C else F16.nan

    return decoded


def _minifloats(types: tuple[str, ...]) -> list[Op]:
    ops = []
    for t in types:
        slot = 4 if t == "e2m1" else 8
        register = ".reg .b8 m;" if slot == 4 else ".reg .b16 m;"
        encode, decode = _to_mini(t), _of_mini(t)
        mask = (1 << sum(_MINI[t][:2]) + 1) - 1

        def both(a: int, b: int, encode: Any = encode, slot: int = slot) -> int:
            return int(encode(a) << slot | encode(b))

        def back(a: int, b: int, decode: Any = decode, mask: int = mask, slot: int = slot) -> int:
            return int(decode(a & mask) | decode(a >> slot & mask) << 16)

        out, take = ("cvt.u32.u8 d, m;", "cvt.u8.u32 m, c;") if slot == 4 else (
            "cvt.u32.u16 d, m;", "cvt.u16.u32 m, c;")  # fmt: skip
        ops += [
            integer_op(f"{{ {register} cvt.rn.satfinite.{t}x2.f32 m, a, b; {out} }}", "u4", both),
            # Every pattern that the type has comes up among the low bits of a.
            integer_op(
                f"{{ {register} .reg .b32 c; and.b32 c, a, {mask | mask << slot:#x}; {take}"
                f" cvt.rn.f16x2.{t}x2 d, m; }}",
                "u4",
                back,
            ),
        ]
        if t == "e4m3":
            widen = convert("", F32, F16)

            def relu(a: int, b: int, encode: Any = encode, widen: Any = widen) -> int:
                halves = (encode(widen(x)) for x in (a & 0xFFFF, a >> 16))
                low, high = (0 if x & 0x80 and x & 0x7F != 0x7F else x for x in halves)
                return int(low | high << 8)

            ops.append(
                integer_op(
                    "{ .reg .b16 m; cvt.rn.satfinite.relu.e4m3x2.f16x2 m, a; cvt.u32.u16 d, m; }",
                    "u4",
                    relu,
                )
            )
    return ops


def _mini_values(types: tuple[str, ...]) -> Callable[[Rng], list[Array]]:
    """Numbers of each type, mid-points between them and neighbours, in single precision."""
    points = set()
    for t in types:
        exponent, mantissa, largest, _ = _MINI[t]
        small = Format(exponent, mantissa)
        every = [small.decode(x) for x in range(largest + 1)]
        for (m, e), (n, g) in itertools.pairwise(every):
            low = min(e, g)
            points |= {F32.encode(m, e), F32.encode(n, g)}
            points.add(F32.encode((m << (e - low)) + (n << (g - low)), low - 1))
    further = sorted({p + step for p in points for step in (-1, 0, 1) if p + step >= 0})
    further += [bits | F32.sign for bits in further] + list(range(1 << 16))[::7]
    further += [low | low >> 3 << 8 for low in range(256)]

    def values(rng: Rng) -> list[Array]:
        (a,) = exact.samples(F32, 1, rng, 100, further)
        return [a, a[::-1].copy()]

    return values


_EIGHT, _FEWER = ("e4m3", "e5m2"), ("e2m3", "e3m2", "e2m1")

CASES: tuple[Case, ...] = (
    sweep(
        "convert_packed",
        _packed(),
        ("u4", "u4"),
        patterns(F32, 2),
        arch="compute_90",
        before=_PACK_INPUTS,
        covers="cvt bf16 f16",
    ),
    sweep(
        "convert_eight_bits",
        _minifloats(_EIGHT),
        ("u4", "u4"),
        _mini_values(_EIGHT),
        arch="compute_90",
        version="8.6",
        covers="cvt e4m3",
    ),
    sweep(
        "convert_fewer_bits",
        _minifloats(_FEWER),
        ("u4", "u4"),
        _mini_values(_FEWER),
        arch="compute_100a",
        version="8.8",
        covers="cvt e2m1",
    ),
)
