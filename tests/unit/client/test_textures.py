"""Textures over arrays: what is refused, and what jobs read through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.textures import DESCRIPTION_WORDS, describe

GOOD: dict[str, Any] = {
    "channels": 1, "filtering": "point", "mode": "clamp", "normalized": False, "read": "element",
    "border": (0, 0, 0, 0),
}  # fmt: skip


def described(shape: tuple[int, ...], dtype: Any, **changed: Any) -> Any:
    return describe(1 << 40, shape, np.dtype(dtype), **(GOOD | changed))


def test_the_description_is_what_kernels_read() -> None:
    words = described((5, 6, 7, 4), np.int16, channels=4, mode="border", border=(-1, 2, 3, 4))
    assert (words.dtype, words.size) == (np.dtype(np.uint32), DESCRIPTION_WORDS)
    assert words[2:5].tolist() == [7, 6, 5]
    assert words[6:12].view(np.uint64).tolist() == [1 << 40, 7 * 8, 6 * 7 * 8]
    assert words[12:].view(np.int32).tolist() == [-1, 2, 3, 4]


@pytest.mark.parametrize(
    ("shape", "dtype", "changed", "said"),
    [
        ((4,), np.float64, {}, "not float64"),
        ((4,), np.complex64, {}, "not complex64"),
        ((4,), ">f4", {}, "float16 or float32"),
        ((), np.float32, {}, r"1 to 3 dimensions .* not the shape \(\)"),
        ((4, 0), np.float32, {}, r"not the shape \(0, 4\)|not the shape \(4, 0\)"),
        ((2, 3, 4, 4), np.float32, {}, "channels="),
        ((4, 3), np.float32, {"channels": 3}, "1, 2 or 4 channels, not 3"),
        ((4, 3), np.float32, {"channels": 4}, "is not its 4 channels"),
        ((4,), np.float32, {"filtering": "cubic"}, "filtering is one of point, linear"),
        ((4,), np.float32, {"read": "raw"}, "read is one of"),
        ((4,), np.float32, {"mode": "repeat"}, "mode is one of wrap, clamp"),
        ((4,), np.float32, {"mode": ("clamp", "clamp")}, "2 modes for 1 dimensions"),
        ((4,), np.float32, {"mode": "wrap"}, "normalized=True"),
        ((4,), np.float32, {"read": "normalized"}, "integers of 8 or 16 bits"),
        ((4,), np.int32, {"read": "normalized"}, "integers of 8 or 16 bits"),
        ((4,), np.uint8, {"filtering": "linear"}, "read='normalized'"),
        ((4,), np.float32, {"border": (0, 0)}, "each of 4 channels, not 2"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    shape: tuple[int, ...], dtype: Any, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        described(shape, dtype, **changed)


SOURCE = r"""
extern "C" __global__ void blur(cudaTextureObject_t t, float* out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < w && y < h) out[y * w + x] = tex2D<float>(t, x + 1.f, y + 1.f);
}
"""


@pytest.mark.ci
def test_a_job_reads_through_a_texture() -> None:
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    with gc.local("cpu:1") as gpu:
        array = gpu.array(values)
        texture = gpu.texture(array, filtering="linear")
        out = gpu.zeros((6, 8), np.float32)
        blur = gpu.kernel(SOURCE, "blur")

        def run(handle: Any) -> Any:
            args = (handle, out, np.int32(8), np.int32(6))
            blur.submit(grid=(1, 6), block=32, args=args, quota=1).result(60)
            return out.get()

        padded = np.pad(values, ((0, 1), (0, 1)), mode="edge").astype(np.float64)
        means = (padded[:-1, :-1] + padded[1:, :-1] + padded[:-1, 1:] + padded[1:, 1:]) / 4
        assert np.allclose(run(texture), means)
        array.set(values + 1)
        assert np.allclose(run(texture), means + 1)
        del array  # the texture keeps it
        assert np.allclose(run(texture), means + 1)
        for wrong in (out, 1 << 45, 0):
            with pytest.raises(gc.IllegalAddress):
                run(wrong)
        assert np.allclose(run(texture), means + 1)
        with pytest.raises(TypeError, match="over an Array, not a ndarray"):
            gpu.texture(values)  # type: ignore[arg-type]
        out.free()
        with pytest.raises(ValueError, match="freed"):
            gpu.texture(out)
