"""What `submit` returns in a lane is a job like any other: its whole interface, one by one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

import gpud_client as gc
from tests.support.waiting import until

LIMIT_S = 30.0
SOURCE = r"""
extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }
extern "C" __global__ void wrong(unsigned* out) { if (threadIdx.x == 2) out[1ll << 40] = 1; }
extern "C" __global__ void trap(unsigned* out) { if (blockIdx.x == 1) __trap(); out[0] = 1; }
extern "C" __global__ void spin(volatile unsigned* flag) { while (!*flag) {} }
extern "C" __global__ void gated(volatile unsigned* flag, unsigned free) {
    while (blockIdx.x >= free && !*flag) {}
}
extern "C" __global__ void raise(unsigned* flag) { flag[0] = 1; }
extern "C" __global__ void says(int value) { printf("%d\n", value); }
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2") as session:
        yield session


@pytest.fixture
def lane(gpu: gc.Session) -> Iterator[gc.Lane]:
    with gpu.lane(reservation=1) as opened:
        yield opened
        for held in Held.all:  # of a test that has failed: the lane waits for it
            if not held.job.done():
                held.let_go()
        Held.all.clear()


class Held:
    """A job whose last block waits until it is let go."""

    all: ClassVar[list[Held]] = []

    def __init__(self, gpu: gc.Session, lane: gc.Lane, blocks: int = 4, free: int = 3) -> None:
        self.flag = gpu.zeros(1, np.uint32)
        self._open = gpu.kernel(SOURCE, "raise")
        kernel = gpu.kernel(SOURCE, "gated")
        self.job = kernel.submit(blocks, 1, (self.flag, free), stream=lane)
        self.all.append(self)

    def let_go(self) -> None:
        self._open.submit(1, 1, (self.flag,)).result(LIMIT_S)  # `set` would wait for the job


def test_a_running_job_tells_its_progress_and_what_it_costs(gpu: gc.Session, lane: gc.Lane) -> None:
    held = Held(gpu, lane)
    job = held.job
    until(lambda: job.progress == (3, 4))
    assert (job.state, job.running(), job.done()) == ("running", True, False)
    until(lambda: job.allocation == Fraction(1))  # it is told a moment after the lane has woken
    first, then = job.stats, job.stats
    assert 0 <= first["queued_s"] < LIMIT_S
    assert first["first_block_s"] >= 0
    assert 0 < first["run_s"] < then["run_s"]
    assert 0 < first["capsm_seconds"] < then["capsm_seconds"]
    assert (first["resizes"], first["release_s"]) == (0, None)
    behind = gpu.kernel(SOURCE, "add").submit(1, 1, (held.flag,), stream=lane)
    assert (behind.state, behind.progress, behind.running()) == ("waiting", (0, 1), False)
    assert behind.stats["run_s"] is None
    with pytest.raises(TimeoutError, match="is running, 3 of 4 task blocks are done, its allocat"):
        job.result(0.01)
    held.let_go()
    job.result(LIMIT_S)
    assert (job.state, job.progress, job.allocation) == ("done", (4, 4), Fraction(0))
    ended = job.stats
    assert ended["run_s"] >= then["run_s"]
    assert ended["capsm_seconds"] == pytest.approx(ended["run_s"])  # of one SM
    assert set(ended) == set(first)
    assert not job.running()
    behind.result(LIMIT_S)


def test_a_sequence_tells_its_progress_launch_by_launch(gpu: gc.Session, lane: gc.Lane) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    add, gated = gpu.kernel(SOURCE, "add"), gpu.kernel(SOURCE, "gated")
    launches = [add.call(5, 1, (out,)), gated.call(4, 1, (flag, 2)), add.call(7, 1, (out,))]
    job = gpu.sequence(launches, stream=lane)
    until(lambda: job.progress == (7, 16))
    gpu.kernel(SOURCE, "raise").submit(1, 1, (flag,)).result(LIMIT_S)
    job.result(LIMIT_S)
    assert job.progress == (16, 16)
    assert job.stats["capsm_seconds"] == pytest.approx(job.stats["run_s"], rel=0.9)


