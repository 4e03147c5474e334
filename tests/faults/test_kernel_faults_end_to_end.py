"""Kernels that go wrong, through the real daemon: who is told what, and who notices nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.support.waiting import until

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0
GRACE_S = 3  # a busy machine must come to the kill flag in this time
GPUCTL = [sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"]

SOURCE = r"""
extern "C" __global__ void store(int* p, long long at, int value) {
    p[at + blockIdx.x * blockDim.x + threadIdx.x] = value;
}
extern "C" __global__ void wide(char* p) {
    *(int4*)(p + 8) = make_int4(1, 2, 3, 4);
}
extern "C" __global__ void through(int** p) { *p[threadIdx.x] = 1; }
__device__ __noinline__ void deep(int* p, int n) { if (n) deep(p - n, n - 1); else *p = 7; }
extern "C" __global__ void called(int* p) { deep(p, 3); }
__device__ int own[4];
extern "C" __global__ void globals(int value) { own[threadIdx.x] = value; }
extern "C" __global__ void neighbours(int* p, int at) {
    __shared__ int x[32];
    x[threadIdx.x] = threadIdx.x;
    __syncthreads();
    p[threadIdx.x] = x[threadIdx.x + at];
}
extern "C" __global__ void traps(unsigned at) {
    if (blockIdx.x == at && threadIdx.x == 3) __trap();
}
extern "C" __global__ void breaks(unsigned at) {
    if (blockIdx.x == at && threadIdx.x == 3) asm volatile("brkpt;");
}
extern "C" __global__ void asserts(unsigned at) {
    int n = blockIdx.x == at && threadIdx.x == 5 ? 4 : 0;
    assert(n < 4);
}
// A gate: task block `at` fails when gate[0] is open; the others count themselves once it is.
extern "C" __global__ void fails_late(volatile int* gate, int* done, int* nowhere, unsigned at) {
    if (threadIdx.x) return;
    atomicAdd((int*)gate + 1, 1);
    while (!gate[0]) {}
    if (blockIdx.x == at) *nowhere = 1;
    atomicAdd(done, 1);
}
extern "C" __global__ void waits(volatile int* gate, int* done) {
    if (threadIdx.x == 0) {
        atomicAdd((int*)gate + 1, 1);
        while (!gate[0]) {}
        atomicAdd(done, 1);
    }
}
extern "C" __global__ void endless(volatile int* p) { while (true) p[threadIdx.x] += 1; }
"""
LINES = SOURCE.splitlines()


def line_of(text: str) -> int:
    return 1 + next(at for at, line in enumerate(LINES) if text in line)


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    with gc.local("cpu:2", grace=GRACE_S) as gpu:
        yield gpu


@pytest.fixture
def other(server: gc.Session) -> Iterator[gc.Session]:
    with gc.connect(server.path) as session:
        yield session


@pytest.fixture
def module(gpu: gc.Session) -> gc.Module:
    return gpu.module(SOURCE)


def device(gpu: gc.Session) -> dict[str, Any]:
    found: dict[str, Any] = gpu.query("status")["devices"][0]
    return found


def fault(job: gc.Job) -> Any:
    """What a job fails with; its host stays."""
    error = job.exception(TIMEOUT_S)
    assert isinstance(error, gc.JobError)
    assert job.state == "failed"
    assert "\n" not in str(error)
    return error


@pytest.fixture(autouse=True)
def same_host(request: pytest.FixtureRequest, server: gc.Session) -> Iterator[None]:
    """Whatever a kernel does, the host of the device goes on, unless the test says otherwise."""
    before = device(server)["pid"]
    yield
    if "costs_its_host" not in request.node.name:
        assert device(server)["pid"] == before


# -- accesses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "side"), [(1 << 40, "after"), (-1025, "before"), (-(1 << 38), "")])
def test_an_access_outside_of_the_arena(
    gpu: gc.Session, other: gc.Session, module: gc.Module, at: int, side: str
) -> None:
    theirs = other.array(np.arange(1024, dtype=np.int32))
    x = gpu.array(np.arange(1000, dtype=np.int32))  # not whole pages
    error = fault(module.kernel("store").submit(4, 32, (x, at, 7)))
    assert error.code == "illegal-address"
    first = x.ptr + 4 * at
    assert first <= error.address < first + 4 * 128
    assert (error.kernel, error.space, error.misaligned) == ("store", "global", False)
    assert error.task_block is not None
    assert error.address == first + 4 * (32 * error.task_block[0] + error.thread[0])
    assert error.array == (x.ptr, 4000)
    end = x.ptr + 4000
    assert error.distance == (error.address - end + 1 if at > 0 else x.ptr - error.address)
    assert error.instruction.startswith("st.global")
    assert error.line is not None
    assert side in str(error)
    assert np.array_equal(theirs.get(), np.arange(1024))
    assert np.array_equal(x.get(), np.arange(1000))


def test_a_null_pointer(module: gc.Module) -> None:
    error = fault(module.kernel("store").submit(1, 1, (None, 0, 7)))
    assert (error.address, error.task_block, error.thread) == (0, (0, 0, 0), (0, 0, 0))
    assert "null" in str(error)


def test_pointers_from_memory_and_in_functions(
    gpu: gc.Session, other: gc.Session, module: gc.Module
) -> None:
    theirs = other.zeros(4, np.int32)
    pointers = gpu.array(np.array([theirs.ptr], np.uint64))
    error = fault(module.kernel("through").submit(1, 1, (pointers,)))
    assert error.address == theirs.ptr
    error = fault(module.kernel("called").submit(1, 1, (np.uint64(theirs.ptr + 24),)))
    assert error.address == theirs.ptr
    assert error.kernel == "called"
    assert (theirs.get() == 0).all()


def test_an_address_that_is_not_aligned(gpu: gc.Session, module: gc.Module) -> None:
    x = gpu.zeros(64, np.uint8)
    error = fault(module.kernel("wide").submit(1, 1, (x,)))
    assert (error.address, error.misaligned) == (x.ptr + 8, True)
    assert (error.array, error.distance) == ((x.ptr, 64), 0)
    assert str(error).startswith("misaligned address")
    assert not x.get().any()


def test_variables_of_the_module_are_the_sessions(gpu: gc.Session, module: gc.Module) -> None:
    module.kernel("globals").submit(1, 4, (3,)).result(TIMEOUT_S)
    assert module.symbol("own", np.int32, 4).get().tolist() == [3] * 4
    error = fault(module.kernel("globals").submit(1, 1024, (4,)))
    assert type(error) is gc.IllegalAddress
    with pytest.raises(LookupError):
        module.symbol("gpud_arena")


def test_shared_memory(gpu: gc.Session, module: gc.Module) -> None:
    x = gpu.zeros(32, np.int32)
    error = fault(module.kernel("neighbours").submit(1, 32, (x, 1 << 20)))
    assert (error.space, error.kernel) == ("shared", "neighbours")
    assert error.array is None
    assert error.instruction.startswith("ld.shared")
    module.kernel("neighbours").submit(1, 32, (x, 0)).result(TIMEOUT_S)
    assert x.get().tolist() == list(range(32))


# -- traps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cause"), [("traps", "trap"), ("breaks", "brkpt")])
def test_a_trap(module: gc.Module, name: str, cause: str) -> None:
    error = fault(module.kernel(name).submit(8, 32, (5,)))
    assert type(error) is gc.KernelTrap
    assert (error.kernel, error.cause) == (name, cause)
    assert (error.task_block, error.thread) == ((5, 0, 0), (3, 0, 0))
    assert error.line is not None


# -- what goes on ----------------------------------------------------------------------------------


def test_another_job_on_the_same_sms_goes_on(
    gpu: gc.Session, other: gc.Session, module: gc.Module
) -> None:
    gate, done = other.zeros(2, np.int32), other.zeros(1, np.int32)
    bits = gate.numpy()
    job = other.kernel(SOURCE, "waits").submit(4, 32, (gate, done), quota=1)
    until(lambda: bits[1])
    for _ in range(5):
        assert type(fault(module.kernel("traps").submit(8, 32, (5,)))) is gc.KernelTrap
    assert job.running()
    bits[0] = 1
    job.result(TIMEOUT_S)
    assert done.get()[0] == 4


def test_what_was_freed_and_unloaded_meanwhile_is_still_named(gpu: gc.Session) -> None:
    gate, done, x = gpu.zeros(2, np.int32), gpu.zeros(1, np.int32), gpu.zeros(1024, np.int32)
    bits = gate.numpy()
    kernel = gpu.kernel(SOURCE, "fails_late")
    start = x.ptr
    job = kernel.submit(1, 32, (gate, done, np.uint64(start + (1 << 41)), 0))
    until(lambda: bits[1])
    x.free()
    del kernel, x
    bits[0] = 1
    error = fault(job)
    assert error.array == (start, 4096)
    assert error.instruction.startswith("st.")


# -- kernels that never end ------------------------------------------------------------------------


def test_an_endless_kernel_with_a_timeout_is_ended_alone(
    gpu: gc.Session, other: gc.Session, module: gc.Module
) -> None:
    gate, done = other.zeros(2, np.int32), other.zeros(1, np.int32)
    bits = gate.numpy()
    neighbour = other.kernel(SOURCE, "waits").submit(4, 32, (gate, done), quota=1)
    until(lambda: bits[1])
    x = gpu.zeros(32, np.int32)
    job = module.kernel("endless").submit(16, 32, (x,), timeout=0.2)
    assert type(fault(job)) is gc.JobTimeout
    assert neighbour.running()
    bits[0] = 1
    neighbour.result(TIMEOUT_S)
    assert done.get()[0] == 4
    # The device is whole again.
    module.kernel("store").submit(4, 32, (gpu.zeros(128, np.int32), 0, 1)).result(TIMEOUT_S)


def test_an_endless_kernel_is_ended_alone_when_it_is_cancelled(
    gpu: gc.Session, module: gc.Module
) -> None:
    before = device(gpu)["pid"]
    counts = gpu.zeros(32, np.int32)
    seen = counts.numpy()
    job = module.kernel("endless").submit(1, 32, (counts,), reservation=1)
    until(lambda: seen[0])  # one that has not begun yet ends when told to
    job.cancel()
    with pytest.raises(gc.JobCancelled):
        job.result(TIMEOUT_S)
    assert device(gpu)["pid"] == before


# -- for people ------------------------------------------------------------------------------------


def test_gpuctl_says_it_in_one_line(gpu: gc.Session, tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text(SOURCE)
    command = [*GPUCTL, "run", str(source)]
    options = ["asserts", "-g", "2", "-b", "32", "-a", "1", "--socket", gpu.path]
    ran = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert "assertion `n < 4' failed" in line
    assert f".cu:{line_of('assert(n < 4)')}" in line
