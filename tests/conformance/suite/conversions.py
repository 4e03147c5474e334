"""``cvt`` between every pair of types, with every rounding and with saturation.

Source: PTX ISA 9.0, section 9.7.9.21 (``cvt``): integers are chopped unless ``.sat`` clamps them;
conversions from floating point clamp always; a NaN becomes zero, or the lowest number's pattern
where either side has 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from .case import Case
from .integers import operands
from .predicates import float_operands
from .reference import BF16, F16, F32, F64, Format, Mode, each, flush32, round_fraction
from .sweep import Op, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

_INTEGERS = [(bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)]
_FORMATS = {"f16": F16, "f32": F32, "f64": F64}
_DTYPES = {"f16": "f2", "f32": "f4", "f64": "f8"}


def _name(bits: int, signed: bool) -> str:
    return f"{'s' if signed else 'u'}{bits}"


def _dtype(bits: int, signed: bool) -> str:
    return f"{'i' if signed else 'u'}{bits // 8}"


def _clamp(value: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def _chop(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _into(bits: int, signed: bool, convert: str) -> tuple[str, str]:
    """PTX that converts into ``d`` and the result's dtype: bytes arrive in a 32-bit register."""
    if bits == 8:
        return convert, _dtype(32, signed)
    return convert, _dtype(bits, signed)


# -- integer to integer ------------------------------------------------------------------------


def _integer_to_integer(source: tuple[int, bool]) -> list[Op]:
    ops = []
    for bits, signed in _INTEGERS:
        if (bits, signed) == source:
            continue
        # ptxas refuses .sat where nothing can be out of range.
        lossless = _clamp(-(1 << 99), *source) == _clamp(_clamp(-(1 << 99), *source), bits, signed)
        lossless &= _clamp(1 << 99, *source) == _clamp(_clamp(1 << 99, *source), bits, signed)
        for sat in ("",) if lossless else ("", ".sat"):
            fit = _clamp if sat else _chop
            text, result = _into(
                bits, signed, f"cvt{sat}.{_name(bits, signed)}.{_name(*source)} d, a;"
            )
            ops.append(
                Op(
                    text,
                    result,
                    lambda a, bits=bits, signed=signed, fit=fit, result=result: each(
                        lambda x: fit(x, bits, signed), result, a
                    ),
                )
            )
    return ops


# -- integer to floating point and back --------------------------------------------------------


def _integer_to_float(source: tuple[int, bool]) -> list[Op]:
    ops = []
    modes: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")
    for t, form in _FORMATS.items():
        for mode in modes:
            ops.append(
                Op(
                    f"cvt.{mode}.{t}.{_name(*source)} d, a;",
                    _DTYPES[t],
                    lambda a, t=t, form=form, mode=mode: each(
                        lambda x: round_fraction(Fraction(x), form, mode), _DTYPES[t], a
                    ),
                )
            )
    return ops


_TO_INTEGER: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def _as_integer(x: float, mode: str, bits: int, signed: bool, wide: bool) -> int:
    if math.isnan(x):
        return _chop(1 << (bits - 1), bits, signed) if wide else 0
    if math.isinf(x):
        return _clamp(1 << 70 if x > 0 else -(1 << 70), bits, signed)
    return _clamp(_TO_INTEGER[mode](x), bits, signed)


def _float_to_integer(t: str) -> list[Op]:
    ops = []
    for bits, signed in _INTEGERS:
        wide = t == "f64" or bits == 64
        for mode in _TO_INTEGER:
            text, result = _into(bits, signed, f"cvt.{mode}.{_name(bits, signed)}.{t} d, a;")
            ops.append(
                Op(
                    text,
                    result,
                    lambda a, mode=mode, bits=bits, signed=signed, wide=wide, result=result: each(
                        lambda x: _as_integer(x, mode, bits, signed, wide), result, a
                    ),
                )
            )
    if t == "f32":
        ops += [
            Op(
                "cvt.rpi.ftz.s32.f32 d, a;",
                "i4",
                lambda a: each(lambda x: _as_integer(x, "rpi", 32, True, False), "i4", flush32(a)),
            ),
            Op(
                "cvt.rzi.sat.u8.f32 d, a;",
                "u4",
                lambda a: each(lambda x: _as_integer(x, "rzi", 8, False, False), "u4", a),
            ),
        ]
    return ops


def _float_values(t: str) -> Any:
    """Special values, halves and their neighbours, the limits of every integer type."""
    dtype = np.dtype(_DTYPES[t])
    draw = float_operands(_DTYPES[t], 1, extra=60)

    def values(rng: Rng) -> list[Array]:
        halves = np.arange(-12, 13) / 4
        limits = np.array([2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)])
        near = np.concatenate([limits, limits - 1, limits + 0.5, limits * 1.5, limits - 0.5])
        with np.errstate(over="ignore"):
            edges = np.concatenate([halves, near, -near]).astype(dtype)
        special = draw(rng)[0]
        return [np.concatenate([edges, special[::7], special[-60:]])]

    return values


# -- floating point to floating point ----------------------------------------------------------


