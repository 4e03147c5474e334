"""Lanes of the asyncio client: opened, submitted to, awaited and closed on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import lane_ring as ring
from gpud_client.aio.lanes import AsyncLane, AsyncLaneJob

LIMIT_S = 30.0
SOURCE = r"""
extern "C" __global__ void put(unsigned* out, unsigned value) { out[blockIdx.x] = value; }
extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }
extern "C" __global__ void wrong(unsigned* out) { if (blockIdx.x == 3) out[1ll << 40] = 1; }
extern "C" __global__ void print(unsigned value) { printf("%u;", value); }
extern "C" __global__ void spin(volatile unsigned* flag) { while (!*flag) {} }
"""


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    with gc.local("cpu:2") as session:
        yield session.path


@pytest.fixture
async def gpu(path: str) -> AsyncIterator[gc.AsyncSession]:
    async with gc.aconnect(path) as session:
        yield session


async def test_a_program_changes_one_line(gpu: gc.AsyncSession) -> None:
    put, out = await gpu.kernel(SOURCE, "put"), await gpu.zeros(8, np.uint32)
    async with gpu.lane(reservation=1) as lane:
        job = await put.submit(5, 1, (out, 7), stream=lane)
        assert isinstance(job, AsyncLaneJob)
        await job
        assert job.done()
        assert not job.cancelled()
        assert (await job.state, await job.progress) == ("done", (5, 5))
        assert (await job.stats)["run_s"] > 0
        assert job.id.startswith(f"{gpu.number}.")
        again = await put.submit(8, 1, (out, 6), stream=lane)
        assert (await out.get()).tolist() == [6] * 8  # which waits for the lane
        assert again.done()
    assert lane.closed
    with pytest.raises(gc.InvalidArgument, match="the lane is closed"):
        await put.submit(1, 1, (out, 7), stream=lane)


async def test_a_lane_is_opened_once_however_it_is_awaited(gpu: gc.AsyncSession) -> None:
    add, out = await gpu.kernel(SOURCE, "add"), await gpu.zeros(1, np.uint32)
    lane = gpu.lane(reservation=2)
    with pytest.raises(gc.InvalidArgument, match="not open yet: use `async with"):
        await add.submit(1, 1, (out,), stream=lane)
    assert list(await asyncio.gather(_opened(lane), _opened(lane))) == [lane, lane]
    assert await lane is lane
    await add.submit(1, 1, (out,), stream=lane)
    await lane.synchronize()
    assert (await out.get())[0] == 1
    await lane.close()
    await lane.close()
    await (await gpu.lane(reservation=2)).close()  # the share has come back


async def test_more_launches_than_the_ring_holds_leave_the_loop_free(
    gpu: gc.AsyncSession,
) -> None:
    spin, add = await gpu.kernel(SOURCE, "spin"), await gpu.kernel(SOURCE, "add")
    gate, out = await gpu.zeros(1, np.uint32), await gpu.zeros(1, np.uint32)
    view = await gate.numpy()
    async with gpu.lane(reservation=1) as lane:
        await add.submit(1, 1, (out,), stream=lane)
        held = await spin.submit(1, 1, (gate,), stream=lane)

        async def many() -> list[gc.AsyncJob]:
            return [await add.submit(1, 1, (out,), stream=lane) for _ in range(2 * ring.SLOTS)]

        async def one_by_one() -> gc.AsyncJob:
            launches = [add.call(1, 1, (out,)) for _ in range(2 * ring.SLOTS)]
            return await gpu.sequence(launches, stream=lane)

        submitting = asyncio.create_task(many()), asyncio.create_task(one_by_one())
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in submitting)
        assert not held.done()
        view[0] = 1
        jobs, sequence = await submitting[0], await submitting[1]
        await asyncio.gather(*jobs, sequence)
        assert await sequence.progress == (2 * ring.SLOTS, 2 * ring.SLOTS)
        assert (await out.get())[0] == 1 + 4 * ring.SLOTS


async def test_an_awaiting_task_is_cancelled_and_the_job_goes_on(gpu: gc.AsyncSession) -> None:
    spin, gate = await gpu.kernel(SOURCE, "spin"), await gpu.zeros(1, np.uint32)
    view = await gate.numpy()
    async with gpu.lane(reservation=1) as lane:
        job = await spin.submit(1, 1, (gate,), stream=lane)
        with pytest.raises(TimeoutError, match="0 of 1 task blocks are done"):
            await job.result(timeout=0.05)
        view[0] = 1
        await job
        view[0] = 0
        job = await spin.submit(1, 1, (gate,), stream=lane)
        while not await job.running():
            assert not job.done()
        assert await job.cancel()
        with pytest.raises(gc.JobCancelled):
            await job
        assert job.cancelled()


async def test_waits_end_in_the_order_of_the_launches(gpu: gc.AsyncSession) -> None:
    spin = await gpu.kernel(SOURCE, "spin")
    gates = [await gpu.zeros(1, np.uint32) for _ in range(2)]
    views = [await gate.numpy() for gate in gates]
    async with gpu.lane(reservation=1) as lane:
        first, second = [await spin.submit(1, 1, (gate,), stream=lane) for gate in gates]
        later = asyncio.create_task(second.result())
        await asyncio.sleep(0.05)  # a thread waits for the second one now
        sooner = asyncio.create_task(first.result())
        await asyncio.sleep(0.05)
        views[0][0] = 1
        await asyncio.wait_for(sooner, LIMIT_S)
        assert not later.done()
        views[1][0] = 1
        await later


async def test_errors_output_and_callbacks(gpu: gc.AsyncSession) -> None:
    wrong, show = await gpu.kernel(SOURCE, "wrong"), await gpu.kernel(SOURCE, "print")
    out = await gpu.zeros(4, np.uint32)
    plain = await (await wrong.submit(8, 1, (out,))).exception()
    async with gpu.lane(reservation=1, on_error="continue") as lane:
        failed = await wrong.submit(8, 1, (out,), stream=lane)
        printed = await show.submit(2, 1, (5,), stream=lane)
        called = asyncio.get_running_loop().create_future()
        printed.add_done_callback(called.set_result)
        error = await failed.exception()
        assert isinstance(error, gc.IllegalAddress)
        assert str(error) == str(plain)
        assert await asyncio.wait_for(called, LIMIT_S) is printed
        assert printed.output == "5;5;"
        after = asyncio.get_running_loop().create_future()
        printed.add_done_callback(after.set_result)  # it has ended
        assert await asyncio.wait_for(after, LIMIT_S) is printed


async def test_a_lane_that_cannot_be_opened_says_why(gpu: gc.AsyncSession) -> None:
    with pytest.raises(gc.AdmissionError, match="more than the 2 SMs"):
        gpu.lane(reservation=3)
    async with gpu.lane(reservation=2):
        second = asyncio.create_task(_opened(gpu.lane(reservation=1)))
        await asyncio.sleep(0.1)
        assert not second.done()  # it waits for its share
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    async with gpu.lane(reservation=2):  # which the cancelled one does not have
        pass


async def _opened(lane: AsyncLane) -> AsyncLane:
    return await lane


async def test_the_loop_is_free_while_a_lane_runs(gpu: gc.AsyncSession) -> None:
    spin, gate = await gpu.kernel(SOURCE, "spin"), await gpu.zeros(1, np.uint32)
    view = await gate.numpy()
    async with gpu.lane(reservation=1) as lane:
        job = await spin.submit(1, 1, (gate,), stream=lane)
        waits = asyncio.create_task(job.result())
        began = time.monotonic()
        turns = 0
        while time.monotonic() < began + 0.1:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
        assert not waits.done()
        view[0] = 1
        await waits


async def test_a_closed_session_settles_what_is_awaited(gpu: gc.AsyncSession) -> None:
    async with gc.aconnect(gpu.path) as other:
        kernel, flag = await other.kernel(SOURCE, "spin"), await other.zeros(1, np.uint32)
        lane = await other.lane(reservation=1)
        job = await kernel.submit(1, 1, (flag,), stream=lane)
        waits = asyncio.create_task(job.exception())
        await asyncio.sleep(0.05)
    with pytest.raises(gc.JobCancelled, match="the session was closed"):
        await asyncio.wait_for(waits, LIMIT_S)
    async with gpu.lane(reservation=2):  # its blocks have left
        pass
