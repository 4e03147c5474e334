"""A tinygrad program: fits a line by gradient descent, beside the same in NumPy."""

import os

os.environ["DEV"] = "CUDA"

import numpy as np
from tinygrad import Device, Tensor

assert Device.DEFAULT == "CUDA"
STEPS, RATE = 20, 0.1
rng = np.random.default_rng(1)
x = rng.random((256, 8), np.float32)
y = x @ rng.random((8, 1), np.float32)

weights = Tensor(np.zeros((8, 1), np.float32))
expected = np.zeros((8, 1), np.float32)
for _ in range(STEPS):
    loss = ((Tensor(x) @ weights - Tensor(y)) ** 2).mean()
    (slope,) = loss.gradient(weights)
    weights.assign(weights - RATE * slope).realize()
    expected -= RATE * 2 / len(x) * x.T @ (x @ expected - y)
np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-3, atol=1e-5)
print("right")