def _rounded(form: Format, mode: Mode, dtype: str, *, relu: bool = False) -> Any:
    def convert(x: float) -> float:
        if math.isnan(x) or math.isinf(x):
            result = x
        else:
            result = round_fraction(
                Fraction(x), form, mode, negative_zero=math.copysign(1.0, x) < 0
            )
            if result == 0:
                result = math.copysign(0.0, x)
        return 0.0 if relu and not math.isnan(x) and result <= 0 else result

    return lambda a: each(convert, dtype, a)


_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _float_to_float(t: str) -> list[Op]:
    dtype = _DTYPES[t]
    ops = [
        Op(f"cvt.{mode}.{t}.{t} d, a;", dtype, lambda a, f=f: f(a).astype(a.dtype))
        for mode, f in _ROUND.items()
    ]
    ops.append(
        Op(
            f"cvt.sat.{t}.{t} d, a;",
            dtype,
            lambda a: np.abs(np.where(np.isnan(a), 0, np.clip(a, 0, 1))).astype(a.dtype),
        )
    )
    for other, form in _FORMATS.items():
        if form.bits > _FORMATS[t].bits:
            ops.append(
                Op(f"cvt.{other}.{t} d, a;", _DTYPES[other], _rounded(form, "rn", _DTYPES[other]))
            )
        elif form.bits < _FORMATS[t].bits:
            modes: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")
            for mode in modes:
                ops.append(
                    Op(
                        f"cvt.{mode}.{other}.{t} d, a;",
                        _DTYPES[other],
                        _rounded(form, mode, _DTYPES[other]),
                    )
                )
    if t == "f32":
        ops += [
            Op("cvt.ftz.f64.f32 d, a;", "f8", lambda a: flush32(a).astype(np.float64)),
            Op("cvt.rni.ftz.f32.f32 d, a;", "f4", lambda a: np.rint(flush32(a))),
            Op("cvt.ftz.sat.f32.f32 d, a;", "f4",
               lambda a: np.abs(np.where(np.isnan(a), 0, np.clip(flush32(a), 0, 1))).astype("f4")),
        ]  # fmt: skip
    if t == "f64":
        ops.append(
            Op(
                "cvt.rn.ftz.f32.f64 d, a;",
                "f4",
                lambda a: flush32(_rounded(F32, "rn", "f4")(a)),
            )
        )
    return ops


# -- packed and bfloat16 conversions (sm_80 and later) -----------------------------------------


def _bits16(form: Format, mode: Mode, *, relu: bool = False) -> Callable[[Array], Array]:
    """The 16-bit patterns of the rounded values; NaNs become the canonical 0x7FFF."""
    convert = _rounded(form, mode, "f4", relu=relu)

    def patterns(a: Array) -> Array:
        values = convert(a)
        if form is BF16:
            bits = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        else:
            bits = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint16)

    return patterns


def _packed() -> list[Op]:
    ops = []
    for t, form in (("f16", F16), ("bf16", BF16)):
        modes: tuple[Mode, ...] = ("rn", "rz")
        for mode in modes:
            for relu in ("", ".relu"):
                half = _bits16(form, mode, relu=bool(relu))
                ops.append(
                    Op(f"cvt.{mode}{relu}.{t}.f32 d, a;", "u2", lambda a, b, half=half: half(a))
                )
                ops.append(
                    Op(
                        f"cvt.{mode}{relu}.{t}x2.f32 d, a, b;",
                        "u4",
                        lambda a, b, half=half: (
                            half(b).astype(np.uint32) | half(a).astype(np.uint32) << 16
                        ),
                    )
                )
    ops.append(
        Op(
            "{ .reg .b16 h; cvt.rn.bf16.f32 h, a; cvt.f32.bf16 d, h; }",
            "f4",
            lambda a, b: _rounded(BF16, "rn", "f4")(a),
        )
    )
    ops.append(Op("cvt.pack.sat.u16.s32 d, p, q;", "u4", _pack_reference))
    return ops


def _pack_reference(a: Array, b: Array) -> Array:
    high, low = (
        each(lambda x: _clamp(_as_integer(x, "rzi", 32, True, False), 16, False), "u4", v)
        for v in (a, b)
    )
    packed: Array = low | high << np.uint32(16)
    return packed


_PACK_INPUTS = "    .reg .b32 p, q; cvt.rzi.s32.f32 p, a; cvt.rzi.s32.f32 q, b;"  # for cvt.pack


CASES: tuple[Case, ...] = (
    *(
        sweep(
            f"convert_{_name(bits, signed)}",
            [*_integer_to_integer((bits, signed)), *_integer_to_float((bits, signed))],
            (_dtype(bits, signed),),
            operands(bits, signed, 1, rows=100),
            covers=frozenset({"cvt", "cvt.sat"}),
        )
        for bits, signed in _INTEGERS
    ),
    *(
        sweep(
            f"convert_{t}",
            [*_float_to_integer(t), *_float_to_float(t)],
            (_DTYPES[t],),
            _float_values(t),
            covers=frozenset({"cvt", "cvt.rounding", "cvt.sat"}),
        )
        for t in _FORMATS
    ),
    sweep(
        "convert_packed",
        _packed(),
        ("f4", "f4"),
        float_operands("f4", 2, extra=150),
        arch="compute_90",
        before=_PACK_INPUTS,
        covers=frozenset({"cvt", "bf16", "f16"}),
    ),
)
