"""Jobs, lanes, pauses and threads beside workloads' turns, on a live daemon."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.launch import submission
from tests.integration.workload_programs import (
    STEP,
    N,
    awaited,
    begin,
    expected,
    gpuctl,
    overstays,
    serving,
)


def test_a_job_uses_the_memory_of_one_workload_in_its_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gc.local("cpu:1") as gpu:
        one, two = gpu.workload("1MiB", "1MiB", 0), gpu.workload("1MiB", "1MiB", 0)
        step, poke = gpu.kernel(STEP, "step"), gpu.kernel(STEP, "poke")
        own, foreign = one.zeros(64, np.float32), two.zeros(64, np.float32)
        with one.iteration() as turn:
            scratch = turn.empty(64, np.float32)
            mixed = f"array 1 of step is of workload {two.id}, and others are of {one.id}"
            with pytest.raises(ValueError, match=mixed):
                step.submit(1, 64, (own, foreign, 64))
            # An address, which only the daemon sees.
            job = poke.submit(1, 1, (own, np.uint64(foreign.ptr)))
            message = f"argument 1 of poke is in the persistent memory of workload {two.id} "
            with pytest.raises(gc.GpudError, match=message):
                job.result(20)
            step.submit(1, 64, (own, scratch, 64)).result(20)
            poke.submit(1, 1, (own, np.uint64(scratch.ptr))).result(20)
            claims: dict[tuple[int, int, int], str] = {
                (99, 1, 0): "no workload w99",
                (one._number, 2 << 20, 0): "2097152 bytes of the persistent memory",
                (one._number, 1, 2 << 20): "2097152 bytes of the temporary memory",
                (two._number, 1, 1): f"temporary memory of workload {two.id}, which is in no iter",
            }
            for claim, problem in claims.items():
                monkeypatch.setattr(submission, "memory_used", lambda _, claim=claim: claim)
                with pytest.raises(gc.GpudError, match=problem):
                    step.submit(1, 64, (own, scratch, 64)).result(20)
        monkeypatch.undo()
        step.submit(1, 64, (own, own, 64)).result(20)  # what persists, also between iterations
        movable = gpu.workload("1MiB", "1MiB", 0, movable=True)
        claim = movable._number, 1, 0
        monkeypatch.setattr(submission, "memory_used", lambda _: claim)
        with pytest.raises(gc.GpudError, match=f"movable memory of workload {movable.id}"):
            step.submit(1, 64, (own, own, 64)).result(20)


@pytest.mark.ci
def test_lanes_and_online_jobs_run_in_turns_and_between_them() -> None:
    with serving("--turn-slice", "5ms") as daemon, gc.connect(daemon.path) as gpu:
        step, linger = gpu.kernel(STEP, "step"), gpu.kernel(STEP, "linger")
        one, two = gpu.workload("1MiB", "1MiB", 0), gpu.workload("1MiB", "1MiB", 0)
        out = gpu.zeros(1, np.int32)
        with gc.connect(daemon.path) as online, online.lane(reservation=1) as lane:
            served = online.kernel(STEP, "linger")
            theirs = online.zeros(1, np.int32)
            kept = one.zeros(N, np.float32)
            for _ in range(5):
                with one.iteration() as turn:
                    trains = step.submit(
                        N // 256, 256, (kept, turn.empty(N, np.float32), N), quota=1
                    )
                    served.submit(1, 1, (theirs, 1000), stream=lane).result(20)  # in the turn
                    served.submit(1, 1, (theirs, 1000), reservation=1).result(20)
                    trains.result(20)
                served.submit(1, 1, (theirs, 1000), stream=lane).result(20)  # after it
                with two.iteration():
                    linger.submit(1, 1, (out, 1000), reservation=1).result(20)
            np.testing.assert_array_equal(kept.get(), expected(5))
        spin, go = gpu.kernel(STEP, "spin"), one.zeros(1, np.uint32)
        word = go.numpy()
        with gpu.lane(reservation=1) as lane:  # an iteration ends when its launches have
            with one.iteration():
                launch = spin.submit(1, 1, (go,), stream=lane)
                assert not launch.done()
                later = threading.Timer(0.1, word.__setitem__, (0, 1))
                later.start()
            assert launch.done()
            later.join()
            with two.iteration() as turn:
                assert turn.new


@pytest.mark.ci
def test_a_paused_device_begins_no_iteration() -> None:
    with (
        serving("--turn-overstay", "50ms") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        alone, other = one.workload("1MiB", "1MiB", 0), two.workload("1MiB", "1MiB", 0)
        other.close()
        with alone.iteration():  # on its own: it goes on without asking
            assert gpuctl(daemon, "pause").returncode == 0
            shown = gpuctl(daemon, "top", "--count", "1").stdout
            assert f"1 workload: {alone.id} has had the turn for" in shown
        other = two.workload("1MiB", "1MiB", 0)
        began: list[float] = []
        works = [alone, other]
        threads = [
            threading.Thread(target=lambda work=work: began.append(begin(work))) for work in works
        ]
        for thread in threads:
            thread.start()
        states = awaited(lambda: [row for row in _waiting(one) if row], 2)
        assert len(states) == 2
        time.sleep(0.2)
        assert not began
        assert not overstays(one)
        assert gpuctl(daemon, "resume").returncode == 0
        for thread in threads:
            thread.join(20)
        assert len(began) == 2


def _waiting(gpu: Any) -> list[Any]:
    """Return the workloads that want to begin an iteration."""
    return [row for row in gpu.query("workloads")["workloads"] if row["waits_for_turn"]]


@pytest.mark.ci
def test_two_threads_do_not_share_a_workload() -> None:
    with gc.local("cpu:1") as gpu, gpu.workload("1MiB", "1MiB", 0) as work:
        problems: list[str] = []

        def other() -> None:
            with pytest.raises(ValueError, match="of another thread or task") as problem:
                work.iteration().__enter__()
            problems.append(str(problem.value))

        with work.iteration():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(10)
        assert "give each thread a workload of its own" in problems[0]
        with work.iteration():
            pass
