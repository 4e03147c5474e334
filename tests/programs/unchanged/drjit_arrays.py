"""A Dr.Jit program: pi by counting points of a grid that lie in a circle, and its gradient."""

import drjit as dr
import numpy as np
from drjit.cuda import Float
from drjit.cuda.ad import Float as Differentiable

N = 512
at = dr.arange(dr.cuda.UInt32, N * N)
x, y = Float(at % N) + 0.5, Float(at // N) + 0.5
inside = dr.count((x * x + y * y) < N * N)
there = np.arange(N) + 0.5
expected = np.count_nonzero(there[:, None] ** 2 + there[None, :] ** 2 < N * N)
assert int(inside[0]) == expected, (inside, expected)

v = dr.arange(Differentiable, 100)
dr.enable_grad(v)
dr.backward(dr.sum(v * v * v))
np.testing.assert_allclose(np.array(dr.grad(v)), 3 * np.arange(100.0) ** 2, rtol=1e-6)
print("right")
