"""A test driver for the tasks' scheduler: tasks by small numbers, times in seconds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.lifecycle import TaskState
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.settings import Settings

S = 1_000_000_000


class Driver:
    """A scheduler with nodes 0, 1, ... of so many cores and GPUs each."""

    def __init__(
        self, *nodes: tuple[int, int], memory: int = 0, freezes: bool = True, **settings: Any
    ) -> None:
        self.scheduler = TaskScheduler(Settings(debug=True, **settings))
        self.now_s = 0.0
        self.ended: dict[int, out.FinishTask] = {}
        for number, (cores, gpus) in enumerate(nodes):
            names = tuple(f"g{gpu}" for gpu in range(gpus))
            self.send(ev.NodeChanged(0, number, tuple(range(cores)), names, memory, freezes))

    @property
    def now_ns(self) -> int:
        return round(self.now_s * S)

    def send(self, event: ev.Event) -> list[out.Command]:
        commands = self.scheduler.handle(event._replace(now_ns=self.now_ns))
        for command in commands:
            if isinstance(command, out.FinishTask):
                self.ended[command.task] = command
        return commands

    def submit(
        self, task: int, cores: int | None = 1, gpus: float = 0, *, user: str = "u",
        program: str = "p", held: bool = False, **terms: Any,
    ) -> list[out.Command]:  # fmt: skip
        made = ev.TaskTerms(user, program, cores, Fraction(str(gpus)), **terms)
        return self.send(ev.TaskSubmitted(0, task, made, held))

    def end(self, task: int, status: int | None = 0, **more: Any) -> list[out.Command]:
        attempt = self.scheduler.tasks[task].attempt
        return self.send(ev.TaskEnded(0, task, attempt, status, **more))

    def window(self, task: int, permille: int | None) -> list[out.Command]:
        attempt = self.scheduler.tasks[task].attempt
        return self.send(ev.WindowMeasured(0, task, attempt, permille))

    def after(self, seconds: float) -> list[out.Command]:
        self.now_s += seconds
        return self.send(ev.TimerFired(0))

    def state(self, task: int) -> str:
        known = self.scheduler.tasks.get(task)
        return self.ended[task].state if known is None else known.state

    def states(self) -> str:
        return " ".join(f"{task}:{record.state}" for task, record in self.scheduler.tasks.items())

    def running(self) -> list[int]:
        tasks = self.scheduler.tasks.values()
        return [task.id for task in tasks if task.state is TaskState.RUNNING]

    def cores(self, task: int) -> int:
        return len(self.scheduler.tasks[task].cpus)
