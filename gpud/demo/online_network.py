"""The demo's online network: a request is a forward pass through a small neural network.

A request is a sequence of small kernels, dense layers and a final softmax, submitted in one
message. Requests cycle through a few fixed inputs, whose expected outputs NumPy computes in
advance. The last kernel counts in ``served`` how often each row of its slot was computed, so that a
lost or repeated request is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.demo.offline_kernels import differences

__all__ = ["BATCH", "BLOCK", "INPUTS", "ONLINE_SOURCE", "SLOTS", "WIDTH", "Network", "network"]

Floats = npt.NDArray[np.float32]

BATCH, WIDTH = 64, 512
"""Rows of an input, and features of a row; both multiples of 32."""
INPUTS = 8
SLOTS = 32
"""The most requests in flight, each with its own arrays and stream."""
BLOCK = (16, 16, 1)

ONLINE_SOURCE = r"""
extern "C" __global__ void dense(const float* x, const float* weights, const float* bias,
                                 float* y, int width) {
    __shared__ float left[16][16], right[16][16];
    int i = threadIdx.x, j = threadIdx.y;
    int row = blockIdx.y * 16 + j, column = blockIdx.x * 16 + i;
    float sum = bias[column];
    for (int k = 0; k < width; k += 16) {
        left[j][i] = x[row * width + k + i];
        right[j][i] = weights[(k + j) * width + column];
        __syncthreads();
        for (int n = 0; n < 16; n++) sum += left[j][n] * right[n][i];
        __syncthreads();
    }
    y[row * width + column] = fmaxf(sum, 0.0f);
}
extern "C" __global__ void softmax(const float* x, float* y, unsigned* served, int width) {
    __shared__ float parts[256];
    int row = blockIdx.x, t = threadIdx.x;
    float sum = 0;
    for (int k = t; k < width; k += 256) sum += expf(x[row * width + k]);
    parts[t] = sum;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (t < step) parts[t] += parts[t + step];
        __syncthreads();
    }
    for (int k = t; k < width; k += 256) y[row * width + k] = expf(x[row * width + k]) / parts[0];
    if (t == 0) atomicAdd(&served[row], 1u);
}"""


@dataclass(frozen=True)
class Network:
    """Weights, inputs and expected outputs of the network.

    Attributes:
        weights: one (`WIDTH`, `WIDTH`) matrix per layer.
        biases: one vector of `WIDTH` per layer.
        inputs: shape (`INPUTS`, `BATCH`, `WIDTH`).
        expected: the same shape: probabilities, which sum to 1 in each row.
    """

    weights: list[Floats]
    biases: list[Floats]
    inputs: Floats
    expected: npt.NDArray[np.float64]

    def wrong(self, number: int, output: npt.NDArray[Any]) -> str:
        """Return what is wrong with the output for input ``number``; empty if correct."""
        return differences(output, self.expected[number], rtol=2e-3, atol=1e-7)


def network(layers: int) -> Network:
    """Return a fixed random network of ``layers`` dense layers, scaled to preserve magnitudes."""
    rng = np.random.default_rng(4)
    weights = [
        (rng.standard_normal((WIDTH, WIDTH)) * np.sqrt(2 / WIDTH)).astype(np.float32)
        for _ in range(layers)
    ]
    biases = [(0.1 * rng.standard_normal(WIDTH)).astype(np.float32) for _ in range(layers)]
    inputs = rng.standard_normal((INPUTS, BATCH, WIDTH), np.float32)
    signal = inputs.reshape(-1, WIDTH).astype(np.float64)
    for matrix, bias in zip(weights, biases, strict=True):
        signal = np.maximum(signal @ matrix.astype(np.float64) + bias, 0)
    raised = np.exp(signal)
    expected = raised / raised.sum(axis=1, keepdims=True)
    return Network(weights, biases, inputs, expected.reshape(inputs.shape))
