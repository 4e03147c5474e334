"""``gpuctl task`` with a real runner and real programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon_process import DaemonProcess
from tests.support.processes import gone
from tests.support.waiting import until

GPUCTL = [sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"]


class TaskWorld:
    """A user's folders, and a runner that is started on demand and ended with the test."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-", dir="/tmp"))  # as paths must be short
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUD_")}
        places = {"XDG_RUNTIME_DIR": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}
        self.environment = {**kept, **places}
        self.tasks = self.folder / "state" / "gpud" / "tasks"

    def gpuctl(self, *arguments: str, status: int = 0, **more: Any) -> str:
        done = subprocess.run(
            [*GPUCTL, "task", *arguments], capture_output=True, text=True, check=False, timeout=60,
            **{"env": self.environment, "cwd": self.folder, **more},
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        said: str = done.stderr if status else done.stdout
        return said

    def submit(self, *arguments: str, **more: Any) -> int:
        number: int = json.loads(self.gpuctl("submit", "--json", *arguments, **more))["id"]
        return number

    def show(self, task: int) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self.gpuctl("show", "--json", str(task)))
        return row

    def until(self, task: int, *states: str) -> dict[str, Any]:
        until(lambda: self.show(task)["state"] in states, f"task {task} in {states}")
        return self.show(task)

    def runner(self) -> int:
        return int((self.folder / "gpud" / "runner.sock.lock").read_text())

    def kill_runner(self) -> None:
        pid = self.runner()
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)

    def close(self) -> None:
        for row in json.loads(self.gpuctl("list", "--json")):
            self.gpuctl("cancel", str(row["id"]))
            self.until(row["id"], "cancelled", "failed", "done")
        pid = self.runner()
        os.kill(pid, signal.SIGTERM)
        assert gone(pid)
        shutil.rmtree(self.folder)


@pytest.fixture
def world() -> Iterator[TaskWorld]:
    made = TaskWorld()
    yield made
    made.close()


def test_a_task_from_its_submission_to_its_output(world: TaskWorld) -> None:
    number = world.submit("--", "echo", "hi")
    world.until(number, "done")
    (row,) = json.loads(world.gpuctl("list", "--all", "--json"))
    assert (row["id"], row["state"], row["exit_status"]) == (number, "done", 0)
    assert world.gpuctl("log", str(number)) == "hi\n"
    assert json.loads(world.gpuctl("list", "--json")) == []
    assert "no tasks" in world.gpuctl("list")


def test_a_program_runs_as_it_was_submitted(world: TaskWorld) -> None:
    (world.folder / "here").mkdir()
    done = subprocess.run(
        [*GPUCTL, "task", "submit", "--json", "--wait", "--", "sh", "-c",
         'pwd; umask; ulimit -n; echo "$WORD"; exit 3'],
        cwd=world.folder / "here", env={**world.environment, "WORD": "ä\nb"},
        capture_output=True, text=True, check=False, umask=0o027,
    )  # fmt: skip
    row = json.loads(done.stdout)
    assert (done.returncode, row["state"], row["exit_status"]) == (1, "failed", 3)
    assert world.gpuctl("log", str(row["id"])).splitlines()[:2] == [
        str(world.folder / "here"), "0027",
    ]  # fmt: skip
    assert world.gpuctl("log", str(row["id"])).endswith("ä\nb\n")


def test_tasks_go_on_without_their_runner(world: TaskWorld) -> None:
    """One that ends before the next runner is there, and one that ends after."""
    program = "while [ ! -e $0 ]; do sleep 0.02; done; echo over; exit 5"
    first = world.submit("--", "sh", "-c", program, "first")
    second = world.submit("--", "sh", "-c", program, "second")
    third = world.submit("--cores", str(len(os.sched_getaffinity(0))), "--", "true")
    folders = [world.tasks / "attempts" / f"{task}.1" for task in (first, second)]
    until(lambda: all((folder / "started").exists() for folder in folders))
    shepherd = json.loads((folders[0] / "started").read_text())
    world.kill_runner()
    (world.folder / "first").touch()
    assert gone(shepherd["shepherd"])
    assert world.until(first, "failed")["exit_status"] == 5
    assert world.show(second)["state"] == "running"
    (world.folder / "second").touch()
    assert world.until(second, "failed")["exit_status"] == 5
    assert world.gpuctl("log", str(second)) == "over\n"
    world.until(third, "done")
    assert [world.show(task)["attempt"] for task in (first, second, third)] == [1, 1, 1]


