"""The CUDA device served end to end, over the model of the driver: arrays, jobs, lost hosts.

Device memory is separate from the session's file there, and filled with rubbish at first: a missing
copy is noticed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from gpud_client.connection.pending import Request
from tests.gpu.host_process import MEMORY_BYTES
from tests.gpu.served_daemon import TIMEOUT_S, Served
from tests.support.waiting import until

pytestmark = pytest.mark.ci

SOURCE = r"""
extern "C" __global__ void add(int* x, int value) {
    x[blockIdx.x * blockDim.x + threadIdx.x] += value;
}
extern "C" __global__ void copy(int* to, const int* of) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = of[i];
}
extern "C" __global__ void count(int* done, int rounds) {
    volatile float x = 1;
    for (int i = 0; i < rounds; i++) x = x * 1.0001f;
    atomicAdd(done, 1);
}
extern "C" __global__ void forever(volatile int* never) { while (!*never) {} }
extern "C" __global__ void stray(int* x, long long at) { x[at] = 1; }
extern "C" __global__ void trapped(int* x) { if (x[0] == 7) __trap(); }
__device__ int counter;
__constant__ int table[4];
extern "C" __global__ void symbols(int* out) {
    out[threadIdx.x] = table[threadIdx.x];
    if (threadIdx.x == 0) counter += 1;
}
"""
N = 1024
LARGE = 40 << 20  # more than one piece
GRANULE = 2 << 20


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = Served(memory="100%", session_memory="100%", user_memory="100%")
    yield one
    one.close()


@pytest.fixture
def gpu(served: Served) -> Iterator[gc.Session]:
    with served.connect() as session:
        yield session


def kernel(gpu: gc.Session, name: str) -> gc.Kernel:
    return gpu.kernel(SOURCE, name)


def add(gpu: gc.Session, x: gc.Array, value: int, **more: object) -> gc.Job:
    arguments = (x, np.int32(value))
    return kernel(gpu, "add").submit(grid=N // 128, block=128, args=arguments, **more)  # type: ignore[arg-type]


def ints(first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(first, first + N, dtype=np.int32)


# -- arrays --------------------------------------------------------------------------------------


def test_set_and_get_copy_what_jobs_read_and_write(gpu: gc.Session) -> None:
    assert (gpu.device.kind, gpu.device.arrays) == ("cuda", "copied")
    x, y, zeros = gpu.array(ints()), gpu.empty(N, np.int32), gpu.zeros(N, np.int32)
    add(gpu, x, 5)
    kernel(gpu, "copy").submit(grid=N // 128, block=128, args=(y, x))
    assert np.array_equal(x.get(), ints(5))
    assert np.array_equal(y.get(), ints(5))
    assert not zeros.get().any()
    add(gpu, zeros, 3)
    assert (zeros.get() == 3).all()
    x.set(ints(100))
    out = np.empty(N, np.int32)
    assert x.get(out) is out
    assert np.array_equal(out, ints(100))
    add(gpu, x, 1)
    x.set(ints(7))  # waits for the job, and a job that follows finds it
    assert np.array_equal(add_and_get(gpu, x, 1), ints(8))
    assert np.array_equal(np.asarray(x), ints(8))


def add_and_get(
    gpu: gc.Session, x: gc.Array, value: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    add(gpu, x, value).result(timeout=TIMEOUT_S)
    return x.get()


def test_no_process_maps_the_memory_of_a_gpu(gpu: gc.Session) -> None:
    x = gpu.array(ints())
    with pytest.raises(gc.GpudError, match=r"copy the values with get\(\) and set\(\)"):
        x.numpy()
    with pytest.raises(gc.GpudError, match="cannot be mapped"):
        np.asarray(x, copy=False)
    assert len(gpu.empty(0, np.int32).get()) == 0


def test_freed_memory_is_zero_for_whoever_gets_it_next(served: Served, gpu: gc.Session) -> None:
    x = gpu.array(np.full(LARGE // 4, 9, np.int32))
    address = x.ptr
    add(gpu, x, 1).result(timeout=TIMEOUT_S)
    x.free()
    again = gpu.zeros(LARGE // 4, np.int32)
    assert again.ptr == address
    add(gpu, again, 2).result(timeout=TIMEOUT_S)
    found = again.get()
    assert (found[:N] == 2).all()
    assert not found[N:].any()
    del x, again
    gpu.zeros(1)  # sends what was dropped
    until(lambda: served.call(lambda: served.daemon.state.arenas.used_bytes(0)) <= 4096)


def test_no_data_of_other_sessions_lies_beside_an_array(served: Served, gpu: gc.Session) -> None:
    with served.connect() as other:
        secret = other.array(np.full(1 << 20, 0x5EC2E7, np.int32))
        assert secret.get()[0] == 0x5EC2E7
    out = gpu.zeros(N, np.int32)
    copy = kernel(gpu, "copy")
    for byte in (4 * N, 1 << 20, (2 << 20) - 4 * N):  # of the same granule
        beside = out.ptr + byte
        job = copy.submit(grid=N // 128, block=128, args=(out, np.uint64(beside)))
        job.result(timeout=TIMEOUT_S)
        assert not out.get().any()


def test_more_than_the_gpu_has_is_refused_and_leaves_nothing(
    served: Served, gpu: gc.Session
) -> None:
    for _ in range(3):
        with pytest.raises(gc.OutOfMemory, match="device"):
            gpu.zeros(MEMORY_BYTES * 7 // 8, np.uint8)
        assert served.call(lambda: served.daemon.state.arenas.used_bytes(0)) == 0
    # Others still get what there is, and one that gives some back can have it again at once.
    for _ in range(3):
        with served.connect() as other:
            large = other.zeros(LARGE, np.uint8)
            with pytest.raises(gc.OutOfMemory):
                gpu.zeros(LARGE, np.uint8)
            large.free()
            assert other.zeros(LARGE, np.uint8).nbytes == LARGE
        until(lambda: served.call(lambda: served.daemon.state.arenas.used_bytes(0)) == 0)


def test_sessions_copy_beside_each_other(served: Served) -> None:
    problems: list[str] = []

    def work(seed: int) -> None:
        with served.connect() as gpu:
            for number in range(6):
                x = gpu.array(ints(seed * 1000 + number))
                if not np.array_equal(add_and_get(gpu, x, 1), ints(seed * 1000 + number + 1)):
                    problems.append(f"session {seed}, round {number}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert problems == []


def test_invalid_parts_are_refused(served: Served, gpu: gc.Session) -> None:
    x = gpu.array(ints())
    core, channel = gpu._core, gpu._channel

    def ask(offset: int, size: int, address: int = x.ptr) -> None:
        step = Request(lambda n: wm.Download(n, 0, address, offset, size))
        channel._ask(step)

    ask(0, 4 * N)
    ask(4, 8)
    with pytest.raises(gc.GpudError, match="no part of the array"):
        ask(4, 4 * N)
    with pytest.raises(gc.GpudError, match="was it freed already"):
        ask(0, 1, x.ptr + 4)
    with served.connect() as other:
        foreign = other.array(ints())
        with pytest.raises(gc.GpudError, match="was it freed already"):
            ask(0, 1, foreign.ptr)
    assert core.lost is None


def test_the_asynchronous_client_copies_as_well(served: Served) -> None:
    async def main() -> None:
        async with gc.aconnect(served.path) as gpu:
            k = await gpu.kernel(SOURCE, "add")
            arrays = [await gpu.array(ints(100 * at)) for at in range(4)]
            for x in arrays:
                await k.submit(grid=N // 128, block=128, args=(x, np.int32(1)))
            found = await asyncio.gather(*[x.get() for x in arrays])
            for at, values in enumerate(found):
                assert np.array_equal(values, ints(100 * at + 1))
            await arrays[0].set(ints(3))
            job = await k.submit(grid=N // 128, block=128, args=(arrays[0], np.int32(1)))
            await job.result(timeout=TIMEOUT_S)
            assert np.array_equal(await arrays[0].get(), ints(4))
            with pytest.raises(gc.GpudError, match="cannot be mapped"):
                await arrays[0].numpy()

    asyncio.run(main())


# -- jobs ----------------------------------------------------------------------------------------


def test_streams_sequences_and_symbols(gpu: gc.Session) -> None:
    x, out = gpu.array(ints()), gpu.empty(4, np.int32)
    k, streams = kernel(gpu, "add"), [gpu.stream(), gpu.stream()]
    last: list[gc.Job] = []
    for at in range(6):
        last = [add(gpu, x, 1, stream=streams[at % 2], after=last)]
    chain = gpu.sequence(
        [k.call(N // 128, 128, (x, np.int32(value))) for value in (10, 20)], after=last
    )
    chain.result(timeout=TIMEOUT_S)
    assert np.array_equal(x.get(), ints(36))
    module = gpu.module(SOURCE)
    table, counter = module.symbol("table", np.int32, 4), module.symbol("counter", np.int32)
    table.set(np.array([4, 3, 2, 1], np.int32))
    for _ in range(2):
        job = module.kernel("symbols").submit(grid=1, block=4, args=(out,))
        job.result(timeout=TIMEOUT_S)
    assert out.get().tolist() == [4, 3, 2, 1]
    assert counter.get().tolist() == [2]


def test_a_job_is_resized_while_it_runs(gpu: gc.Session) -> None:
    done = gpu.zeros(1, np.int32)
    job = kernel(gpu, "count").submit(
        grid=2000, block=32, args=(done, np.int32(3000)), quota="100%"
    )
    until(lambda: job.running() or job.done())
    for share in ("50%", "10%", "100%"):
        with suppress(gc.UnknownName):  # it may have ended by now
            job.resize(quota=share)
    job.result(timeout=TIMEOUT_S)
    assert job.progress == (2000, 2000)
    assert done.get().tolist() == [2000 * 32]


def test_a_kernel_fault_is_reported_and_ends_its_job_alone(served: Served, gpu: gc.Session) -> None:
    restarts = served.call(lambda: served.device.restarts)
    x = gpu.array(ints())
    stray = kernel(gpu, "stray").submit(grid=1, block=1, args=(x, np.int64(1 << 40)))
    with pytest.raises(gc.IllegalAddress) as caught:
        stray.result(timeout=TIMEOUT_S)
    assert caught.value.address == x.ptr + (4 << 40)
    x.set(ints(7))
    with pytest.raises(gc.KernelTrap, match="trap"):
        kernel(gpu, "trapped").submit(grid=1, block=32, args=(x,)).result(timeout=TIMEOUT_S)
    never = gpu.zeros(1, np.int32)
    with pytest.raises(gc.JobTimeout):
        kernel(gpu, "forever").submit(grid=2, block=32, args=(never,), timeout=0.05).result(
            timeout=TIMEOUT_S
        )
    assert np.array_equal(add_and_get(gpu, x, 1), ints(8))
    assert served.call(lambda: served.device.restarts) == restarts


def test_a_dead_clients_memory_is_freed(served: Served) -> None:
    script = f"""
