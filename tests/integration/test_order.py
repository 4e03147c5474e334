"""Where order is promised, what follows a failure does not run until somebody has seen it."""

from __future__ import annotations

import gc as collector
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.connection import operations

SOURCE = r"""
extern "C" __global__ void add(int* x) { *x += 1; }
extern "C" __global__ void fail(int* x) { asm("trap;"); }
extern "C" __global__ void hold(volatile int* flag) { while (!*flag) {} }
"""
Ordered = gc.Stream | gc.Lane


class Kernels:
    def __init__(self, gpu: gc.Session) -> None:
        self.gpu = gpu
        module = gpu.module(SOURCE)
        self.add, self.fail, self.hold = map(module.kernel, ("add", "fail", "hold"))
        self.x, self.y, self.flag = (gpu.zeros(1, np.int32) for _ in range(3))

    def run(self, kernel: gc.Kernel, x: gc.Array, stream: Ordered | None = None) -> gc.Job:
        return kernel.submit(1, 1, (x,), stream=stream)


@pytest.fixture
def kernels(gpu: gc.Session) -> Kernels:
    return Kernels(gpu)


@pytest.fixture(params=["default", "stream", "lane"])
def stream(request: pytest.FixtureRequest, gpu: gc.Session) -> Iterator[Ordered]:
    if request.param == "lane":
        with gpu.lane() as lane:
            yield lane
    else:
        yield gpu.default_stream if request.param == "default" else gpu.stream()


def cause_of(job: gc.Job) -> BaseException | None:
    error = job.exception()
    return None if error is None else error.__cause__


def values(kernels: Kernels) -> list[int]:
    return [int(x.get()[0]) for x in (kernels.x, kernels.y)]


def test_what_follows_a_failure_fails_with_it(kernels: Kernels, stream: Ordered) -> None:
    first = kernels.run(kernels.add, kernels.x, stream)
    failed = kernels.run(kernels.fail, kernels.x, stream)
    behind = [kernels.run(kernels.add, x, stream) for x in (kernels.x, kernels.y)]
    with pytest.raises(gc.PredecessorFailed, match="was not run") as raised:
        behind[-1].result(timeout=30)
    assert isinstance(raised.value.__cause__, gc.KernelTrap)
    assert first.exception() is None
    assert failed.exception() is raised.value.__cause__
    assert isinstance(behind[0].exception(), gc.PredecessorFailed)
    assert values(kernels) == [1, 0]
    kernels.run(kernels.add, kernels.x, stream).result(timeout=30)  # it was seen
    assert values(kernels) == [2, 0]


def test_what_comes_later_fails_too_until_it_was_seen(kernels: Kernels, stream: Ordered) -> None:
    failed = kernels.run(kernels.fail, kernels.x, stream)
    while not failed.done():
        pass
    late = kernels.run(kernels.add, kernels.y, stream)
    assert isinstance(late.exception(timeout=30), gc.PredecessorFailed)
    kernels.run(kernels.add, kernels.y, stream).result(timeout=30)
    assert values(kernels) == [0, 1]


