"""The asyncio client."""

from __future__ import annotations

import asyncio
import gc as garbage
import sys
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon

ARGS = (2.0, None, None, 7)


@pytest.fixture
async def agpu(daemon: FakeDaemon) -> AsyncIterator[gc.AsyncSession]:
    async with gc.aconnect(daemon.path) as session:
        yield session


@pytest.fixture
async def saxpy(agpu: gc.AsyncSession) -> gc.AsyncKernel:
    return await agpu.kernel("source", "saxpy")


async def came(daemon: FakeDaemon, kind: type, count: int = 1) -> Any:
    return await asyncio.to_thread(daemon.wait_for, kind, count)


async def test_the_whole_way(daemon: FakeDaemon, agpu: gc.AsyncSession) -> None:
    daemon.finish_at_once = True
    k = await agpu.kernel("source", "saxpy")
    x = await agpu.array(np.arange(4, dtype=np.float32))
    y = await agpu.zeros(4, np.float32)
    job = await k.submit(grid=1, block=32, args=(2.0, x, y, 4), quota="50%")
    await job
    await job.result(timeout=TIMEOUT_S)
    assert (await x.get()).tolist() == [0, 1, 2, 3]
    await y.set([4, 3, 2, 1])
    assert (await y.numpy()).tolist() == [4, 3, 2, 1]
    assert await k.occupancy(64) == 2
    assert daemon.of(wm.Submit)[0].quota == (2, 1)
    assert (await agpu.query("jobs"))["topic"] == "jobs"
    assert await job.state == "done"
    assert (await job.stats)["run_s"] == 0.2
    assert job.id == "1.1"
    assert (await agpu.empty(2)).shape == (2,)
    symbol = k.module.symbol("coef", np.float32)
    await symbol.set([1, 2, 3, 4])
    assert (await symbol.get()).tolist() == [1, 2, 3, 4]
    job = await agpu.sequence([k.call(1, 32, (1.0, x, y, 4))] * 3, stream=agpu.stream())
    await job


async def test_connecting_without_a_block(daemon: FakeDaemon) -> None:
    gpu = await gc.aconnect(daemon.path)
    assert gpu.number == 1
    await gpu.close()
    await gpu.close()
    with pytest.raises(gc.ConnectionLost, match="closed"):
        await gpu.query("status")


async def test_no_daemon(daemon: FakeDaemon) -> None:
    with pytest.raises(gc.ConnectionLost, match="gpud serve"):
        await gc.aconnect(daemon.path + "x")
    daemon.answer[wm.Hello] = lambda message: daemon.drop()
    with pytest.raises(gc.ConnectionLost):
        async with gc.aconnect(daemon.path):
            pass


async def test_while_it_runs(daemon: FakeDaemon, saxpy: gc.AsyncKernel) -> None:
    job = await saxpy.submit(1, 32, ARGS)
    await came(daemon, wm.Submit)
    assert await job.running()
    assert await job.progress == (3, 64)
    assert await job.allocation == Fraction(7, 2)
    await job.resize(quota=1)
    with pytest.raises(TimeoutError, match="3 of 64"):
        await job.result(timeout=0.02)
    assert not job.done()
    calls: list[gc.AsyncJob] = []
    job.add_done_callback(calls.append)
    assert await job.cancel()
    with pytest.raises(gc.JobCancelled):
        await job
    assert job.cancelled()
    await asyncio.sleep(0)
    assert calls == [job]
    job.add_done_callback(calls.append)
    await asyncio.sleep(0)
    assert calls == [job, job]


async def test_cancelling_a_wait_leaves_the_job(daemon: FakeDaemon, saxpy: gc.AsyncKernel) -> None:
    job = await saxpy.submit(1, 32, ARGS)
    waits = [asyncio.ensure_future(job.result()) for _ in range(3)]
    await came(daemon, wm.Submit)
    waits[0].cancel()
    daemon.finish(1)
    await asyncio.gather(*waits[1:])
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    assert job.done()


async def test_waits_that_are_over_are_forgotten(daemon: FakeDaemon, saxpy: gc.AsyncKernel) -> None:
    """More of them than Python nests calls."""
    job = await saxpy.submit(1, 32, ARGS)
    for _ in range(2 * sys.getrecursionlimit()):
        wait = asyncio.ensure_future(job.result())
        await asyncio.sleep(0)
        wait.cancel()
    await came(daemon, wm.Submit)
    daemon.finish(1)
    await asyncio.wait_for(job.result(), TIMEOUT_S)


