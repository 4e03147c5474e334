"""The CPU device itself: launch limits, launches in a queue, opening and closing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.scheduling.native_launch import NativeLaunch
from gpud.errors import LaunchConfigError
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, Array, cuda, pointer, words

SOURCE = r"""
extern "C" __global__ void gated(unsigned* started, const volatile unsigned* gate) {
    if (threadIdx.x == 0) {
        unsigned ticket = atomicAdd(started, 1);
        while (*gate <= ticket) {}
    }
}
extern "C" __global__ void where(unsigned* out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned smid, nsmid;
    asm("mov.u32 %0, %%smid;" : "=r"(smid));
    asm("mov.u32 %0, %%nsmid;" : "=r"(nsmid));
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        block << 16 | thread << 4 | (smid < nsmid) << 3 | nsmid;
}
extern "C" __global__ void clears() {
    __shared__ volatile int own[64];
    own[threadIdx.x % 64] = threadIdx.x;
}
"""


class Gated:
    """Launches of ``gated``: they go on until the test opens the gate."""

    def __init__(self, device: CPUDevice) -> None:
        self.device = device
        self.kernel = device.load(cuda(SOURCE)).kernel("gated")
        self.counter, self.started = words(device, 1)
        self.door, self.gate = words(device, 1)

    def launch(self, blocks: int) -> NativeLaunch:
        parameters = pointer(self.counter) + pointer(self.door)
        return self.device.launch(self.kernel, (blocks, 1, 1), (32, 1, 1), parameters)

    def open(self) -> None:
        self.gate[0] = OPEN


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "limit"),
    [
        ((1025, 1, 1), 1024),
        ((1, 1025, 1), 1024),
        ((1, 1, 65), 64),
        ((32, 32, 2), 1024),
        ((33, 32, 1), 1024),
        ((0, 1, 1), None),
        ((1, -1, 1), None),
    ],
)
def test_blocks_that_no_gpu_runs(
    device: CPUDevice, block: tuple[int, int, int], limit: int | None
) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("clears")
    for refused in (
        lambda: device.launch(kernel, (1, 1, 1), block, b""),
        lambda: device.occupancy(kernel, block),
    ):
        with pytest.raises(LaunchConfigError) as caught:
            refused()
        assert (caught.value.parameter, caught.value.limit) == ("block", limit)


@pytest.mark.parametrize("block", [(1024, 1, 1), (1, 1024, 1), (16, 1, 64)])
def test_the_largest_blocks_run(device: CPUDevice, block: tuple[int, int, int]) -> None:
    memory, out = words(device, 2 * 1024)
    kernel = device.load(cuda(SOURCE)).kernel("where")
    device.launch(kernel, (2, 1, 1), block, pointer(memory)).result(TIMEOUT_S)
    assert np.array_equal(out, numbers(2, 1024))


def numbers(blocks: int, threads: int) -> Array:
    at = np.arange(blocks * threads, dtype=np.uint32)
    return at // threads << 16 | at % threads << 4 | 8 | 2


@pytest.mark.parametrize(
    ("grid", "limit"),
    [
        ((2**31, 1, 1), 2**31 - 1),
        ((1, 65536, 1), 65535),
        ((1, 1, 65536), 65535),
        ((2**16, 2**15, 1), 2**31 - 1),
        ((0, 1, 1), None),
        ((1, 1, -4), None),
    ],
)
def test_grids_that_no_gpu_runs(
    device: CPUDevice, grid: tuple[int, int, int], limit: int | None
) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("clears")
    with pytest.raises(LaunchConfigError) as caught:
        device.launch(kernel, grid, (32, 1, 1), b"")
    assert (caught.value.parameter, caught.value.limit) == ("grid", limit)


def test_shared_memory_beyond_an_sm(device: CPUDevice) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("clears")
    with pytest.raises(LaunchConfigError) as caught:
        device.launch(kernel, (1, 1, 1), (32, 1, 1), b"", shared=227 * 1024 - 255)
    assert (caught.value.parameter, caught.value.limit) == ("shared", 227 * 1024)
    device.launch(kernel, (1, 1, 1), (32, 1, 1), b"", shared=227 * 1024 - 256).result(TIMEOUT_S)


def test_memory_is_zeroed_and_aligned(device: CPUDevice) -> None:
    for size in (0, 1, 255, 256, 100_000):
        memory = device.allocate(size)
        assert memory.address % 256 == 0
        assert memory.view.size == size
        assert not memory.view.any()


# -- residency and the queue -------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "sms", "resident"), [(75, 1, 16), (86, 2, 32), (90, 1, 32)])
def test_as_many_blocks_are_resident_as_fit(capability: int, sms: int, resident: int) -> None:
    with CPUDevice(sms, capability=capability) as device:
        gated = Gated(device)
        launch = gated.launch(100)
        until(lambda: gated.started[0] == resident)
        assert launch.active == resident
        gated.open()
        launch.result(TIMEOUT_S)
        assert gated.started[0] == 100


def test_launches_of_one_priority_run_in_order() -> None:
    with CPUDevice(1, capability=75) as device:
        first, second = Gated(device), Gated(device)
        one = first.launch(20)
        until(lambda: first.started[0] == 16)
        two = second.launch(1)
        first.gate[0] = 3
        until(lambda: first.started[0] == 19)
        assert second.started[0] == 0
        first.open()
        one.result(TIMEOUT_S)
        second.open()
        two.result(TIMEOUT_S)


def test_a_stopped_launch_starts_no_further_block(device: CPUDevice) -> None:
    gated = Gated(device)
    launch = gated.launch(500)
    until(lambda: gated.started[0] == 64)
    launch.stop()
    gated.open()
    launch.result(TIMEOUT_S)
    assert gated.started[0] == 64


@pytest.mark.parametrize("then_another", [False, True])
def test_a_launch_that_is_stopped_before_it_has_room_ends(then_another: bool) -> None:
    with CPUDevice(1, capability=75) as device:
        running, waiting = Gated(device), Gated(device)
        one = running.launch(16)
        until(lambda: running.started[0] == 16)
        two = waiting.launch(1)
        two.stop()
        if then_another:
            running.launch(1)
        running.open()
        one.result(TIMEOUT_S)
        assert two.wait(5)
        assert waiting.started[0] == 0


def test_a_timeout_says_that_it_still_runs(device: CPUDevice) -> None:
    gated = Gated(device)
    launch = gated.launch(1)
    with pytest.raises(TimeoutError, match="gated is still running after 0 s"):
        launch.result(0)
    gated.open()
    launch.result(TIMEOUT_S)


# -- opening and closing -----------------------------------------------------------------------


@pytest.mark.parametrize("sms", [0, -1])
def test_a_device_needs_an_sm(sms: int) -> None:
    with pytest.raises(ValueError, match="cpu:1"):
        CPUDevice(sms)


def test_a_device_needs_limits() -> None:
    with pytest.raises(ValueError, match="75, 80, 86"):
        CPUDevice(1, capability=60)


def test_closing_while_nothing_runs_and_twice() -> None:
    device = CPUDevice(2)
    device.close()
    device.close()
    with CPUDevice(1) as other:
        pass
    other.close()


def test_a_closed_device_runs_nothing() -> None:
    with CPUDevice(1) as device:
        kernel = device.load(cuda(SOURCE)).kernel("clears")
    with pytest.raises(RuntimeError, match="closed"):
        device.launch(kernel, (1, 1, 1), (32, 1, 1), b"")


def test_closing_while_a_kernel_runs_returns() -> None:
    device = CPUDevice(1)
    gated = Gated(device)
    launch = gated.launch(3)
    until(lambda: gated.started[0] == 3)
    device.close()
    assert not launch.done


EXIT = """
import sys
from gpud.device.cpu.device import CPUDevice
device = CPUDevice(2)
kernel = device.load(sys.stdin.read()).kernel("gated")
started, gate = device.allocate(4), device.allocate(4)
parameters = started.address.to_bytes(8, "little") + gate.address.to_bytes(8, "little")
device.launch(kernel, (8, 1, 1), (32, 1, 1), parameters)
while started.view[0] < 8:
    pass
print("leaving")
"""


def test_the_interpreter_ends_while_a_kernel_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXIT],
        input=cuda(SOURCE),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "leaving\n", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises_costs_no_sm() -> None:
    """The exception is reported; the SM goes on with other launches."""

    def broken(launch: NativeLaunch) -> None:
        raise RuntimeError("planted")

    with CPUDevice(1) as one:
        kernel = one.load(cuda(SOURCE)).kernel("clears")
        assert one.launch(kernel, (1, 1, 1), (64, 1, 1), b"", on_done=broken).wait(TIMEOUT_S)
        one.launch(kernel, (3, 1, 1), (64, 1, 1), b"").result(TIMEOUT_S)


def test_extents_beyond_the_third_are_refused(device: CPUDevice) -> None:
    kernel = device.load(cuda(SOURCE)).kernel("clears")
    with pytest.raises(LaunchConfigError, match="one to three"):
        device.launch(kernel, (1, 1, 1, 5), (64, 1, 1), b"")
    with pytest.raises(LaunchConfigError, match="one to three"):
        device.launch(kernel, (1, 1, 1), (64, 1, 1, 2), b"")
