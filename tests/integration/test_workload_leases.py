"""Turns that go on without asking, until they are asked back, on a live daemon."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.integration.workload_programs import STEP, N, awaited, begin, gpuctl, serving


def _row(gpu: Any, work: Any) -> Any:
    rows = gpu.query("workloads")["workloads"]
    return next(row for row in rows if row["id"] == work.id)


def _waits(gpu: Any, work: Any) -> list[bool]:
    return [True] if _row(gpu, work)["state"] == "waiting for its turn" else []


def test_the_iterations_of_a_time_slice_are_not_asked_for() -> None:
    with (
        serving("--turn-slice", "3s", "--turn-linger", "60s") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        busy, other = one.workload("1MiB", "1MiB"), two.workload("1MiB", "1MiB")
        kernel, ready = one.kernel(STEP, "step"), one.zeros(N, np.float32)
        kernel.submit(N // 256, 256, (ready, ready, N)).result(30)
        began: list[float] = []
        thread = threading.Thread(target=lambda: began.append(begin(other)))
        stale: Any = None
        began_ns = 0.0
        count, seen = 0, []
        while not began:
            with busy.iteration() as turn:
                if not count:
                    began_ns = time.monotonic()
                    thread.start()
                    assert awaited(lambda: _waits(one, other), 1), "the other one has the turn"
                if stale is not None:
                    with pytest.raises(ValueError, match="its iteration has ended"):
                        stale.get()
                stale = turn.empty(N, np.float32)
                kernel.submit(N // 256, 256, (stale, stale, N)).result(30)
            count += 1
            row = _row(one, busy)
            if not began and count < 5:
                seen.append((count, row["iterations"]))
        thread.join(10)
        assert began[0] - began_ns > 2.9, "the time slice was cut short"
        assert seen[1] == (2, 1), "the daemon was told of each"
        # The daemon knows of all but those that this program has begun since its last report.
        assert _row(one, busy)["iterations"] + busy._unreported >= count


@pytest.mark.ci
def test_a_program_that_does_nothing_gives_its_turn_back() -> None:
    with (
        serving("--turn-slice", "1h", "--turn-linger", "20ms") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        idle, other = one.workload("1MiB", "1MiB"), two.workload("1MiB", "1MiB")
        begin(idle)
        begin(idle)
        asked = time.monotonic()
        assert begin(other) - asked < 5, "it waited for the time slice of one that does nothing"
        # Within an iteration a turn ends for nobody, whether the program runs anything or not.
        with idle.iteration():
            late: list[float] = []
            thread = threading.Thread(target=lambda: late.append(begin(other)))
            thread.start()
            assert awaited(lambda: _waits(one, other), 1)
            time.sleep(0.2)
            assert not late
        thread.join(10)
        assert late


@pytest.mark.ci
def test_a_lease_ends_with_its_program_and_with_a_pause() -> None:
    with serving("--turn-slice", "1h") as daemon, gc.connect(daemon.path) as two:
        with gc.connect(daemon.path) as one:
            first, other = one.workload("1MiB", "1MiB"), two.workload("1MiB", "1MiB")
            begin(first)
        assert begin(other)
        third = two.workload("1MiB", 0)
        begin(other)
        assert gpuctl(daemon, "pause").returncode == 0
        began: list[float] = []
        thread = threading.Thread(target=lambda: began.append(begin(other)))
        thread.start()
        time.sleep(0.3)
        assert not began, "an iteration began while the device was paused"
        assert gpuctl(daemon, "resume").returncode == 0
        thread.join(10)
        assert began
        assert begin(third)
