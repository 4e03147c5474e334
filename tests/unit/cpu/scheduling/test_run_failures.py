"""Jobs that fail: the error says where and why, and the device stays usable."""

from __future__ import annotations

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.scheduling import persistent_block
from gpud.device.interface import Form, LaunchSpec
from gpud.errors import KernelTrap
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import TIMEOUT_S, cuda, pointer, rewritten, words
from tests.unit.cpu.scheduling.gated_runs import FORMS, make

FAILING = r"""
extern "C" __global__ void traps(unsigned at) {
    if (blockIdx.x == at && threadIdx.x == 3) __trap();
}
extern "C" __global__ void traps_in_the_corner(unsigned) {
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
) -> ResizableRun:
    text = cuda(FAILING) if form == "unmodified" else rewritten(FAILING, form).ptx
    kernel = device.load(text).kernel(name)
    return ResizableRun(device, [LaunchSpec.of(kernel, form, grid, 32, [at.to_bytes(4, "little")])])


@pytest.mark.parametrize("form", FORMS)
def test_a_trap_fails_the_job_and_leaves_the_device_usable(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "traps")
    job.resize(2)
    with pytest.raises(KernelTrap) as caught:
        job.result(TIMEOUT_S)
    error = caught.value
    assert (error.kernel, error.cause) == ("traps", "trap")
    if form == "unmodified":
        assert "trap" in (error.instruction or "")
    else:  # the daemon knows the instruction of the site
        assert error.site is not None
    assert (job.done, job.held) == (True, 0)
    with pytest.raises(KernelTrap):
        job.result(0)
    job.resize(3)
    assert job.held == 0
    work = make(device, form)
    work.job.resize(2)
    work.finish()


@pytest.mark.parametrize("form", FORMS)
def test_a_trap_says_in_which_task_block(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "traps_in_the_corner", grid=(3, 2, 4))
    job.resize(5)
    with pytest.raises(KernelTrap) as caught:
        job.result(TIMEOUT_S)
    assert caught.value.task_block == (2, 1, 3)


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_assertion_gives_message_place_and_thread(device: CPUDevice, form: Form) -> None:
    job = failing_job(device, form, "asserts")
    job.resize(2)
    with pytest.raises(KernelTrap, match="n < 4") as caught:
        job.result(TIMEOUT_S)
    error = caught.value
    assert error.cause == "assertion `n < 4' failed"
    assert (error.file, error.file_line) == ("kernel.cu", 10)
    assert (error.function, error.thread) == ("void asserts(unsigned int)", (5, 0, 0))


@pytest.mark.parametrize("form", FORMS)
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


ENDLESS = r"""
extern "C" __global__ void endless(unsigned* starts) {
    atomicAdd(starts, 1);
    while (true) starts[1 + threadIdx.x] += 1;
}
extern "C" __global__ void polls(volatile unsigned* starts) {
    atomicAdd((unsigned*)starts, 1);
    while (starts[1] == 0) {}
}
extern "C" __global__ void leaves_some(unsigned* starts) {
    if (threadIdx.x == 0) { atomicAdd(starts, 1); while (true) starts[1] += 1; }
    __syncthreads();
    starts[2] = 1;
}
"""


@pytest.mark.parametrize("form", ["persistent", "sliced", "whole"])
@pytest.mark.parametrize("name", ["endless", "polls", "leaves_some"])
def test_a_job_without_end_is_killed_alone(device: CPUDevice, name: str, form: Form) -> None:
    other = make(device, "persistent", gate=0)
    other.job.resize(1)
    until(lambda: other.gate[1] >= 1)
    program = rewritten(ENDLESS, form)
    entry = program.kernel(name).entry_for((32, 1, 1), killable=True)
    memory, counts = words(device, 40)
    kernel = device.load(program.ptx).kernel(entry)
    job = ResizableRun(device, [LaunchSpec.of(kernel, form, 5, 32, [pointer(memory)])])
    job.resize(1)
    until(lambda: counts[0] >= 1)
    job.end()
    assert not job.wait(0.05)
    job.kill()
    assert job.wait(TIMEOUT_S)
    assert (job.error, job.complete, job.held) == (None, False, 0)
    assert job.progress[1] == 0
    assert counts[2 if name == "leaves_some" else 39] == 0
    job.kill()  # it is over: nothing happens
    assert not other.job.done
    other.finish()


def test_a_sequence_that_was_killed_runs_again(device: CPUDevice) -> None:
    program = rewritten(ENDLESS)
    entry = program.kernel("polls").entry_for((32, 1, 1), killable=True)
    memory, counts = words(device, 40)
    kernel = device.load(program.ptx).kernel(entry)
    sequence = device.prepare([LaunchSpec.of(kernel, "persistent", 5, 32, [pointer(memory)])])
    job = ResizableRun(device, sequence)
    job.resize(1)
    until(lambda: counts[0] >= 1)
    job.kill()
    assert job.wait(TIMEOUT_S)
    counts[1] = 1
    again = ResizableRun(device, sequence)  # in the same records
    again.resize(1)
    again.result(TIMEOUT_S)
    assert again.complete


def test_a_block_that_waits_is_killed_without_polls(device: CPUDevice) -> None:
    work = make(device, "persistent", gate=0)
    work.job.resize(2)
    until(lambda: work.gate[1] >= 2)
    work.job.kill()
    assert work.job.wait(TIMEOUT_S)
    assert (work.job.complete, work.job.error) == (False, None)
    assert not work.runs.any()


@pytest.mark.parametrize("form", FORMS)
def test_blocks_that_wait_for_one_that_has_failed_do_not_hold_the_job(
    device: CPUDevice, form: Form
) -> None:
    text = cuda(WAITING) if form == "unmodified" else rewritten(WAITING, form).ptx
    memory, counts = words(device, 2)
    kernel = device.load(text).kernel("waits_for_the_first")
    job = ResizableRun(device, [LaunchSpec.of(kernel, form, 6, 32, [pointer(memory)])])
    job.resize(6)
    with pytest.raises(KernelTrap) as caught:
        job.result(TIMEOUT_S)
    assert caught.value.task_block == (0, 0, 0)
    assert (job.held, job.progress[1], counts[0]) == (0, 0, 0)


WAITING = r"""
extern "C" __global__ void waits_for_the_first(volatile unsigned* flag) {
    if (threadIdx.x == 0 && blockIdx.x > 0) atomicAdd((unsigned*)flag + 1, 1);
    if (blockIdx.x == 0) {
        while (flag[1] == 0) {}  // somebody waits
        __trap();
    }
    while (flag[0] == 0) {}
}
"""


LEFT_BEHIND = r"""
extern __shared__ volatile unsigned memory[];
extern "C" __global__ void looks_and_leaves(unsigned* seen) {
    seen[threadIdx.x] = memory[threadIdx.x];
    memory[threadIdx.x] = 0xC0FFEE;
}
"""


@pytest.mark.parametrize("idle_bytes", [0, 1 << 40])
def test_no_data_is_left_behind_for_another_session(
    monkeypatch: pytest.MonkeyPatch, idle_bytes: int
) -> None:
    """Whether idle persistent blocks are kept for their session or reused for the next one."""
    monkeypatch.setattr(persistent_block, "_IDLE_BYTES", idle_bytes)
    with CPUDevice(1) as device:
        memory, seen = words(device, 1 << 18)
        size = memory.view.size
        ptx = rewritten(LEFT_BEHIND).ptx
        sessions = [device.load(ptx, (int(memory.address), int(size))) for _ in range(2)]
        for module in sessions:
            seen[:] = 1
            kernel = module.kernel("looks_and_leaves")
            spec = LaunchSpec.of(kernel, "persistent", 1, 64, [pointer(memory)], shared=4096)
            job = ResizableRun(device, [spec])
            job.resize(1)
            job.result(TIMEOUT_S)
            assert not seen[:64].any()


def test_excess_memory_of_idle_persistent_blocks_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(persistent_block, "_MAX_IDLE_BYTES", 1 << 20)
    with CPUDevice(2) as device:
        memory, out = words(device, 1 << 12)
        module = device.load(
            rewritten(
                'extern "C" __global__ void k(unsigned* out, unsigned n) {'
                "unsigned kept[2000]; for (unsigned i = 0; i < n; i++) kept[i * 37 % 2000] = i;"
                "out[blockIdx.x] = kept[n * 11 % 2000]; }"
            ).ptx,
            (int(memory.address), int(memory.view.size)),
        )
        count = (50).to_bytes(4, "little")
        values = [pointer(memory), count]
        for threads in (32, 64, 128):  # each of another size, with 8 kB a thread
            spec = LaunchSpec.of(module.kernel("k"), "persistent", 12, threads, values)
            job = ResizableRun(device, [spec])
            job.resize(4)
            job.result(TIMEOUT_S)
            del job
        pool = device.scheduler._pool
        kept = sum(one.size for one in pool.by_address.values())
        assert 0 < kept <= 1 << 20
        assert not out[12:].any()
