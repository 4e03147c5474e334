"""Streams lose nothing: a loop that submits more than the session may have waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire.lane_ring import SLOTS

MOST = 20
MANY = 300
ADD = r"""
extern "C" __global__ void add(int* x) { if (!threadIdx.x && !blockIdx.x) *x += 1; }
extern "C" __global__ void past(int* x, int n) { x[n + blockIdx.x * blockDim.x + threadIdx.x] = 1; }
extern "C" __global__ void wait_for(volatile int* flag) { while (!*flag) {} }
"""


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    """A daemon whose sessions may have few jobs."""
    with gc.local("cpu:2", max_jobs_per_session=MOST) as session:
        yield session


def test_a_loop_that_submits_more_than_there_may_be(gpu: gc.Session) -> None:
    add = gpu.kernel(ADD, "add")
    x = gpu.zeros(1, np.int32)
    jobs = [add.submit(1, 32, (x,)) for _ in range(MANY)]
    assert x.get()[0] == MANY
    assert [job.exception() for job in jobs] == [None] * MANY


def test_threads_that_share_a_session(gpu: gc.Session) -> None:
    add = gpu.kernel(ADD, "add")
    arrays = [gpu.zeros(1, np.int32) for _ in range(4)]

    def work(x: gc.Array) -> None:
        stream = gpu.stream()
        for _ in range(MANY // 4):
            add.submit(1, 32, (x,), stream=stream)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(x.get()[0]) for x in arrays] == [MANY // 4] * 4


def test_who_does_not_want_to_wait_is_told(gpu: gc.Session) -> None:
    module = gpu.module(ADD)
    flag, x = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    view = flag.numpy()
    first = module.kernel("wait_for").submit(1, 1, (flag,))
    add = module.kernel("add")
    jobs = [add.submit(1, 32, (x,), wait=False, after=[first]) for _ in range(MOST - 1)]
    with pytest.raises(gc.LimitExceeded, match=f"{MOST} jobs that have not ended") as raised:
        add.submit(1, 32, (x,), wait=False)
    assert raised.value.value == MOST
    view[0] = 1
    for job in jobs:
        job.result(timeout=30)
    add.submit(1, 32, (x,), wait=False).result(timeout=30)
    assert x.get()[0] == MOST


def test_jobs_that_follow_others_never_wait_for_themselves(server: gc.Session) -> None:
    with gc.connect(server.path) as one, gc.connect(server.path) as other:
        sessions = (one, other)
        adds = [gpu.kernel(ADD, "add") for gpu in sessions]
        arrays = [gpu.zeros(1, np.int32) for gpu in sessions]
        before: list[gc.Job] = []
        for turn in range(MANY // 2):  # each follows the latest of the other session
            before = [adds[turn % 2].submit(1, 32, (arrays[turn % 2],), after=before)]
        assert sum(int(x.get()[0]) for x in arrays) == MANY // 2


def test_a_refused_job_fails_what_is_behind_it(gpu: gc.Session) -> None:
    module = gpu.module(ADD)
    flag, x = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    view = flag.numpy()
    gpu._core.most_jobs = 2 * MOST  # as if the daemon's limit had been lowered meanwhile
    module.kernel("wait_for").submit(1, 1, (flag,))
    add = module.kernel("add")
    *accepted, refused = [add.submit(1, 32, (x,)) for _ in range(MOST)]
    gpu.query("status")
    view[0] = 1
    assert {job.exception(timeout=30) for job in accepted} == {None}
    error = add.submit(1, 32, (x,)).exception(timeout=30)
    assert isinstance(error, gc.PredecessorFailed)
    assert error.__cause__ is refused.exception()
    assert isinstance(refused.exception(), gc.LimitExceeded)
    assert x.get()[0] == MOST - 1


def test_new_arrays_are_zero_where_a_kernel_has_written_past_another(gpu: gc.Session) -> None:
    x = gpu.zeros(1024, np.int32)
    gpu.kernel(ADD, "past").submit(16, 1024, (x, 1024)).result(timeout=30)
    later = [gpu.zeros(1500, np.int32) for _ in range(4)]
    assert not any(one.get().any() for one in later)
    assert not x.get().any()


def test_a_full_lane_tells_who_does_not_want_to_wait(gpu: gc.Session) -> None:
    module = gpu.module(ADD)
    flag, x = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    view = flag.numpy()
    add = module.kernel("add")
    with gpu.lane() as lane:
        module.kernel("wait_for").submit(1, 1, (flag,), stream=lane)
        for _ in range(SLOTS - 1):
            add.submit(1, 32, (x,), stream=lane, wait=False)
        with pytest.raises(gc.LimitExceeded, match="ring"):
            add.submit(1, 32, (x,), stream=lane, wait=False)
        view[0] = 1
        lane.synchronize()
        assert x.get()[0] == SLOTS - 1


async def test_asyncio(server: gc.Session) -> None:
    async with gc.aconnect(server.path) as gpu:
        add = await gpu.kernel(ADD, "add")
        x = await gpu.zeros(1, np.int32)
        jobs = [await add.submit(1, 32, (x,)) for _ in range(MANY)]
        assert (await x.get())[0] == MANY
        for job in jobs:
            await job.result(timeout=30)


def test_the_session_is_lost_while_it_waits() -> None:
    with gc.local("cpu:1", max_jobs_per_session=2) as gpu:
        flag = gpu.zeros(1, np.int32)
        wait = gpu.kernel(ADD, "wait_for")
        for _ in range(2):
            wait.submit(1, 1, (flag,))
        closing = threading.Timer(0.2, gpu.close)
        closing.start()
        with pytest.raises(gc.ConnectionLost):
            wait.submit(1, 1, (flag,))
        closing.join()
