"""The client with a real daemon on the CPU device: what its reference promises, line by line."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.conformance.suite import find
from tests.support.waiting import until

TIMEOUT_S = 60.0

SOURCE = r"""
struct Pair { float scale; int* target; };
__constant__ float coef[4];
__device__ int counter;

extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void append(int* list, int value) { list[++list[0]] = value; }
extern "C" __global__ void spin(const volatile int* stop, int* done) {
    while (!*stop) {}
    atomicAdd(done, 1);
}
extern "C" __global__ void place(int* where, const volatile int* go) {
    asm volatile("mov.u32 %0, %%smid;" : "=r"(where[blockIdx.x]));
    while (!*go) {}
}
extern "C" __global__ void slow(int* done, int rounds) {
    volatile float x = 1;
    for (int i = 0; i < rounds; i++) x = x * 1.0001f;
    if (threadIdx.x == 0) atomicAdd(done, 1);
}
extern "C" __global__ void speak(int n) { printf("block %d of %d\n", blockIdx.x, n); }
extern "C" __global__ void structured(Pair p, double d) { *p.target = (int)(p.scale * d); }
extern "C" __global__ void constants(float* out) {
    out[threadIdx.x] = coef[threadIdx.x];
    if (threadIdx.x == 0) counter += 1;
}
template <class T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }
"""


@pytest.fixture
def module(gpu: gc.Session) -> gc.Module:
    return gpu.module(SOURCE, ["fill<float>"])


def test_the_example(gpu: gc.Session, module: gc.Module) -> None:
    k = gpu.kernel(SOURCE, "saxpy")
    n = 1 << 16
    x = gpu.array(np.ones(n, np.float32))
    y = gpu.zeros(n, np.float32)
    job = k.submit(grid=n // 256, block=256, args=(np.float32(2), x, y, np.int32(n)), quota=2)
    job.result(timeout=30)
    assert (y.get() == 2).all()
    assert job.progress == (256, 256)
    assert job.state == "done"
    assert job.stats["run_s"] > 0
    assert job.id == f"{gpu.number}.1"
    assert k.form == "persistent"
    assert [one.kind for one in k.params] == ["float", "uint", "uint", "uint"]
    assert gpu.device.kind == "cpu"
    assert gpu.device.sms == 2
    assert k.occupancy(256) >= 1


def test_shares(gpu: gc.Session, module: gc.Module) -> None:
    saxpy, n = module.kernel("saxpy"), 4096
    shares: list[dict[str, Any]] = [
        {"quota": "50%"}, {"reservation": 1}, {"reservation": "100%"}, {"quota": 0.5}, {},
    ]  # fmt: skip
    for more in shares:
        y = gpu.zeros(n, np.float32)
        x = gpu.array(np.arange(n, dtype=np.float32))
        saxpy.submit(16, 256, (1.0, x, y, n), **more).result(TIMEOUT_S)
        assert np.array_equal(y.get(), np.arange(n))
    with pytest.raises(gc.AdmissionError):
        saxpy.submit(16, 256, (1.0, None, None, 0), reservation=3)


def test_jobs_of_a_stream_run_in_order(gpu: gc.Session, module: gc.Module) -> None:
    append = module.kernel("append")
    values = gpu.zeros(300, np.int32)
    for number in range(200):
        append.submit(1, 1, (values, number))
    got = values.get()
    assert got[0] == 200
    assert got[1:201].tolist() == list(range(200))


def test_order_across_streams(gpu: gc.Session, module: gc.Module) -> None:
    append, slow = module.kernel("append"), module.kernel("slow")
    values, done = gpu.zeros(10, np.int32), gpu.zeros(1, np.int32)
    lines = [gpu.stream() for _ in range(3)]
    first = slow.submit(4, 32, (done, 50_000), stream=lines[0])
    second = append.submit(1, 1, (values, 7), stream=lines[1], after=[first])
    append.submit(1, 1, (values, 8), stream=lines[2], after=[second, first])
    assert values.get()[:3].tolist() == [2, 7, 8]
    assert first.done()


def test_sequences(gpu: gc.Session, module: gc.Module) -> None:
    append = module.kernel("append")
    values = gpu.zeros(120, np.int32)
    calls = [append.call(1, 1, (values, number)) for number in range(100)]
    for reservation in (1, "100%"):
        values.set(np.zeros(120, np.int32))
        job = gpu.sequence(calls, reservation=reservation)
        job.result(TIMEOUT_S)
        assert values.get()[1:101].tolist() == list(range(100))
        assert job.progress == (100, 100)


def test_arguments(gpu: gc.Session, module: gc.Module) -> None:
    target = gpu.zeros(1, np.int32)
    pair = np.zeros((), [("scale", "f4"), ("pad", "V4"), ("target", "u8")])
    pair["scale"], pair["target"] = 2.5, target.ptr
    module.kernel("structured").submit(1, 1, (pair[()], 4)).result(TIMEOUT_S)
    assert target.get()[0] == 10
    module.kernel("structured").submit(1, 1, (pair.tobytes(), 8.0)).result(TIMEOUT_S)
    assert target.get()[0] == 20
    x = gpu.zeros(8, np.float32)
    module.kernel("fill<float>").submit(1, 8, (x, 3)).result(TIMEOUT_S)
    assert (x.get() == 3).all()


def test_symbols_and_output(gpu: gc.Session, module: gc.Module) -> None:
    coef = module.symbol("coef", np.float32)
    coef.set([1, 2, 3, 4])
    out = gpu.zeros(4, np.float32)
    constants = module.kernel("constants")
    for _ in range(3):
        constants.submit(1, 4, (out,))
    assert out.get().tolist() == [1, 2, 3, 4]
    assert module.symbol("counter", np.int32).get().tolist() == [3]
    assert module.symbol("counter").get() == b"\3\0\0\0"
    job = module.kernel("speak").submit(3, 1, (3,))
    job.result(TIMEOUT_S)
    assert sorted(job.output.splitlines()) == [f"block {i} of 3" for i in range(3)]


def test_what_is_wrong_with_a_source(gpu: gc.Session) -> None:
    with pytest.raises(gc.CompileError, match="undefined") as caught:
        gpu.kernel('extern "C" __global__ void k() { x = 1; }', "k")
    assert "x" in caught.value.log
    with pytest.raises(gc.KernelNotFound, match="'other'"):
        gpu.kernel(SOURCE, "other")
    with pytest.raises(gc.CompileError):
        gpu.kernel("", "k")
    gather = """
        extern "C" __global__ void k(float* x, cudaTextureObject_t t) {
            x[0] = tex2Dgather<float4>(t, 0, 0, 0).x;
        }"""
    with pytest.raises(gc.KernelRejected, match="tld4"):
        gpu.kernel(gather, "k")


MISTAKES = r"""
extern "C" __global__ void __launch_bounds__(64) saxpy(float a, float* y) { y[0] = a; }
// __global__ void commented(float* y)
template <class T> __global__ void fill(T* y) { y[0] = 1; }
extern "C" __global__ void dynamic(float* y) {
    extern __shared__ float part[];
    part[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = part[threadIdx.x];
}
extern "C" __global__ void fixed(float* y, int i) {
    __shared__ float part[32];
    part[threadIdx.x + i] = 1;
    __syncthreads();
    y[threadIdx.x] = part[threadIdx.x];
}
"""


def test_mistakes_are_named(gpu: gc.Session) -> None:
    with pytest.raises(
        gc.KernelNotFound, match=r"it defines saxpy, fill, dynamic, fixed\. Did .*'saxpy'"
    ):
        gpu.kernel(MISTAKES, "saxpi")
    with pytest.raises(gc.KernelNotFound, match='"axpy<float>"'):
        gpu.kernel(MISTAKES, "fill")
    with pytest.raises(gc.KernelNotFound, match="Did you mean 'dynamic'"):
        gpu.module(MISTAKES).kernel("dynamik")
    with pytest.raises(gc.CompileError) as caught:
        gpu.kernel(MISTAKES.replace("y[0] = a;", "y[0] = b;"), "saxpy")
    error, line, caret = str(caught.value).splitlines()
    assert 'identifier "b" is undefined' in error
    assert line[caret.index("^") :].startswith("b;")
    y = gpu.zeros(32, "float32")
    kernel = gpu.kernel(MISTAKES, "dynamic")
    with pytest.raises(gc.IllegalAddress, match=r"extern __shared__ .* pass shared=, in bytes"):
        kernel.submit(1, 32, (y,)).result(TIMEOUT_S)
    with pytest.raises(gc.IllegalAddress, match=r"\(shared=64\)"):
        kernel.submit(1, 32, (y,), shared=64).result(TIMEOUT_S)
    kernel.submit(1, 32, (y,), shared=128).result(TIMEOUT_S)
    with pytest.raises(gc.IllegalAddress) as illegal:
        gpu.kernel(MISTAKES, "fixed").submit(1, 32, (y, 1 << 14)).result(TIMEOUT_S)
    assert "shared=" not in str(illegal.value)
    with pytest.raises(TypeError, match=r"write gpu.array\(values, dtype\)"):
        kernel.submit(1, 32, ([1.0, 2.0],))


def test_a_block_that_does_not_fit(gpu: gc.Session, module: gc.Module) -> None:
    saxpy = module.kernel("saxpy")
    with pytest.raises(gc.LaunchConfigError, match="1024"):
        saxpy.submit(1, 2048, (1.0, None, None, 0))
    with pytest.raises(gc.LaunchConfigError):
        saxpy.occupancy(32, 1 << 30)


@pytest.mark.ci
def test_a_grid_that_synchronises(gpu: gc.Session) -> None:
    case = find("grid_workspace")
    k = gpu.kernel(case.source, case.entry)
    assert k.form == "whole"
    assert "[grid-sync]" in k.why[0]
    most = gpu.device.sms * k.occupancy(64)
    values = np.arange(most * 64, dtype=np.uint32)
    a, out, runs = gpu.array(values), gpu.array(0 * values), gpu.zeros(most, np.uint32)
    for _ in range(2):
        k.submit(most, 64, (a, out, runs)).result(TIMEOUT_S)
    assert (a.get() == values + 2).all()
    assert (out.get() == values[::-1] + 2).all()
    assert (runs.get() == 2).all()
    with pytest.raises(gc.LaunchConfigError, match="needs all 65 blocks at once") as caught:
        k.submit(most + 1, 64, (a, out, runs))
    assert caught.value.limit == most
    # Who waits in a barrier to which another block does not come is ended like any endless kernel.
    stuck = case.source.replace("setp.eq.u32 %first, %block, 0", "setp.eq.u32 %first, %block, -1")
    job = gpu.kernel(stuck, case.entry).submit(2, 64, (a, out, runs), timeout=0.1)
    with pytest.raises(gc.JobTimeout):
        job.result(TIMEOUT_S)


TWIN = r"""
__device__ unsigned calls;
extern "C" __global__ void rows(unsigned* sums, unsigned what) {
    if (threadIdx.x == 0 && threadIdx.y == 0) atomicAdd(&calls, 1u);
    if (what == 1) __trap();
    if (what == 2) return;
    if (threadIdx.x < 32) {
        unsigned value = __shfl_xor_sync(~0u, threadIdx.x, 1);
        sums[(blockIdx.x * blockDim.y + threadIdx.y) * 32 + threadIdx.x] = value;
    }
}"""


def test_a_block_shape_that_cannot_loop_runs_sliced(gpu: gc.Session) -> None:
    kernel = gpu.kernel(TWIN, "rows")
    blocks = 40
    expected = np.tile(np.arange(32, dtype=np.uint32) ^ 1, (blocks, 2))
    sums = gpu.zeros((blocks, 64), np.uint32)
    kernel.submit(blocks, (64, 2), (sums, 0)).result(30)
    assert np.array_equal(sums.get(), expected)
    # In rows of 48 a warp spans two of them, so that its lanes could part before the shuffle.
    kernel.submit(blocks, (48, 2), (sums, 2)).result(30)
    # Both are entries of one module, with one set of variables.
    assert kernel.module.symbol("calls", np.uint32, ()).get() == 2 * blocks
    with pytest.raises(gc.KernelTrap) as caught:
        kernel.submit(blocks, (48, 2), (sums, 1)).result(30)
    assert caught.value.kernel == "rows"  # and not its variant's name
    assert caught.value.task_block is not None  # as sliced form has it


def test_cancel_resize_and_timeout(gpu: gc.Session, module: gc.Module) -> None:
    slow, done = module.kernel("slow"), gpu.zeros(1, np.int32)
    blocks = 100_000
    job = slow.submit(blocks, 32, (done, 20_000), quota=1)
    until(lambda: job.progress[0] > 3)
    assert job.running()
    assert job.allocation == 1
    with pytest.raises(TimeoutError, match=f"of {blocks} task blocks"):
        job.result(timeout=0.01)
    job.resize(quota=2)
    until(lambda: job.allocation == 2)
    job.resize(quota="25%")
    until(lambda: job.allocation == 0.5)
    assert job.cancel()
    with pytest.raises(gc.JobCancelled):
        job.result(TIMEOUT_S)
    assert job.cancelled()
    late = slow.submit(blocks, 32, (done, 20_000), timeout=0.2)
    with pytest.raises(gc.JobTimeout, match=r"0\.2 s"):
        late.result(TIMEOUT_S)


def test_online_goes_first(gpu: gc.Session, module: gc.Module) -> None:
    slow, done = module.kernel("slow"), gpu.zeros(1, np.int32)
    background = slow.submit(100_000, 32, (done, 20_000))
    until(lambda: background.progress[0] > 3)
    line, mine = gpu.stream(), gpu.zeros(1, np.int32)
    for _ in range(3):
        slow.submit(8, 32, (mine, 100), reservation=1, stream=line).result(TIMEOUT_S)
    assert mine.get()[0] == 24
    assert not background.done()
    assert background.stats["resizes"] > 0
    assert background.stats["first_block_s"] > 0
    background.cancel()
    with pytest.raises(gc.JobCancelled):
        background.result(TIMEOUT_S)


def test_sms_of_its_own(gpu: gc.Session, module: gc.Module) -> None:
    assert gpu.device.exclusive_step == 1
    slow, done = module.kernel("slow"), gpu.zeros(1, np.int32)
    background = slow.submit(100_000, 1024, (done, 2_000))
    until(lambda: background.progress[0] > 3)
    place, go = module.kernel("place"), gpu.zeros(1, np.int32)
    where = [gpu.array(np.full(2, 99, np.int32)) for _ in range(2)]
    looks, gone = [one.numpy() for one in where], go.numpy()  # later they would wait for the jobs
    # On 1 SM of 2 each, though their blocks are small: they do not share.
    jobs = [
        place.submit(2, 32, (one, go), reservation=0.1, stream=gpu.stream(), exclusive=True)
        for one in where
    ]
    until(lambda: all(99 not in look for look in looks))
    homes = [set(look.tolist()) for look in looks]
    assert sorted(map(tuple, homes)) == [(0,), (1,)]
    assert [job.allocation for job in jobs] == [1, 1]
    assert background.allocation == 0
    with pytest.raises(gc.GpudError, match="SMs of its own"):
        jobs[0].resize(reservation=0.5)
    with pytest.raises(ValueError, match="goes with a reservation"):
        place.submit(2, 32, (where[0], go), exclusive=True)
    gone[0] = 1
    for job in jobs:
        job.result(TIMEOUT_S)
    until(lambda: background.allocation == 2)
    background.cancel()
    with pytest.raises(gc.JobCancelled):
        background.result(TIMEOUT_S)


def test_views_are_the_devices_memory(gpu: gc.Session, module: gc.Module) -> None:
    stop, done = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    looked = stop.numpy()
    job = module.kernel("spin").submit(2, 1, (stop, done))
    until(lambda: job.state == "running")
    looked[0] = 1
    job.result(TIMEOUT_S)
    assert done.get()[0] == 2


def test_memory_is_given_back_as_zeroes(gpu: gc.Session) -> None:
    n = gpu.device.memory // 3 // 4096 * 4096
    with pytest.raises(gc.OutOfMemory):
        gpu.zeros(4 * n, np.uint8)
    for _ in range(8):
        x = gpu.zeros(n, np.uint8)
        view = x.numpy()
        assert view[0] == view[-1] == view[12345] == 0
        view[0] = view[-1] = view[12345] = 7
        del view, x


def test_many_threads(gpu: gc.Session, module: gc.Module) -> None:
    fill = module.kernel("fill<float>")

    def work(number: int) -> bool:
        line = gpu.stream()
        for _ in range(10):
            x = gpu.zeros(32, np.float32)
            fill.submit(1, 32, (x, number), stream=line)
            if not (x.get() == number).all():
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_futures(gpu: gc.Session, module: gc.Module) -> None:
    slow = module.kernel("slow")
    done = gpu.zeros(1, np.int32)
    jobs = [slow.submit(4, 32, (done, 100), stream=gpu.stream()) for _ in range(10)]
    assert set(concurrent.futures.as_completed(jobs, TIMEOUT_S)) == set(jobs)
    assert concurrent.futures.wait(jobs).not_done == set()
    assert done.get()[0] == 40


def test_what_others_have_is_not_there(server: gc.Session, gpu: gc.Session) -> None:
    with gc.connect(server.path) as other:
        assert other.number != gpu.number
        x = gpu.array(np.arange(4))
        y = other.array(np.arange(4) + 1)
        x.numpy()[:] = 9
        assert y.get().tolist() == [1, 2, 3, 4]


def test_queries(gpu: gc.Session, module: gc.Module) -> None:
    slow, done = module.kernel("slow"), gpu.zeros(1, np.int32)
    job = slow.submit(100_000, 32, (done, 20_000))
    until(lambda: job.state == "running")
    rows = gpu.query("jobs")["jobs"]
    assert [row["state"] for row in rows if row["id"] == job.id] == ["running"]
    job.cancel()
    until(job.done)


def test_closing_ends_the_jobs(server: gc.Session) -> None:
    with gc.connect(server.path) as gpu:
        slow, done = gpu.kernel(SOURCE, "slow"), gpu.zeros(1, np.int32)
        job = slow.submit(100_000, 32, (done, 20_000))
        until(lambda: job.state == "running")
    assert job.cancelled()
    until(lambda: all(row["id"] != job.id for row in server.query("jobs")["jobs"]))


# -- await ---------------------------------------------------------------------------------------


def test_async(server: gc.Session) -> None:
    async def main() -> None:
        async with gc.aconnect(server.path) as gpu:
            k = await gpu.kernel(SOURCE, "saxpy")
            n = 4096
            x = await gpu.array(np.ones(n, np.float32))
            outputs = [await gpu.zeros(n, np.float32) for _ in range(8)]
            jobs = [await k.submit(16, 256, (2.0, x, y, n), stream=gpu.stream()) for y in outputs]
            await asyncio.gather(*jobs)
            for y in outputs:
                assert (await y.get() == 2).all()
            with pytest.raises(gc.KernelNotFound, match=r"gpu.module\(source\) has all"):
                k.module.kernel("slow")
            slow, done = await gpu.kernel(SOURCE, "slow"), await gpu.zeros(1, np.int32)
            job = await slow.submit(100_000, 32, (done, 20_000))
            while (await job.progress)[0] < 3:  # noqa: ASYNC110  (nothing says so)
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError, match="running"):
                await job.result(timeout=0.01)
            assert await job.cancel()
            with pytest.raises(gc.JobCancelled):
                await job

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_async_on_uvloop(server: gc.Session) -> None:
    uvloop: Any = pytest.importorskip("uvloop")

    async def main() -> None:
        async with gc.aconnect(server.path) as gpu:
            fill = (await gpu.module(SOURCE, ["fill<float>"])).kernel("fill<float>")
            x = await gpu.zeros(8, np.float32)
            for number in range(20):
                await (await fill.submit(1, 8, (x, number)))
            assert (await x.get() == 19).all()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_processes_connect_anew(gpu: gc.Session, module: gc.Module) -> None:
    x = gpu.array(np.arange(8, dtype=np.float32))
    child = os.fork()
    if not child:
        status = 1
        try:
            with gc.connect(gpu.path) as mine:
                y = mine.zeros(8, np.float32)
                fill = mine.module(SOURCE, ["fill<float>"]).kernel("fill<float>")
                fill.submit(1, 8, (y, 5)).result(TIMEOUT_S)
                status = 0 if (y.get() == 5).all() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    module.kernel("fill<float>").submit(1, 8, (x, 2)).result(TIMEOUT_S)
    assert (x.get() == 2).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_client_that_dies_takes_nothing_with_it(server: gc.Session, gpu: gc.Session) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        mine = gc.connect(server.path)
        slow, done = mine.kernel(SOURCE, "slow"), mine.zeros(1, np.int32)
        job = slow.submit(100_000, 32, (done, 20_000))
        until(lambda: job.state == "running")
        os.write(writing, job.id.encode())
        signal.pause()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        dead = pipe.read(1)
        os.kill(child, signal.SIGKILL)
        dead += pipe.read()
    os.waitpid(child, 0)
    until(lambda: all(row["id"] != dead for row in gpu.query("jobs")["jobs"]))
    x = gpu.zeros(8, np.float32)
    fill = gpu.module(SOURCE, ["fill<float>"]).kernel("fill<float>")
    fill.submit(1, 8, (x, 2)).result(TIMEOUT_S)
