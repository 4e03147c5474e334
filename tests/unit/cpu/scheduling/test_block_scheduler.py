"""Placement of persistent blocks: whole SMs for a job if possible, no capacity left unused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.occupancy import SM_CAPACITY
from gpud.device.cpu.scheduling.run import CPURun
from gpud.device.interface import LaunchSpec
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, cuda, pointer, rewritten, words
from tests.unit.cpu.scheduling.gated_runs import Work, make

M = 4
"""Blocks of 256 threads on an SM of compute capability 7.5."""


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(3, capability=75) as one:
        yield one


def gated(device: CPUDevice, *, threads: int = 256) -> Work:
    return make(device, "persistent", 1000, gate=0, block=threads)


def blocks_of(device: CPUDevice) -> list[int]:
    """Persistent blocks of each SM, of all jobs."""
    return [sm.blocks for sm in device.scheduler.sms]


def grown(device: CPUDevice, work: Work, slices: int) -> list[int]:
    """`blocks_of` once the job has this many."""
    begun = work.job.progress[0] + slices - work.job.slices
    work.job.resize(slices)
    until(lambda: work.job.progress[0] >= begun)
    return blocks_of(device)


def shrunk(device: CPUDevice, work: Work, slices: int) -> list[int]:
    """Likewise, with fewer slices; every block of the job ends its task block."""
    work.job.resize(slices)
    work.gate[0] = work.job.progress[0]
    until(lambda: work.job.held == slices)
    return blocks_of(device)


def test_a_job_has_as_few_sms_as_its_slices_need(device: CPUDevice) -> None:
    work = gated(device)
    assert work.job.sequence.occupancy == M
    assert grown(device, work, 2) == [2, 0, 0]
    assert grown(device, work, M) == [M, 0, 0]
    assert grown(device, work, 2 * M) == [M, M, 0]
    assert grown(device, work, 3 * M) == [M, M, M]
    work.end()


def test_a_job_of_several_sms_has_as_many_persistent_blocks_on_each(device: CPUDevice) -> None:
    work = gated(device)
    assert sorted(grown(device, work, 2 * M - 2)) == [0, M - 1, M - 1]
    work.end()


def test_whole_sms_come_free(device: CPUDevice) -> None:
    work = gated(device)
    grown(device, work, 3 * M)
    assert sorted(shrunk(device, work, 2 * M)) == [0, M, M]
    assert sorted(shrunk(device, work, M)) == [0, 0, M]
    assert sorted(shrunk(device, work, M - 1)) == [0, 0, M - 1]
    work.end()


def test_jobs_share_as_few_sms_as_they_can(device: CPUDevice) -> None:
    first, second = gated(device), gated(device)
    grown(device, first, M)
    grown(device, second, M)
    assert blocks_of(device) == [M, M, 0]
    first.end()
    second.end()


def test_that_blocks_have_left_is_told_before_the_block_in_their_place_runs() -> None:
    with CPUDevice(1, capability=75) as device:
        offline = gated(device, threads=1024)  # the SM holds one block of them
        online = make(device, "persistent", 1, gate=0, block=1024, priority=1)
        offline.job.resize(1)
        offline.begun(1)
        begun: list[int] = []

        def on_left() -> None:
            begun.append(int(online.gate[1]))
            online.gate[0] = OPEN

        offline.job._run.on_left = on_left  # type: ignore[attr-defined]
        offline.job.resize(0)
        online.job.resize(1)
        offline.step()
        until(lambda: begun)
        assert begun == [0], "it could take long, and nobody would know that they have left"
        online.job.result(TIMEOUT_S)
        offline.end()


def test_fragmented_capacity_is_used(device: CPUDevice) -> None:
    """Three times three quarters of an SM leave a quarter on each: room for a block of two."""
    works = [gated(device) for _ in range(3)]
    for work in works:
        grown(device, work, M - 1)
    assert blocks_of(device) == [M - 1] * 3
    large = gated(device, threads=512)
    assert large.job.sequence.occupancy == M // 2
    grown(device, large, 1)
    assert sum(blocks_of(device)) == 3 * (M - 1) + 1
    assert sum(sm.used for sm in device.scheduler.sms) <= 3 * SM_CAPACITY
    assert large.job.progress[0] == 1
    # A quarter is left: too little for a second one.
    large.job.resize(2)
    assert sum(blocks_of(device)) == 3 * (M - 1) + 1
    for work in (*works, large):
        work.end()
    assert [sm.used for sm in device.scheduler.sms] == [0, 0, 0]


def test_a_launch_with_a_small_m_has_blocks_on_every_sm_of_its_sequence(device: CPUDevice) -> None:
    """Its blocks have the lowest indices, and room comes free on one SM after the other."""
    works = [gated(device) for _ in device.scheduler.sms]
    for work in works:
        grown(device, work, M)
    runs, _ = words(device, 1000)
    door, gate = words(device, 2)
    values = [pointer(runs), pointer(door)]
    launches = [
        LaunchSpec.of(works[0].kernel, "persistent", 1000, threads, values) for threads in (256, 64)
    ]
    sequence = device.prepare(launches)
    assert (sequence.occupancy, sequence.layout.max_occupancy) == (M, 4 * M)
    job = ResizableRun(device, sequence)
    job.resize(3 * M)
    run = job._run
    assert isinstance(run, CPURun)
    for number, work in enumerate(works):
        work.end()
        until(lambda number=number: len(run.kept) == (number + 1) * 4 * M)  # type: ignore[misc]
    first = [run.kept[index].sm for index in range(3 * M)]
    assert [first.count(sm) for sm in device.scheduler.sms] == [M] * 3
    job.end()
    gate[0] = OPEN
    assert job.wait(TIMEOUT_S)


def test_sm_threads_have_low_priority(device: CPUDevice) -> None:
    sms = [one for one in threading.enumerate() if one.name.startswith("sm")]
    assert len(sms) >= device.sms
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    for thread in sms:
        assert thread.native_id is not None
        until(
            lambda thread=thread: (  # type: ignore[misc]
                os.getpriority(os.PRIO_PROCESS, thread.native_id) == min(19, mine + 10)
            )
        )


def test_an_idle_sm_sleeps(device: CPUDevice) -> None:
    idle = [one for one in threading.enumerate() if one.name.startswith("sm")]
    work = gated(device)
    grown(device, work, M)
    work.end()
    until(lambda: all(sm.blocks == 0 for sm in device.scheduler.sms))

    def switches() -> list[str]:
        """How often each thread was scheduled so far, and whether it sleeps."""
        found = []
        for thread in idle:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            found += re.findall(r"State:.*|.*ctxt_switches:.*", status)
        return found

    until(lambda: all("sleeping" in line for line in switches() if "State" in line))
    before = switches()
    with CPUDevice(1) as other:
        busy = gated(other)
        busy.gate[0] = OPEN
        busy.job.resize(1)
        assert busy.job.wait(TIMEOUT_S)
    assert switches() == before


YIELDS = """
import ctypes, sys
from gpud.device.cpu.device import CPUDevice
from gpud.device import jit
yields = []
count = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: yields.append(1) or 0)
jit.add_symbols({"sched_yield": jit.callback_address(count)})
device = CPUDevice(1)
kernel = device.load(sys.stdin.read()).kernel("clears")
for _ in range(20):
    device.launch(kernel, (3, 1, 1), (64, 1, 1), b"").result(60)
