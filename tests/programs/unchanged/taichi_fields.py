"""A Taichi program: heat that spreads in a field, beside the same in NumPy."""

import numpy as np
import taichi as ti

ti.init(arch=ti.cuda)
assert ti.lang.impl.current_cfg().arch == ti.cuda, "Taichi has found no CUDA driver"
N, STEPS = 64, 20
heat, following = ti.field(ti.f32, (N, N)), ti.field(ti.f32, (N, N))


@ti.kernel
def spread():
    for i, j in heat:
        if 0 < i < N - 1 and 0 < j < N - 1:
            around = heat[i - 1, j] + heat[i + 1, j] + heat[i, j - 1] + heat[i, j + 1]
            following[i, j] = 0.5 * heat[i, j] + 0.125 * around
        else:
            following[i, j] = heat[i, j]
    for i, j in heat:
        heat[i, j] = following[i, j]


expected = np.random.default_rng(1).random((N, N), np.float32)
heat.from_numpy(expected)
for _ in range(STEPS):
    spread()
    around = expected[:-2, 1:-1] + expected[2:, 1:-1] + expected[1:-1, :-2] + expected[1:-1, 2:]
    changed = expected.copy()
    changed[1:-1, 1:-1] = np.float32(0.5) * expected[1:-1, 1:-1] + np.float32(0.125) * around
    expected = changed
np.testing.assert_allclose(heat.to_numpy(), expected, rtol=1e-4)
print("right")
