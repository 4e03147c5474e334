"""Shuffles whose lanes are known when code is generated, whoever is found to meet when it runs."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import pack_parameters
from tests.unit.cpu.running import cuda, pointer, words

# The kernel is given `whole`, the mask of a whole warp, so that it is a number only at run time.
SHUFFLES = r"""
extern "C" __global__ void shuffles(int* out, unsigned whole) {
    int t = threadIdx.x, v = t * t + 3;
    unsigned lanes = blockDim.x - t / 32 * 32;
    unsigned there = lanes < 32 ? (1u << lanes) - 1 : whole;
    unsigned eight = (whole & 0xff) << (t & 24);
    int* mine = out + 4 * t;
    mine[0] = __shfl_xor_sync(0xffffffffu, v, 5);
    mine[1] = __shfl_xor_sync(there, v, 3);
    mine[2] = __shfl_xor_sync(eight, v, 6, 8);
    mine[3] = __shfl_up_sync(eight, v, 2, 8);
}"""


@pytest.mark.parametrize("threads", [64, 40])
def test_shuffles_are_the_same_however_their_masks_come_to_be_known(threads: int) -> None:
    lane = np.arange(threads)
    value = lane * lane + 3
    with CPUDevice(1) as device:
        kernel = device.load(cuda(SHUFFLES)).kernel("shuffles")
        memory, out = words(device, 4 * threads)
        whole = (0xFFFFFFFF).to_bytes(4, "little")
        parameters = pack_parameters(kernel.parameters, [pointer(memory), whole])
        device.launch(kernel, (1, 1, 1), (threads, 1, 1), parameters).result(20)
    found = out.view(np.int32).reshape(threads, 4)
    for column, by in enumerate((5, 3, 6)):
        assert np.array_equal(found[:, column], value[lane ^ by]), f"xor {by}"
    assert np.array_equal(found[:, 3], value[np.where(lane % 8 < 2, lane, lane - 2)])
