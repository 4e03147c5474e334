"""Boundary guards: bodies that run for a tile of the threads, or for any other set of them."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import pack_parameters
from tests.unit.cpu.device_helpers import cuda, pointer, words

GUARDED = r"""
extern "C" __global__ void guarded(const int* in, int* out, int left, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int sum = 7, last = -1;
    if (x >= left && x < w && y < h) {
        for (int j = 0; j < in[0]; j++) {
            last = in[j];
            sum += last * (x + y);
        }
    }
    int at = y * gridDim.x * blockDim.x + x;
    out[2 * at] = sum;
    out[2 * at + 1] = last;
}"""


@pytest.mark.parametrize("block", [(1, 1, 1), (64, 1, 1), (16, 4, 1), (8, 4, 2)], ids=str)
def test_a_thread_runs_the_body_if_and_only_if_it_voted_for_it(block: tuple[int, int, int]) -> None:
    width, height = 2 * block[0], 2 * block[1]
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    with CPUDevice(1) as device:
        kernel = device.load(cuda(GUARDED)).kernel("guarded")
        assert ("%across" in kernel.generate(Shape(*block)).ir) is (block != (1, 1, 1))
        given, numbers = words(device, 3)
        numbers[:] = [3, 5, 11]
        memory, out = words(device, 2 * width * height)
        # All, none, a tile, a tile of one row or column, and sets that are no tile.
        for left, w, h in (
            (0, width, height),
            (0, 0, height),
            (0, width - 3, height),
            (0, block[0] + 1, block[1]),
            (0, width - 1, 1),
            (2, width - 1, height),
            (block[0] + 5, width, height),
        ):
            values = [pointer(given), pointer(memory)]
            values += [n.to_bytes(4, "little", signed=True) for n in (left, w, h)]
            parameters = pack_parameters(kernel.parameters, values)
            device.launch(kernel, (2, 2, 1), block, parameters).result(20)
            went = (x >= left) & (x < w) & (y < h)
            found = out.view(np.int32).reshape(height, width, 2)
            assert np.array_equal(found[..., 0], np.where(went, 7 + 19 * (x + y), 7)), (left, w, h)
            assert np.array_equal(found[..., 1], np.where(went, 11, -1)), (left, w, h)
