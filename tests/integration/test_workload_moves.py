"""What persists moves to host memory and back, on a live daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.integration.workload_programs import (
    STEP,
    WIDE,
    N,
    awaited,
    gpuctl,
    serving,
)


def train_movable(gpu: Any, work: Any, iterations: int, first: float) -> Any:
    """Train as `train` from ``first``, all within iterations; returns what persisted."""
    kernel = gpu.kernel(STEP, "step", device=work.device)
    kept: Any = None
    for number in range(iterations):
        with work.iteration(last=number == iterations - 1) as turn:
            if kept is None:
                kept = work.array(np.full(WIDE, first, np.float32))
            scratch = turn.empty(WIDE, np.float32)
            kernel.submit(grid=WIDE // 256, block=256, args=(kept, scratch, WIDE))
            if number == iterations - 1:
                return kept.get()
    return None


def test_regions_move_to_host_memory_and_back_where_they_do_not_fit() -> None:
    with serving("--memory", "16MiB", "--turn-slice", "5ms") as daemon:
        kept: dict[int, Any] = {}

        def run(number: int) -> None:  # 4 x 6 MiB persist, of 16, beside 4 that are temporary
            with gc.connect(daemon.path) as gpu:
                work = gpu.workload("6MiB", "4MiB", offset=0, movable=True)
                kept[number] = train_movable(gpu, work, 30, number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        with gc.connect(daemon.path) as gpu:
            seen = awaited(lambda: _away(gpu), 2)
            assert set(seen) <= {"moving to host memory", "in host memory", "moving to the device"}
            device = gpu.query("workloads")["devices"][0]
            assert device["persistent_bytes"] + device["temporary_bytes"] <= 16 << 20
            shown = gpuctl(daemon, "workloads").stdout
            assert "in host memory" in shown
            for thread in threads:
                thread.join(60)
            for number in range(4):
                alone = np.full(WIDE, number, np.float32)
                for _ in range(30):
                    alone = alone - alone * np.float32(0.5) + np.float32(1)
                np.testing.assert_array_equal(kept[number], alone)
            moved = gpu.query("workloads")["moved"]
            assert moved["moved_bytes"] >= 4 * WIDE * 4
            assert moved["away_bytes"] == 0
            assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def _away(gpu: Any) -> list[Any]:
    return list(gpu.query("workloads")["devices"][0]["away"].values())


@pytest.mark.ci
def test_what_a_movable_workload_keeps_is_used_within_iterations() -> None:
    with gc.local("cpu:1") as gpu:
        with pytest.raises(ValueError, match="gpuctl workloads shows what"):
            gpu.workload(movable=True)
        work = gpu.workload("1MiB", "1MiB", offset=0, movable=True)
        assert work.movable
        with pytest.raises(ValueError, match="make its arrays within an iteration"):
            work.zeros(4)
        with work.iteration():
            array = work.array(np.array([1, 2, 3], np.int32))
        kernel = gpu.kernel(STEP, "linger")
        for use in (array.get, array.numpy, lambda: kernel.submit(1, 1, (array, 1))):
            with pytest.raises(ValueError, match="use it within one"):
                use()
        assert "freed" not in repr(array)
        with work.iteration():
            assert array.get().tolist() == [1, 2, 3]
            array.free()
        with work.iteration(), pytest.raises(ValueError, match="was freed"):
            array.get()


@pytest.mark.ci
def test_what_persists_outlives_the_device_host() -> None:
    """Its content is in files of the machine, as is what a movable workload has away."""
    with (
        serving("--memory", "16MiB", "--turn-slice", "5ms") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        works = [gpu.workload("9MiB", "2MiB", 0, movable=True) for gpu in (one, two)]
        kept = []
        for number, work in enumerate(works):
            with work.iteration():
                kept.append(work.array(np.full(WIDE, number, np.float32)))
        linger = two.kernel(STEP, "linger")
        with works[1].iteration() as turn:
            assert "in host memory" in _away(one)
            scratch = turn.zeros(1, np.int32)
            job = linger.submit(1, 1, (scratch, 1 << 60))
            awaited(lambda: [job] if job.running() else [], 1)
            os.kill(one.query("status")["devices"][0]["pid"], signal.SIGKILL)
            with pytest.raises(gc.DeviceLost):
                job.result(20)
        for number, (gpu, work) in enumerate(zip((one, two), works, strict=True)):
            step = gpu.kernel(STEP, "step")
            with work.iteration() as turn:
                assert (kept[number].get() == number).all()
                step.submit(N // 256, 256, (kept[number], turn.zeros(N, np.float32), N))
                assert kept[number].get()[0] == number / 2 + 1


@pytest.mark.ci
def test_without_host_memory_a_movable_workload_waits() -> None:
    with (
        serving("--memory", "16MiB", "--moved-memory", "0") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        first = one.workload("8MiB", "2MiB", offset=0, movable=True)
        opened: list[Any] = []
        thread = threading.Thread(
            target=lambda: opened.append(two.workload("8MiB", 0, 0, movable=True))
        )
        thread.start()
        states = awaited(lambda: [row["state"] for row in one.query("workloads")["workloads"]])
        assert states == ["idle", "waiting for memory"]
        first.close()
        thread.join(10)
        assert opened


@pytest.mark.ci
def test_a_client_killed_while_regions_are_away_is_missed_by_nobody() -> None:
    script = (
        "import gpud_client as gc, numpy as np\n"
        "gpu = gc.connect()\n"
        "work = gpu.workload('40MiB', '1MiB', offset=0, movable=True)\n"
        "kept = None\n"
        "while True:\n"
        "    with work.iteration():\n"
        "        if kept is None:\n"
        "            kept = work.array(np.ones(10 << 20, np.float32))\n"
        "            print('ready', flush=True)\n"
    )
    with serving("--memory", "64MiB", "--turn-slice", "2ms") as daemon:
        children = []
        for _ in range(2):
            child = subprocess.Popen(
                [sys.executable, "-c", script], env=daemon.environment, stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            children.append(child)
        with gc.connect(daemon.path) as gpu:
            for child in children:
                assert child is children[1] or awaited(lambda: _away(gpu), 1)
                child.send_signal(signal.SIGKILL)
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
                work = gpu.workload("40MiB", "1MiB", offset=0, movable=True)
                with work.iteration():
                    assert not work.empty(10 << 20, np.float32).get().any()
                work.close()
            deadline = time.monotonic() + 10
            while gpu.query("workloads")["moved"]["away_bytes"] and time.monotonic() < deadline:
                time.sleep(0.01)
            answer = gpu.query("workloads")
            assert answer["workloads"] == []
            assert answer["moved"]["away_bytes"] == 0
