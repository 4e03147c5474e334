"""Blocks that wait for other blocks yield, for all forms of polling loops.

On a device with one SM, block 0 polls a word that block 1 sets, so it ends only if block 1 gets to
run. Polling through warp collectives, next to barriers, and from loops that share a header with
others, is easily missed by a loop-by-loop analysis.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.device.cpu.device import CPUDevice
from tests.unit.cpu.device_helpers import TIMEOUT_S, cuda, pointer, words

_HEAD = """.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .u32 %r<9>; .reg .u64 %rd<4>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r5, %ctaid.x; mov.u32 %r2, 0; mov.u32 %r6, %tid.x;
    setp.eq.u32 %p3, %r5, 1; @%p3 bra SET;
"""
_TAIL = """
    ret;
SET:
    st.volatile.global.u32 [%rd1], 1;
    ret;
}
"""
_READ = "ld.volatile.global.u32 %r1, [%rd1];"
_AGAIN = "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"

LOOPS = {
    "alone": f"L: {_READ} {_AGAIN}",
    "acquire": f"L: ld.acquire.gpu.global.u32 %r1, [%rd1]; {_AGAIN}",
    "atomic": f"L: atom.global.add.u32 %r1, [%rd1], 0; {_AGAIN}",
    "fetched again": f"L: ld.global.cv.u32 %r1, [%rd1]; {_AGAIN}",
    "plain, with a fence": f"L: ld.global.u32 %r1, [%rd1]; membar.gl; {_AGAIN}",
    "with a barrier": f"L: {_READ} bar.sync 0; {_AGAIN}",
    "through a reduction": f"""
        L: {_READ} setp.eq.u32 %p1, %r1, 0; bar.red.or.pred %p1, 0, %p1; @%p1 bra L;""",
    "with a barrier of the warp": f"L: {_READ} bar.warp.sync -1; {_AGAIN}",
    "through a shuffle": f"L: {_READ} shfl.sync.idx.b32 %r1, %r1, 0, 31, -1; {_AGAIN}",
    "through a vote": f"""
        L: {_READ} setp.eq.u32 %p1, %r1, 0; vote.sync.any.pred %p1, %p1, -1; @%p1 bra L;""",
    "one lane polls for all": f"""
        L: mov.u32 %r7, %laneid; setp.ne.u32 %p2, %r7, 0; @%p2 bra A; {_READ}
        A: shfl.sync.idx.b32 %r1, %r1, 0, 31, -1; {_AGAIN}""",
    "one thread polls, others wait": f"""
        setp.ne.u32 %p2, %r6, 33; @%p2 bra A; L: {_READ} {_AGAIN} A: bar.sync 0;""",
    "a barrier on one way around": f"""
        L: {_READ} setp.eq.u32 %p1, %r1, 0; @%p1 bra A; bar.sync 0;
        A: setp.eq.u32 %p1, %r1, 0; @%p1 bra L;""",
    "two loops with one header": f"""
        L: {_READ} {_AGAIN}
        bar.sync 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 5; @%p2 bra L;""",
    "with arrivals": f"""
        L: {_READ} setp.gt.u32 %p2, %r6, 100; @%p2 bar.arrive 1, 64; {_AGAIN}""",
    "with a sleep": f"L: {_READ} nanosleep.u32 100; {_AGAIN}",
}


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(1) as one:
        yield one


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("threads", [1, 64])
def test_a_block_that_polls_yields(device: CPUDevice, name: str, threads: int) -> None:
    memory, _ = words(device, 1)
    kernel = device.load(_HEAD + LOOPS[name] + _TAIL).kernel("k")
    launch = device.launch(kernel, (2, 1, 1), (threads, 1, 1), pointer(memory))
    assert launch.wait(TIMEOUT_S)


HAND_OVER = r"""
extern "C" __global__ void turns(volatile unsigned* word, unsigned rounds) {
    // Threads of one block take turns, last to first: nobody goes on before its successor.
    for (unsigned round = 0; round < rounds; round++) {
        unsigned mine = round * blockDim.x + (blockDim.x - 1 - threadIdx.x);
        while (*word != mine) {}
        *word = mine + 1;
    }
}
"""


@pytest.mark.parametrize("threads", [2, 32, 48])
def test_threads_of_a_block_wait_for_each_other(device: CPUDevice, threads: int) -> None:
    memory, word = words(device, 1)
    kernel = device.load(cuda(HAND_OVER)).kernel("turns")
    parameters = pointer(memory) + (3).to_bytes(4, "little")
    device.launch(kernel, (1, 1, 1), (threads, 1, 1), parameters).result(TIMEOUT_S)
    assert word[0] == 3 * threads
