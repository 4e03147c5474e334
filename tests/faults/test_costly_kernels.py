"""Kernels that take long without an endless loop end alone: a neighbour's running job goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from tests.support.waiting import until

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0
GRACE_S = 3  # a busy machine must come to a poll in this time
LIMIT_S = 0.3

GATE = r"""
extern "C" __global__ void waits(volatile int* gate, int* done) {
    if (threadIdx.x == 0) {
        atomicAdd((int*)gate + 1, 1);
        while (!gate[0]) {}
        atomicAdd(done, 1);
    }
}
"""
PRINTS = f'extern "C" __global__ void k(int* p) {{ printf("{"%.0d" * 16000}", 0); }}'
PRINTS_OFTEN = 'extern "C" __global__ void k(int* p) { %s }' % ('printf("%.0d%%", p[0]);' * 300)
SHORT_LOOPS = (
    'extern "C" __global__ void k(int* p) { unsigned x = p[threadIdx.x];'
    + "\n#pragma unroll 1\nfor (int i = 0; i < 700; i++) x = x * 1664525u + (x >> 3) + i;" * 60
    + "p[threadIdx.x] = x; }"
)
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
BULK_LOOPS = (
    f"""{HEAD}
.visible .entry k(.param .u64 p)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 to[32768];
  .shared .align 8 .b64 arrived;
  ld.param.u64 %rd1, [p];
"""
    + "".join(
        f"""
  mov.u32 %r1, 0;
L{number}:
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [%rd1], 32768, [arrived];
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 1000;
  @%p1 bra L{number};
"""
        for number in range(40)
    )
    + "  ret;\n}\n"
)
CALLS = (
    HEAD
    + ".visible .global .align 4 .u32 sum;\n"
    + ".func f0() { .reg .b32 %r<2>; ld.volatile.global.u32 %r1, [sum]; ret; }\n"
    + "".join(f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 45))
    + ".visible .entry k(.param .u64 p) { call f44; ret; }\n"
)
COSTLY = {
    "prints": PRINTS,
    "prints often": PRINTS_OFTEN,
    "short loops": SHORT_LOOPS,
    "bulk loops": BULK_LOOPS,
    "calls": CALLS,
}


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    with gc.local("cpu:2", grace=GRACE_S) as gpu:
        yield gpu


@pytest.mark.parametrize("name", COSTLY)
def test_it_times_out_alone(server: gc.Session, name: str) -> None:
    with gc.connect(server.path) as culprit, gc.connect(server.path) as neighbour:
        gate = neighbour.zeros(2, np.int32)
        words = gate.numpy()
        done = neighbour.zeros(1, np.int32)
        running = neighbour.kernel(GATE, "waits").submit(1, 32, (gate, done), quota=1)
        until(lambda: words[1] == 1)
        kernel = culprit.kernel(COSTLY[name], "k")
        data = culprit.zeros(1 << 14, np.int32)
        job = kernel.submit(64, 1024, (data,), quota=1, timeout=LIMIT_S)
        began = time.monotonic()
        with pytest.raises(gc.JobTimeout):
            job.result(TIMEOUT_S)
        assert time.monotonic() - began < LIMIT_S + 2 * GRACE_S
        assert running.running(), "the neighbour's job goes on"
        words[0] = 1
        running.result(TIMEOUT_S)
        assert done.get()[0] == 1
