"""Kills runners, shepherds and programs of tasks at random moments, and counts what became of all.

    python -m campaigns.run task_kills

Each task's program writes down that it begins and that it ends. In the end every task must have
ended, no program may have begun more often than attempts of its task were told, what is done must
have written its end, and no process may be left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaigns.frame import Campaign, Figures, Plan, together
from gpud.errors import ConnectionLost, GpudError
from gpud.wire.task_messages import ListTasks, ShowTask, SubmitTask
from gpud_client.tasks.runner_client import RunnerClient
from gpud_client.tasks.submission import surroundings, terms
from tests.support.processes import children

_LIMIT_S = 120.0
PROGRAM = 'echo begin >> "$0"; sleep "$1"; echo end >> "$0"'


class TaskKills:
    """A runner of its own in a folder of its own, with tasks that are killed.

    Args:
        seed: of the chances.
        program: what tasks run; it gets the file for its marks and how long to sleep.
    """

    def __init__(self, seed: int, program: str = PROGRAM) -> None:
        self.chance = random.Random(seed)
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-", dir="/tmp"))
        (self.folder / "marks").mkdir()
        os.environ["GPUD_RUNNER"] = str(self.folder / "s")
        self.killed: Counter[str] = Counter()
        self.tasks: list[int] = []
        self._pids: dict[int, None] = {}

    def submit(self) -> None:
        """Submit one task; a runner that is killed meanwhile may have kept it."""
        number = len(list((self.folder / "marks").iterdir())) + self.chance.randrange(10**9)
        mark = self.folder / "marks" / str(number)
        mark.touch()
        command = ["sh", "-c", self._program, str(mark), f"{self.chance.uniform(0, 0.1):.3f}"]
        with RunnerClient() as runner:
            row = runner.ask(
                SubmitTask, **terms(command, retries=3), **surroundings(directory=self.folder)
            )
        self.tasks.append(row["id"])
        (self.folder / "marks" / str(number)).rename(self.folder / "marks" / f"t{row['id']}")
        (self.folder / "marks" / str(number)).symlink_to(self.folder / "marks" / f"t{row['id']}")

    def kill(self) -> None:
        """Kill a runner, a shepherd, or a program, whatever is there."""
        runner = self._runner()
        shepherds = [] if runner is None else children(runner)
        shepherds += [pid for pid in self._shepherds() if pid not in shepherds]
        programs = [pid for shepherd in shepherds for pid in children(shepherd)]
        kinds = {"runner": [runner] if runner else [], "shepherd": shepherds, "program": programs}
        kind = self.chance.choice([name for name, pids in kinds.items() if pids] or ["none"])
        if kind == "none":
            return
        self._pids.update(dict.fromkeys([*shepherds, *programs]))
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(kinds[kind]), signal.SIGKILL)
            self.killed[kind] += 1

    def _runner(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int((self.folder / "s.lock").read_text())
            if b"runner" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def _shepherds(self) -> list[int]:
        found = []
        for started in (self.folder / "s.tasks" / "attempts").glob("*/started"):
            with suppress(OSError, ValueError):
                pid = json.loads(started.read_text())["shepherd"]
                if b"shepherd" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def settle(self) -> list[dict[str, Any]]:
        """Wait until all tasks have ended, and return them."""
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            with suppress(ConnectionLost), RunnerClient() as runner:
                if not runner.ask(ListTasks)["tasks"]:
                    ids = [row["id"] for row in runner.ask(ListTasks, all=True)["tasks"]]
                    return [runner.ask(ShowTask, task=one) for one in ids]
            time.sleep(0.05)
        raise AssertionError("tasks did not end in time")

    def problems(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return what is wrong in the end: a line for each task, and for what is left."""
        known = {row["id"]: row for row in rows}
        found = [f"task {task} is lost" for task in self.tasks if task not in known]
        for row in rows:
            marks = self.folder / "marks" / f"t{row['id']}"
            said = Counter(marks.read_text().split()) if marks.exists() else Counter[str]()
            if said["begin"] > len(row["attempts"]):
                found.append(
                    f"task {row['id']} began {said['begin']} times, and {len(row['attempts'])} "
                    "attempts were told"
                )
            if row["state"] == "done" and not said["end"]:
                found.append(f"task {row['id']} is done and has not reached its end")
        for pid in self._pids:
            with suppress(OSError):
                if str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
                    if state != "Z":
                        found.append(f"process {pid} is left")
        return found

    def close(self) -> None:
        """End the runner, and remove everything."""
        runner = self._runner()
        if runner is not None:
            os.kill(runner, signal.SIGTERM)
        del os.environ["GPUD_RUNNER"]
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_tasks(kills: int, tasks: int, seed: int, program: str = PROGRAM) -> Figures:
    """Submit so many tasks and kill meanwhile; returns the figures of the campaign."""
    made = TaskKills(seed, program)
    began_s = time.monotonic()
    try:
        while made.killed.total() < kills or len(made.tasks) < tasks:
            with suppress(ConnectionLost, GpudError):
                if len(made.tasks) < tasks or made.chance.random() < 0.2:
                    made.submit()
            if made.killed.total() < kills and made.chance.random() < 0.6:
                time.sleep(made.chance.uniform(0, 0.05))
                made.kill()
        rows = made.settle()
        return {
            "kills": made.killed.total(),
            "seed": seed,
            "by_kind": dict(sorted(made.killed.items())),
            "tasks": len(rows),
            "attempts": sum(len(row["attempts"]) for row in rows),
            "ended_as": dict(sorted(Counter(row["state"] for row in rows).items())),
            "seconds": round(time.monotonic() - began_s, 1),
            "wrong": made.problems(rows),
        }
    finally:
        made.close()


def measure(plan: Plan) -> Figures:
    """Run it with three tasks for every ten kills, so that many of them are killed again."""
    return kill_tasks(plan.count, max(20, plan.count * 3 // 10), plan.seed)


def report(found: Figures) -> None:
    """Print the figures."""
    print(f"{found['kills']:,} kills: {found['by_kind']}, in {found['seconds']} s")
    print(f"{found['tasks']:,} tasks in {found['attempts']:,} attempts: {found['ended_as']}")


def _added(past: Figures, found: Figures) -> Figures:
    return together(
        past, found, sums=("kills", "tasks", "attempts", "seconds"),
        counts=("by_kind", "ended_as"), joined=("wrong",),
    )  # fmt: skip


TASK_KILLS = Campaign(
    "task_kills",
    "Kills runners, shepherds and programs of tasks",
    unit="kills",
    count=1000,
    few=30,
    measure=measure,
    report=report,
    wrong=lambda found: found["wrong"],
    add=_added,
    device="",
)
