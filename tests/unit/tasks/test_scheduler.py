"""What the tasks' scheduler decides, one rule after the other."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from tests.unit.tasks.driver import Driver, S


def kinds(commands: list[out.Command]) -> list[str]:
    return [type(one).__name__ for one in commands if not isinstance(one, out.SetTimer)]


def test_a_task_starts_and_ends() -> None:
    driver = Driver((2, 0))
    (start,) = driver.submit(1, 2)
    assert start == out.StartTask(1, 1, 0, (0, 1), (), None)
    assert driver.end(1) == [out.FinishTask(1, "done", 0, "")]


def test_cpu_tasks_wait_for_cores_in_order() -> None:
    driver = Driver((4, 0))
    for task in (1, 2, 3):
        driver.submit(task, 2)
    assert driver.running() == [1, 2]
    assert driver.end(1)[-1] == out.StartTask(3, 1, 0, (2, 3), (), None)


def test_who_has_least_is_next() -> None:
    driver = Driver((4, 0))
    for task in range(1, 7):
        driver.submit(task, 1, user="ada")
    driver.submit(7, 1, user="bob")
    driver.end(1)
    assert 7 in driver.running()


def test_predecessors_must_be_done() -> None:
    driver = Driver((4, 0))
    driver.submit(1)
    driver.submit(2, after=(1,))
    driver.submit(3, after=(2,))
    assert driver.states() == "1:running 2:blocked 3:blocked"
    driver.end(1)
    assert driver.states() == "2:running 3:blocked"
    driver.end(2, 1)
    assert driver.ended[3] == out.FinishTask(
        3, "failed", None, "task 2, which must be done before it, was not: it is failed"
    )


def test_a_held_task_waits_for_its_release() -> None:
    driver = Driver((1, 0))
    driver.submit(1, held=True)
    driver.submit(2)
    assert driver.states() == "1:held 2:running"
    (refused,) = driver.send(ev.HoldRequested(0, 2))
    assert isinstance(refused, out.Refuse)
    driver.end(2)
    driver.send(ev.ReleaseRequested(0, 1))
    assert driver.states() == "1:running"


def test_retries_are_counted() -> None:
    driver = Driver((1, 0))
    driver.submit(1, retries=1)
    assert kinds(driver.end(1, 7)) == ["StartTask"]
    assert driver.end(1, 8) == [out.FinishTask(1, "failed", 8, "it ended with status 8")]


def test_cancel_in_every_state() -> None:
    driver = Driver((1, 0))
    driver.submit(1)
    driver.submit(2)
    driver.send(ev.CancelRequested(0, 2, "by me"))
    assert driver.ended[2].state == "cancelled"
    assert kinds(driver.send(ev.CancelRequested(0, 1, "by me"))) == ["StopTask"]
    driver.submit(3)
    assert driver.state(3) == "queued"  # its cores come when the program has ended
    driver.end(1, 143, stopped=True)
    assert driver.ended[1] == out.FinishTask(1, "cancelled", 143, "by me")
    assert driver.state(3) == "running"


def test_a_time_limit_counts_running_time() -> None:
    driver = Driver((4, 1), least_run_ns=0)
    driver.submit(1, 4, time_limit_ns=10 * S)
    driver.after(5)
    driver.submit(2, 2, 1)  # it takes the borrowed cores
    assert driver.state(1) == "frozen"
    driver.after(100)
    driver.end(2)
    assert driver.state(1) == "running"
    assert "StopTask" not in kinds(driver.after(4))
    (stop, *_) = driver.after(1)
    assert stop == out.StopTask(1, "its time limit of 10 s is over", requeue=False)
    driver.end(1, 143, stopped=True)
    assert driver.ended[1].state == "failed"


def test_cpu_tasks_borrow_and_give_back_to_the_front() -> None:
    driver = Driver((8, 1), least_run_ns=0)  # four cores are the GPU queue's
    for task in range(1, 9):
        driver.submit(task, 1)
    driver.submit(9, 1)
    assert driver.running() == list(range(1, 9))
    commands = driver.submit(10, 3, 1)
    # Those that started last give way, and go before the one that waited longer.
    assert kinds(commands) == ["FreezeTask"] * 3 + ["StartTask", "MeasureWindow"]
    assert [one.task for one in commands[:3]] == [8, 7, 6]  # type: ignore[union-attr]
    driver.end(1)
    assert driver.state(6) == "running"
    assert driver.state(9) == "queued"


def test_nobody_is_stopped_in_the_cpu_part() -> None:
    driver = Driver((8, 2), least_run_ns=0, start_cores=2)
    for task in range(1, 5):
        driver.submit(task, 1)
    driver.submit(5, 4, 1)
    assert driver.running() == [1, 2, 3, 4, 5]
    driver.submit(6, 4, 1)  # more than its part: it waits, and none of them is stopped
    assert driver.states() == "1:running 2:running 3:running 4:running 5:running 6:queued"


def test_a_task_runs_for_its_least_time() -> None:
    driver = Driver((4, 1), least_run_ns=30 * S)
    driver.submit(1, 4)
    driver.after(10)
    commands = driver.submit(2, 1, 1)
    assert kinds(commands) == []
    assert commands == [out.SetTimer(30 * S)]
    driver.after(20)
    assert driver.states() == "1:frozen 2:running"


def test_without_memory_a_borrower_is_stopped_and_runs_anywhere() -> None:
    driver = Driver((4, 1), (2, 0), memory=1000, least_run_ns=0)
    driver.submit(1, 2)
    driver.end(1)
    driver.submit(2, 4, memory_bytes=900)
    commands = driver.submit(3, 1, 1)
    assert commands == [out.StopTask(2, "its cores are needed by GPU task 3", requeue=True)]
    driver.end(2, 143, stopped=True)
    assert driver.states() == "2:queued 3:running"
    assert driver.scheduler.tasks[2].front


def test_a_gpu_task_may_use_free_cores_of_both_parts() -> None:
    driver = Driver((8, 1), start_cores=2)
    driver.submit(1, 7, 1)
    assert driver.running() == [1]
    driver.submit(2, 2)
    assert driver.state(2) == "queued"


def test_parts_of_a_gpu_share_it() -> None:
    driver = Driver((4, 2))
    for task in (1, 2, 3):
        driver.submit(task, 1, 0.5)
    assert [driver.scheduler.tasks[task].gpus for task in (1, 2, 3)] == [(0,), (0,), (1,)]
    driver.submit(4, 1, 1)
    assert driver.state(4) == "queued"
    driver.end(3)
    assert driver.scheduler.tasks[4].gpus == (1,)


def test_gpus_are_split_and_lent() -> None:
    driver = Driver((64, 8), split_gpus=True)
    assert driver.scheduler.nodes[0].multi == 4
    for task in range(1, 9):
        driver.submit(task, 1, 1)
    assert len(driver.running()) == 8  # no multi-GPU task waits: they borrow
    driver.submit(9, 1, 4)
    driver.submit(10, 1, 1)
    for task in range(1, 5):
        driver.end(task)
        assert driver.state(10) == "queued"  # what was lent goes back
    assert driver.state(9) == "running"
    driver.end(5)
    assert driver.state(10) == "running"


def test_a_large_task_is_not_passed_for_ever() -> None:
    driver = Driver((64, 8), patience_ns=100 * S)
    for task in range(1, 9):
        driver.submit(task, 1, 1)
    driver.submit(9, 1, 8)
    driver.after(101)
    for task in range(1, 9):
        driver.submit(10 + task, 1, 1)
        driver.end(task)
    assert driver.state(9) == "running"


def test_a_lost_nodes_tasks_go_to_the_front() -> None:
    driver = Driver((2, 0), (2, 0))
    driver.submit(1, 2)
    driver.submit(2, 2)
    driver.submit(3, 2)
    driver.send(ev.NodeLost(0, 0, "node 0 does not answer"))
    lost = driver.scheduler.tasks[1]
    assert (lost.state, lost.losses, lost.reason) == (
        "queued", 1, "attempt 1 was lost: node 0 does not answer",
    )  # fmt: skip
    driver.end(2)
    assert driver.running() == [1]
    assert driver.scheduler.tasks[1].attempt == 2


def test_a_task_that_is_lost_too_often_fails() -> None:
    driver = Driver((1, 0), most_losses=1)
    driver.submit(1)
    driver.end(1, None, lost=True, problem="its shepherd was killed")
    driver.end(1, None, lost=True, problem="its shepherd was killed")
    assert driver.ended[1].reason == "it was lost 2 times: its shepherd was killed"


def test_cores_are_searched_and_remembered() -> None:
    driver = Driver((16, 1))
    driver.submit(1, None, 1, category="image")
    assert driver.cores(1) == 4
    driver.window(1, 800)
    assert driver.cores(1) == 3
    driver.window(1, 790)
    assert driver.cores(1) == 2
    driver.window(1, 400)
    commands = driver.window(1, 400)
    assert driver.cores(1) == 3
    assert out.KeepNeed("u", "p", "image", 3) in commands  # type: ignore[arg-type]
    driver.end(1)
    driver.submit(2, None, 1, category="image", user="v", program="q")
    assert driver.cores(2) == 3


@pytest.mark.parametrize(
    ("hints", "cores"),
    [({}, 4), ({"pipelined": True}, 3), ({"weights_bytes": 1 << 30}, 3), ({"complexity": 90}, 5)],
)
def test_hints_change_the_first_cores(hints: dict[str, Any], cores: int) -> None:
    driver = Driver((16, 1))
    driver.submit(1, None, 1, **hints)
    assert driver.cores(1) == cores


def test_who_takes_the_bandwidth_is_halved_until_the_gpu_task_ends() -> None:
    driver = Driver((16, 1))
    driver.submit(1, 4, 1)
    driver.submit(2, 8)
    driver.window(1, 900)
    driver.window(1, 700)
    loads = ev.BandwidthMeasured(0, 0, ((2, 800),))
    assert out.SetCores(2, (12, 13, 14, 15)) in driver.send(loads)
    assert driver.send(loads) == []  # the next window says whether it has helped
    driver.submit(3, 6)
    assert driver.state(3) == "queued"  # on what was freed no CPU task starts
    driver.window(1, 700)
    driver.send(loads)
    assert driver.cores(2) == 2
    for _ in range(2):
        driver.window(1, 700)
        driver.send(loads)
    assert driver.state(2) == "frozen"
    driver.end(1)
    assert (driver.state(2), driver.cores(2)) == ("running", 8)
    assert driver.state(3) == "running"


def test_a_marked_gpu_gets_no_task() -> None:
    driver = Driver((4, 1))
    driver.send(ev.GPUMarked(0, 0, 0, "process 17 has 3 GiB of it"))
    driver.submit(1, 1, 1)
    assert driver.state(1) == "queued"
    driver.send(ev.GPUMarked(0, 0, 0, ""))
    assert driver.state(1) == "running"


def test_a_running_task_is_taken_over() -> None:
    driver = Driver((4, 1))
    terms = ev.TaskTerms("u", "p", 2)
    driver.send(ev.TaskRestored(0, 1, terms, attempt=2, node=0, cpus=(1, 2), ran_ns=5))
    task = driver.scheduler.tasks[1]
    assert (task.state, task.attempt, task.cpus) == ("running", 2, (1, 2))
    driver.send(ev.TaskRestored(0, 2, terms, attempt=1, node=0, cpus=(), frozen=True))
    driver.send(ev.TaskRestored(0, 3, terms, attempt=1, front=True))
    assert driver.states() == "1:running 2:running 3:queued"
