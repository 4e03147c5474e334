"""Workloads on a live daemon: turns, memory in zones, and what clients get wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from bench.bench_workloads import SHORT_SAMPLES, device_bytes
from bench.load.training import MODELS, Model
from gpud.wire import messages as wm
from gpud_client.connection.pending import Notification
from gpud_client.launch import submission
from tests.support.allocation_trace import trace
from tests.support.daemon_process import DaemonProcess

STEP = r"""
extern "C" __global__ void step(float* kept, float* scratch, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { scratch[i] = kept[i] * 0.5f; kept[i] = kept[i] - scratch[i] + 1.0f; }
}
extern "C" __global__ void linger(int* out, long long turns) {
    volatile int a = 0;
    for (long long i = 0; i < turns; ++i) a = a + 1;
    out[0] = a;
}
extern "C" __global__ void poke(float* own, unsigned long long where) {
    own[0] = *(float*)where;
}"""
N = 1 << 12
WIDE = 1 << 20


@contextmanager
def serving(*options: str) -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        daemon.serve(*options)
        yield daemon
        assert not daemon.bugs()


def gpuctl(daemon: DaemonProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from gpud_client.cli import main; raise SystemExit(main())",
            *arguments,
        ],
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def train(gpu: Any, work: Any, iterations: int, seen: Callable[[], None] = lambda: None) -> Any:
    """Iterate, closing at the end; returns what persisted."""
    kernel = gpu.kernel(STEP, "step", device=work.device)
    kept = work.zeros(N, np.float32)
    for number in range(iterations):
        with work.iteration() as turn:
            seen()
            scratch = turn.empty(N, np.float32)
            kernel.submit(grid=N // 256, block=256, args=(kept, scratch, N))
        assert work.iterations_begun == number + 1
    return kept.get()


def expected(iterations: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    kept = np.zeros(N, np.float32)
    for _ in range(iterations):
        kept = kept - kept * np.float32(0.5) + np.float32(1)
    return kept


def test_two_programs_take_turns_and_keep_their_values() -> None:
    with serving("--memory", "16MiB", "--turn-slice", "5ms") as daemon:
        kept: dict[int, Any] = {}

        def run(number: int) -> None:
            # 2 x (4 + 6) MiB: more than there is, were temporary memory not shared.
            with (
                gc.connect(daemon.path) as gpu,
                gpu.workload("4MiB", "6MiB", offset=0) as work,
            ):
                kept[number] = train(gpu, work, 40)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        np.testing.assert_array_equal(kept[0], expected(40))
        np.testing.assert_array_equal(kept[1], expected(40))
        with gc.connect(daemon.path) as gpu:
            answer = gpu.query("workloads")
            assert answer["workloads"] == []
            assert answer["devices"][0]["persistent_bytes"] == 0
            assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


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
            seen = _await(lambda: _away(gpu), 2)
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
        with gpu.lane(reservation=1) as lane:  # an iteration ends when its launches have
            with one.iteration() as turn:
                scratch = turn.zeros(1, np.int32)
                launch = linger.submit(1, 1, (scratch, 30_000_000), stream=lane)
                assert not launch.done()
            assert launch.done()
            with two.iteration() as turn:
                assert turn.new


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
            threading.Thread(target=lambda work=work: began.append(_begin(work))) for work in works
        ]
        for thread in threads:
            thread.start()
        states = _await(lambda: [row for row in _waiting(one) if row], 2)
        assert len(states) == 2
        time.sleep(0.2)
        assert not began
        assert not _overstays(one)
        assert gpuctl(daemon, "resume").returncode == 0
        for thread in threads:
            thread.join(20)
        assert len(began) == 2


def _waiting(gpu: Any) -> list[Any]:
    """Return the workloads that want to begin an iteration."""
    return [row for row in gpu.query("workloads")["workloads"] if row["waits_for_turn"]]


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


def test_what_persists_outlives_the_device_host() -> None:
    """Its content is in files of the host, as is what a movable workload has away."""
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
            _await(lambda: [job] if job.running() else [], 1)
            os.kill(one.query("status")["devices"][0]["pid"], signal.SIGKILL)
            with pytest.raises(gc.DeviceLost):
                job.result(20)
        for number, (gpu, work) in enumerate(zip((one, two), works, strict=True)):
            step = gpu.kernel(STEP, "step")
            with work.iteration() as turn:
                assert (kept[number].get() == number).all()
                step.submit(N // 256, 256, (kept[number], turn.zeros(N, np.float32), N))
                assert kept[number].get()[0] == number / 2 + 1


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
        states = _await(lambda: [row["state"] for row in one.query("workloads")["workloads"]])
        assert states == ["idle", "waiting for memory"]
        first.close()
        thread.join(10)
        assert opened


def test_a_client_killed_while_its_region_moves_is_missed_by_nobody() -> None:
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
                _await(lambda: [one for one in _away(gpu) if one.startswith("moving")], 1)
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


def test_training_in_turns_has_the_losses_of_training_alone() -> None:
    iterations = 6

    def losses(path: Path, number: int) -> list[float]:
        model = models[number]
        sizes = model.persistent_bytes, model.temporary_bytes
        with gc.connect(path) as gpu, gpu.workload(*sizes, offset=0) as work:
            return model.losses(gpu, work, iterations)

    models: list[Model] = [
        kind(count, 1) for kind, count in zip(MODELS, SHORT_SAMPLES, strict=True)
    ]
    needs = sum(model.persistent_bytes + model.temporary_bytes for model in models)
    memory = device_bytes(SHORT_SAMPLES)
    assert needs > 1.75 * memory
    with serving("--memory", str(memory), "--turn-slice", "10ms") as daemon:
        alone = [losses(daemon.path, number) for number in range(len(models))]
        with ThreadPoolExecutor() as pool:
            together = list(pool.map(lambda number: losses(daemon.path, number), range(3)))
    assert together == alone
    for model, curve in zip(models, alone, strict=True):
        np.testing.assert_allclose(curve, model.reference(iterations), rtol=1e-4)
        assert curve[-1] < curve[0]


def test_a_workload_waits_until_there_is_room_and_one_too_large_is_refused() -> None:
    with (
        serving("--memory", "16MiB") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        with pytest.raises(gc.OutOfMemory, match="largest device") as refused:
            one.workload("10MiB", "6MiB", offset="1MiB")
        assert refused.value.requested_bytes == 17 << 20
        assert refused.value.available_bytes == 16 << 20
        first = one.workload("6MiB", "2MiB", offset="4MiB")
        opened: list[Any] = []
        thread = threading.Thread(target=lambda: opened.append(two.workload("6MiB", 0, 0)))
        thread.start()
        states = _await(lambda: [row["state"] for row in one.query("workloads")["workloads"]])
        assert states == ["idle", "waiting for memory"]
        first.close()
        thread.join(10)
        assert opened[0].persistent == 6 << 20
        # Ordinary arrays count beside the zones.
        with pytest.raises(gc.OutOfMemory):
            one.zeros(11 << 20, np.uint8)
        one.zeros(9 << 20, np.uint8)


def _await(ask: Callable[[], list[Any]], count: int = 2) -> list[Any]:
    deadline = time.monotonic() + 10
    while len(found := ask()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_temporary_memory_is_zero_at_the_next_turn_and_its_arrays_end() -> None:
    with serving("--turn-linger", "0") as daemon, gc.connect(daemon.path) as gpu:
        one, two = gpu.workload("1MiB", "1MiB"), gpu.workload("1MiB", "1MiB")
        with one.iteration() as turn:
            assert turn.new
            secret = turn.array(np.full(N, 7, np.int32))
            address = secret.ptr
            view = secret.numpy()
        with pytest.raises(ValueError, match="its iteration has ended"):
            secret.get()
        with pytest.raises(ValueError, match="its iteration has ended"):
            gpu.kernel(STEP, "linger").submit(1, 1, (secret, 1))
        with pytest.raises(ValueError, match="within it"):
            turn.zeros(1)
        with two.iteration():
            assert not view.any(), "the next turn could read the last one's memory"
        with one.iteration() as turn:
            assert turn.new
            again = turn.empty(N, np.int32)
            assert again.ptr == address
            assert not again.get().any()
            assert not turn.zeros(8).get().any()
            with pytest.raises(gc.OutOfMemory, match="temporary memory"):
                turn.empty(1 << 20, np.uint8)


def test_a_workload_alone_asks_nobody_until_another_comes() -> None:
    with serving() as daemon, gc.connect(daemon.path) as one, gc.connect(daemon.path) as two:
        work = one.workload("1MiB", "1MiB")
        kernel, kept = one.kernel(STEP, "step"), work.zeros(N, np.float32)

        def iterate() -> bool:
            with work.iteration() as turn:
                assert work.iterations_begun == turn.number + 1
                kernel.submit(N // 256, 256, (kept, turn.empty(N, np.float32), N))
            return turn.new

        assert [iterate() for _ in range(50)] == [True] + 49 * [False]
        row = one.query("workloads")["workloads"][0]
        assert (row["state"], row["iterations"]) == ("alone", 1)
        other = two.workload("1MiB", "1MiB")  # it comes between two iterations
        assert _begin(other)
        assert one.query("workloads")["workloads"][0]["iterations"] == 50
        assert iterate()
        other.close()
        assert [iterate() for _ in range(3)] == 3 * [False]
        with work.iteration():
            later = two.workload("1MiB", "1MiB")  # within one
            began: list[float] = []
            thread = threading.Thread(target=lambda: began.append(_begin(later)))
            thread.start()
            time.sleep(0.2)
            assert not began
        thread.join(10)
        assert began
        np.testing.assert_array_equal(kept.get(), expected(54))


def test_persistent_memory_grows_at_its_place_as_far_as_its_offset() -> None:
    with gc.local("cpu:1") as gpu, gpu.workload("1MiB", "1MiB", offset="1MiB") as work:
        first = work.array(np.arange(1 << 17, dtype=np.float64))
        before = first.ptr
        second = work.zeros(1 << 17)
        assert work.persistent == 2 << 20
        assert second.ptr == before + (1 << 20)
        with pytest.raises(gc.OutOfMemory, match="larger offset"):
            work.zeros(1)
        second.free()
        assert work.zeros(4).ptr == before + (1 << 20)
        np.testing.assert_array_equal(first.get(), np.arange(1 << 17))


def run_trace(turn: Any, lives: list[tuple[int, int]]) -> int:
    """Allocate and free as a trace says; returns the most bytes that lived at once."""
    alive: dict[int, tuple[Any, int, int]] = {}
    most = 0
    for number, (size, life) in enumerate(lives):
        for old in [one for one, (_, _, until) in alive.items() if until < number]:
            alive.pop(old)[0].free()
        alive[number] = turn.empty(size, np.uint8), -(-size // 256) * 256, number + life
        most = max(most, sum(size for _, size, _ in alive.values()))
    return most


def test_a_workload_without_sizes_learns_them() -> None:
    with serving("--memory", "64MiB") as daemon, gc.connect(daemon.path) as gpu:
        for seed in range(20):
            keeps, lives = trace(seed)
            work = gpu.workload(offset="64KiB")
            assert gpu.query("workloads")["devices"][0]["temporary_bytes"] == 32 << 20
            kept = [work.zeros(size, np.uint8) for size in keeps[:-1]]
            with work.iteration() as turn:
                kept.append(work.array(np.full(keeps[-1], 7, np.uint8)))  # as optimisers do
                most = run_trace(turn, lives)
            persistent = sum(-(-size // 256) * 256 for size in keeps)
            assert persistent <= work.persistent <= 1.05 * persistent + 4096
            assert most <= work.temporary <= 1.05 * most + 4096, seed
            row = gpu.query("workloads")["workloads"][0]
            assert row["persistent_bytes"] == work.persistent
            assert (row["offset_bytes"], row["temporary_bytes"]) == (64 << 10, work.temporary)
            with gc.connect(daemon.path) as other:  # there is room again
                beside = other.workload("30MiB", "1MiB", offset=0)
                for _ in range(2):
                    with beside.iteration():
                        pass
                    with work.iteration() as turn:
                        assert run_trace(turn, lives) == most
            assert (kept[-1].get() == 7).all()
            assert work.zeros(32 << 10, np.uint8).get().sum() == 0  # within its offset
            work.close()
        with pytest.raises(ValueError, match="both persistent and temporary, or neither"):
            gpu.workload("1MiB")


def test_what_cannot_be_is_refused_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with gc.local("cpu:1") as gpu:
        with pytest.raises(ValueError, match="persistent: a size is"):
            gpu.workload("2 Gibibytes", 0)
        with pytest.raises(ValueError, match="1 byte or more"):
            gpu.workload(0, 0)
        with pytest.raises(TypeError, match="temporary"):
            gpu.workload(1, 2.5)  # type: ignore[arg-type]
        for weight in (0, 1001):
            with pytest.raises(ValueError, match="1 to 1000"):
                gpu.workload(1, 0, weight=weight)
        work, other = gpu.workload("1MiB", "1MiB"), gpu.workload("1MiB", "1MiB")
        with work.iteration() as turn:
            with pytest.raises(ValueError, match="this thread or task"):
                work.iteration().__enter__()
            with pytest.raises(ValueError, match="wait for itself"):
                other.iteration().__enter__()
            with pytest.raises(ValueError, match="entered once"):
                turn.__enter__()
        array = work.zeros(4)
        work.close()
        work.close()
        for use in (array.get, lambda: work.zeros(1), lambda: work.iteration().__enter__()):
            with pytest.raises(ValueError, match="closed"):
                use()
        # By hand, past the library's own checks: the daemon's refusals are logged.
        base, number = other._range.base, other._number
        gpu._channel.run(_by_hand(wm.EndIteration(number), wm.Free(0, base)))
        assert other.zeros(2).get().tolist() == [0, 0]
        _await(lambda: [one for one in caplog.records if "refused" in one.message])
    assert f"{other.id} is in no iteration" in caplog.text
    assert f"the memory at {base:#x} is a workload's" in caplog.text


def _by_hand(*messages: Any) -> Any:
    for message in messages:
        yield Notification(message)


def test_a_client_that_is_killed_in_its_turn_gives_everything_back(tmp_path: Path) -> None:
    script = (
        "import gpud_client as gc, time\n"
        "gpu = gc.connect()\n"
        "work = gpu.workload('8MiB', '4MiB', offset=0)\n"
        "turn = work.iteration().__enter__()\n"
        "kernel = gpu.kernel(open('linger.cu').read(), 'linger')\n"
        "kernel.submit(1, 1, (turn.zeros(1, 'int32'), 1 << 60))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "linger.cu").write_text(STEP)
    with serving("--memory", "16MiB") as daemon:
        child = subprocess.Popen(
            [sys.executable, "-c", script],
            env=daemon.environment,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with gc.connect(daemon.path) as gpu:
            work = gpu.workload("2MiB", "4MiB", offset=0)
            began: list[float] = []
            thread = threading.Thread(target=lambda: began.append(_begin(work)))
            thread.start()
            states = [row["state"] for row in _await_waiting(gpu)]
            assert states == ["iterating", "waiting for its turn"]
            assert not began
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            thread.join(20)
            assert began, "the next workload never had its turn"
            assert work.zeros(4).get().tolist() == [0] * 4
            assert len(gpu.query("workloads")["workloads"]) == 1


def _begin(work: Any) -> float:
    with work.iteration():
        return time.monotonic()


def _await_waiting(gpu: Any) -> list[Any]:
    deadline = time.monotonic() + 10
    rows: list[Any] = []
    while time.monotonic() < deadline:
        rows = gpu.query("workloads")["workloads"]
        if any(row["state"] == "waiting for its turn" for row in rows):
            break
        time.sleep(0.01)
    return list(rows)


def test_who_overstays_is_named_and_can_be_ended() -> None:
    with (
        serving("--turn-overstay", "100ms") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        slow, waiting = one.workload("1MiB", 0), two.workload("1MiB", 0)
        with slow.iteration():
            thread = threading.Thread(target=lambda: _begin(waiting))
            thread.start()
            events = _await(lambda: _overstays(one), 1)
            assert events[0]["workload"] == slow.id
            assert events[0]["waiting"] == 1
            done = gpuctl(daemon, "workloads", "--end", slow.id)
            assert done.returncode == 0, done.stderr
            assert slow.id not in done.stdout.replace(f"{slow.id} has", "")
            thread.join(10)
            assert not thread.is_alive()
            with pytest.raises(gc.GpudError, match="no workload"):
                slow.zeros(1 << 22)
        unknown = gpuctl(daemon, "workloads", "--end", "w99")
        assert unknown.returncode == 1
        assert "there is no workload w99" in unknown.stderr


def _overstays(gpu: Any) -> list[Any]:
    events = gpu.query("events")["events"]
    return [event for event in events if event["event"] == "workload-overstays"]


def test_the_list_shows_zones_to_scale() -> None:
    with serving("--memory", "64MiB") as daemon, gc.connect(daemon.path) as gpu:
        assert "no workloads" in gpuctl(daemon, "workloads").stdout
        first = gpu.workload("16MiB", "8MiB", offset="8MiB")
        second = gpu.workload("8MiB", "16MiB", offset=0)
        shown = gpuctl(daemon, "workloads").stdout
        bar = next(line for line in shown.splitlines() if "|" in line).strip().strip("|")
        assert bar == "█" * 16 + "░" * 8 + "▓" * 8 + " " * 16 + "▒" * 16
        assert f"█ {first.id}  ▓ {second.id}" in shown
        assert bar in gpuctl(daemon, "memory").stdout


def test_workloads_can_be_awaited() -> None:
    async def run() -> None:
        async with gc.alocal("cpu:2") as gpu:
            kernel = await gpu.kernel(STEP, "step")

            async def loop() -> Any:
                values: Any = None
                work = await gpu.workload("1MiB", "1MiB")
                kept = await work.zeros(N, np.float32)
                async for turn in work.iterations(5):
                    scratch = await turn.empty(N, np.float32)
                    await kernel.submit(N // 256, 256, (kept, scratch, N))
                    if turn.number == 4:
                        values = await kept.get()
                assert work.closed
                return values

            for values in await asyncio.gather(loop(), loop()):
                np.testing.assert_array_equal(values, expected(5))

    asyncio.run(run())
