"""Jobs that fail: who, where and why is told, and the device stays usable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.job import Form, Job, LaunchSpec
from gpud.errors import KernelTrap
from tests.unit.cpu.jobs import FORMS, TOTAL, make
from tests.unit.cpu.running import TIMEOUT_S, cuda, rewritten


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


FAILING = r"""
extern "C" __global__ void traps(unsigned at) {
    if (blockIdx.x == at && threadIdx.x == 3) __trap();
}
extern "C" __global__ void traps_in_the_corner() {
    if (blockIdx.x == 2 && blockIdx.y == 1 && blockIdx.z == 3) __trap();
}
extern "C" __global__ void asserts(unsigned at) {
    int n = blockIdx.x == at && threadIdx.x == 5 ? 4 : 0;
    assert(n < 4);
}
extern "C" __global__ void stuck(unsigned at) {
    if (blockIdx.x == at) asm volatile("barrier.sync 1, 64;" ::: "memory");
}
"""


def failing_job(
    device: CPUDevice, form: Form, name: str, grid: int | tuple[int, ...] = 6, at: int = 4
) -> Job:
    text = cuda(FAILING) if form == "unmodified" else rewritten(FAILING, form).ptx
    kernel = device.load(text).kernel(name)
    return Job(device, [LaunchSpec.of(kernel, form, grid, 32, [at.to_bytes(4, "little")])])


@pytest.mark.parametrize("form", FORMS)
def test_a_trap_fails_the_job_and_leaves_the_device_usable(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "traps")
    job.resize(2)
    with pytest.raises(KernelTrap) as caught:
        job.result(TIMEOUT_S)
    error = caught.value
    assert (error.kernel, error.cause) == ("traps", "trap")
    text = cuda(FAILING) if form == "unmodified" else rewritten(FAILING, form).ptx
    assert error.line is not None
    assert "trap" in text.splitlines()[error.line - 1]
    assert (job.done, job.held) == (True, 0)
    with pytest.raises(KernelTrap):
        job.result(0)
    job.resize(3)
    assert job.held == 0
    work = make(device, form)
    work.job.resize(2)
    work.job.result(TIMEOUT_S)
    assert work.runs.tolist() == [1] * TOTAL


@pytest.mark.parametrize(
    "form",
    [
        "sliced",
        "whole",
        "unmodified",
        pytest.param(
            "persistent",
            marks=pytest.mark.xfail(
                reason="a persistent block does not record which task block it runs: None"
            ),
        ),
    ],
)
def test_a_trap_says_in_which_task_block(device: CPUDevice, form: Form) -> None:
    for name in ("traps", "asserts"):
        job = failing_job(device, form, name, grid=(3, 2, 4), at=2)
        job.resize(2)
        with pytest.raises(KernelTrap) as caught:
            job.result(TIMEOUT_S)
        place = caught.value.task_block
        assert place is not None
        assert place[0] == 2
        assert place in [(2, y, z) for y in range(2) for z in range(4)]


def test_a_trap_in_a_slice_gives_all_coordinates(device: CPUDevice) -> None:
    text = rewritten(FAILING, "sliced").ptx
    kernel = device.load(text).kernel("traps_in_the_corner")
    job = Job(device, [LaunchSpec.of(kernel, "sliced", (3, 2, 4), 32, [])])
    job.resize(5)
    with pytest.raises(KernelTrap) as caught:
        job.result(TIMEOUT_S)
    assert caught.value.task_block == (2, 1, 3)


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_assertion_says_what_where_and_who(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "asserts")
    job.resize(2)
    with pytest.raises(KernelTrap, match="n < 4") as caught:
        job.result(TIMEOUT_S)
    assert caught.value.cause == (
        "thread 5: kernel.cu:10: void asserts(unsigned int): assertion `n < 4' failed"
    )


@pytest.mark.parametrize("form", ["unmodified", "whole"])
def test_a_barrier_that_can_never_open_is_reported(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "stuck", at=2)
    job.resize(2)
    with pytest.raises(KernelTrap, match="deadlock") as caught:
        job.result(TIMEOUT_S)
    assert caught.value.task_block == (2, 0, 0)


def test_a_failed_job_claims_nothing_more(device: CPUDevice) -> None:
    job = failing_job(device, "sliced", "traps", grid=100, at=1)
    job.resize(2)
    with pytest.raises(KernelTrap):
        job.result(TIMEOUT_S)
    assert job.progress[0] == 2
