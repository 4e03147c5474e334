"""The runner: feeds the scheduler, keeps what it decides, and carries that out.

Every change takes the same way (`Runner.feed`): an event to the scheduler, what it changed to the
database in one transaction, then the commands. If the runner is killed between two of these, the
next one finds in the database what was decided and in the attempts' folders what was done about it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from gpud.errors import InternalError, InvalidArgument, UnknownName
from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.admission import refusal
from gpud.tasks.core.explain import why
from gpud.tasks.core.lifecycle import ENDED
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.settings import Settings
from gpud.tasks.runner.attempts import Attempt, Attempts, Outcome
from gpud.tasks.runner.cgroups import find_control
from gpud.tasks.runner.gpus import GPUs
from gpud.tasks.runner.processes import MARK, boot_id, resident_bytes
from gpud.tasks.store import TaskStore
from gpud.wire.socket_path import socket_path
from gpud.wire.task_messages import SubmitTask

__all__ = ["Runner"]

_NODE = 0
_RETRY_S = 1.0
_LOOK_S = 1.0
_MEMORY_S = 5.0
_GRACE_S = 10.0
_OUTPUT_BYTES = 64 << 20

log = logging.getLogger(__name__)


class Runner:
    """The tasks of one machine for one user.

    Args:
        folder: of the database and the outputs; made if it is missing.
        settings: of the scheduler.
    """

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.store = TaskStore(folder / "tasks.sqlite")
        self.scheduler = TaskScheduler(settings)
        self.attempts = Attempts(folder / "attempts", self._attempt_ended)
        self.control = find_control()
        self.gpus = GPUs(self.store)
        self._boot = boot_id()
        self._feeding = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._awaiting: dict[int, asyncio.Event] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._do: Mapping[type, Callable[[Any], None]] = {
            out.StartTask: self._start_task,
            out.SetCores: self._set_cores,
            out.FreezeTask: self._freeze_task,
            out.ThawTask: self._thaw_task,
            out.StopTask: self._stop_task,
            out.MeasureWindow: self._measure_window,
            out.KeepNeed: lambda command: None,
            out.FinishTask: self._finish_task,
            out.SetTimer: self._set_timer,
        }

    @property
    def idle(self) -> bool:
        """Whether there is no task that has not ended."""
        return not self.scheduler.tasks

    async def start(self) -> None:
        """Take over the tasks of earlier runners."""
        for need in self.store.needs(time.time_ns()):
            self.scheduler.handle(need)
        await self.gpus.use(str(socket_path()), busy=False)
        await self._node_changed()
        for row in sorted(self.store.unfinished(), key=_restored_in_order):
            await self._restore(row)
        self._begin(self._watch_gpus())
        self._begin(self._measure_memory())

    def close(self) -> None:
        """Leave the tasks that run to the next runner."""
        self.attempts.close()
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.gpus.close()
        self.store.close()

    # -- events

    async def feed(self, event: ev.Event) -> None:
        """Have the scheduler handle an event, keep what it decides, and carry that out.

        Raises:
            InvalidArgument: the scheduler refuses what the event asks for.
        """
        async with self._feeding:
            commands = self.scheduler.handle(event)
            await self._keep(commands)
        for command in commands:
            if isinstance(command, out.Refuse):
                raise InvalidArgument(command.reason)
            self._do[type(command)](command)

    async def _keep(self, commands: list[out.Command]) -> None:
        """Keep what the last event changed; while that is not possible nothing else happens."""
        while True:
            try:
                self._keep_once(commands)
            except InternalError as error:
                log.error("%s; trying again", error)  # noqa: TRY400  (known, and not our bug)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _keep_once(self, commands: list[out.Command]) -> None:
        scheduler, now_ns = self.scheduler, time.time_ns()
        if not scheduler.changed and not any(isinstance(one, out.KeepNeed) for one in commands):
            return
        with self.store.transaction():
            for task in scheduler.changed.values():
                self.store.keep(task, now_ns, ended=task.state in ENDED)
            for command in commands:
                if isinstance(command, out.StartTask):
                    task = scheduler.tasks[command.task]
                    self.store.begin_attempt(task, now_ns, self._boot)
                elif isinstance(command, out.KeepNeed):
                    self.store.keep_need(*command)

    async def _attempt_ended(self, attempt: Attempt, outcome: Outcome) -> None:
        task = self.scheduler.tasks.get(attempt.task)
        now_ns = time.time_ns()
        ran_ns = None if task is None else task.ran_until(now_ns)
        told = self.control.about(attempt)
        said = "; ".join(filter(None, [outcome.problem, told, outcome.notes]))
        if outcome.dropped_bytes:
            said += f"{'; ' if said else ''}{outcome.dropped_bytes} bytes of output were dropped"
        with suppress(InternalError), self.store.transaction():
            self.store.end_attempt(
                attempt.task, attempt.number, now_ns, ran_ns=ran_ns, exit_status=outcome.status,
                cpu_ns=outcome.cpu_ns, memory_bytes=outcome.memory_bytes, reason=said,
            )  # fmt: skip
        self.control.remove(attempt.folder.name)
        await self.feed(ev.TaskEnded(
            now_ns, attempt.task, attempt.number, outcome.status, outcome.stopped,
            outcome.problem or told, outcome.lost,
        ))  # fmt: skip

    async def _node_changed(self) -> None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        await self.feed(ev.NodeChanged(
            time.time_ns(), _NODE, cpus, self.gpus.names, memory, self.control.freezes
        ))  # fmt: skip
        for gpu, reason in self.gpus.marks():
            await self.feed(ev.GPUMarked(time.time_ns(), _NODE, gpu, reason))

    async def _watch_gpus(self) -> None:
        """Follow the daemon's end and return, as long as tasks have or want GPUs."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if any(task.is_gpu for task in self.scheduler.tasks.values()):
                if await self.gpus.look():
                    await self._node_changed()

    async def _measure_memory(self) -> None:
        """Tell what CPU tasks have of the memory, which they keep when they are frozen."""
        while True:
            await asyncio.sleep(_MEMORY_S)
            running = {
                number: attempt
                for number, attempt in self.attempts.running.items()
                if number in self.scheduler.tasks and not self.scheduler.tasks[number].is_gpu
            }
            if running and self.gpus.names:
                sizes = tuple(
                    (number, resident_bytes(attempt.processes()))
                    for number, attempt in running.items()
                )
                await self.feed(ev.MemoryMeasured(time.time_ns(), _NODE, sizes))

    async def _restore(self, row: Mapping[str, Any]) -> None:
        """Take over a task: one that runs is adopted, one that was never begun is queued."""
        task, number = row["id"], row["attempt"]
        runs = number and row["state"] in ("running", "frozen", "stopping")
        if runs and not self.attempts.was_begun(task, number) and not self._rebooted(task):
            with self.store.transaction():
                self.store.forget_attempt(task, number)
            number, runs = number - 1, False
        now_ns, frozen = time.time_ns(), row["state"] == "frozen"
        ran_ns = row["ran_ns"]
        if runs and not frozen:
            ran_ns += max(0, now_ns - row["since_ns"])
        await self.feed(ev.TaskRestored(
            now_ns, task, row["terms"], row["state"] == "held", number, row["failures"],
            row["losses"], _NODE if runs else None, tuple(row["cpus"]), tuple(row["gpus"]),
            ran_ns, frozen, bool(row["front"]) or (bool(number) and not runs),
        ))  # fmt: skip
        if not runs:
            return
        self.attempts.adopt(task, number)
        if row["stop"] is not None and row["stop"][0] != "requeue":
            by, reason = row["stop"]
            await self.feed(ev.CancelRequested(now_ns, task, reason, failed=by == "fail"))

    def _rebooted(self, task: int) -> bool:
        attempts = self.store.attempts(task)
        return bool(attempts) and attempts[-1]["boot"] != self._boot

    # -- commands

    def _start_task(self, command: out.StartTask) -> None:
        row = self.store.task(command.task)
        assert row is not None, f"task {command.task} is not in the database"
        around = row["surroundings"]
        attempt = self.attempts.folder_of(command.task, command.attempt)
        added = {
            "GPUD_TASK": str(command.task),
            MARK: f"{attempt.parent}:{command.task}.{command.attempt}",
            **self.gpus.environment(command.gpus),
        }
        environment = self.store.environment(row["environment"])
        self.attempts.start(command.task, command.attempt, {
            "command": self.gpus.command(
                row["command"], command.gpus, command.part, reserved=around["reserved"]
            ),
            "directory": row["directory"],
            "environment": environment.decode("utf-8", "surrogateescape")
            + "".join(f"{name}={value}\0" for name, value in added.items()),
            "umask": around["umask"],
            "limits": around["limits"],
            "cpus": list(command.cpus),
            "cgroups": self.control.prepare(
                attempt.name, command.cpus, row["terms"].memory_bytes
            ),
            "output_bytes": _OUTPUT_BYTES,
            "grace_s": _GRACE_S,
        })  # fmt: skip

    def _set_cores(self, command: out.SetCores) -> None:
        if command.task in self.attempts.running:
            self.control.set_cpus(self.attempts.running[command.task], command.cpus)

    def _freeze_task(self, command: out.FreezeTask) -> None:
        if command.task in self.attempts.running:
            self.control.freeze(self.attempts.running[command.task])

    def _thaw_task(self, command: out.ThawTask) -> None:
        if command.task in self.attempts.running:
            attempt = self.attempts.running[command.task]
            self.control.set_cpus(attempt, command.cpus)
            self.control.thaw(attempt)

    def _stop_task(self, command: out.StopTask) -> None:
        row = self.store.task(command.task)
        attempt = self.attempts.running.get(command.task)
        if attempt is None or row is None:
            return
        number = row["surroundings"]["requeue_signal"] if command.requeue else None
        attempt.stop(command.reason, _GRACE_S, number)

    def _measure_window(self, command: out.MeasureWindow) -> None:
        self._begin(self._measure(command))

    async def _measure(self, command: out.MeasureWindow) -> None:
        task = self.scheduler.tasks.get(command.task)
        gpus = () if task is None else task.gpus
        utilisation = await self.gpus.utilisation(gpus, command.window_ns)
        await self.feed(
            ev.WindowMeasured(time.time_ns(), command.task, command.attempt, utilisation)
        )

    def _finish_task(self, command: out.FinishTask) -> None:
        log.info("task %d is %s%s", command.task, command.state,
                 f": {command.reason}" if command.reason else "")  # fmt: skip
        waiting = self._awaiting.pop(command.task, None)
        if waiting is not None:
            waiting.set()

    def _set_timer(self, command: out.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, command.at_ns - time.time_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(
            delay_s, lambda: self._begin(self.feed(ev.TimerFired(time.time_ns())))
        )

    def _begin(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    # -- requests

    async def submit(self, message: SubmitTask, uid: int, user: str) -> dict[str, Any]:
        """Keep and queue a task, and return its row.

        Raises:
            InvalidArgument: no node can ever run it, its command is not found, or a task that must
                be done before it has failed.
            UnknownName: a task that must be done before it is not there.
        """
        command = [os.fsdecode(word) for word in message.command]
        directory = os.fsdecode(message.directory)
        program = _program(command)
        gpus = Fraction(*message.gpus) if message.gpus is not None else Fraction(0)
        if gpus:
            await self.gpus.use(message.socket, busy=any(
                task.is_gpu for task in self.scheduler.tasks.values()
            ))  # fmt: skip
            await self._node_changed()
        cores = message.cores if message.cores is not None or gpus else 1
        terms = ev.TaskTerms(
            user, program, cores, gpus, message.memory_bytes, message.category, message.pipelined,
            message.weights_bytes, message.complexity, self._unfinished(message.after),
            message.time_limit_ns, message.retries, message.requeue,
        )  # fmt: skip
        problem = refusal(terms, self.scheduler.nodes.values())
        if not problem and not message.after:
            problem = _not_found(command[0], directory, message.environment)
        if problem:
            hint = f"; {self.gpus.hint}" if gpus and "GPU" in problem and self.gpus.hint else ""
            raise InvalidArgument(problem + hint)
        now_ns = time.time_ns()
        with self.store.transaction():
            task = self.store.submit(
                now_ns, uid, name=message.name or program, command=command, directory=directory,
                environment=message.environment, terms=terms, held=message.held,
                surroundings={
                    "umask": message.umask, "limits": message.limits,
                    "requeue_signal": message.requeue_signal, "reserved": message.reserved,
                },
            )  # fmt: skip
        await self.feed(ev.TaskSubmitted(now_ns, task, terms, message.held))
        return self.row(task)

    def _unfinished(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the tasks that are not done yet."""
        left = []
        for task in after:
            if task in self.scheduler.tasks:
                left.append(task)
                continue
            state = self._kept(task)["state"]
            if state != "done":
                raise InvalidArgument(
                    f"task {task} is {state}, and what comes after it would never run"
                )
        return tuple(left)

    async def change(self, task: int, action: str, by: str) -> dict[str, Any]:
        """Cancel, hold or release a task.

        Raises:
            UnknownName: there is no such task.
            InvalidArgument: it has ended, or it runs and cannot be held.
        """
        row = self._kept(task)
        if row["ended"]:
            raise InvalidArgument(f"task {task} has ended: it is {row['state']}")
        now_ns = time.time_ns()
        if action == "cancel":
            await self.feed(ev.CancelRequested(now_ns, task, f"cancelled by {by or 'its user'}"))
        elif action == "hold":
            await self.feed(ev.HoldRequested(now_ns, task))
        else:
            await self.feed(ev.ReleaseRequested(now_ns, task))
        return self.row(task)

    async def ended(self, task: int) -> dict[str, Any]:
        """Wait until a task has ended, and return its row."""
        self._kept(task)
        while task in self.scheduler.tasks:
            await self._awaiting.setdefault(task, asyncio.Event()).wait()
        return self.row(task)

    def row(self, task: int, *, details: bool = False) -> dict[str, Any]:
        """Return what is known of a task, for people and programs.

        Raises:
            UnknownName: there is no such task.
        """
        kept = self._kept(task)
        row = self.summary(kept)
        if details:
            known = self.scheduler.tasks.get(task)
            row["why"] = [] if known is None else why(self.scheduler, known)
            row["attempts"] = [self._attempt_row(one) for one in self.store.attempts(task)]
            row["control"] = self.control.describe
            row["directory"] = kept["directory"]
        return row

    def rows(self, *, ended: bool, limit: int) -> list[dict[str, Any]]:
        """Return the latest tasks, the latest last, with those that have ended if asked to."""
        kept = self.store.tasks(ended=None if ended else False, limit=limit, uid=None)
        return [self.summary(row) for row in kept]

    def summary(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a task's row for a list."""
        terms: ev.TaskTerms = row["terms"]
        task = self.scheduler.tasks.get(row["id"])
        cores = terms.cores if task is None or not task.cpus else len(task.cpus)
        folder = self.attempts.folder_of(row["id"], row["attempt"])
        return {
            "id": row["id"],
            "name": row["name"],
            "state": row["state"],
            "exit_status": row["exit_status"],
            "user": terms.user,
            "command": [_shown(word) for word in row["command"]],
            "cores": cores,
            "gpus": _number(terms.gpus),
            "gpu_names": [self.gpus.names[gpu] for gpu in row["gpus"]],
            "category": terms.category,
            "after": list(terms.after),
            "attempt": row["attempt"],
            "submitted_at_s": row["submitted_ns"] / 1e9,
            "started_at_s": None if row["started_ns"] is None else row["started_ns"] / 1e9,
            "ended_at_s": None if row["ended_ns"] is None else row["ended_ns"] / 1e9,
            "reason": row["reason"],
            "output": str(folder / "output") if row["attempt"] else None,
        }

    def queues(self) -> dict[str, Any]:
        """Return nodes, queues, and who lends to whom."""
        nodes = []
        for node in self.scheduler.nodes.values():
            nodes.append({
                "node": node.id,
                "cores": len(node.cpus),
                "free_cores": len(node.free_cpus),
                "cpu_part": node.cpu_part,
                "gpu_part": node.gpu_part,
                "cpu_cores": node.cpu_cores,
                "gpu_cores": node.gpu_cores,
                "borrowed_cores": node.borrowed,
                "blocked_cores": sum(node.blocked.values()),
                "gpus": [
                    {"name": name, "used": _number(node.gpu_used[gpu]),
                     "marked": node.marked.get(gpu, "")}
                    for gpu, name in enumerate(node.gpu_names)
                ],
                "multi_gpus": node.multi,
                "kept_for": list(node.kept.values()),
            })  # fmt: skip
        queues = [
            {"queue": name, "waiting": len(queue),
             "has": {user: _number(amount) for user, amount in queue.has.items()}}
            for name, queue in self.scheduler.queues.items()
        ]  # fmt: skip
        return {"nodes": nodes, "queues": queues, "control": self.control.describe}

    def _attempt_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "attempt": row["number"],
            "cores": len(row["cpus"]),
            "gpus": len(row["gpus"]),
            "started_at_s": row["started_ns"] / 1e9,
            "ended_at_s": None if row["ended_ns"] is None else row["ended_ns"] / 1e9,
            "ran_s": None if row["ran_ns"] is None else row["ran_ns"] / 1e9,
            "exit_status": row["exit_status"],
            "cpu_s": None if row["cpu_ns"] is None else row["cpu_ns"] / 1e9,
            "memory_bytes": row["memory_bytes"],
            "reason": row["reason"],
        }

    def _kept(self, task: int) -> dict[str, Any]:
        row = self.store.task(task)
        if row is None:
            raise UnknownName(f"there is no task {task}; gpuctl task list --all shows all")
        return row


_ORDER = {"running": 0, "stopping": 0, "frozen": 1, "queued": 2, "blocked": 3, "held": 3}


def _restored_in_order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Order tasks so that who has cores is known before others start, and who is waited for, too.

    A task comes after others with lower ids only.
    """
    place = _ORDER[row["state"]]
    return place, row["queued_ns"] if place < 3 else 0, row["id"]


def _program(command: list[str]) -> str:
    """Return what tells programs apart: the script of an interpreter, else the command's name."""
    name = Path(command[0]).name
    if name.startswith("python") or name in ("bash", "sh", "node", "perl", "ruby"):
        for word in command[1:]:
            if word == "-c":
                break
            if not word.startswith("-"):
                return _shown(Path(word).name)
    return _shown(name)


def _not_found(program: str, directory: str, environment: bytes) -> str:
    variables = dict(entry.split(b"=", 1) for entry in environment.split(b"\0") if b"=" in entry)
    if not Path(directory).is_dir():
        return f"there is no folder {directory}"
    path = os.fsdecode(variables.get(b"PATH", os.fsencode(os.defpath)))
    where = str(Path(directory, program)) if "/" in program else program
    if shutil.which(where, path=path) is None:
        return f"{program}: command not found; a script needs the right to be executed"
    return ""


def _shown(text: str) -> str:
    """Return text that can be sent: what cannot be decoded is shown as such."""
    return text.encode("utf-8", "backslashreplace").decode()


def _number(amount: Fraction) -> int | float:
    return int(amount) if amount.denominator == 1 else float(amount)