LOOKS: dict[str, Callable[[Kernels, Ordered], object]] = {
    "get": lambda kernels, stream: kernels.x.get(),
    "get_of_what_was_not_run": lambda kernels, stream: kernels.y.get(),
    "set": lambda kernels, stream: kernels.y.set([5]),
    "numpy": lambda kernels, stream: kernels.x.numpy(),
    "synchronize": lambda kernels, stream: stream.synchronize(),
    "get_with_the_stream": lambda kernels, stream: kernels.flag.get(stream=stream),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_whoever_looks_sees_it_once(
    kernels: Kernels, stream: Ordered, look: Callable[[Kernels, Ordered], object]
) -> None:
    kernels.run(kernels.fail, kernels.x, stream)
    kernels.run(kernels.add, kernels.y, stream)
    with pytest.raises(gc.KernelTrap):
        look(kernels, stream)
    look(kernels, stream)
    assert kernels.run(kernels.add, kernels.x, stream).exception(timeout=30) is None


def test_an_array_with_a_known_address_may_be_anybodys(kernels: Kernels) -> None:
    assert kernels.y.ptr
    kernels.run(kernels.fail, kernels.x, kernels.gpu.stream())
    with pytest.raises(gc.KernelTrap):
        kernels.y.get()
    assert values(kernels) == [0, 0]


def test_a_stream_that_nobody_has_any_more(kernels: Kernels) -> None:
    kernels.run(kernels.fail, kernels.x, kernels.gpu.stream())
    collector.collect()
    with pytest.raises(gc.KernelTrap):
        kernels.x.get()


def test_other_streams_and_what_comes_after_go_on(kernels: Kernels, stream: Ordered) -> None:
    failed = kernels.run(kernels.fail, kernels.x, stream)
    other = kernels.gpu.stream()
    follows = kernels.add.submit(1, 1, (kernels.y,), stream=other, after=[failed])
    assert follows.exception(timeout=30) is None
    assert int(kernels.y.get()[0]) == 1
    assert isinstance(failed.exception(), gc.KernelTrap)


def test_streams_that_go_on(kernels: Kernels, gpu: gc.Session) -> None:
    for stream in (gpu.stream(on_error="continue"), gpu.lane(on_error="continue")):
        before = values(kernels)
        failed = kernels.run(kernels.fail, kernels.x, stream)
        assert kernels.run(kernels.add, kernels.x, stream).exception(timeout=30) is None
        assert values(kernels) == [before[0] + 1, 0]
        assert isinstance(failed.exception(), gc.KernelTrap)
    with pytest.raises(ValueError, match="'fail' or 'continue'"):
        gpu.stream(on_error="ignore")


def test_who_cancels_a_job_knows(kernels: Kernels, stream: Ordered) -> None:
    view = kernels.flag.numpy()
    held = kernels.run(kernels.hold, kernels.flag, stream)
    cancelled = kernels.run(kernels.add, kernels.x, stream)
    behind = kernels.run(kernels.add, kernels.x, stream)
    assert cancelled.cancel()
    view[0] = 1
    assert held.exception(timeout=30) is None
    assert behind.exception(timeout=30) is None
    ran = not cancelled.cancelled()  # a lane may be quicker
    assert values(kernels) == [1 + ran, 0]


def test_who_did_not_cancel_it_does_not(kernels: Kernels, server: gc.Session) -> None:
    view = kernels.flag.numpy()
    held = kernels.run(kernels.hold, kernels.flag)
    cancelled = kernels.run(kernels.add, kernels.x)
    behind = kernels.run(kernels.add, kernels.x)
    server._channel.run(operations.cancel(cancelled._ref))
    assert isinstance(behind.exception(timeout=30), gc.PredecessorFailed)
    assert isinstance(cause_of(behind), gc.JobCancelled)
    view[0] = 1
    assert held.exception(timeout=30) is None
    assert values(kernels) == [0, 0]


async def test_asyncio(server: gc.Session) -> None:
    async with gc.aconnect(server.path) as gpu:
        module = await gpu.module(SOURCE)
        x = await gpu.zeros(1, np.int32)
        async with gpu.lane() as lane:
            for stream in (gpu.default_stream, gpu.stream(), lane):
                failed = await module.kernel("fail").submit(1, 1, (x,), stream=stream)
                behind = await module.kernel("add").submit(1, 1, (x,), stream=stream)
                with pytest.raises(gc.KernelTrap):
                    await stream.synchronize()
                assert isinstance(await failed.exception(), gc.KernelTrap)
                assert isinstance(await behind.exception(), gc.PredecessorFailed)
                assert (await x.get())[0] == 0
                await (await module.kernel("add").submit(1, 1, (x,), stream=stream))
                await x.set([0])
