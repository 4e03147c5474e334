"""Workloads whose kernels run through gpud on a GPU, over the model of the driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.gpu.served_daemon import Served

pytestmark = pytest.mark.ci

STEP = r"""
extern "C" __global__ void step(float* kept, float* scratch, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { scratch[i] += kept[i] * 0.5f; kept[i] = kept[i] - scratch[i] + 1.0f; }
}"""
N = 1 << 12


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    daemon = Served(memory="32MiB", turn_slice="2ms", turn_linger="20ms")
    try:
        yield daemon
    finally:
        daemon.close()


def test_workloads_take_turns_with_a_gpus_memory(served: Served) -> None:
    iterations = 8

    def train(number: int) -> Any:
        with served.connect() as gpu, gpu.workload("6MiB", "16MiB", offset=0) as work:
            kernel = gpu.kernel(STEP, "step")
            before = [work.array(np.full(16, one, np.int32)) for one in range(100)]
            kept = work.array(np.full(N, number, np.float32))
            for _ in range(iterations):
                with work.iteration() as turn:
                    scratch = turn.zeros(N, np.float32)
                    assert not turn.empty(12 << 20, np.uint8).get().any(), "nothing of others"
                    turn.array(np.full(12 << 20, 7, np.uint8))
                    kernel.submit(N // 256, 256, (kept, scratch, N))
            assert all((one.get() == at).all() for at, one in enumerate(before))
            return kept.get()

    # Twice (6 + 16) MiB are more than the GPU has; once 16 and twice 6 are not.
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(train, range(2)))
    for number, kept in enumerate(found):
        expected = np.full(N, number, np.float32)
        for _ in range(iterations):
            expected = expected - expected * np.float32(0.5) + np.float32(1)
        np.testing.assert_array_equal(kept, expected)
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_regions_move_to_the_machines_memory_and_back(served: Served) -> None:
    iterations, size = 6, 4 << 20

    def train(number: int) -> Any:
        with served.connect() as gpu:
            work = gpu.workload("12MiB", "8MiB", offset=0, movable=True)
            kernel = gpu.kernel(STEP, "step")
            before: Any = None
            last: Any = None
            kept: Any = None
            for turn in work.iterations(iterations):
                if kept is None:
                    before = work.array(np.full(size // 4, number + 0.5, np.float32))
                    kept = work.array(np.full(size // 4, number, np.float32))
                scratch = turn.zeros(size // 4, np.float32)
                kernel.submit(size // 1024, 256, (kept, scratch, size // 4)).result(30)
                assert before.get()[[0, -1]].tolist() == [number + 0.5] * 2
                before.set(before.get())  # written to the file and not yet copied when it ends
                last = kept.get()
            return last

    # Three times 12 MiB and 8 are more than the GPU has.
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(train, number) for number in range(3)]
        with served.connect() as gpu:
            while not all(one.done() for one in found):
                device = gpu.query("workloads")["devices"][0]
                used = device["persistent_bytes"] + device["temporary_bytes"]
                assert used <= device["size_bytes"]
    for number, one in enumerate(found):
        expected = np.full(size // 4, number, np.float32)
        for _ in range(iterations):
            expected = expected - expected * np.float32(0.5) + np.float32(1)
        np.testing.assert_array_equal(one.result(), expected)
    with served.connect() as gpu:
        moved = gpu.query("workloads")["moved"]
        assert moved["moved_bytes"] > 2 * size
        assert (moved["away_bytes"], moved["moving_s"] > 0) == (0, True)
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_what_is_away_outlives_the_device_host(served: Served) -> None:
    with served.connect() as one, served.connect() as two:
        works = [gpu.workload("26MiB", "4MiB", offset=0, movable=True) for gpu in (one, two)]
        kept = []
        for number, work in enumerate(works):
            with work.iteration():
                kept.append(work.array(np.full(N, number, np.float32)))
        with works[1].iteration():
            assert "in host memory" in one.query("workloads")["devices"][0]["away"].values()
            served.kill_host()
        with works[0].iteration() as turn:
            kernel = one.kernel(STEP, "step")
            kernel.submit(N // 256, 256, (kept[0], turn.zeros(N, np.float32), N)).result(30)
            assert (kept[0].get() == 1).all()
        for work in works:
            work.close()


def learning(served: Served, number: int, weights: int, scratch: int) -> Any:
    """Learn sizes, of arrays of these bytes; what came of it, and the bytes of both kinds."""
    with served.connect() as gpu, gpu.workload(offset="1MiB") as work:
        kernel = gpu.kernel(STEP, "step")
        kept: Any = None
        values, sizes = np.zeros(1), (0, 0)
        for turn in work.iterations(6):
            if kept is None:
                dropped = work.array(np.full(weights, 3, np.uint8))
                kept = work.array(np.full(weights // 4, number, np.float32))
                del dropped  # written to the file, and maybe not copied yet
            used = turn.zeros(scratch // 4, np.float32)
            n = min(weights, scratch) // 4
            kernel.submit(n // 256, 256, (kept, used, n))
            assert not used.get()[n:].any()
            values = kept.get()
            sizes = work.persistent, work.temporary
        assert (values == values[0]).all()
        return values[0], *sizes


def test_workloads_learn_their_sizes_on_a_gpu_and_then_take_turns(served: Served) -> None:
    # Once learned, three times (2 x 3 + 1) MiB and once 6 fit, where 32 do; all of it did not.
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(learning, served, one, 3 << 20, 6 << 20) for one in range(3)]
    for number, one in enumerate(runs):
        expected = np.float32(number)
        for _ in range(6):
            expected = expected - expected * np.float32(0.5) + np.float32(1)
        value, persistent, temporary = one.result()
        assert value == expected
        assert 6 << 20 <= persistent <= 6.3 * (1 << 20) + 4096
        assert 6 << 20 <= temporary <= 6.3 * (1 << 20) + 4096
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_what_learning_gives_back_is_the_others(served: Served) -> None:
    with served.connect() as gpu, served.connect() as other:
        work = gpu.workload(offset=0)
        with work.iteration() as turn:
            kept = work.array(np.full(N, 1, np.float32))
            scratch = turn.zeros(N, np.float32)
            gpu.kernel(STEP, "step").submit(N // 256, 256, (kept, scratch, N)).result(30)
        # 32 MiB are more than half of what the driver has: they have come back to it.
        with other.workload("24MiB", "4MiB", 0) as large, large.iteration() as turn:
            values = large.array(np.arange(20 << 18, dtype=np.float32))
            assert not turn.zeros(4 << 20, np.uint8).get().any()
            assert (values.get() == np.arange(20 << 18)).all()
        assert (kept.get() == 1.5).all()
        with work.iteration() as turn:
            with pytest.raises(gc.OutOfMemory):
                turn.zeros(8 << 20, np.uint8)  # more than the first iteration has used
            assert not turn.zeros(N, np.float32).get().any()
        served.kill_host()
        work.close()
        with other.workload("24MiB", "4MiB", 0):
            pass


def test_a_workload_that_keeps_or_uses_nothing_learns_that(served: Served) -> None:
    with served.connect() as gpu:
        with gpu.workload(offset=0) as keeps:
            kept: Any = None
            for turn in keeps.iterations(3):
                if kept is None:
                    kept = keeps.array(np.arange(N, dtype=np.float32))
                assert (kept.get() == np.arange(N)).all()
                assert (keeps.temporary == 0) == (turn.number > 0)
        with gpu.workload(offset=0) as uses:
            for turn in uses.iterations(3):
                assert not turn.zeros(N, np.float32).get().any()
                turn.array(np.ones(N, np.float32))
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_what_is_lost_with_a_host_is_named_and_the_next_turn_begins(served: Served) -> None:
    with served.connect() as gpu, served.connect() as other:
        work, waiting = gpu.workload("1MiB", "1MiB", 0), other.workload("1MiB", "1MiB", 0)
        kernel = gpu.kernel(STEP, "step")
        untouched = work.array(np.full(4, 9, np.float32))
        kept = work.array(np.full(N, 1, np.float32))
        began = threading.Event()

        def wait() -> None:
            with waiting.iteration():
                began.set()

        with work.iteration() as turn:
            kernel.submit(N // 256, 256, (kept, turn.zeros(N, np.float32), N)).result(30)
            thread = threading.Thread(target=wait)
            thread.start()
            served.kill_host()
            lost = kernel.submit(N // 256, 256, (kept, turn.zeros(N, np.float32), N))
            with pytest.raises(gc.DeviceLost, match="of the session's"):
                lost.result(30)
            assert not began.is_set()
        assert began.wait(30)
        thread.join()
        with pytest.raises(gc.DeviceLost):
            untouched.get()  # what a workload keeps is lost as a whole
        work.close()
        with gpu.workload("1MiB", "1MiB", 0) as again, again.iteration() as turn:
            kept = again.array(np.full(N, 1, np.float32))
            kernel.submit(N // 256, 256, (kept, turn.zeros(N, np.float32), N)).result(30)
            assert (kept.get() == 1.5).all()
        waiting.close()