def test_a_job_runs_no_longer_than_its_timeout(gpu: gc.Session, lane: gc.Lane) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    spin, add = gpu.kernel(SOURCE, "spin"), gpu.kernel(SOURCE, "add")
    add.submit(1, 1, (out,), stream=lane, timeout=LIMIT_S).result(LIMIT_S)
    began = time.monotonic()
    job = spin.submit(1, 1, (flag,), stream=lane, timeout=0.2)
    behind = add.submit(1, 1, (out,), stream=lane)
    error = job.exception(LIMIT_S)
    assert isinstance(error, gc.JobTimeout)
    assert "after its timeout of 0.2 s" in str(error)
    assert job.stats["run_s"] >= 0.2
    assert time.monotonic() - began < LIMIT_S / 2
    assert job.state == "failed"
    assert isinstance(behind.exception(LIMIT_S), gc.PredecessorFailed)
    add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)  # the lane goes on
    with pytest.raises(ValueError, match="timeout is more than 0 seconds"):
        add.submit(1, 1, (out,), stream=lane, timeout=0)
    assert out.get()[0] == 2


def test_a_timeout_is_that_of_the_whole_sequence(gpu: gc.Session, lane: gc.Lane) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    spin, add = gpu.kernel(SOURCE, "spin"), gpu.kernel(SOURCE, "add")
    launches = [add.call(1, 1, (out,)), spin.call(1, 1, (flag,)), add.call(1, 1, (out,))]
    job = gpu.sequence(launches, stream=lane, timeout=0.1)
    after = add.submit(1, 1, (out,), stream=lane)
    assert isinstance(job.exception(LIMIT_S), gc.JobTimeout)
    assert isinstance(after.exception(LIMIT_S), gc.PredecessorFailed)
    assert out.get()[0] == 1  # what comes after the launch that was ended does not begin
    assert job.progress == (1, 3)


@pytest.mark.parametrize("lanes", [False, True])
def test_what_follows_a_failure_in_a_sequence_does_not_begin(
    gpu: gc.Session, lane: gc.Lane, lanes: bool
) -> None:
    out = gpu.zeros(8, np.uint32)
    add, trap = gpu.kernel(SOURCE, "add"), gpu.kernel(SOURCE, "trap")
    launches = [add.call(2, 1, (out,)), trap.call(3, 1, (out,)), add.call(2, 1, (out,))]
    stream = lane if lanes else gpu.stream()
    job = gpu.sequence(launches, stream=stream)
    error = job.exception(LIMIT_S)
    assert isinstance(error, gc.KernelTrap)
    again = gpu.sequence(launches[:1], stream=stream)
    again.result(LIMIT_S)
    assert job.state == "failed"
    assert out.get()[0] <= 1 + 2
    assert job.progress[1] == 7


def test_cancelling_a_launch_that_has_just_ended_leaves_the_next(
    gpu: gc.Session, lane: gc.Lane
) -> None:
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    jobs = []
    for _ in range(300):
        first, second = (add.submit(1, 1, (out,), stream=lane) for _ in range(2))
        first.cancel()
        jobs.append((first, second))
    for first, second in jobs:
        second.result(LIMIT_S)
        first.exception(LIMIT_S) if not first.cancelled() else None
    done = sum(not first.cancelled() for first, _ in jobs)
    assert out.get()[0] == 300 + done


@pytest.mark.parametrize("where", ["lane", "no stream"])
def test_jobs_that_end_while_somebody_begins_to_wait_are_told_once(
    gpu: gc.Session, lane: gc.Lane, where: str
) -> None:
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    for _ in range(150):
        stream = lane if where == "lane" else None
        jobs = [add.submit(1, 1, (out,), stream=stream) for _ in range(8)]
        assert set(concurrent.futures.as_completed(jobs, LIMIT_S)) == set(jobs)