def test_programs_that_misbehave_are_named(world: TaskWorld) -> None:
    """One forks into the background, one is killed, one ignores SIGTERM, one is no program."""
    (world.folder / "text").write_text("no program")
    (world.folder / "text").chmod(0o755)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    tasks = {
        "forks": world.submit("--", "sh", "-c", "sleep 300 & setsid sleep 300 & true"),
        "killed": world.submit("--", "sh", "-c", "kill -9 $$"),
        "text": world.submit("--", "./text"),
        "deaf": world.submit("--", sys.executable, "-c", f"{deaf}; time.sleep(300)"),
    }
    until(lambda: world.gpuctl("log", str(tasks["deaf"])) == "1\n")
    world.gpuctl("cancel", str(tasks["deaf"]))
    ended = {name: world.until(task, "done", "failed", "cancelled") for name, task in tasks.items()}
    told = {name: row["attempts"][-1]["reason"] for name, row in ended.items()}
    assert (ended["forks"]["state"], told["forks"]) == (
        "done", "2 processes that it left in the background were ended",
    )  # fmt: skip
    assert ended["killed"]["reason"] == "it was ended by SIGKILL, which gpud did not send"
    assert ended["killed"]["exit_status"] == 137
    assert "./text is no program" in ended["text"]["reason"]
    assert (ended["deaf"]["state"], told["deaf"]) == (
        "cancelled", "it did not end after SIGTERM and was killed",
    )  # fmt: skip


def test_use_is_added_up(world: TaskWorld) -> None:
    task = world.submit("--wait", "--category", "x", "--", "sleep", "0.2")
    (attempt,) = world.show(task)["attempts"]
    (row,) = json.loads(world.gpuctl("report", "--json", "--by", "category"))["rows"]
    assert row == {"category": "x", "attempts": 1, "core_s": attempt["ran_s"], "gpu_s": 0.0}
    assert attempt["ran_s"] >= 0.2
    assert "x" in world.gpuctl("report", "--by", "category", "--since", "1h")


def test_a_damaged_database_is_told_and_left_alone(world: TaskWorld) -> None:
    world.gpuctl("list")
    world.kill_runner()
    kept = world.tasks / "tasks.sqlite"
    good = {path: path.read_bytes() for path in world.tasks.glob("tasks.sqlite*")}
    for path in good:
        path.unlink()
    kept.write_bytes(b"no database at all" * 100)
    said = world.gpuctl("list", status=3)
    assert "could not be started" in said
    assert "move it away" in said
    assert kept.read_bytes() == b"no database at all" * 100
    for path, content in good.items():
        path.write_bytes(content)


def test_bad_input_is_refused_with_what_to_do(world: TaskWorld) -> None:
    cores = len(os.sched_getaffinity(0))
    assert "nonsense: command not found" in world.gpuctl("submit", "--", "nonsense", status=1)
    most = f"{cores + 1} cores were asked for, and the most that a node has is {cores}"
    assert most in world.gpuctl("submit", "-c", str(cores + 1), "--", "true", status=1)
    no_gpu = world.gpuctl("submit", "--gpus", "1", "--", "true", status=1)
    assert "start one with `gpud serve`" in no_gpu
    assert "there is no task 99" in world.gpuctl("submit", "--after", "99", "--", "true", status=1)
    assert "there is no task 99" in world.gpuctl("cancel", "99", status=1)
    assert "a time is written as" in world.gpuctl(
        "submit", "--time-limit", "soon", "--", "true", status=2
    )


PROGRAM = """
import os
import gpud_client as gc
with gc.connect() as gpu:
    print(*(device.index for device in gpu.devices), os.environ.get("GPUD_EXEC_QUOTA"))
"""
FUTURES = """
import concurrent.futures
import gpud_client as gc
with gc.connect() as gpu:
    task = gpu.tasks.submit(["sh", "-c", "echo $GPUD_DEVICE"], gpus=2)
    assert task.result(60) == 0
    assert (task.state, task.exit_status, task.output) == ("done", 0, "0,1\\n")
    failed = gpu.tasks.submit(["sh", "-c", "exit 4"])
    try:
        failed.result(60)
    except gc.TaskFailed as error:
        assert (error.task, error.exit_status) == (failed.id, 4)
    held = gpu.tasks.submit(["sleep", "100"], held=True)
    held.release()
    assert held.cancel()
    assert concurrent.futures.wait([held], 60).done == {held} and held.cancelled()
    assert [row["id"] for row in gpu.tasks.list(all=True)][-1] == held.id
    print("all is well")
"""


@pytest.mark.ci
def test_devices_of_a_daemon_are_gpus(world: TaskWorld) -> None:
    """Whole ones, several, and a part of one; and tasks are futures for a program in Python."""
    with DaemonProcess() as daemon:
        daemon.serve("--device", "cpu:1", device="cpu:1")
        world.environment["GPUD_SOCKET"] = str(daemon.path)
        for gpus, said in (("1", "0 None"), ("2", "0 1 None"), ("0.5", "0 50%")):
            task = world.submit("--wait", "--gpus", gpus, "--", sys.executable, "-c", PROGRAM)
            assert world.gpuctl("log", str(task)) == f"{said}\n"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", FUTURES], env=world.environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout == "all is well\n", done.stderr
        (first, second) = json.loads(world.gpuctl("queue", "--json"))["nodes"][0]["gpus"]
        assert (first["used"], second["marked"]) == (0, "")
