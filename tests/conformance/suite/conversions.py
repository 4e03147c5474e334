"""``cvt`` between every pair of types, with every rounding and with saturation.

References are exact (`exact`); floating-point operands and results are patterns. Source: PTX ISA
9.0, section 9.7.9.21 (``cvt``): integers are chopped unless ``.sat`` clamps them; conversions from
floating point clamp always; a NaN becomes zero, or the lowest number's pattern where either side
has 64 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from . import exact
from .case import Array, Case, Rng
from .exact import BF16, F16, F32, F64, FORMATS, MODES, Format, Mode
from .floats import patterns
from .integers import operands
from .sweep import Op, integer_op, sweep

_INTEGERS = [(bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)]
_TO_INTEGER: tuple[tuple[str, Mode], ...] = (
    ("rni", "rn"), ("rzi", "rz"), ("rmi", "rm"), ("rpi", "rp"),
)  # fmt: skip


def _name(bits: int, signed: bool) -> str:
    return f"{'s' if signed else 'u'}{bits}"


def _dtype(bits: int, signed: bool) -> str:
    return f"{'i' if signed else 'u'}{bits // 8}"


def _limits(bits: int, signed: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def clamp(value: int, bits: int, signed: bool) -> int:
    low, high = _limits(bits, signed)
    return min(max(value, low), high)


def _chop(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _into(bits: int, signed: bool) -> str:
    """The result's dtype: bytes arrive in a 32-bit register."""
    return _dtype(32 if bits == 8 else bits, signed)


# -- integer to integer ------------------------------------------------------------------------


def _integer_to_integer(source: tuple[int, bool]) -> list[Op]:
    ops = []
    low, high = _limits(*source)
    for bits, signed in _INTEGERS:
        if (bits, signed) == source:
            continue
        # ptxas refuses .sat where nothing can be out of range.
        lossless = clamp(low, bits, signed) == low and clamp(high, bits, signed) == high
        for sat in ("",) if lossless else ("", ".sat"):
            fit = clamp if sat else _chop
            ops.append(
                integer_op(
                    f"cvt{sat}.{_name(bits, signed)}.{_name(*source)} d, a;",
                    _into(bits, signed),
                    lambda a, bits=bits, signed=signed, fit=fit: fit(a, bits, signed),
                )
            )
    return ops


def _narrow_of_wide() -> list[Op]:
    """A register wider than the type that is read from it."""
    return [
        integer_op(f"cvt.{t}8.{t}{bits} d, a;", "i4", lambda a, t=t: _chop(a, 8, t == "s"))
        for t in "su"
        for bits in (16, 32)
    ]


# -- integer to floating point and back --------------------------------------------------------


def _integer_to_float(source: tuple[int, bool], types: tuple[str, ...]) -> list[Op]:
    ops = []
    for t, mode in itertools.product(types, MODES):
        dtype = _result(t)
        encode = exact.on_patterns(
            lambda x, f=FORMATS[t], mode=mode: f.encode(_chop(x, *source), 0, mode), dtype
        )
        ops.append(Op(f"cvt.{mode}.{t}.{_name(*source)} d, a;", dtype, encode))
    return ops


