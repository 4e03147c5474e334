"""Lanes from a client to the CPU device and back, beside ordinary jobs."""

from __future__ import annotations

import concurrent.futures
import gc as gc_module
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import lane_ring as ring
from gpud_client.launch.lanes import Lane
from tests.support.waiting import until

LIMIT_S = 30.0
SOURCE = r"""
extern "C" __global__ void put(unsigned* out, unsigned value) { out[blockIdx.x] = value; }
extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }
extern "C" __global__ void wrong(unsigned* out) { if (blockIdx.x == 3) out[1ll << 40] = 1; }
extern "C" __global__ void print(unsigned value) { printf("%u;", value); }
extern "C" __global__ void spin(volatile unsigned* flag) { while (!*flag) {} }
"""
CLIENT = """
import sys, numpy as np, gpud_client as gc
gpu = gc.connect(sys.argv[1])
lane = gpu.lane(reservation=2)
flag = gpu.zeros(1, np.uint32)
gpu.kernel(sys.stdin.read(), "spin").submit(1, 1, (flag,), stream=lane)
print("there", flush=True)
lane.synchronize()
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2") as session:
        yield session


@pytest.fixture
def lane(gpu: gc.Session) -> Iterator[Lane]:
    with gpu.lane(reservation=1) as opened:
        yield opened


def used(gpu: gc.Session) -> int:
    return sum(row["used_bytes"] for row in gpu.query("memory")["sessions"])


def kernel(gpu: gc.Session, name: str) -> gc.Kernel:
    return gpu.kernel(SOURCE, name)


def test_a_program_changes_one_line(gpu: gc.Session, lane: Lane) -> None:
    out = gpu.zeros(8, np.uint32)
    job = kernel(gpu, "put").submit(5, 1, (out, 7), stream=lane)
    job.result(LIMIT_S)
    assert out.get().tolist() == [7] * 5 + [0] * 3
    assert job.done()
    assert not job.cancelled()
    assert (job.state, job.progress) == ("done", (5, 5))
    assert job.allocation == 0
    assert job.stats["run_s"] > 0
    assert job.id.startswith(f"{gpu.number}.")


def test_reads_and_writes_of_an_array_wait_for_its_launches(gpu: gc.Session, lane: Lane) -> None:
    put, out = kernel(gpu, "put"), gpu.zeros(1, np.uint32)
    for value in range(200):
        put.submit(1, 1, (out, value), stream=lane)
        assert out.get()[0] == value
        out.set([0])
        assert out.get()[0] == 0


def test_more_launches_than_the_ring_holds_wait_for_room(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    jobs = [add.submit(1, 1, (out,), stream=lane) for _ in range(3 * ring.SLOTS)]
    jobs[-1].result(LIMIT_S)
    assert out.get()[0] == len(jobs)
    assert all(job.done() for job in jobs)


def test_threads_share_a_lane(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)

    def submit() -> None:
        for _ in range(300):
            add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert out.get()[0] == 1200


def test_errors_name_kernel_block_and_array_as_on_the_ordinary_path(
    gpu: gc.Session, lane: Lane
) -> None:
    out = gpu.zeros(4, np.uint32)
    wrong = kernel(gpu, "wrong")
    errors = [
        wrong.submit(8, 1, (out,), stream=stream).exception(LIMIT_S) for stream in (None, lane)
    ]
    assert all(isinstance(error, gc.IllegalAddress) for error in errors)
    assert str(errors[0]) == str(errors[1])
    assert isinstance(errors[1], gc.IllegalAddress)
    assert errors[1].kernel == "wrong"
    assert errors[1].thread is not None
    kernel(gpu, "put").submit(4, 1, (out, 3), stream=lane).result(LIMIT_S)
    assert out.get().tolist() == [3] * 4


def test_running_and_waiting_jobs_are_cancelled(gpu: gc.Session, lane: Lane) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(4, np.uint32)
    endless = kernel(gpu, "spin").submit(1, 1, (flag,), stream=lane)
    put = kernel(gpu, "put")
    put.submit(1, 1, (out, 9), stream=None).result(LIMIT_S)
    add = kernel(gpu, "add")
    assert lane._sites  # of the endless one: another site has to wait for it
    with pytest.raises(TimeoutError):
        endless.result(0.05)
    assert endless.cancel()
    with pytest.raises(gc.JobCancelled):
        endless.result(LIMIT_S)
    assert endless.cancelled()
    add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)
    again = kernel(gpu, "spin").submit(1, 1, (flag,), stream=lane)
    rest = [add.submit(1, 1, (out,), stream=lane) for _ in range(5)]
    for job in rest[:3]:
        assert job.cancel()
    again.cancel()
    rest[-1].result(LIMIT_S)
    assert [job.cancelled() for job in rest] == [True] * 3 + [False] * 2
    assert out.get()[0] == 9 + 1 + 2


def test_futures_and_callbacks_work_though_nobody_asks(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    jobs = [add.submit(1, 1, (out,), stream=lane) for _ in range(20)]
    assert not concurrent.futures.wait(jobs, LIMIT_S).not_done
    called = threading.Event()
    job = add.submit(1, 1, (out,), stream=lane)
    job.add_done_callback(lambda _: called.set())
    assert called.wait(LIMIT_S)


def test_futures_are_waited_for_together_while_one_is_settled(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    first, second = (add.submit(1, 1, (out,), stream=lane) for _ in range(2))
    settles = threading.Thread(target=lane.synchronize)
    with first._condition:  # as `concurrent.futures.wait` holds those of all
        settles.start()
        time.sleep(0.2)  # it has the lane's lock now, and needs this condition
        other = threading.Thread(target=lambda: second._condition, daemon=True)
        other.start()
        other.join(5)
        held_up = other.is_alive()
    settles.join(LIMIT_S)
    assert not held_up


def test_a_sequence_is_one_job(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    job = gpu.sequence([add.call(2, 1, (out,)) for _ in range(5)], stream=lane)
    job.result(LIMIT_S)
    assert job.progress == (10, 10)
    assert out.get()[0] == 10


def test_a_sequence_may_be_longer_than_the_ring(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    add.submit(1, 1, (out,), stream=lane)
    calls = [add.call(1, 1, (out,)) for _ in range(2 * ring.SLOTS)]
    job = gpu.sequence(calls, stream=lane)
    after = add.submit(1, 1, (out,), stream=lane)
    assert job.exception(LIMIT_S) is None
    assert job.progress == (len(calls), len(calls))
    after.result(LIMIT_S)
    assert out.get()[0] == len(calls) + 2


def test_what_nobody_asks_about_is_not_settled_and_not_kept(gpu: gc.Session, lane: Lane) -> None:
    put, out = kernel(gpu, "put"), gpu.zeros(1, np.uint32)
    jobs = [put.submit(1, 1, (out, value), stream=lane) for value in range(5 * ring.SLOTS)]
    kept = weakref.ref(jobs.pop(7))
    lane.synchronize()
    gc_module.collect()
    assert kept() is None
    assert len(lane._open_batches) <= 1
    assert not any(job._over for job in jobs[: 4 * ring.SLOTS])
    assert not lane._users
    # Their completions were overwritten in the ring, and were copied before.
    ends = [job.stats["run_s"] for job in jobs]
    assert all(end > 0 for end in ends)
    assert {job.state for job in jobs} == {"done"}


def test_failures_and_callbacks_of_dropped_jobs_are_not_lost(
    gpu: gc.Session, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    out, called = gpu.zeros(4, np.uint32), threading.Event()
    add = kernel(gpu, "add")
    kernel(gpu, "wrong").submit(8, 1, (out,), stream=lane)
    add.submit(1, 1, (out,), stream=lane).add_done_callback(lambda _: called.set())
    for _ in range(ring.SLOTS):
        add.submit(1, 1, (out,), stream=lane)
    assert called.wait(LIMIT_S)
    with pytest.raises(gc.IllegalAddress):
        lane.synchronize()
    gc_module.collect()
    assert "failed, its result was not retrieved" in caplog.text


@pytest.mark.parametrize(
    ("grid", "block", "args", "error"),
    [
        (True, 1, (0,), TypeError), (1.0, 1, (0,), TypeError), (0, 1, (0,), ValueError),
        ((1 << 16, 1 << 16), 1, (0,), ValueError), (1, True, (0,), TypeError),
        (1, 1.0, (0,), TypeError), (1, (1, 1.0), (0,), TypeError), (1, [1, 0], (0,), ValueError),
        (1, 1, (), TypeError), (1, 1, (0, 0), TypeError), (1, 1, (0.5,), TypeError),
        (1, 1, (1 << 32,), ValueError), (1, 1, 0, TypeError), (1, 1, ("x",), TypeError),
    ],
)  # fmt: skip
def test_arguments_are_checked_as_ever(
    gpu: gc.Session, lane: Lane, grid: Any, block: Any, args: Any, error: type[Exception]
) -> None:
    show = kernel(gpu, "print")
    job = show.submit(1, 1, (5,), stream=lane)
    told = []
    for stream in (None, lane):
        with pytest.raises(error) as caught:
            show.submit(grid, block, args, stream=stream)
        told.append(str(caught.value))
    assert told[0] == told[1]
    last = show.submit((2, 1), (1, 1, 1), (np.uint32(6),), stream=lane)
    last.result(LIMIT_S)
    assert (job.output, last.output) == ("5;", "6;6;")


def test_arrays_are_checked_as_ever(gpu: gc.Session, lane: Lane) -> None:
    add, out = kernel(gpu, "add"), gpu.zeros(1, np.uint32)
    add.submit(1, 1, (out,), stream=lane).result(LIMIT_S)
    with gc.connect(gpu.path) as other:
        foreign = other.zeros(1, np.uint32)
        with pytest.raises(ValueError, match="of another session"):
            add.submit(1, 1, (foreign,), stream=lane)
    out.free()
    with pytest.raises(ValueError, match="was freed"):
        add.submit(1, 1, (out,), stream=lane)


def test_jobs_follow_each_other_between_lanes_and_streams(gpu: gc.Session, lane: Lane) -> None:
    put, out = kernel(gpu, "put"), gpu.zeros(1, np.uint32)
    last = None
    for value in range(30):
        stream = lane if value % 2 else None
        last = put.submit(1, 1, (out, value), stream=stream, after=[last] if last else ())
    assert last is not None
    last.result(LIMIT_S)
    assert out.get()[0] == 29


@pytest.mark.parametrize(
    "options", [{"reservation": 1}, {"quota": 1}, {"weight": 2}, {"deadline": 1}, {"exclusive": 1}]
)
def test_options_that_a_lane_does_not_have_are_refused(
    gpu: gc.Session, lane: Lane, options: dict[str, int]
) -> None:
    out = gpu.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="lane"):
        kernel(gpu, "add").submit(1, 1, (out,), stream=lane, **options)  # type: ignore[arg-type]


def test_a_closed_lane_gives_its_share_back(gpu: gc.Session) -> None:
    out = gpu.zeros(1, np.uint32)
    for _ in range(3):
        with gpu.lane(reservation=2) as opened:
            kernel(gpu, "add").submit(1, 1, (out,), stream=opened)
        assert opened.closed
        with pytest.raises(gc.GpudError, match="the lane is closed"):
            kernel(gpu, "add").submit(1, 1, (out,), stream=opened)
    assert out.get()[0] == 3
    with pytest.raises(gc.AdmissionError):
        gpu.lane(reservation=3)


def test_memory_of_arrays_comes_free_while_a_lane_is_open(gpu: gc.Session, lane: Lane) -> None:
    size = 1 << 22
    big = gpu.zeros(size // 4, np.uint32)
    kernel(gpu, "add").submit(1, 1, (big,), stream=lane).result(LIMIT_S)
    assert used(gpu) >= size
    del big
    until(lambda: used(gpu) < size)


def test_a_killed_clients_lane_is_closed_with_its_running_blocks(gpu: gc.Session) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, gpu.path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(SOURCE)
    client.stdin.close()
    assert client.stdout.readline() == "there\n"
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    client.stdout.close()
    with gpu.lane(reservation=2):  # which waits until the whole device is free
        pass