async def test_errors(daemon: FakeDaemon, saxpy: gc.AsyncKernel, agpu: gc.AsyncSession) -> None:
    with pytest.raises(TypeError, match="argument 0"):
        await saxpy.submit(1, 32, ("x", None, None, 1))
    with pytest.raises(gc.AdmissionError):
        await saxpy.submit(1, 32, ARGS, reservation=100)
    job = await saxpy.submit(1, 32, ARGS)
    await came(daemon, wm.Submit)
    daemon.finish(1, "failed", gc.IllegalAddress(64))
    with pytest.raises(gc.IllegalAddress):
        await job
    assert isinstance(await job.exception(), gc.IllegalAddress)
    with pytest.raises(TypeError):
        await agpu.kernel("source", 5)  # type: ignore[arg-type]


async def test_get_waits(daemon: FakeDaemon, saxpy: gc.AsyncKernel, agpu: gc.AsyncSession) -> None:
    x = await agpu.zeros(4, np.float32)
    await saxpy.submit(1, 32, (1.0, x, None, 4))
    getting = asyncio.ensure_future(x.get())
    await came(daemon, wm.Submit)
    await asyncio.sleep(0)
    assert not getting.done()
    daemon.finish(1)
    await asyncio.wait_for(getting, TIMEOUT_S)


async def test_lost(daemon: FakeDaemon, saxpy: gc.AsyncKernel, agpu: gc.AsyncSession) -> None:
    job = await saxpy.submit(1, 32, ARGS)
    await came(daemon, wm.Submit)
    daemon.answer[wm.Query] = lambda message: daemon.drop()
    with pytest.raises(gc.ConnectionLost):
        await agpu.query("status")
    with pytest.raises(gc.ConnectionLost):
        await job
    with pytest.raises(gc.ConnectionLost):
        await saxpy.submit(1, 32, ARGS)


async def test_a_daemon_that_does_not_read(daemon: FakeDaemon, agpu: gc.AsyncSession) -> None:
    k = await agpu.kernel("source", "saxpy")
    await k.occupancy(32)
    daemon.finish_at_once = True
    daemon.may_read.clear()
    launches = [k.call(1, 32, ARGS)] * 1000

    async def submit() -> list[gc.AsyncJob]:
        return [await agpu.sequence(launches) for _ in range(80)]

    submitting = asyncio.ensure_future(submit())
    async with asyncio.timeout(TIMEOUT_S):
        while len(agpu._channel._unsent) <= 1 << 20:  # noqa: ASYNC110  (nothing says so)
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not submitting.done()
    assert len(agpu._channel._unsent) < 2 << 20
    daemon.may_read.set()
    for job in await asyncio.wait_for(submitting, TIMEOUT_S):
        await job.result(TIMEOUT_S)


async def test_closing_cancels(daemon: FakeDaemon, saxpy: gc.AsyncKernel) -> None:
    job = await saxpy.submit(1, 32, ARGS)
    waiting = asyncio.ensure_future(job.result())
    await asyncio.sleep(0)
    await saxpy._session.close()
    with pytest.raises(gc.JobCancelled):
        await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_dropped(daemon: FakeDaemon, agpu: gc.AsyncSession) -> None:
    x = await agpu.zeros(4)
    del x
    await came(daemon, wm.Free)


async def test_a_session_that_nobody_holds_is_closed(daemon: FakeDaemon) -> None:
    gpu = await gc.aconnect(daemon.path)
    del gpu
    garbage.collect()
    await came(daemon, type(None))


async def test_a_wait_that_is_cancelled_frees_what_comes(
    daemon: FakeDaemon, agpu: gc.AsyncSession
) -> None:
    await agpu.zeros(4)
    held: list[wm.Allocate] = []
    daemon.answer[wm.Allocate] = held.append
    making = asyncio.ensure_future(agpu.zeros(4))
    await came(daemon, wm.Allocate, 2)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    daemon.send(wm.Allocated(held[0].request, 4096))
    await agpu.query("status")
    await agpu.query("status")
    assert wm.Free(0, 4096) in daemon.of(wm.Free)
