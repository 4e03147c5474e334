"""Workloads on a live daemon: turns, memory in zones, and what clients get wrong."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from bench.bench_workloads import SHORT_SAMPLES, device_bytes
from bench.load.training import MODELS, Model
from gpud.wire import messages as wm
from gpud_client.connection.pending import Notification
from tests.integration.workload_programs import (
    STEP,
    N,
    awaited,
    begin,
    expected,
    gpuctl,
    overstays,
    serving,
    train,
)
from tests.support.allocation_trace import run_trace, trace
from tests.support.raw_client import Raw
from tests.support.waiting import until


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


@pytest.mark.ci
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
        states = awaited(lambda: [row["state"] for row in one.query("workloads")["workloads"]])
        assert states == ["idle", "waiting for memory"]
        first.close()
        thread.join(10)
        assert opened[0].persistent == 6 << 20
        # Ordinary arrays count beside the zones.
        with pytest.raises(gc.OutOfMemory):
            one.zeros(11 << 20, np.uint8)
        one.zeros(9 << 20, np.uint8)


@pytest.mark.ci
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


def test_temporary_memory_is_zero_at_each_iteration_where_workloads_share_a_device() -> None:
    with serving() as daemon, gc.connect(daemon.path) as gpu:
        one = gpu.workload("1MiB", "1MiB")
        with one.iteration() as turn:
            turn.array(np.full(N, 7, np.int32))
        with one.iteration() as turn:
            assert not turn.new
            assert (turn.empty(N, np.int32).get() == 7).all(), "a workload alone is left alone"
        other = gpu.workload("1MiB", "1MiB")
        with one.iteration():
            pass  # from the next one on, at the latest
        for number in range(3):
            with one.iteration() as turn:
                assert not turn.new
                assert not turn.empty(N, np.int32).get().any(), number
                turn.array(np.full(2 * N, number + 1, np.int32))
        other.close()


def test_a_small_device_takes_a_workload_with_the_default_offset() -> None:
    with gc.local("cpu:1", memory="48MiB") as gpu, gpu.workload("8MiB", "8MiB") as work:
        kept = [work.zeros(8 << 20, np.uint8)]
        kept.append(work.zeros(3 << 20, np.uint8))  # a sixteenth of the device to grow in
        with pytest.raises(gc.OutOfMemory):
            work.zeros(1 << 20, np.uint8)


@pytest.mark.ci
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
        assert begin(other)
        assert one.query("workloads")["workloads"][0]["iterations"] == 50
        assert iterate()
        other.close()
        assert [iterate() for _ in range(3)] == 3 * [False]
        with work.iteration():
            later = two.workload("1MiB", "1MiB")  # within one
            began: list[float] = []
            thread = threading.Thread(target=lambda: began.append(begin(later)))
            thread.start()
            time.sleep(0.2)
            assert not began
        thread.join(10)
        assert began
        np.testing.assert_array_equal(kept.get(), expected(54))


@pytest.mark.ci
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
        awaited(lambda: [one for one in caplog.records if "refused" in one.message])
    assert f"{other.id} is in no iteration" in caplog.text
    assert f"the memory at {base:#x} is a workload's" in caplog.text


def _by_hand(*messages: Any) -> Any:
    for message in messages:
        yield Notification(message)


@pytest.mark.ci
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
            thread = threading.Thread(target=lambda: began.append(begin(work)))
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


def _await_waiting(gpu: Any) -> list[Any]:
    deadline = time.monotonic() + 10
    rows: list[Any] = []
    while time.monotonic() < deadline:
        rows = gpu.query("workloads")["workloads"]
        if any(row["state"] == "waiting for its turn" for row in rows):
            break
        time.sleep(0.01)
    return list(rows)


def _opening(raw: Raw, request: int, persistent: int | None, temporary: int = 4096) -> None:
    raw.send(wm.OpenWorkload(request, 0, persistent, temporary, 0, 1))


@pytest.mark.parametrize("persistent", [5 << 20, None])
def test_a_client_that_goes_while_it_waits_for_more_leaves_nothing(persistent: int | None) -> None:
    with gc.local("cpu:1", memory="16MiB") as gpu:
        raw = Raw(str(gpu.path))
        raw.hello()
        _opening(raw, 5, None)  # has all that is left
        raw.expect(wm.WorkloadOpened)
        _opening(raw, 6, persistent)  # waits for that
        _opening(raw, 7, persistent)
        until(lambda: len(gpu.query("workloads")["workloads"]) == 3)
        raw.sock.close()
        until(lambda: not gpu.query("workloads")["workloads"])
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0
        with gpu.workload("12MiB", "2MiB", 0) as work:
            work.zeros(11 << 20, np.uint8)


def test_sizes_that_no_message_holds_in_sum_are_refused() -> None:
    with gc.local("cpu:1", memory="16MiB") as gpu:
        raw = Raw(str(gpu.path))
        raw.hello()
        most = (1 << 63) - 1
        for request, sizes in enumerate(((most, most, most), (most, 0, 0), (1, most, 1)), 5):
            raw.send(wm.OpenWorkload(request, 0, *sizes, weight=1))
            with pytest.raises(RuntimeError, match=r"\d{19,} bytes were asked for"):
                raw.expect(wm.WorkloadOpened)
        raw.sock.close()
        with gpu.workload("12MiB", "2MiB", 0):
            pass


def test_memory_that_learning_gives_back_can_be_the_next_ones_at_once() -> None:
    # The next one's temporary memory is larger than what was left before.
    with (
        gc.local("cpu:1", memory="16MiB") as gpu,
        gc.connect(gpu.path) as other,
        ThreadPoolExecutor() as pool,
        gpu.workload(offset=0) as work,
    ):
        waiting = pool.submit(other.workload, "1MiB", "12MiB", 0)
        with work.iteration() as turn:
            kept = work.array(np.arange(100))
            turn.zeros(100)
            until(lambda: len(gpu.query("workloads")["workloads"]) == 2)
            assert not waiting.done()
        with waiting.result(30) as next_one, next_one.iteration() as turn:
            turn.zeros(11 << 20, np.uint8)
        assert (kept.get() == np.arange(100)).all()


@pytest.mark.ci
def test_who_overstays_is_named_and_can_be_ended() -> None:
    with (
        serving("--turn-overstay", "100ms") as daemon,
        gc.connect(daemon.path) as one,
        gc.connect(daemon.path) as two,
    ):
        slow, waiting = one.workload("1MiB", 0), two.workload("1MiB", 0)
        with slow.iteration():
            thread = threading.Thread(target=lambda: begin(waiting))
            thread.start()
            events = awaited(lambda: overstays(one), 1)
            assert events[0]["workload"] == slow.id
            assert events[0]["waiting"] == 1
            done = gpuctl(daemon, "workloads", "--end", slow.id)
            assert done.returncode == 0, done.stderr
            assert slow.id not in done.stdout.replace(f"{slow.id} has", "")
            thread.join(10)
            assert not thread.is_alive()
            with pytest.raises(gc.GpudError, match="the workload was ended by"):
                slow.zeros(1 << 22)
        unknown = gpuctl(daemon, "workloads", "--end", "w99")
        assert unknown.returncode == 1
        assert "there is no workload w99" in unknown.stderr


@pytest.mark.ci
def test_the_list_shows_zones_to_scale() -> None:
    with serving("--memory", "64MiB") as daemon, gc.connect(daemon.path) as gpu:
        assert "no workloads" in gpuctl(daemon, "workloads").stdout
        first = gpu.workload("16MiB", "8MiB", offset="8MiB")
        second = gpu.workload("8MiB", "16MiB", offset=0)
        shown = gpuctl(daemon, "workloads").stdout
        bar = next(line for line in shown.splitlines() if "|" in line).strip().strip("|")
        assert bar == "█" * 16 + "░" * 8 + "▓" * 8 + " " * 16 + "▒" * 16
        assert f"█ {first.id}  ▓ {second.id}" in shown
        with first.iteration():
            memory = gpuctl(daemon, "memory")
            rows = [line.split() for line in memory.stdout.splitlines()]
            assert bar in memory.stdout
            assert f"{first.id} has had the turn for" in memory.stdout
            (own,) = [row for row in rows if row[:1] == [second.id]]
            assert " ".join(own).endswith("24 MiB on the device 8 MiB 0 B 16 MiB -")
            answer = json.loads(gpuctl(daemon, "memory", "--json").stdout)
            assert answer["zones"][0]["turn_s"] > 0
            assert [one["start"] for one in answer["workloads"]] == [0, 24 << 20]
            assert all(one["user"] and one["program"] for one in answer["workloads"])


@pytest.mark.ci
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