import sys, numpy as np, gpud_client as gc
gpu = gc.connect({served.path!r})
x = gpu.array(np.ones({LARGE} // 4, np.int32))
never = gpu.zeros(1, np.int32)
k = gpu.kernel({SOURCE!r}, "forever")
k.submit(grid=2, block=32, args=(never,))
print("ready", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        os.kill(client.pid, signal.SIGKILL)
    until(lambda: served.call(lambda: served.daemon.state.arenas.used_bytes(0)) == 0)
    with served.connect() as gpu:
        assert not gpu.zeros(LARGE // 4, np.int32).get().any()


# -- losses --------------------------------------------------------------------------------------


def test_a_lost_host_loses_arrays_that_no_file_has(served: Served, gpu: gc.Session) -> None:
    with served.connect() as idle:
        kept = idle.array(ints(1))
        changed, got = gpu.array(ints()), gpu.array(ints())
        add(gpu, changed, 1)
        assert np.array_equal(add_and_get(gpu, got, 1), ints(1))
        served.kill_host()
        # Of a session whose arrays no job has changed nothing is lost.
        assert np.array_equal(add_and_get(idle, kept, 1), ints(2))
    # What was got after the last job is in the file; what was not is nowhere.
    assert np.array_equal(got.get(), ints(1))
    with pytest.raises(gc.DeviceLost, match=r"lost the array at 0x.*SIGKILL.*set\(\)"):
        changed.get()
    with pytest.raises(gc.DeviceLost, match=r"lost an array .*which the job could have used"):
        add(gpu, got, 1).result(timeout=TIMEOUT_S)
    changed.set(ints(5))
    assert np.array_equal(add_and_get(gpu, got, 1), ints(2))
    assert np.array_equal(add_and_get(gpu, changed, 1), ints(6))
    events = gpu.query("events")["events"]
    lost = [event for event in events if event["event"] == "arrays-lost"]
    assert lost[-1]["arrays"] == 1


def test_a_lane_may_change_arrays_and_does_not_open_on_what_is_lost(
    served: Served, gpu: gc.Session
) -> None:
    x = gpu.array(ints())
    with gpu.lane(reservation=1) as lane:
        add(gpu, x, 1, stream=lane).result(timeout=TIMEOUT_S)
        x.set(ints(5))  # arrives before the next launch
        add(gpu, x, 1, stream=lane).result(timeout=TIMEOUT_S)
        assert np.array_equal(x.get(), ints(6))
        add(gpu, x, 1, stream=lane).result(timeout=TIMEOUT_S)
        served.kill_host()
    with pytest.raises(gc.DeviceLost, match=r"lost the array at 0x"):
        x.get()
    with pytest.raises(gc.DeviceLost, match="could have used"):
        gpu.lane(reservation=1)
    x.set(ints(3))
    with gpu.lane(reservation=1) as lane:
        add(gpu, x, 1, stream=lane).result(timeout=TIMEOUT_S)
    assert np.array_equal(x.get(), ints(4))


def test_jobs_that_wait_when_a_host_is_lost_do_not_compute_on_what_is_left(
    served: Served, gpu: gc.Session
) -> None:
    never, x = gpu.zeros(1, np.int32), gpu.array(ints())
    running = kernel(gpu, "forever").submit(grid=2, block=32, args=(never,), reservation=2)
    until(running.running)
    behind = add(gpu, x, 1)  # on the same stream
    waiting = add(gpu, x, 1, stream=gpu.stream())  # for room
    served.kill_host()
    with pytest.raises(gc.DeviceLost):
        running.result(timeout=TIMEOUT_S)
    with pytest.raises(gc.DeviceLost, match="could have used"):
        waiting.result(timeout=TIMEOUT_S)
    with pytest.raises(gc.PredecessorFailed) as raised:
        behind.result(timeout=TIMEOUT_S)
    assert isinstance(raised.value.__cause__, gc.DeviceLost)
    del never
    x.set(ints(3))
    assert np.array_equal(add_and_get(gpu, x, 1), ints(4))


def test_a_kernel_that_strays_where_its_session_has_no_array_ends_alone_if_at_all(
    served: Served, gpu: gc.Session
) -> None:
    """What has no memory behind it ends the host when it is touched, as it ends a GPU's context."""
    restarts = served.call(lambda: served.device.restarts)

    def stray(to: int) -> BaseException | None:
        job = kernel(gpu, "stray").submit(grid=1, block=1, args=(x, np.int64((to - x.ptr) // 4)))
        return job.exception(timeout=TIMEOUT_S)

    with served.connect() as other:
        never = other.zeros(1, np.int32)
        beside = kernel(other, "forever").submit(
            grid=1, block=32, args=(never,), timeout=10 * TIMEOUT_S
        )
        until(beside.running)
        x, y = gpu.array(ints()), gpu.zeros(3 * GRANULE, np.uint8)
        assert (x.ptr, y.ptr) == (x.ptr // MEMORY_BYTES * MEMORY_BYTES, x.ptr + 4 * N)
        prefix = x.ptr + 4 * GRANULE  # whole granules
        for to in (prefix, prefix + GRANULE // 2, x.ptr + MEMORY_BYTES - 4):
            error = stray(to)
            assert isinstance(error, gc.IllegalAddress)
            assert (error.address, error.array) == (to, (y.ptr, y.nbytes))
        assert stray(y.ptr + y.nbytes) is None  # in the last array's granule
        assert stray(prefix - 4) is None
        freed = y.ptr + GRANULE
        y.free()
        assert stray(freed) is None
        z = gpu.zeros(3 * GRANULE, np.uint8)
        assert z.ptr < freed < z.ptr + z.nbytes
        assert stray(z.ptr) is None
        assert z.get().nonzero()[0].tolist() == [0]  # what strayed before is gone
        assert beside.running()
        beside.cancel()
        with pytest.raises(gc.JobCancelled):
            beside.result(timeout=TIMEOUT_S)
    assert np.array_equal(x.get(), ints())
    assert served.call(lambda: served.device.restarts) == restarts


def test_a_new_host_has_memory_between_arrays_too(served: Served, gpu: gc.Session) -> None:
    first, gap, last = (gpu.array(np.full(GRANULE, 3, np.int32)) for _ in range(3))
    hole = gap.ptr + 2 * GRANULE - first.ptr
    assert 0 < hole < last.ptr - first.ptr
    gap.free()
    served.kill_host()
    restarts = served.call(lambda: served.device.restarts)
    poke = kernel(gpu, "stray").submit(grid=1, block=1, args=(first, np.int64(hole // 4)))
    poke.result(timeout=TIMEOUT_S)
    again = gpu.zeros(GRANULE, np.int32)  # where the sink is
    assert first.ptr + hole in range(again.ptr, again.ptr + again.nbytes)
    assert (add_and_get(gpu, again, 5)[:N] == 5).all()
    assert not again.get()[N:].any()
    assert (last.get() == 3).all()
    assert (first.get() == 3).all()
    assert served.call(lambda: served.device.restarts) == restarts


def test_gpu_metrics_are_unknown_without_nvml(gpu: gc.Session) -> None:
    (device,) = gpu.query("status")["devices"]
    assert device["kind"] == "cuda"
    # The model's GPU is none that NVML knows, if there is NVML here at all.
    assert device["gpu_utilisation_percent"] is None
    assert device["gpu_last_xid"] is None


def test_how_launches_were_queued_is_in_a_jobs_statistics_and_the_status(
    served: Served, gpu: gc.Session
) -> None:
    x, k = gpu.array(ints()), kernel(gpu, "add")
    before = gpu.query("status")["devices"][0]["queued_as"] or {}
    ways = []
    for _ in range(4):
        job = gpu.sequence([k.call(N // 128, 128, (x, np.int32(1)))] * 3)
        job.result(timeout=TIMEOUT_S)
        ways.append(job.stats["queued_as"])
    assert ways == [{"one by one: not prepared": 1}] * 2 + [{"graph": 1}] * 2
    after = gpu.query("status")["devices"][0]["queued_as"]
    assert after["graph"] - before.get("graph", 0) == 2
    told = subprocess.run(
        [sys.executable, "-c", "from gpud_client.cli import main; main()", "status",
         "--socket", served.path],
        check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip
    assert f"{after['graph']} graph" in told
