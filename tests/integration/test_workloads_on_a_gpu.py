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

STEP = r"""
extern "C" __global__ void step(float* kept, float* scratch, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { scratch[i] += kept[i] * 0.5f; kept[i] = kept[i] - scratch[i] + 1.0f; }
}"""
N = 1 << 12


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    daemon = Served(turn_slice="2ms", turn_linger="20ms")
    try:
        yield daemon
    finally:
        daemon.close()


def test_workloads_take_turns_with_a_gpus_memory(served: Served) -> None:
    iterations = 8

    def train(number: int) -> Any:
        with served.connect() as gpu, gpu.workload("6MiB", "28MiB", offset=0) as work:
            kernel = gpu.kernel(STEP, "step")
            before = [work.array(np.full(16, one, np.int32)) for one in range(100)]
            kept = work.array(np.full(N, number, np.float32))
            for _ in range(iterations):
                with work.iteration() as turn:
                    scratch = turn.zeros(N, np.float32)
                    assert not turn.empty(20 << 20, np.uint8).get().any(), "nothing of others"
                    turn.array(np.full(20 << 20, 7, np.uint8))
                    kernel.submit(N // 256, 256, (kept, scratch, N))
            assert all((one.get() == at).all() for at, one in enumerate(before))
            return kept.get()

    # Twice (6 + 28) MiB are more than the GPU has; once 28 and twice 6 are not.
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(train, range(2)))
    for number, kept in enumerate(found):
        expected = np.full(N, number, np.float32)
        for _ in range(iterations):
            expected = expected - expected * np.float32(0.5) + np.float32(1)
        np.testing.assert_array_equal(kept, expected)
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


def test_what_a_gpu_cannot_do_for_workloads_is_refused(served: Served) -> None:
    with served.connect() as gpu:
        said = "has memory of its own, where a workload cannot"
        with pytest.raises(gc.GpudError, match=f"{said} learn its sizes: give persistent"):
            gpu.workload()
        with pytest.raises(gc.GpudError, match=f"{said} move what it keeps"):
            gpu.workload("1MiB", "1MiB", movable=True)


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