def test_it_is_a_future_wherever_one_is_taken(gpu: gc.Session, lane: gc.Lane) -> None:
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    jobs = [add.submit(1, 1, (out,), stream=lane) for _ in range(8)]
    assert set(concurrent.futures.as_completed(jobs, LIMIT_S)) == set(jobs)
    held = Held(gpu, lane)
    done, left = concurrent.futures.wait(
        [held.job, *jobs], LIMIT_S, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert left == {held.job}
    assert done == set(jobs)
    told: list[object] = []
    held.job.add_done_callback(told.append)
    held.let_go()
    until(lambda: told == [held.job])
    held.job.add_done_callback(told.append)
    until(lambda: told == [held.job] * 2)

    async def waits() -> None:
        job = add.submit(1, 1, (out,), stream=lane)
        await asyncio.wait_for(asyncio.wrap_future(job), LIMIT_S)

    asyncio.run(waits())
    job = add.submit(1, 1, (out,), stream=lane)
    assert job.exception(LIMIT_S) is None
    assert job.device is gpu.device
    assert "add" in repr(job)
    assert "done" in repr(job)
    assert "state" in job._repr_html_()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(job)
    with pytest.raises(gc.InvalidArgument, match="runs in the lane's share"):
        job.resize(reservation=2)


def test_output_is_complete_when_the_job_has_ended(gpu: gc.Session, lane: gc.Lane) -> None:
    says = gpu.kernel(SOURCE, "says")
    job = says.submit(3, 1, (-4,), stream=lane)
    job.result(LIMIT_S)
    assert job.output == "-4\n-4\n-4\n"
    sequence = gpu.sequence([says.call(1, 1, (value,)) for value in range(3)], stream=lane)
    sequence.result(LIMIT_S)
    assert sequence.output == "0\n1\n2\n"


def test_jobs_of_lanes_are_followed_and_follow(gpu: gc.Session, lane: gc.Lane) -> None:
    held = Held(gpu, lane)
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        after = threads.submit(lambda: add.submit(1, 1, (out,), after=[held.job]))
        assert not concurrent.futures.wait([after], 0.1).done
        held.let_go()
        after.result(LIMIT_S).result(LIMIT_S)
    assert held.job.done()
    assert out.get()[0] == 1


def test_a_lane_can_have_sms_of_its_own(gpu: gc.Session) -> None:
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    says, where = gpu.kernel(SOURCE, "says"), gpu.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="exclusive goes with a reservation"):
        gpu.lane(exclusive=True)
    smid = gpu.kernel(
        """extern "C" __global__ void smid(unsigned* seen) {
            unsigned at; asm volatile("mov.u32 %0, %%smid;" : "=r"(at)); atomicAdd(&seen[at], 1u);
        }""",
        "smid",
    )
    with gpu.lane(reservation=1, exclusive=True) as lane:
        add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)
        for value in range(3):  # each begins another run of the lane's blocks
            says.submit(1, 1, (value,), stream=lane).result(LIMIT_S)
        for _ in range(5):
            smid.submit(64, 1, (where,), stream=lane).result(LIMIT_S)
        own = where.get()
        assert sorted(own.tolist()) == [0, 5 * 64]
        where.set([0, 0])
        smid.submit(64, 1, (where,)).result(LIMIT_S)
        others = where.get()
        assert sorted(others.tolist()) == [0, 64]
        assert own.argmax() != others.argmax()
    with gpu.lane(reservation=2, exclusive=True):
        pass


def test_a_deadline_orders_lanes_that_wait_for_their_share(gpu: gc.Session) -> None:
    opened: list[str] = []

    def opening(name: str, deadline: float | None) -> None:
        with gpu.lane(reservation=2, deadline=deadline):
            opened.append(name)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        with gpu.lane(reservation=2):
            late = threads.submit(opening, "late", None)
            until(lambda: _waiting(gpu) == 1)
            soon = threads.submit(opening, "soon", 5.0)
            until(lambda: _waiting(gpu) == 2)
        late.result(LIMIT_S)
        soon.result(LIMIT_S)
    assert opened == ["soon", "late"]


def _waiting(gpu: gc.Session) -> int:
    return sum(row["state"] == "waiting" for row in gpu.query("jobs")["jobs"])


def test_a_forked_process_does_not_write_into_the_ring(gpu: gc.Session, lane: gc.Lane) -> None:
    out, add = gpu.zeros(1, np.uint32), gpu.kernel(SOURCE, "add")
    add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)
    pid = os.fork()
    if not pid:
        try:
            add.submit(1, 1, (out,), stream=lane)
        except gc.ConnectionLost as error:
            os._exit(0 if "belongs to process" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)
    assert out.get()[0] == 2
