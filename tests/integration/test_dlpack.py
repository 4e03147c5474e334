"""Arrays of a CPU device in PyTorch and JAX, without a copy, where these are installed.

They are not among gpud's extras, as they take gigabytes: install one of them beside gpud, and run
this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpud_client as gc

ADD = r"""
extern "C" __global__ void add(float* x, float by) {
    x[threadIdx.x] += by;
}"""


def test_pytorch_sees_what_kernels_write_and_kernels_what_it_writes() -> None:
    torch: Any = pytest.importorskip("torch", exc_type=ImportError)
    with gc.local("cpu:1") as gpu:
        x = gpu.array(np.arange(6, dtype=np.float32))
        tensor = torch.from_dlpack(x)
        assert tensor.data_ptr() == x.numpy().ctypes.data
        tensor *= 10
        gpu.kernel(ADD, "add").submit(1, 6, (x, np.float32(1))).result(60)
        assert tensor.tolist() == [1, 11, 21, 31, 41, 51]
        assert torch.as_tensor(np.asarray(x)).data_ptr() == tensor.data_ptr()
        del x
        assert float(tensor.sum()) == 156.0, "the tensor keeps the memory"


def test_jax_reads_an_array_without_a_copy() -> None:
    jax: Any = pytest.importorskip("jax", exc_type=ImportError)
    with gc.local("cpu:1") as gpu:
        x = gpu.array(np.arange(1024, dtype=np.float32))
        array = jax.numpy.from_dlpack(x)
        assert array.unsafe_buffer_pointer() == x.numpy().ctypes.data
        assert float(array.sum()) == 523776.0
        del x
        assert float(array[-1]) == 1023.0, "the array keeps the memory"
        back = gpu.array(array * 2)
        assert back.get()[-1] == 2046.0
