"""Runs on CPU devices: two nodes with two executors each, as plain processes."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud_ray.sets.generate import random_set
from gpud_ray.sets.model import Task, run_s
from gpud_ray.sets.run.durations import Durations
from gpud_ray.sets.run.machine import split_cores
from gpud_ray.sets.run.nodes import started_locally
from gpud_ray.sets.run.scheduler import Ended, NoNodes, PolicyChoice, Run
from gpud_ray.sets.setfile import Program, SetTask, TaskSet

NODES = (("cpu:1", "cpu:1"), ("cpu:1", "cpu:1"))


def run_locally(task_set: TaskSet, nodes: Any, policy: str = "gpud", **options: Any) -> Run:
    with started_locally(task_set, nodes, policy=PolicyChoice(policy), **options) as (scheduler, _):
        return scheduler.run()


def executable(number: int, *command: str, **needs: float) -> SetTask:
    task = Task(number, memory_mb=1, capsm_milli=1000, **needs)  # type: ignore[arg-type]
    return SetTask(task, Program("executable", command[0], command[1:]), f"task {number}")


@pytest.mark.parametrize(("policy", "mode"), [("gpud", "split"), ("mct", "in turn")])
def test_kernels_of_all_classes_end_as_done_once(policy: str, mode: str) -> None:
    task_set = TaskSet(random_set(24, seed=1).tasks, parallel=2, mode=mode)  # type: ignore[arg-type]
    told: list[Ended] = []
    run = run_locally(task_set, NODES, policy=policy, told=told.append)
    assert {one.state for one in run.ended.values()} == {"done"}, [
        one.reason for one in run.ended.values()
    ]
    assert sorted(one.task for one in told) == list(range(24))
    assert {one.gpu for one in told} == {0, 1, 2, 3}
    assert set(run.offers) == {"node 0", "node 1"}
    state = run.offers["node 0"]
    assert len(state["gpus"]) == 2
    assert state["memory_free_mb"] > 0
    assert state["disk_free_mb"] > 0


def test_failures_are_tried_again_and_end_with_their_reason(tmp_path: Path) -> None:
    once = tmp_path / "once"
    too_large = SetTask(Task(4, memory_mb=1 << 30), Program("executable", "/bin/true"), "too large")
    slow = SetTask(
        Task(5, memory_mb=1), Program("executable", "/bin/sleep", ("60",), timeout_s=0.2), "slow"
    )
    task_set = TaskSet(
        [
            executable(0, "/bin/sh", "-c", "echo $GPUD_TASK_MEMORY_MB; test -S $GPUD_SOCKET"),
            executable(1, "/bin/sh", "-c", f"mkdir {once} && exit 3; true"),
            executable(2, "/bin/sh", "-c", "echo no use; exit 7"),
            executable(3, str(tmp_path / "nothing")),
            too_large,
            slow,
        ]
    )
    ended = run_locally(task_set, NODES[:1]).ended
    assert (ended[0].state, ended[0].output, ended[0].tries) == ("done", "1\n", 1)
    assert (ended[1].state, ended[1].tries) == ("done", 2)
    assert ended[2].reason == "exit status 7: no use (try 3 of 3)"
    assert "No such file" in ended[3].reason
    assert "needs 1073741824 MiB, the largest GPU has" in ended[4].reason
    assert ended[4].tries == 0
    assert "did not end within 0.2 s" in ended[5].reason
    assert not any(one.may_have_run_twice for one in ended.values())


def test_a_kernel_that_traps_fails_alone() -> None:
    source = 'extern "C" __global__ void bad(int* x) { x[0] = 1; asm("trap;"); }'
    bad = Program("source", "bad", ("zeros:i32:4",), source, (1,), (1,))
    tasks = [SetTask(Task(30, memory_mb=1), bad, "bad"), *random_set(6).tasks]
    ended = run_locally(TaskSet(tasks), NODES[:1]).ended
    assert [one.task for one in ended.values() if one.state == "failed"] == [30]
    assert ended[30].tries == 3


def running(path: Path, count: int) -> None:
    """Wait until so many tasks have said in a folder that they run."""
    end = time.monotonic() + 30
    while len(list(path.iterdir())) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def sleeping(folder: Path, count: int, seconds: float) -> TaskSet:
    command = f"touch {folder}/$$; sleep {seconds}"
    return TaskSet([executable(i, "/bin/sh", "-c", command) for i in range(count)])


def test_an_executor_that_dies_is_replaced_and_its_tasks_are_tried_again(tmp_path: Path) -> None:
    with started_locally(sleeping(tmp_path, 6, 1.0), NODES[:1]) as (scheduler, _):

        def kill() -> None:
            running(tmp_path, 2)
            os.kill(scheduler.pids[0], signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        run = scheduler.run()
        thread.join()
    assert [one.state for one in run.ended.values()] == ["done"] * 6
    again = [one for one in run.ended.values() if one.tries == 2]
    assert again
    assert all(one.may_have_run_twice for one in again)
    commands = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)
    ]
    assert not any(str(tmp_path).encode() in one for one in commands)  # nothing was left running


def test_a_node_that_dies_leaves_its_tasks_to_the_others(tmp_path: Path) -> None:
    with started_locally(sleeping(tmp_path, 12, 1.0), NODES, policy=PolicyChoice("egs")) as (
        scheduler,
        nodes,
    ):

        def kill() -> None:
            running(tmp_path, 4)
            nodes[0].process.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        run = scheduler.run()
        thread.join()
    assert [run.ended[i].state for i in range(12)] == ["done"] * 12
    lost = [one for one in run.ended.values() if one.tries == 2]
    assert lost
    assert {one.node for one in lost} == {"node 1"}


def test_without_nodes_every_task_fails_with_the_reason(tmp_path: Path) -> None:
    with started_locally(sleeping(tmp_path, 5, 5.0), NODES[:1]) as (scheduler, nodes):

        def kill() -> None:
            running(tmp_path, 1)
            nodes[0].process.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        run = scheduler.run()
        thread.join()
    assert {one.reason.split(" (")[0] for one in run.ended.values()} == {"no GPU is left"}
    assert len(run.ended) == 5


def test_tasks_that_arrive_later_start_later() -> None:
    task_set = TaskSet([executable(i, "/bin/true", arrival_s=0.4 * i) for i in range(3)])
    ended = run_locally(task_set, NODES[:1]).ended
    assert all(ended[i].start_s >= 0.4 * i for i in range(3))


def test_a_node_that_cannot_start_is_said_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(NoNodes, match="node 1 has ended before it was ready"):
        run_locally(TaskSet([executable(0, "/bin/true")]), (("cpu:1",), ("tpu:1",)))
    assert time.monotonic() - begin < 60


def scaling(number: int, memory_mb: int) -> SetTask:
    """A kernel with one array of so many MiB, all but one page of it."""
    source = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }'
    values = (memory_mb << 18) - 1024
    program = Program("source", "scale", (f"zeros:f32:{values}",), source, (1,), (32,))
    return SetTask(Task(number, memory_mb=memory_mb), program, f"task {number}")


def test_what_other_programs_hold_is_no_room_and_tasks_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUD_MEMORY", "64MiB")
    with gc.local("cpu:1") as gpu:
        held = gpu.zeros(50 << 20, np.uint8)
        tasks = TaskSet([scaling(number, 20) for number in range(6)])
        with started_locally(tasks, [Path(gpu.path)]) as (scheduler, _):
            assert scheduler.rooms[0].foreign_mb == 50
            assert "needs 20 MiB" in str(scheduler.plan().failed)
            seen = threading.Event()

            def free() -> None:
                seen.wait(30)
                held.free()

            thread = threading.Thread(target=free)
            thread.start()
            offered = scheduler._offered

            def count(node: Any) -> None:
                offered(node)
                if scheduler.now_s > 2:
                    seen.set()

            scheduler._offered = count  # type: ignore[method-assign]
            run = scheduler.run()
            thread.join()
    assert [(one.state, one.tries) for one in run.ended.values()] == [("done", 1)] * 6
    assert min(one.start_s for one in run.ended.values()) > 2


def test_a_task_without_memory_is_tried_again_at_the_next_offer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUD_MEMORY", "64MiB")
    # Each says 1 MiB and takes 40: two at a time do not fit, which only their tries show.
    tasks = [
        SetTask(Task(one.needs.id, memory_mb=1), one.program, one.name)
        for one in (scaling(number, 40) for number in range(2))
    ]
    run = run_locally(TaskSet(tasks), [("cpu:1",)])
    assert {one.state for one in run.ended.values()} == {"done"}


def test_durations_are_learned_from_earlier_tries(tmp_path: Path) -> None:
    tasks = TaskSet([executable(0, "/bin/sleep", "0.4"), executable(1, "/bin/sleep", "0.1")])
    run_locally(tasks, NODES[:1], "mct")
    with started_locally(tasks, NODES[:1], policy=PolicyChoice("max-min")) as (scheduler, _):
        assert all(task.duration_s is not None for task in scheduler.tasks)
        long, short = (run_s(task, scheduler.rooms[0].gpu) for task in scheduler.tasks)
        assert 0.1 <= short < 0.4 <= long
        assert long <= scheduler.plan().makespan_s <= long + short + 0.01
    durations = Durations(tmp_path / "file")
    assert durations.of(tasks.tasks[0].program) is None


def test_cores_are_split_equally() -> None:
    assert split_cores([0, 1, 2, 3, 4], 2) == [[0, 1, 2], [3, 4]]
    assert split_cores([3, 7], 4) == [[3], [7], [3], [7]]
