"""A Triton program without PyTorch: a vector sum, a softmax, and a product of half-precision tiles.

Arrays are memory of the driver API; Triton takes whatever has an address and an element type.
"""

import ctypes

import numpy as np
import triton
import triton.language as tl

cuda = ctypes.CDLL("libcuda.so.1")


class DeviceArray:
    """A copy of a NumPy array on the device."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.dtype = values, str(values.dtype)
        self.address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(values.nbytes)))
        where = ctypes.c_void_p(values.ctypes.data)
        check(cuda.cuMemcpyHtoD_v2(self.address, where, ctypes.c_size_t(values.nbytes)))

    def data_ptr(self) -> int:
        return self.address.value

    def get(self) -> np.ndarray:
        values = np.empty_like(self.values)
        where = ctypes.c_void_p(values.ctypes.data)
        check(cuda.cuMemcpyDtoH_v2(where, self.address, ctypes.c_size_t(values.nbytes)))
        return values


def check(code: int) -> None:
    if code:
        raise SystemExit(f"CUDA error {code}")


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def multiply(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)
    place = at[:, None] * N + at[None, :]
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))


context = ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
rng = np.random.default_rng(1)

n = 10_000
x, y, out = (DeviceArray(rng.random(n, np.float32)) for _ in range(3))
add[triton.cdiv(n, 1024),](x, y, out, n, BLOCK=1024)
np.testing.assert_array_equal(out.get(), x.values + y.values)

rows, columns = 50, 300
x, out = (DeviceArray(rng.random((rows, columns), np.float32)) for _ in range(2))
softmax[rows,](x, out, columns, BLOCK=512)
powers = np.exp(x.values - x.values.max(1, keepdims=True))
np.testing.assert_allclose(out.get(), powers / powers.sum(1, keepdims=True), rtol=1e-5)

a, b = (DeviceArray(rng.random((32, 32)).astype(np.float16)) for _ in range(2))
c = DeviceArray(np.zeros((32, 32), np.float32))
multiply[1,](a, b, c, N=32)
wide = a.values.astype(np.float32) @ b.values.astype(np.float32)
np.testing.assert_allclose(c.get(), wide, rtol=1e-3)
print("right")
