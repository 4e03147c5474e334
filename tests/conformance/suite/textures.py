"""Texture and surface objects over arrays: fetches with every filter, mode and kind of element.

The reference follows the CUDA C++ Programming Guide 13.0, chapter "Texture Fetching", with NumPy:
weights have 8 bits, rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpud_client.textures import describe

from .case import AddressOf, Args, Array, Hidden, Rng, Within
from .cases import Cases

CASES = Cases()


_COUNT = 700
_FORMS = "persistent sliced"
"""A texture object is an address only in rewritten programs."""

_FETCHES = {
    1: "tex1D<{type}>(t, at[3 * i])",
    2: "tex2D<{type}>(t, at[3 * i], at[3 * i + 1])",
    3: "tex3D<{type}>(t, at[3 * i], at[3 * i + 1], at[3 * i + 2])",
}
_SOURCE = r"""
extern "C" __global__ void NAME(cudaTextureObject_t t, const float* at, TYPE* out, int n,
                                unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = FETCH;
}
"""


def _sampled(
    values: Array, at: Array, modes: Sequence[str], linear: bool, normalized: bool, border: Array
) -> Array:
    """Elements at coordinates (n, dimensions), x first; ``values`` are (..., y, x, channels)."""
    dimensions = values.ndim - 1
    corners: list[tuple[Any, list[Array]]] = [(np.float32(1), [])]
    for axis in range(dimensions):
        extent = values.shape[dimensions - 1 - axis]
        x, mode = at[:, axis], modes[axis]
        if normalized:
            whole = np.floor(x)
            if mode == "wrap":
                x = x - whole
            elif mode == "mirror":
                x = np.where(whole % 2 == 1, 1 - (x - whole), x - whole)
            x = (x * np.float32(extent)).astype(np.float32)
        if not linear:
            steps = [(np.float32(1), np.floor(x).astype(np.int64))]
        else:
            x = x - np.float32(0.5)
            whole = np.floor(x)
            weight = np.rint((x - whole) * 256) / 256
            first = whole.astype(np.int64)
            steps = [(1 - weight, first), (weight, first + 1)]
        corners = [
            (w * more, [*found, _index(i, extent, mode)])
            for w, found in corners
            for more, i in steps
        ]
    total: Any = 0
    for weight, indices in corners:
        inside = np.all([i >= 0 for i in indices], axis=0)
        picked = values[tuple(np.maximum(i, 0) for i in reversed(indices))]
        picked = np.where(inside[:, None], picked, border[: values.shape[-1]])
        total = total + picked * np.reshape(weight, (-1, 1)) if linear else picked
    return np.asarray(total)


def _index(i: Array, extent: int, mode: str) -> Array:
    match mode:
        case "border":
            return np.where((i < 0) | (i >= extent), -1, i)
        case "wrap":
            return i % extent
    return np.clip(i, 0, extent - 1)


def _texture(
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
    type_: str,
    *,
    channels: int = 1,
    linear: bool = False,
    modes: Sequence[str] = ("clamp", "clamp", "clamp"),
    normalized: bool = False,
    read: str = "element",
    border: tuple[float, ...] = (0, 0, 0, 0),
    fetch: str = "",
) -> None:
    dtype = np.dtype(dtype)
    dimensions = len(shape)
    modes = modes[:dimensions]
    returns = np.dtype(np.float32 if "float" in type_ else dtype)
    whole = (*shape, channels) if channels > 1 else shape
    words = describe(
        0,
        whole,
        dtype,
        channels=channels,
        filtering="linear" if linear else "point",
        mode=modes,
        normalized=normalized,
        read=read,
        border=border,
    )

    def make(rng: Rng) -> Args:
        if dtype.kind == "f":
            values = rng.standard_normal(whole).astype(dtype)
        else:
            info = np.iinfo(dtype)
            values = rng.integers(info.min, info.max, whole, dtype, endpoint=True)
        at = rng.uniform(-0.8, 1.8, (_COUNT, 3)).astype(np.float32)
        if not normalized:
            at = (at * np.float32(max(shape))).astype(np.float32)
        out = np.zeros((_COUNT, channels), returns)
        pointers = {24: AddressOf(2)}
        return [AddressOf(1), Hidden(words, pointers), Hidden(values), at, out, np.int32(_COUNT)]

    def expect(args: Args) -> dict[int | str, Any]:
        values = args[2].array.reshape(*shape, channels)
        if read == "normalized":
            most = np.iinfo(dtype).max
            values = np.maximum(values.astype(np.float64) / most, -1)
        elif dtype.kind == "f":
            values = values.astype(np.float64)
        edge = np.asarray(border).astype(values.dtype)
        found = _sampled(values, args[3], modes, linear, normalized, edge)
        if returns.kind != "f":
            return {4: found.astype(returns)}
        return {4: Within(found.astype(np.float32), rtol=1e-6, atol=2e-6 if linear else 1e-7)}

    chosen = fetch or _FETCHES[dimensions].replace("{type}", type_)
    source = _SOURCE.replace("NAME", name).replace("TYPE", type_).replace("FETCH", chosen)
    long = dimensions == 3
    CASES.cuda(name, source, 6, 128, make, "texture", forms=_FORMS, long=long)(expect)


_texture("tex1d_point", (57,), np.float32, "float")
_texture("tex1d_linear", (57,), np.float32, "float", linear=True)
_texture("tex2d_point_border", (13, 21), np.int32, "int2", channels=2,
         modes=("border", "clamp"), border=(7, -8, 0, 0))  # fmt: skip
_texture("tex2d_linear_border", (13, 21), np.float32, "float4", channels=4, linear=True,
         modes=("border", "border"), border=(1, -2, 3, 0.5))  # fmt: skip
_texture("tex2d_bytes_wrap", (13, 20), np.uint8, "float", linear=True, modes=("wrap", "mirror"),
         normalized=True, read="normalized")  # fmt: skip
_texture("tex2d_shorts_mirror", (9, 31), np.int16, "float2", channels=2, modes=("mirror", "wrap"),
         normalized=True, read="normalized")  # fmt: skip
_LEVEL = "tex2DLod<float>(t, at[3 * i], at[3 * i + 1], 0.f)"
_texture("tex2d_halves", (16, 16), np.float16, "float", linear=True, normalized=True,
         modes=("mirror", "border"), fetch=_LEVEL)  # fmt: skip
_texture("tex2d_bytes", (16, 5), np.uint8, "uchar4", channels=4)
_texture("tex3d_point", (5, 6, 7), np.uint16, "unsigned short", modes=("border", "clamp", "border"))
_texture("tex3d_linear", (5, 6, 7), np.float32, "float2", channels=2, linear=True,
         normalized=True, modes=("wrap", "clamp", "mirror"))  # fmt: skip


# -- tex1Dfetch: an index, 0 outside -------------------------------------------------------------

_FETCH = r"""
extern "C" __global__ void tex1d_fetch(cudaTextureObject_t t, cudaTextureObject_t u,
                                       const int* at, float4* out, int* whole, int n,
                                       unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (at[i] & 1) out[i] = tex1Dfetch<float4>(t, at[i]);
    whole[i] = tex1Dfetch<signed char>(u, at[i]);
}
"""
_POINT: dict[str, Any] = {
    "filtering": "point", "mode": "clamp", "normalized": False, "read": "element",
    "border": (0, 0, 0, 0),
}  # fmt: skip


def _fetch_make(rng: Rng) -> Args:
    fours = rng.standard_normal((50, 4)).astype(np.float32)
    chars = rng.integers(-128, 128, 90).astype(np.int8)
    at = rng.integers(-20, 110, 500).astype(np.int32)
    at[:3] = [2**31 - 1, -(2**31), 50]
    first = describe(0, fours.shape, fours.dtype, channels=4, **_POINT)
    second = describe(0, chars.shape, chars.dtype, channels=1, **_POINT)
    return [
        AddressOf(2), AddressOf(3), Hidden(first, {24: AddressOf(4)}),
        Hidden(second, {24: AddressOf(5)}), Hidden(fours), Hidden(chars), at,
        np.full((500, 4), 9, np.float32), np.zeros(500, np.int32), np.int32(500),
    ]  # fmt: skip


@CASES.cuda("tex1d_fetch", _FETCH, 4, 128, _fetch_make, "texture", forms=_FORMS)
def _fetch_expect(args: Args) -> dict[int | str, Any]:
    fours, chars, at = args[4].array, args[5].array, args[6].astype(np.int64)
    inside = ((at >= 0) & (at < 50))[:, None]
    found = np.where(inside, fours[np.clip(at, 0, 49)], 0)
    whole = np.where((at >= 0) & (at < 90), chars[np.clip(at, 0, 89)], 0)
    return {
        7: np.where((at & 1).astype(bool)[:, None], found, 9).astype(np.float32),
        8: whole.astype(np.int32),
    }


# -- surfaces ------------------------------------------------------------------------------------

_SURFACE = r"""
extern "C" __global__ void surfaces(cudaSurfaceObject_t s, cudaSurfaceObject_t d,
                                    cudaSurfaceObject_t line, int w, int h, unsigned* runs) {
    GPUD_COUNT_2D(runs);
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x > w || y > h) return;
    float left = surf2Dread<float>(s, 4 * (x - 1), y, cudaBoundaryModeClamp);
    float above = surf2Dread<float>(s, 4 * x, y - 1, cudaBoundaryModeZero);
    float2 both = make_float2(left, above);
    surf2Dwrite(both, d, 8 * x, y, cudaBoundaryModeZero);
    if (y == 0 && x < w)
        surf1Dwrite((unsigned char)(surf1Dread<unsigned char>(line, x) + x), line, x);
}
"""


def _surface_make(rng: Rng) -> Args:
    values = rng.standard_normal((20, 45)).astype(np.float32)
    both = np.zeros((20, 45, 2), np.float32)
    line = rng.integers(0, 100, 45).astype(np.uint8)
    words = [
        describe(0, array.shape, array.dtype, channels=count, **_POINT)
        for array, count in ((values, 1), (both, 2), (line, 1))
    ]
    return [
        AddressOf(3), AddressOf(4), AddressOf(5),
        *(Hidden(one, {24: AddressOf(6 + n)}) for n, one in enumerate(words)),
        Hidden(values), Hidden(both), Hidden(line), np.int32(45), np.int32(20),
    ]  # fmt: skip


@CASES.cuda("surfaces", _SURFACE, (3, 3), (16, 8), _surface_make, "surface", forms=_FORMS)
def _surface_expect(args: Args) -> dict[int | str, Any]:
    values = args[6].array
    both = np.zeros((20, 45, 2), np.float32)
    both[:, 1:, 0], both[:, 0, 0] = values[:, :-1], values[:, 0]
    both[1:, :, 1] = values[:-1]
    return {7: both, 8: args[8].array + np.arange(45, dtype=np.uint8)}
