"""``mma`` in every shape and type that the CPU device has, and ``wmma`` with its loads and stores.

The fragments of ``mma`` are those of the tables in PTX ISA 9.0, section 9.7.14.5; a ``wmma``
fragment is opaque. Integers are exact. Sums of floats may be taken in any order with at least
single precision (half, for f16 accumulators): the bound is what that allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .case import Args, Array, Rng, Within
from .cases import Cases

CASES = Cases()


_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s32": 32, "s8": 8, "u8": 8,
         "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1": 1}  # fmt: skip
_WARPS = 6


# -- elements as bits ----------------------------------------------------------------------------


def _random(rng: Rng, shape: tuple[int, ...], type_: str) -> Any:
    """Elements of a type as numbers of 64 bits or as doubles, many of them large or special."""
    match type_:
        case "b1":
            return rng.integers(0, 2, shape).astype(np.int64)
        case "s32":
            return rng.integers(-(2**31), 2**31, shape)
        case "f64":
            return rng.standard_normal(shape)
        case _ if type_[0] in "su":
            bits = _BITS[type_]
            low = -(1 << bits - 1) if type_[0] == "s" else 0
            return rng.integers(low, low + (1 << bits), shape)
    values = rng.standard_normal(shape) * rng.choice([1.0, 1.0, 16.0, 0.0, 2.0**-12], shape)
    return _value(_bits(values, type_), type_)


def _bits(values: Array, type_: str) -> Any:
    """The bits of values that are exact in the type, or rounded by NumPy or by truncation."""
    match type_:
        case "f16":
            return values.astype(np.float16).view(np.uint16).astype(np.uint64)
        case "bf16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
        case "tf32":
            return (values.astype(np.float32).view(np.uint32) & 0xFFFFE000).astype(np.uint64)
        case "f32":
            return values.astype(np.float32).view(np.uint32).astype(np.uint64)
        case "f64":
            return values.astype(np.float64).view(np.uint64)
        case "e5m2":
            return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint64)
        case "e4m3":
            return _MINI_BITS(np.clip(values, -448, 448)).astype(np.uint64)
    return values.astype(np.int64).view(np.uint64) & np.uint64((1 << _BITS[type_]) - 1)


def _value(bits: Array, type_: str) -> Any:
    match type_:
        case "f16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float64)
        case "bf16":
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "tf32" | "f32":
            return bits.astype(np.uint32).view(np.float32).astype(np.float64)
        case "e5m2":
            return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        case "e4m3":
            return _MINI[bits.astype(np.int64)]
        case "f64":
            return bits.view(np.float64)
    sign = 1 << _BITS[type_] - 1 if type_[0] == "s" else 0
    return (bits.astype(np.int64) ^ sign) - sign


def _e4m3(bits: int) -> float:
    sign, exponent, mantissa = -1.0 if bits & 128 else 1.0, bits >> 3 & 15, bits & 7
    return sign * (
        mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    )


_MINI = np.array([_e4m3(bits) for bits in range(256)])
"""Of e4m3; its NaN is not used."""


def _nearest(values: Array) -> Any:
    magnitudes = np.abs(np.abs(values)[..., None] - _MINI[:127])
    return magnitudes.argmin(axis=-1) | (values < 0) << 7


_MINI_BITS: Callable[[Array], Array] = _nearest


def _pack(bits: Array, width: int) -> Any:
    """Words of 32 bits from the last axis, low bits first; 64 bits as two words."""
    if width == 64:
        return np.ascontiguousarray(bits).view(np.uint32)
    packed = bits.reshape(*bits.shape[:-1], -1, 32 // width)
    shifts = np.arange(32 // width, dtype=np.uint64) * np.uint64(width)
    return (packed << shifts).sum(axis=-1).astype(np.uint32)


def _unpack(words: Array, width: int) -> Any:
    if width == 64:
        return np.ascontiguousarray(words).view(np.uint64)
    shifts = np.arange(32 // width, dtype=np.uint32) * np.uint32(width)
    parts = words[..., None] >> shifts & np.uint32((1 << width) - 1)
    return parts.reshape(*words.shape[:-1], -1).astype(np.uint64)


# -- the tables of mma ---------------------------------------------------------------------------


def _of_a(rows: int, p: int, g: int, t: int, i: int) -> tuple[int, int]:
    upper = i < p or 2 * p <= i < 3 * p
    return (g if upper or rows == 8 else g + 8), t * p + i % p + (4 * p if i >= 2 * p else 0)


def _of_wide_a(rows: int, p: int, g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i % 2 == 0 else g + 8), i // 2 * 4 + t


def _places(role: str, m: int, n: int, k: int, width: int) -> Array:
    """(row, column) of each element, by lane and index in the fragment."""
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n)}[role]
    p = max(1, 32 // width)
    result = np.zeros((32, rows * columns // 32, 2), int)
    for lane in range(32):
        g, t = lane >> 2, lane % 4
        for i in range(result.shape[1]):
            if role == "c":
                place = (g if i < 2 else g + 8), t * 2 + (i & 1)
            elif role == "b":
                place = t * p + i % p + i // p * 4 * p, g
            elif width == 64 and m == 16:
                place = _of_wide_a(m, p, g, t, i)
            else:
                place = _of_a(m, p, g, t, i)
            result[lane, i] = place
    assert len({tuple(p) for p in result.reshape(-1, 2)}) == rows * columns
    return result


def _dealt(matrices: Any, places: Array) -> Any:
    return None if matrices is None else matrices[:, places[..., 0], places[..., 1]]


# -- cases of mma --------------------------------------------------------------------------------


class _Product(NamedTuple):
    text: str
    shape: tuple[int, int, int]
    d: str
    a: str
    b: str
    c: str


def _parsed(text: str) -> _Product:
    m, n, k = map(int, re.findall(r"m(\d+)n(\d+)k(\d+)", text)[0])
    named = [word for word in text.split(".") if word in _BITS]
    if len(named) == 2:
        named = [named[0], "f16", "f16", named[1]]
    d, a, b, c = named
    return _Product(text, (m, n, k), d, a, b, c)


def _exactly(product: _Product, a: Array, b: Array, c: Array) -> tuple[Array, Array | None]:
    """The results as numbers, and the bound of the error; None where they are exact."""
    if ".popc" in product.text:
        left, right = a[:, :, :, None], b[:, None, :, :]
        both = left ^ right if "xor" in product.text else left & right
        return c + both.sum(axis=2), None
    if product.d == "s32":
        total = c + np.einsum("wmk,wkn->wmn", a, b)
        if "satfinite" in product.text:
            return np.clip(total, -(2**31), 2**31 - 1), None
        return (total + 2**31) % 2**32 - 2**31, None
    total = c + np.einsum("wmk,wkn->wmn", a, b)
    size = np.abs(c) + np.einsum("wmk,wkn->wmn", np.abs(a), np.abs(b))
    epsilon = {"f16": 2.0**-10, "f32": 2.0**-23, "f64": 2.0**-52}[product.d]
    steps = 1 if product.d == "f16" else product.shape[2] + 1
    return total, size * epsilon * steps + {"f16": 2.0**-25}.get(product.d, 0.0)


def _registers(name: str, count: int, wide: bool) -> str:
    return "{" + ", ".join(f"%{name}{'d' if wide else ''}{i}" for i in range(count)) + "}"


def _mma(text: str, version: str = "8.0") -> None:
    product = _parsed(text)
    m, n, k = product.shape
    wide = product.a == "f64"
    unit = 8 if wide else 4
    places = {
        role: _places(role, m, n, k, _BITS[type_])
        for role, type_ in (("a", product.a), ("b", product.b), ("c", product.c))
    }
    counts = {
        role: places[role].shape[1] * _BITS[type_] // (8 * unit)
        for role, type_ in (("a", product.a), ("b", product.b), ("c", product.c))
    }
    counts["d"] = places["c"].shape[1] * _BITS[product.d] // (8 * unit)
    body = [".reg .b32 %a<16>, %b<16>, %c<16>, %d<16>; .reg .b64 %p;"]
    body.append(".reg .b64 %ad<16>, %bd<16>, %cd<16>, %dd<16>;")
    suffix = "d" if wide else ""
    for role, count in list(counts.items())[:3]:
        body.append(f"mad.wide.u32 %p, %i, {unit * count}, %{role};")
        body += [
            f"ld.global.b{8 * unit} %{role}{suffix}{i}, [%p+{unit * i}];" for i in range(count)
        ]
    operands = ", ".join(_registers(role, counts[role], wide) for role in "dabc")
    body.append(f"{text} {operands};")
    body.append(f"mad.wide.u32 %p, %i, {unit * counts['d']}, %d;")
    body += [f"st.global.b{8 * unit} [%p+{unit * i}], %d{suffix}{i};" for i in range(counts["d"])]
    body.append("ret;")

    def make(rng: Rng) -> Args:
        made = []
        shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
        for role, type_ in (("a", product.a), ("b", product.b), ("c", product.c)):
            values = _random(rng, (_WARPS, *shapes[role]), type_)
            dealt = _dealt(values, places[role])
            made.append(_pack(_bits(dealt, type_), _BITS[type_]))
        return [*made, np.zeros((_WARPS, 32, places["c"].shape[1]), _DTYPES[product.d])]

    def expect(args: Args) -> dict[int | str, Any]:
        matrices = []
        shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
        for words, (role, type_) in zip(
            args, (("a", product.a), ("b", product.b), ("c", product.c)), strict=False
        ):
            elements = _value(_unpack(words, _BITS[type_]), type_)
            matrix = np.zeros((_WARPS, *shapes[role]), elements.dtype)
            matrix[:, places[role][..., 0], places[role][..., 1]] = elements
            matrices.append(matrix)
        total, bound = _exactly(product, *matrices)
        return {3: _within(product.d, _dealt(total, places["c"]), _dealt(bound, places["c"]))}

    name = re.sub(r"\W+", "_", text.replace(".sync.aligned", "").replace(".row.col", ""))
    CASES.ptx(
        name, "u64 a, u64 b, u64 c, u64 d", "\n".join(body), 3, 64, make, "mma tensor-core",
        arch="compute_90", version=version, long=product.shape != (16, 8, 16),
    )(expect)  # fmt: skip


def _within(type_: str, total: Array, bound: Any) -> Array | Within:
    value = total.astype(_DTYPES[type_])
    return value if type_ == "s32" else Within(value, atol=bound)


_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}

for _shape in ("m16n8k8", "m16n8k16"):
    for _c in ("f32.f16.f16.f32", "f16.f16.f16.f16", "f32.bf16.bf16.f32"):
        _mma(f"mma.sync.aligned.{_shape}.row.col.{_c}")
_mma("mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32", "8.7")
_mma("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32", "8.4")
_mma("mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16", "8.7")
for _shape in ("m16n8k4", "m16n8k8"):
    _mma(f"mma.sync.aligned.{_shape}.row.col.f32.tf32.tf32.f32")
for _shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
    _mma(f"mma.sync.aligned.{_shape}.row.col.f64.f64.f64.f64")
_INTEGERS = (
    ("m8n8k16", "s8.s8"), ("m16n8k16", "u8.s8"), ("m16n8k32", "s8.u8"),
    ("m8n8k32", "s4.s4"), ("m16n8k32", "u4.s4"), ("m16n8k64", "s4.u4"),
)  # fmt: skip
for _shape, _ab in _INTEGERS:
    _mma(f"mma.sync.aligned.{_shape}.row.col.s32.{_ab}.s32")
    _mma(f"mma.sync.aligned.{_shape}.row.col.satfinite.s32.{_ab}.s32")
for _shape, _how in (("m8n8k128", "xor"), ("m16n8k128", "and"), ("m16n8k256", "xor")):
    _mma(f"mma.sync.aligned.{_shape}.row.col.s32.b1.b1.s32.{_how}.popc")


# -- wmma ----------------------------------------------------------------------------------------


def _wmma(text: str, layouts: str, space: str) -> None:
    """A product whose matrices lie in memory with a stride: layouts of A, B, C and D by letters."""
    product = _parsed(text)
    m, n, k = product.shape
    shape = re.findall(r"m\d+n\d+k\d+", text)[0]
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    types = {"a": product.a, "b": product.b, "c": product.c, "d": product.d}
    how = {
        role: "row" if letter == "r" else "col"
        for role, letter in zip("abcd", layouts, strict=True)
    }
    wide = product.a == "f64"
    strides, lines, counts, sizes = {}, {}, {}, {}
    for role, (rows, columns) in shapes.items():
        bits = _BITS[types[role]]
        lines[role], length = (rows, columns) if how[role] == "row" else (columns, rows)
        strides[role] = length + max(128 // bits, 1)
        words = 8 if types[role] == "f16" and role in "ab" else rows * columns * bits // 1024
        counts[role] = max(1, words // 2) if wide else words
        sizes[role] = lines[role] * strides[role] * bits // 8
    body = [".reg .b32 %a<16>, %b<16>, %c<16>, %d<16>, %warp, %stride; .reg .b64 %p, %q, %far;"]
    body.append(".reg .b64 %ad<16>, %bd<16>, %cd<16>, %dd<16>; .reg .b32 %at, %end, %v;")
    body.append(f".shared .align 128 .b8 tile[{sum(sizes.values())}];")
    body.append("shr.u32 %warp, %i, 5;")
    start = 0
    for role in "abc":
        body.append(f"mad.wide.u32 %p, %warp, {sizes[role]}, %{role};")
        body.append(f"mov.u32 %stride, {strides[role]};")
        where = "[%p]"
        if space == "shared":
            body.append(f"""
                shl.b32 %at, %thread, 2;
            $copy_{role}:
                cvt.u64.u32 %far, %at;
                add.s64 %q, %p, %far;
                ld.global.b32 %v, [%q];
                mov.u32 %end, tile;
                add.s32 %end, %end, %at;
                st.shared.b32 [%end+{start}], %v;
                add.s32 %at, %at, 128;
                setp.lt.u32 %more, %at, {sizes[role]};
                @%more bra $copy_{role};
                bar.warp.sync -1;
                mov.u32 %at, tile;""")
            where = f"[%at+{start}]"
            start += sizes[role]
        elif space == "generic":
            body.append("cvta.global.u64 %p, %p;")
        named = "" if space == "generic" else f".{space}"
        body.append(f"wmma.load.{role}.sync.aligned.{how[role]}.{shape}{named}.{types[role]} "
                    f"{_registers(role, counts[role], wide)}, {where}, %stride;")  # fmt: skip
    operands = ", ".join(_registers(role, counts[role], wide) for role in "dabc")
    text = text.replace("LAYOUTS", f"{how['a']}.{how['b']}")
    body.append(f"{text} {operands};")
    body.append(f"mad.wide.u32 %p, %warp, {sizes['d']}, %d;")
    body.append(f"wmma.store.d.sync.aligned.{how['d']}.{shape}.global.{types['d']} [%p], "
                f"{_registers('d', counts['d'], wide)}, {strides['d']};")  # fmt: skip
    body.append("ret;")
    if space == "shared":
        body[0] += " .reg .pred %more;"

    def laid_out(values: Any, role: str) -> Any:
        if values is None:
            return None
        if how[role] == "col":
            values = values.transpose(0, 2, 1)
        padded = np.zeros((_WARPS, lines[role], strides[role]), values.dtype)
        padded[:, :, : values.shape[2]] = values
        return padded

    def picked(padded: Array, role: str) -> Array:
        rows, columns = shapes[role]
        length = columns if how[role] == "row" else rows
        values = padded[:, :, :length]
        return values.transpose(0, 2, 1) if how[role] == "col" else values

    def make(rng: Rng) -> Args:
        made: Args = []
        for role in "abc":
            values = laid_out(_random(rng, (_WARPS, *shapes[role]), types[role]), role)
            made.append(_pack(_bits(values, types[role]), _BITS[types[role]]))
        return [*made, np.zeros((_WARPS, lines["d"], strides["d"]), _DTYPES[product.d])]

    def expect(args: Args) -> dict[int | str, Any]:
        matrices = [
            picked(_value(_unpack(words, _BITS[types[role]]), types[role]), role)
            for words, role in zip(args, "abc", strict=False)
        ]
        total, bound = _exactly(product, *matrices)
        return {3: _within(product.d, laid_out(total, "d"), laid_out(bound, "d"))}

    name = re.sub(r"\W+", "_", text.replace(".sync.aligned", "")) + f"_{layouts}_{space}"
    CASES.ptx(
        name, "u64 a, u64 b, u64 c, u64 d", "\n".join(body), _WARPS if space == "shared" else 3,
        32 if space == "shared" else 64, make, "wmma tensor-core", arch="compute_90",
        long=layouts[:2] != "rc" or product.shape[:2] != (16, 16),  # the others are much like these
    )(expect)  # fmt: skip


_PREFIX = "wmma.mma.sync.aligned.LAYOUTS"
_wmma(f"{_PREFIX}.m16n16k16.f32.f32", "rcrr", "global")
_wmma(f"{_PREFIX}.m16n16k16.f32.f32", "crcc", "shared")
_wmma(f"{_PREFIX}.m16n16k16.f16.f16", "rrcr", "generic")
_wmma(f"{_PREFIX}.m32n8k16.f32.f16", "rrrc", "global")
_wmma(f"{_PREFIX}.m32n8k16.f16.f32", "ccrr", "shared")
_wmma(f"{_PREFIX}.m8n32k16.f32.f32", "crcr", "global")
_wmma(f"{_PREFIX}.m8n32k16.f16.f16", "rcrc", "global")
_wmma(f"{_PREFIX}.m16n16k16.f32.bf16.bf16.f32", "rcrr", "global")
_wmma(f"{_PREFIX}.m32n8k16.f32.bf16.bf16.f32", "crcr", "shared")
_wmma(f"{_PREFIX}.m16n16k8.f32.tf32.tf32.f32", "rcrr", "global")
_wmma(f"{_PREFIX}.m16n16k8.f32.tf32.tf32.f32", "crrc", "shared")
_wmma(f"{_PREFIX}.m8n8k4.f64.f64.f64.f64", "rcrr", "global")
_wmma(f"{_PREFIX}.m8n8k4.rn.f64.f64.f64.f64", "crcc", "shared")
_wmma(f"{_PREFIX}.m16n16k16.s32.s8.s8.s32", "rcrr", "global")
_wmma(f"{_PREFIX}.m32n8k16.s32.u8.u8.s32", "crcr", "shared")
_wmma(f"{_PREFIX}.m8n32k16.s32.s8.s8.s32.satfinite", "rcrc", "generic")
_wmma(f"{_PREFIX}.m8n8k32.s32.s4.s4.s32", "rcrr", "global")
_wmma(f"{_PREFIX}.m8n8k32.s32.u4.u4.s32.satfinite", "rccr", "shared")
_wmma("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", "rcrr", "global")
_wmma("wmma.mma.and.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", "rcrc", "shared")
