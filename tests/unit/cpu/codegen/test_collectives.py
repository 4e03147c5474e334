"""Shuffles whose lanes are known at compile time, and barriers that count warps."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import pack_parameters
from tests.unit.cpu.device_helpers import cuda, pointer, words

# The mask of a whole warp is the parameter `whole`, so that it is known only at run time.
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
def test_shuffles_do_not_depend_on_when_masks_are_known(threads: int) -> None:
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


BARRIERS = """.version 8.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 7;
    mov.u32 %r2, 5;
{body}
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    st.global.u32 [%rd2], %r2;
    ret;
}}
"""


def after_barriers(body: str, threads: int) -> list[int]:
    """The threads' values of %r2 after ``body``; %p1 holds for the first seven."""
    with CPUDevice(1) as device:
        kernel = device.load(BARRIERS.format(body=body)).kernel("k")
        memory, out = words(device, threads)
        parameters = pack_parameters(kernel.parameters, [pointer(memory)])
        device.launch(kernel, (1, 1, 1), (threads, 1, 1), parameters).result(20)
    return [int(word) for word in out]


@pytest.mark.parametrize("threads", [64, 48])
def test_lanes_that_do_not_exist_arrive_but_offer_nothing(threads: int) -> None:
    body = """
    setp.ge.u32 %p2, %r1, 0;
    @%p1 bra FEW;
    barrier.red.and.pred %p2, 1, 64, %p2;
    bra JOIN;
FEW:
    barrier.red.and.pred %p2, 1, 64, %p2;
JOIN:
    selp.u32 %r2, 1, 0, %p2;"""
    assert after_barriers(body, threads) == [1] * threads


def test_lanes_that_have_ended_arrive_with_their_warp() -> None:
    found = after_barriers("@%p1 exit; barrier.sync 1, 64;", 64)
    assert found == [0] * 7 + [5] * 57