def _between(bits: int, signed: bool) -> Callable[[Rng], list[Array]]:
    """Integers on and beside numbers of every format, and mid-points between them."""
    low, high = _limits(bits, signed)
    numbers = set()
    for f in FORMATS.values():
        for power in range(f.mantissa, bits):
            unit = 1 << (power - f.mantissa)
            for base in (1 << power, (1 << power) + unit, (2 << power) - unit):
                numbers |= {base + d for d in (-1, 0, 1, unit // 2 - 1, unit // 2, unit // 2 + 1)}
    every = sorted(s * n for n in numbers for s in (1, -1) if low <= s * n <= high)
    draw = operands(bits, signed, 1, rows=100)

    def values(rng: Rng) -> list[Array]:
        dtype = _dtype(bits, signed)
        return [np.concatenate([np.unique(draw(rng)[0][:-100]), draw(rng)[0][-100:],
                                np.array(every, dtype)])]  # fmt: skip

    return values


def as_integer(f: Format, x: int, mode: Mode, bits: int, signed: bool) -> int:
    if f.is_nan(x):
        return _chop(1 << (bits - 1), bits, signed) if f is F64 or bits == 64 else 0
    if f.is_infinite(x):
        return _limits(bits, signed)[0 if x & f.sign else 1]
    return clamp(whole(*f.decode(x), mode), bits, signed)


def whole(number: int, power: int, mode: Mode) -> int:
    """``number * 2**power`` rounded to an integer."""
    if power >= 0:
        return number << power
    below, rest = number >> -power, number & ((1 << -power) - 1)
    if mode == "rn":
        half = 1 << (-power - 1)
        return below + (rest > half or (rest == half and below & 1 == 1))
    up = mode == "rp" or (mode == "rz" and number < 0)
    return below + (up and rest > 0)


def _float_to_integer(t: str) -> list[Op]:
    ops = []
    f = FORMATS[t]

    def op(modifiers: str, mode: Mode, bits: int, signed: bool, *, ftz: bool = False) -> None:
        dtype = _into(bits, signed)
        flush = f.flush if ftz else int
        ops.append(
            Op(
                f"cvt.{modifiers}.{_name(bits, signed)}.{t} d, a;",
                dtype,
                exact.on_patterns(lambda x: as_integer(f, flush(x), mode, bits, signed), dtype),
            )
        )

    for bits, signed in _INTEGERS:
        if (bits, t) == (8, "bf16"):
            continue  # ptxas has no such form
        for modifier, mode in _TO_INTEGER:
            op(modifier, mode, bits, signed)
    if t == "f32":
        op("rpi.ftz", "rp", 32, True, ftz=True)
        op("rzi.sat", "rz", 8, False)
    return ops


def _float_values(t: str) -> Callable[[Rng], list[Array]]:
    """Edge values, halves of integers, the limits of every integer type; numbers of narrower
    formats, their mid-points and neighbours."""
    f = FORMATS[t]
    points = {(n, -2) for n in range(-18, 19)}
    for bits, signed in _INTEGERS:
        for limit in _limits(bits, signed):
            points |= {(2 * limit + d, -1) for d in (-2, -1, 0, 1, 2)}
            points.add((3 * limit, -1))
    further = [f.encode(*point) for point in sorted(points)]
    for narrower in (F16, BF16, F32):
        if narrower.width < f.width or {narrower, f} == {F16, BF16}:
            further += _near(narrower, f)
    if f.width == 16:
        further += range(0, 1 << 16, 37)
    return patterns(f, 1, 300, further)


def _near(to: Format, of: Format) -> list[int]:
    """Patterns of ``of`` on and beside numbers of ``to`` and the mid-points between them."""
    rng = np.random.default_rng(3)
    near = []
    for bits in (*map(int, rng.integers(0, to.infinity - 1, 60)), to.infinity - 1):
        number, power = to.decode(bits)
        step = 1 if bits < to.infinity - 1 or to.mantissa else 0
        for pattern in (of.encode(2 * number, power - 1), of.encode(2 * number + step, power - 1)):
            near += [pattern, pattern + 1, max(pattern - 1, 0)]
    return [bits | sign for bits in near for sign in (0, of.sign) if bits <= of.infinity]


# -- floating point to floating point ----------------------------------------------------------


def as_float(to: Format, of: Format, x: int, mode: Mode = "rn") -> int:
    sign = to.sign if x & of.sign else 0
    if of.is_nan(x):
        return to.nan
    if of.is_infinite(x):
        return to.infinity | sign
    return to.encode(*of.decode(x), mode, negative_zero=bool(sign))


def convert(modifiers: str, to: Format, of: Format) -> Callable[[int], int]:
    """``cvt`` from ``of`` to ``to`` on patterns; ``.ftz`` flushes single precision alone."""
    words = modifiers.split(".")
    mode: Mode = next((m for m in MODES if m in words), "rn")

    def converted(x: int) -> int:
        if "ftz" in words and of is F32:
            x = of.flush(x)
        result = as_float(to, of, x, mode)
        if "ftz" in words and to is F32:
            result = to.flush(result)
        if to.is_nan(result):
            return 0 if "sat" in words else result
        if "satfinite" in words:
            result = min(result & ~to.sign, to.infinity - 1) | result & to.sign
        if "relu" in words and result & to.sign:
            result = 0
        return to.saturate(result) if "sat" in words else result

    return converted


def _result(t: str) -> str:
    """The dtype of a result: a pattern where the ISA gives the NaN."""
    return {"f32": "f4", "f64": "f8"}.get(t, "u2")


def _cvt(modifiers: str, to: str, of: str) -> Op:
    converted = convert(modifiers, FORMATS[to], FORMATS[of])
    return Op(
        f"cvt{modifiers}.{to}.{of} d, a;",
        _result(to),
        exact.on_patterns(converted, _result(to), 1),
    )


_MODIFIED = {
    "f32": [(".sat", "f32"), (".ftz.sat", "f32"), (".ftz", "f64"), (".rn.sat", "f16"),
            (".rn.ftz", "f16")],
    "f64": [(".sat", "f64"), (".rn.sat", "f32"), (".rn.ftz", "f32")],
    "f16": [(".sat", "f16"), (".ftz", "f32")],
}  # fmt: skip
_NEWER = [(".rn.relu", "f16"), (".rz.relu", "f16"), (".rn.satfinite", "f16"), (".rn.relu", "bf16"),
          (".rz.relu", "bf16"), (".rz.relu.satfinite", "bf16")]  # fmt: skip


def _to_integral(t: str, modifier: str, mode: Mode, *, ftz: bool = False) -> Op:
    f = FORMATS[t]

    def rounded(x: int) -> int:
        x = f.flush(x) if ftz else x
        if f.is_nan(x) or f.is_infinite(x):
            return f.nan if f.is_nan(x) else x
        return f.encode(whole(*f.decode(x), mode), negative_zero=bool(x & f.sign))

    dtype = _result(t)
    return Op(f"cvt.{modifier}.{t}.{t} d, a;", dtype, exact.on_patterns(rounded, dtype, 1))


def _float_to_float(t: str, others: tuple[str, ...]) -> list[Op]:
    ops = [_to_integral(t, modifier, mode) for modifier, mode in _TO_INTEGER if t in others]
    for other in others:
        if FORMATS[other].width > FORMATS[t].width:
            ops.append(_cvt("", other, t))
        elif other != t:
            ops += [_cvt(f".{mode}", other, t) for mode in MODES]
    return ops


def _old(t: str) -> list[Op]:
    """What every device has."""
    ops = [*_float_to_integer(t), *_float_to_float(t, _OLD)]
    ops += [_cvt(modifiers, to, t) for modifiers, to in _MODIFIED[t]]
    return [*ops, _to_integral(t, "rni.ftz", "rn", ftz=True)] if t == "f32" else ops


def _newer(t: str) -> list[Op]:
    """What came with bfloat16."""
    if t == "bf16":
        return [*_float_to_integer(t), *_float_to_float(t, tuple(FORMATS))]
    ops = _float_to_float(t, ("bf16",))
    return ops + [_cvt(modifiers, to, t) for modifiers, to in _NEWER] if t == "f32" else ops


_OLD = ("f16", "f32", "f64")


def _widened() -> list[Op]:
    """Every pattern of 16 bits in single precision."""
    return [
        Op(
            f"cvt.f32.{t} d, a;",
            "f4",
            lambda a, f=FORMATS[t]: exact.as_double(a, f).astype(np.float32),
        )
        for t in ("f16", "bf16")
    ]


CASES: tuple[Case, ...] = (
    *(
        sweep(
            f"convert_{_name(bits, signed)}",
            [
                *_integer_to_integer((bits, signed)),
                *_integer_to_float((bits, signed), _OLD),
            ],
            (_dtype(bits, signed),),
            _between(bits, signed),
            covers="cvt cvt.sat",
        )
        for bits, signed in _INTEGERS
    ),
    *(
        sweep(
            f"convert_{_name(bits, signed)}_bf16",
            _integer_to_float((bits, signed), ("bf16",)),
            (_dtype(bits, signed),),
            _between(bits, signed),
            arch="compute_90",
            covers="cvt bf16",
        )
        for bits, signed in _INTEGERS
        if bits > 8
    ),
    *(
        sweep(
            f"convert_{t}",
            _old(t),
            (FORMATS[t].dtype,),
            _float_values(t),
            covers="cvt cvt.rounding cvt.sat",
        )
        for t in _OLD
    ),
    *(
        sweep(
            f"convert_{t}_bf16",
            _newer(t),
            (FORMATS[t].dtype,),
            _float_values(t),
            arch="compute_90",
            version="8.6",
            covers="cvt cvt.rounding bf16",
        )
        for t in FORMATS
    ),
    sweep(
        "convert_every_half",
        _widened(),
        ("u2",),
        lambda rng: [np.arange(1 << 16, dtype=np.uint16)],
        block=256,
        arch="compute_90",
        covers="cvt f16 bf16",
    ),
    sweep(
        "convert_wide_registers",
        _narrow_of_wide(),
        ("i4",),
        operands(32, True, 1, rows=60),
        block=56,
        covers="cvt",
    ),
)
