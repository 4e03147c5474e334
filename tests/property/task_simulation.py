"""A simulation for the tasks' scheduler: nodes and programs, and a checker.

Programs are modelled from the contract of `gpud.tasks.core.commands` and `gpud.tasks.core.events`
alone: they end when they like, late after they were told to, fail, are lost, and nodes vanish.
After every event the world checks, from what the programs have, what the scheduler promises
(`CHECKS`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gpud.errors import GpudError
from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.replay import replay, write_header, write_line
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.settings import Settings

CHECKS = (
    "exclusive", "parts", "counted", "filed", "once", "only_cpu", "least_run", "kept", "awake",
    "least_first", "unused", "equal_logs",
)  # fmt: skip
"""Names of the properties, as a `Broken` carries them."""

LIVE = ("running", "frozen", "stopping")


class Broken(AssertionError):
    """A property does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


@dataclass
class Program:
    """An attempt of a task, as its node sees it."""

    attempt: int
    node: int
    cpus: tuple[int, ...]
    gpus: tuple[int, ...]
    part: Fraction | None
    since_ns: int
    frozen: bool = False
    stopping: bool = False


class World:
    """A scheduler, the programs that it has started, and the log of both."""

    def __init__(self, settings: Settings) -> None:
        self.scheduler = TaskScheduler(settings)
        self.settings = settings
        self.now_ns = 0
        self.terms: dict[int, ev.TaskTerms] = {}
        self.programs: dict[int, Program] = {}
        self.attempts: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self.nodes: dict[int, ev.NodeChanged] = {}
        self.log = [write_header(settings)]
        self.measured: dict[int, None] = {}

    # -- what happens

    def send(self, event: ev.Event) -> None:
        try:
            commands = self.scheduler.handle(event)
        except GpudError as error:
            name = str(error).partition(":")[0].split()[-1]
            raise Broken(name if name in CHECKS else "error", str(error)) from error
        self.log.append(write_line(event, commands))
        for command in commands:
            self._carry_out(command)
        self._check()

    def node(self, number: int, cores: int, gpus: int, *, freezes: bool, memory: int = 0) -> None:
        names = tuple(f"{number}.{gpu}" for gpu in range(gpus))
        self.nodes[number] = ev.NodeChanged(
            self.now_ns, number, tuple(range(cores)), names, memory, freezes
        )
        self.send(self.nodes[number])

    def submit(self, terms: ev.TaskTerms, *, held: bool = False) -> int:
        number = len(self.terms) + 1
        self.terms[number] = terms
        self.send(ev.TaskSubmitted(self.now_ns, number, terms, held))
        return number

    def end(self, task: int, status: int | None, *, lost: bool = False) -> None:
        program = self.programs.pop(task)
        self.send(ev.TaskEnded(
            self.now_ns, task, program.attempt, status, stopped=program.stopping and not lost,
            lost=lost,
        ))  # fmt: skip

    def lose(self, node: int) -> None:
        for task in [one for one, program in self.programs.items() if program.node == node]:
            del self.programs[task]
        del self.nodes[node]
        self.send(ev.NodeLost(self.now_ns, node, "it vanished"))

    def tick(self, ns: int) -> None:
        self.now_ns += ns
        self.send(ev.TimerFired(self.now_ns))

    def window(self, task: int, permille: int | None) -> None:
        self.measured.pop(task, None)
        attempt = self.programs[task].attempt
        self.send(ev.WindowMeasured(self.now_ns, task, attempt, permille))

    # -- programs

    def _carry_out(self, command: out.Command) -> None:
        match command:
            case out.StartTask():
                self._start(command)
            case out.SetCores():
                self.programs[command.task].cpus = command.cpus
            case out.FreezeTask():
                self._disturbed(command.task)
                program = self.programs[command.task]
                program.frozen, program.cpus = True, ()
            case out.ThawTask():
                program = self.programs[command.task]
                program.frozen, program.cpus, program.since_ns = False, command.cpus, self.now_ns
            case out.StopTask():
                if command.requeue:
                    self._disturbed(command.task)
                self.programs[command.task].stopping = True
            case out.MeasureWindow():
                self.measured[command.task] = None
            case out.FinishTask():
                if command.task in self.programs:
                    raise Broken("kept", f"task {command.task} was finished while it runs")
                self.ended[command.task] = command.state

    def _start(self, command: out.StartTask) -> None:
        if command.task in self.programs or command.task in self.ended:
            raise Broken("once", f"task {command.task} is started while it runs, or has ended")
        if command.attempt != self.attempts.get(command.task, 0) + 1:
            raise Broken("once", f"attempt {command.attempt} of {command.task} is out of order")
        self.attempts[command.task] = command.attempt
        self.programs[command.task] = Program(
            command.attempt, command.node, command.cpus, command.gpus, command.part, self.now_ns
        )
        terms = self.terms[command.task]
        if terms.cores is not None and len(command.cpus) != terms.cores:
            raise Broken("counted", f"task {command.task} asked for {terms.cores}: {command}")
        if len(command.gpus) != -(-terms.gpus.numerator // terms.gpus.denominator):
            raise Broken("counted", f"task {command.task} asked for {terms.gpus}: {command}")
        self._fair(command.task)

    def _disturbed(self, task: int) -> None:
        if self.terms[task].gpus:
            raise Broken("only_cpu", f"GPU task {task} is stopped for others")
        halved = self.scheduler.tasks[task].halved_for is not None
        ran_ns = self.now_ns - self.programs[task].since_ns
        if not halved and ran_ns < self.settings.least_run_ns:
            raise Broken("least_run", f"task {task} is disturbed after {ran_ns} ns")

    def _fair(self, started: int) -> None:
        """Of two users whose first tasks need the same, who has less comes first."""
        terms = self.terms[started]
        if terms.gpus or self.scheduler.tasks[started].front or self.attempts[started] > 1:
            return
        has: dict[str, int] = {}
        for task, program in self.programs.items():
            if not self.terms[task].gpus and task != started:
                user = self.terms[task].user
                has[user] = has.get(user, 0) + len(program.cpus)
        for record in self.scheduler.tasks.values():
            # Only a task that has waited since before this event could have been chosen instead.
            other = self.terms[record.id]
            if (
                record.state == "queued" and not other.gpus
                and (other.cores or 1) <= (terms.cores or 1)
                and record.queued_ns < self.now_ns
                and has.get(other.user, 0) < has.get(terms.user, 0)
                and record is next(iter(self._queued(other.user)), None)
                and not any(node.kept for node in self.scheduler.nodes.values())
            ):  # fmt: skip
                raise Broken(
                    "least_first", f"task {started} of {terms.user} comes before {record.id}"
                )

    def _queued(self, user: str) -> list[Any]:
        tasks = [
            task for task in self.scheduler.queues["cpu"]
            if task.terms.user == user and task.state == "queued"
        ]  # fmt: skip
        return sorted(tasks, key=lambda task: (not task.front, task.queued_ns, task.id))

    # -- checks

    def _check(self) -> None:
        self._check_exclusive()
        for task in self.terms:
            known = task in self.scheduler.tasks
            if known == (task in self.ended):
                raise Broken("kept", f"task {task} is {'known' if known else 'not known'}, and "
                             f"has {'' if task in self.ended else 'not '}ended")  # fmt: skip
            if known and (self.scheduler.tasks[task].state in LIVE) != (task in self.programs):
                raise Broken("kept", f"task {task} is {self.scheduler.tasks[task].state}")
        self._check_awake()

    def _check_exclusive(self) -> None:
        for number, node in self.nodes.items():
            cpus = [
                cpu for program in self.programs.values() if program.node == number
                for cpu in program.cpus
            ]  # fmt: skip
            if len(set(cpus)) != len(cpus) or not set(cpus) <= set(node.cpus):
                raise Broken("exclusive", f"processors of node {number}: {sorted(cpus)}")
            used = dict.fromkeys(range(len(node.gpus)), Fraction(0))
            for program in self.programs.values():
                for gpu in program.gpus if program.node == number else ():
                    used[gpu] += program.part or 1
            if any(amount > 1 for amount in used.values()):
                raise Broken("exclusive", f"GPUs of node {number}: {used}")

    def _check_awake(self) -> None:
        queues = self.scheduler.queues
        records = self.scheduler.nodes.values()
        for node in records:
            for number in node.kept.values():
                self._check_kept(node, self.scheduler.tasks[number])
        if any(node.kept for node in records):
            return
        for node in records:
            free = len(node.free_cpus) - sum(node.blocked.values())
            if not queues["gpu"] and not queues["multi"]:
                for task in queues["cpu"]:
                    # One that is frozen waits for its node, one that was halved for a task's end.
                    there = task.state == "queued" or (
                        task.node == node.id and task.halved_for is None
                    )
                    if there and task.cores <= free:
                        raise Broken("awake", f"task {task.id} fits on node {node.id}, and waits")
            for name, other in (("gpu", "multi"), ("multi", "gpu")):
                for task in queues[name] if not queues[other] else ():
                    cores = task.terms.cores
                    if cores is not None and task.terms.gpus >= 1 and (
                        len(node.usable_gpus()) >= task.terms.gpus and cores <= len(node.free_cpus)
                    ):  # fmt: skip
                        raise Broken("awake", f"task {task.id} fits on node {node.id}, and waits")

    def _check_kept(self, node: NodeRecord, kept: TaskRecord) -> None:
        free = len(node.free_cpus) - (0 if kept.is_gpu else sum(node.blocked.values()))
        if kept.terms.cores is not None and kept.terms.cores <= free:
            if kept.terms.gpus < 1 or len(node.usable_gpus()) >= kept.terms.gpus:
                raise Broken("awake", f"task {kept.id} fits on the node that is kept for it")

    def finish(self) -> None:
        """Let everything end, and replay the log."""
        while self.programs:
            self.tick(self.settings.least_run_ns)
            task = min(self.programs)
            if self.programs[task].frozen:
                task = max(self.programs)
            self.end(task, 0)
        try:
            replay(self.log)
        except GpudError as error:
            raise Broken("equal_logs", str(error)) from error


# -- random histories ------------------------------------------------------------------------------


def random_settings(chance: random.Random) -> Settings:
    """Settings for histories of a few seconds."""
    return Settings(
        start_cores=chance.choice((1, 2, 4)),
        literal_search=chance.random() < 0.3,
        lend_idle=chance.random() < 0.6,
        split_gpus=chance.random() < 0.7,
        least_run_ns=chance.choice((0, 5, 50)),
        patience_ns=chance.choice((100, 10**9)),
        frozen_permille=chance.choice((100, 500)),
        debug=True,
    )


def random_terms(chance: random.Random, world: World) -> ev.TaskTerms:
    """Terms of a task that fits on a node of 8 cores and 4 GPUs."""
    gpus = chance.choice((0, 0, 0, 1, 1, 2, 4, Fraction(1, 2), Fraction(1, 3)))
    cores = chance.randint(1, 8) if not gpus or chance.random() < 0.5 else None
    waiting = [task for task in world.scheduler.tasks if chance.random() < 0.1]
    return ev.TaskTerms(
        chance.choice(("ada", "bob", "eve")), chance.choice(("train", "fit")), cores,
        Fraction(gpus), chance.choice((None, 100, 300)), chance.choice(("", "image")),
        chance.random() < 0.3, chance.choice((None, 1 << 30)), chance.choice((None, 80)),
        tuple(waiting[:2]),
        chance.choice((None, 40)), chance.choice((0, 0, 2)), chance.random() < 0.8,
    )  # fmt: skip


def step(chance: random.Random, world: World) -> None:
    """Let one thing happen."""
    tasks, programs = list(world.scheduler.tasks), list(world.programs)
    kind = chance.randrange(14)
    if kind < 4:
        world.submit(random_terms(chance, world), held=chance.random() < 0.1)
    elif kind < 7 and programs:
        task = chance.choice(programs)
        stopping = world.programs[task].stopping
        status = 143 if stopping else chance.choice((0, 0, 0, 1))
        world.end(task, status, lost=chance.random() < 0.05)
    elif kind < 9:
        world.tick(chance.choice((1, 5, 20, 60)))
    elif kind == 9 and world.measured:
        known = [task for task in world.measured if task in world.programs]
        if known:
            world.window(chance.choice(known), chance.choice((None, 300, 500, 700, 900, 900)))
    elif kind == 10 and tasks:
        cls = chance.choice((ev.HoldRequested, ev.ReleaseRequested, ev.ReleaseRequested))
        world.send(cls(world.now_ns, chance.choice(tasks)))
    elif kind == 11 and tasks:
        failed = chance.random() < 0.3
        world.send(ev.CancelRequested(world.now_ns, chance.choice(tasks), "by ada", failed))
    elif kind == 12 and programs:
        node = chance.choice(list(world.nodes))
        loads = tuple((task, chance.choice((100, 900))) for task in programs)
        world.send(ev.BandwidthMeasured(world.now_ns, node, loads))
        world.send(ev.MemoryMeasured(world.now_ns, node, tuple((task, 200) for task in programs)))
    elif kind == 13:
        number = chance.choice((0, 1, 2))
        if number in world.nodes and chance.random() < 0.2 and len(world.nodes) > 1:
            world.lose(number)
        elif number not in world.nodes:
            world.node(number, 8, 4, freezes=chance.random() < 0.7, memory=1000)
        else:
            reason = chance.choice(("", "", "3 GiB of it are had by process 17"))
            world.send(ev.GPUMarked(world.now_ns, number, chance.randrange(4), reason))


def history(seed: int, steps: int = 200) -> World:
    """Run a random history, to its end."""
    chance = random.Random(seed)
    world = World(random_settings(chance))
    world.node(0, 8, 4, freezes=chance.random() < 0.7, memory=1000)
    for _ in range(steps):
        step(chance, world)
    world.finish()
    return world
