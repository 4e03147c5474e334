"""Kernels that are called as CuPy's raw kernels are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.adapters import raw

SOURCE = r"""
__constant__ float factor;
extern "C" __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
template <class T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }
extern "C" __global__ void reverse(float* x) {
    extern __shared__ float held[];
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void wrong() { *(volatile int*)16 = 1; }
"""


@pytest.fixture(autouse=True)
def session(gpu: gc.Session) -> Iterator[None]:
    raw.use(gpu)
    yield
    raw.use(None)


def test_a_kernel(gpu: gc.Session) -> None:
    x = gpu.array(np.arange(8, dtype=np.float32))
    fill = raw.RawKernel(SOURCE, "fill<float>", options=("-DN=4",))
    fill((1,), (4,), (x, np.float32(7)))
    raw.RawKernel(SOURCE, "reverse")((1,), (8,), (x,), shared_mem=32)
    raw.synchronize()
    np.testing.assert_array_equal(x.get(), [7, 6, 5, 4, 7, 7, 7, 7])
    assert (fill.name, fill.code, fill.options) == ("fill<float>", SOURCE, ("-DN=4",))
    assert fill.kernel.form == "persistent"


def test_a_module(gpu: gc.Session) -> None:
    module = raw.RawModule(SOURCE, name_expressions=["fill<int>"])
    module.get_global("factor").set(np.float32(3))
    x = gpu.array(np.ones(100, np.float32))
    module.get_function("scale")((4, 1, 1), (32,), (x, 100))
    y = gpu.zeros(4, np.int32)
    module.get_function("fill<int>")((1,), (4,), (y, 9))
    raw.synchronize()
    assert set(x.get()) == {3}
    assert set(y.get()) == {9}
    module.compile(log_stream=io.StringIO())


def test_a_file(gpu: gc.Session, tmp_path: Path) -> None:
    text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
    (tmp_path / "k.ptx").write_text(text)
    raw.RawModule(path=str(tmp_path / "k.ptx")).get_function("k")((1,), (1,), ())
    raw.synchronize()


def test_views_of_cupy_are_passed_as_the_arrays_that_they_were_made_of(gpu: gc.Session) -> None:
    x = gpu.zeros(8, np.float32)

    def view(owner: object, offset: int) -> SimpleNamespace:
        memory = SimpleNamespace(_owner=owner, ptr=0x5000)
        return SimpleNamespace(shape=(4,), data=SimpleNamespace(mem=memory, ptr=0x5000 + offset))

    fill = raw.RawKernel(SOURCE, "fill<float>")
    fill((1,), (2,), (view(x, 0), np.float32(1)))
    fill((1,), (2,), (view(x, 16), np.float32(2)))
    raw.synchronize()
    np.testing.assert_array_equal(x.get(), [1, 1, 0, 0, 2, 2, 0, 0])
    with pytest.raises(TypeError, match=r"cupy.asarray\(gpu.empty"):
        fill((1,), (2,), (view(None, 0), np.float32(1)))


def test_what_goes_wrong_is_raised_when_it_is_waited_for(gpu: gc.Session) -> None:
    raw.RawKernel(SOURCE, "wrong")((1,), (1,), ())
    with pytest.raises(gc.IllegalAddress):
        raw.synchronize()
    raw.synchronize()  # once


def test_wrong_uses() -> None:
    with pytest.raises(gc.InvalidArgument, match="backend='nvcc' is not supported"):
        raw.RawKernel(SOURCE, "scale", backend="nvcc")
    with pytest.raises(TypeError, match="unexpected argument 'stream'"):
        raw.RawKernel(SOURCE, "wrong")((1,), (1,), (), stream=1)
    with pytest.raises(ValueError, match="give code or path"):
        raw.RawModule()
    with pytest.raises(gc.KernelNotFound):
        raw.RawKernel(SOURCE, "nothere")((1,), (1,), ())
