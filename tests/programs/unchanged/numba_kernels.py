"""A Numba program: a vector sum, a reduction, a tiled product in shared memory, a histogram."""

import numpy as np
from numba import cuda, float32

TILE = 16


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.reduce
def total(a, b):
    return a + b


@cuda.jit
def multiply(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    row, column = cuda.grid(2)
    y, x = cuda.threadIdx.x, cuda.threadIdx.y
    value = float32(0)
    for tile in range(a.shape[1] // TILE):
        left[y, x] = a[row, tile * TILE + x]
        right[y, x] = b[tile * TILE + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            value += left[y, k] * right[k, x]
        cuda.syncthreads()
    c[row, column] = value


@cuda.jit
def count(values, counts):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i], 1)


rng = np.random.default_rng(1)
x, y = rng.random((2, 10_000), np.float32)
out = cuda.device_array_like(x)
add[40, 256](cuda.to_device(x), cuda.to_device(y), out)
np.testing.assert_array_equal(out.copy_to_host(), x + y)

assert total(np.arange(10_000.0)) == 49_995_000

a, b = rng.random((2, 64, 64), np.float32)
c = np.zeros((64, 64), np.float32)
multiply[(4, 4), (TILE, TILE)](a, b, c)
np.testing.assert_allclose(c, a @ b, rtol=1e-5)

values = rng.integers(0, 16, 10_000).astype(np.int32)
counts = np.zeros(16, np.int32)
stream = cuda.stream()
with cuda.pinned(values):
    there, counted = cuda.to_device(values, stream), cuda.to_device(counts, stream)
    count[40, 256, stream](there, counted)
    counted.copy_to_host(counts, stream)
    stream.synchronize()
np.testing.assert_array_equal(counts, np.bincount(values))

start, end = cuda.event(), cuda.event()
start.record()
add[40, 256](x, y, out)
end.record()
end.synchronize()
assert start.elapsed_time(end) > 0
print("right")
