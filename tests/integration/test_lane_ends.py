"""Lanes that end early, and many at once: closed with launches in them, without their device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from tests.support.waiting import until

pytestmark = pytest.mark.ci

LIMIT_S = 60.0
SOURCE = r"""
extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }
extern "C" __global__ void spin(volatile unsigned* flag) { while (!*flag) {} }
"""
CLIENT = """
import sys, time, numpy as np, gpud_client as gc
with gc.connect(sys.argv[1]) as gpu, gpu.lane(reservation=float(sys.argv[2])) as lane:
    source = sys.stdin.readline().encode().decode("unicode_escape")
    add, out = gpu.kernel(source, "add"), gpu.zeros(1, np.uint32)
    add.submit(1, 1, (out,), stream=lane).result()
    print("there", flush=True)
    sys.stdin.readline()
    count, end = 1, time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end:
        for _ in range(100):
            add.submit(1, 1, (out,), stream=lane)
        lane.synchronize()
        count += 100
    print(count - 1, out.get()[0] == count, flush=True)
"""


@pytest.fixture
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2", log_level="error") as session:
        yield session


def test_closing_a_lane_cancels_what_is_in_it(gpu: gc.Session) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    spin, add = gpu.kernel(SOURCE, "spin"), gpu.kernel(SOURCE, "add")
    lane = gpu.lane(reservation=2)
    done = add.submit(1, 1, (out,), stream=lane)
    done.result(LIMIT_S)
    jobs = [spin.submit(1, 1, (flag,), stream=lane)]
    jobs += [add.submit(1, 1, (out,), stream=lane) for _ in range(400)]
    called = threading.Event()
    jobs[-1].add_done_callback(lambda _: called.set())
    lane.close(wait=False)
    for job in jobs:
        with pytest.raises(gc.JobCancelled):
            job.result(LIMIT_S)
    assert "its lane was closed before it had ended" in str(jobs[-1]._error)
    assert called.wait(LIMIT_S)
    assert done.done()
    assert done.exception() is None
    with gpu.lane(reservation=2) as again:  # the share has come back, with no block left
        add.submit(1, 1, (out,), stream=again).result(LIMIT_S)
    assert out.get()[0] == 2


def test_lanes_end_with_their_devices_process(gpu: gc.Session) -> None:
    flag, out = gpu.zeros(1, np.uint32), gpu.zeros(1, np.uint32)
    spin, add = gpu.kernel(SOURCE, "spin"), gpu.kernel(SOURCE, "add")
    first, second = gpu.lane(reservation=1), gpu.lane(quota=1)
    add.submit(1, 1, (out,), stream=second).result(LIMIT_S)  # it is idle from now on
    jobs = [spin.submit(1, 1, (flag,), stream=first)]
    jobs += [add.submit(1, 1, (out,), stream=first) for _ in range(3)]
    host = gpu.query("status")["devices"][0]["pid"]
    threading.Timer(0.1, lambda: os.kill(host, signal.SIGKILL)).start()
    for job in jobs:
        error = job.exception(LIMIT_S)
        assert isinstance(error, gc.DeviceLost)
    until(lambda: first.closed and second.closed)
    for lane in (first, second):
        with pytest.raises(gc.DeviceLost):
            add.submit(1, 1, (out,), stream=lane)
        lane.close()
    until(lambda: gpu.query("status")["devices"][0]["state"] == "ready")
    again = gpu.zeros(1, np.uint32)
    with gpu.lane(reservation=2) as lane:
        add.submit(1, 1, (again,), stream=lane).result(LIMIT_S)
    assert again.get()[0] == 1


def test_eight_clients_with_a_lane_each_are_all_served(gpu: gc.Session) -> None:
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(gpu.path), "0.25", "1.5"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(8)
    ]  # fmt: skip
    try:
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(SOURCE.encode("unicode_escape").decode() + "\n")
            client.stdin.flush()
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "there\n"
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        counts = []
        for client in clients:
            assert client.stdout is not None
            count, right = client.stdout.readline().split()
            assert right == "True"
            counts.append(int(count))
        assert min(counts) > 0
        assert min(counts) * 8 > sum(counts) / 5  # none is starved
    finally:
        for client in clients:
            client.kill()
            client.wait()
            for pipe in (client.stdin, client.stdout):
                assert pipe is not None
                pipe.close()
