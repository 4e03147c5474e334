"""Runs whose resident blocks all spin while others have not begun; and those that only seem to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.scheduling import run as run_module
from gpud.device.interface import Form, LaunchSpec
from gpud.errors import KernelTrap
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import TIMEOUT_S, pointer, rewritten, words

SOURCE = r"""
// Each task block waits for the next one, as if all were resident.
extern "C" __global__ void later(volatile int* flag) {
    int b = blockIdx.x;
    if (threadIdx.x == 0 && b + 1 < gridDim.x) while (flag[b + 1] == 0) {}
    __syncthreads();
    if (threadIdx.x == 0) flag[b] = 1;
}
// The same, backing off up to a limit, and looking at two words in turn.
extern "C" __global__ void backing_off(volatile int* flag) {
    int b = blockIdx.x;
    if (b + 1 < gridDim.x && threadIdx.x % 3 == 0) {
        unsigned ns = 8;
        while (flag[b + 1] == 0) { if (ns < 256) ns *= 2; while (flag[0] == -1) {} }
    }
    if (threadIdx.x == 0) flag[b] = 1;
}
// It spins, and counts: it will end.
extern "C" __global__ void counting(volatile int* flag) {
    for (int k = 0; k < 6000000 && flag[gridDim.x] == 0; ++k) {}
    flag[blockIdx.x] = 1;
}
// It spins until a clock says that it is enough.
extern "C" __global__ void by_clock(volatile int* flag) {
    long long start = clock64();
    while (clock64() - start < 9000000000ll && flag[gridDim.x] == 0) {}
    flag[blockIdx.x] = 1;
}
// It writes nothing for long, and polls nothing.
extern "C" __global__ void working(volatile int* flag) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned k = 0; k < 12000000u; ++k) {
        x = x * 1664525u + 1013904223u;
        if (x == 7u) break;
    }
    flag[blockIdx.x] = 1 + (x == 7u);
}
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter time until spinning runs are ended."""
    monkeypatch.setattr(run_module, "SPIN_LIMIT_NS", 1_500_000_000)


def spinning(device: CPUDevice, name: str, form: Form, grid: int = 6) -> tuple[ResizableRun, Any]:
    kernel = device.load(rewritten(SOURCE, form).ptx).kernel(name)
    flags, seen = words(device, grid + 1)
    job = ResizableRun(device, [LaunchSpec.of(kernel, form, grid, 32, [pointer(flags)])])
    return job, (flags, seen)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("later", "persistent"),
        pytest.param("later", "sliced", marks=pytest.mark.ci),
        pytest.param("backing_off", "persistent", marks=pytest.mark.ci),
        pytest.param("backing_off", "sliced", marks=pytest.mark.ci),
    ],
)
def test_it_fails_and_says_what_to_do(device: CPUDevice, name: str, form: Form) -> None:
    job, _ = spinning(device, name, form)
    job.resize(2)
    with pytest.raises(KernelTrap, match="progress='blocks'") as caught:
        job.result(TIMEOUT_S)
    assert "its 2 resident blocks wait" in str(caught.value)
    assert "4 of its 6 task blocks have not begun" in str(caught.value)
    assert caught.value.kernel == name
    assert (job.done, job.held) == (True, 0)
    again, _ = spinning(device, name, form)  # and with all blocks resident it ends
    again.resize(6)
    again.result(TIMEOUT_S)


@pytest.mark.ci
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", ["counting", "by_clock", "working"])
def test_what_ends_by_itself_is_left_alone(device: CPUDevice, name: str) -> None:
    """Each of its task blocks takes longer than spinning blocks are left."""
    job, (_, seen) = spinning(device, name, "persistent", 3)
    began = time.monotonic()
    job.resize(1)
    if name == "counting":
        until(lambda: time.monotonic() - began > 4)
        assert job.error is None
        seen[3] = 1
        job.result(TIMEOUT_S)
    else:
        job.result(TIMEOUT_S)
        assert all(seen[:3] >= 1)


@pytest.mark.usefixtures("soon")
def test_with_all_blocks_begun_it_may_wait_for_the_host(device: CPUDevice) -> None:
    job, (_, seen) = spinning(device, "later", "persistent", 2)
    seen[2] = 0
    job.resize(1)
    until(lambda: job.progress[0] == 1)
    time.sleep(0.3)
    seen[1] = 1
    job.result(TIMEOUT_S)