print(len(yields))
"""


def test_an_sm_with_a_block_to_run_does_not_yield() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", YIELDS],
        input=cuda('extern "C" __global__ void clears() {}'),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("0\n", "")


# -- released persistent blocks beside others ------------------------------------------------------

STEPS = r"""
extern "C" __global__ void steps(unsigned* count, unsigned most) {
    for (unsigned i = 0; i < most; i++) {
        float value = i;
        for (int k = 0; k < 2000; k++) value = value * 0.5f + threadIdx.x;
        if (threadIdx.x == 0) *(volatile unsigned*)count += 1 + (value < 0);
        __syncthreads();
    }
}
"""


STEPS_BESIDE = 4000  # tens of milliseconds


class Steps:
    """A job of one block after another, each of which counts its steps and yields in between."""

    def __init__(self, device: CPUDevice, task_blocks: int, most: int) -> None:
        kernel = device.load(rewritten(STEPS, "persistent").ptx).kernel("steps")
        self.memory, self.words = words(device, 1)
        values = [pointer(self.memory), most.to_bytes(4, "little")]
        self.job = ResizableRun(
            device, [LaunchSpec.of(kernel, "persistent", task_blocks, 256, values)]
        )

    @property
    def count(self) -> int:
        return int(self.words[0])


def test_released_persistent_blocks_are_throttled_beside_others() -> None:
    with CPUDevice(1) as device:
        late = Steps(device, 4, 5 * STEPS_BESIDE)
        late.job.resize(1)
        until(lambda: late.count > 100)
        other = Steps(device, 1, STEPS_BESIDE)
        late.job.resize(0)
        before = late.count
        other.job.resize(1)
        other.job.result(TIMEOUT_S)
        beside = late.count - before
        assert late.job.held == 1
        # Both do the same in a turn: with equal turns it would be as many.
        assert beside < 0.6 * STEPS_BESIDE
        late.job.end()
        assert late.job.wait(TIMEOUT_S)


def test_released_persistent_blocks_are_not_starved() -> None:
    with CPUDevice(1) as device:
        other = Steps(device, 1_000_000, 100)
        late = Steps(device, 4, 2000)
        late.job.resize(1)
        until(lambda: late.count > 10)
        other.job.resize(1)
        until(lambda: other.count > 10)
        late.job.resize(0)
        until(lambda: late.job.held == 0)
        assert late.job.progress[1] == 1
        assert not other.job.done
        other.job.end()
        assert other.job.wait(TIMEOUT_S)
