"""Tasks from Python: `Session.tasks` submits them, and each is a future."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import ConnectionLost, GpudError, TaskFailed
from gpud.wire.task_messages import AwaitTask, ChangeTask, ListTasks, ShowTask, SubmitTask
from gpud_client.tasks.runner_client import RunnerClient
from gpud_client.tasks.submission import surroundings, terms

__all__ = ["Task", "Tasks"]


class Task(concurrent.futures.Future[int]):
    """A task: a `concurrent.futures.Future` of its exit status, which is 0.

    Made by `Tasks.submit` and `Tasks.task`. The task goes on if this object is dropped, or if this
    program ends. Thread-safe.

    Attributes:
        id: As ``gpuctl task list`` shows it.
    """

    def __init__(self, tasks: Tasks, row: Mapping[str, Any]) -> None:
        super().__init__()
        self._tasks = tasks
        self.id = int(row["id"])

    def __repr__(self) -> str:
        return f"<gpud_client.Task {self.id}>"

    @property
    def state(self) -> str:
        """Its state, such as ``"queued"``, ``"running"`` or ``"done"``."""
        return str(self.show()["state"])

    @property
    def exit_status(self) -> int | None:
        """The exit status of its last attempt; None: it has none yet."""
        status: int | None = self.show()["exit_status"]
        return status

    @property
    def output(self) -> str:
        """What its last attempt has printed so far, as far as it is kept."""
        path = self.show()["output"]
        parts = [Path(path + ".1"), Path(path)] if path else []
        text = b"".join(part.read_bytes() for part in parts if part.exists())
        return text.decode("utf-8", "replace")

    def show(self) -> dict[str, Any]:
        """Return all that is known of it, as ``gpuctl task show --json`` does."""
        row: dict[str, Any] = self._tasks._ask(ShowTask, task=self.id)
        return row

    def running(self) -> bool:
        """Return whether an attempt of it runs now."""
        return self.state in ("running", "stopping")

    def cancel(self) -> bool:
        """End it; returns whether it had not ended. `result` raises when its programs are gone."""
        try:
            self._change("cancel")
        except ConnectionLost:
            raise
        except GpudError:  # it has ended
            return False
        return True

    def hold(self) -> None:
        """Hold it back, if it has not started.

        Raises:
            InvalidArgument: It runs, or has ended.
        """
        self._change("hold")

    def release(self) -> None:
        """Let it go, if it is held.

        Raises:
            InvalidArgument: It is not held.
        """
        self._change("release")

    def _change(self, action: str) -> None:
        self._tasks._ask(ChangeTask, task=self.id, action=action, by=f"process {os.getpid()}")

    def _settle(self, row: Mapping[str, Any]) -> None:
        with suppress(concurrent.futures.InvalidStateError):
            if row["state"] == "done":
                self.set_result(0)
            elif row["state"] == "cancelled":
                super().cancel()
                self.set_running_or_notify_cancel()
            else:
                self.set_exception(TaskFailed(
                    f"task {self.id} has failed: {row['reason']}", task=self.id,
                    exit_status=row["exit_status"],
                ))  # fmt: skip


class Tasks:
    """Whole programs in queues, run by this user's runner; `Session.tasks`. Thread-safe.

        task = gpu.tasks.submit(["python", "train.py"], gpus=1)
        task.result()

    Args:
        socket: Of the daemon whose devices are the GPUs of tasks.
    """

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._asking: RunnerClient | None = None
        self._watched: dict[int, list[Task]] = {}
        self._watching: RunnerClient | None = None

    def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Task:
        """Queue a program, and return at once.

        Args:
            command: The program and its arguments.
            cwd: Its working directory; None: this program's.
            env: Its environment; None: this program's.
            **options: As of ``gpuctl task submit``: ``cores``, ``gpus``, ``reserved``, ``name``,
                ``after`` (ids), ``time_limit`` (seconds), ``retries``, ``requeue``,
                ``requeue_signal``, ``memory``, ``category``, ``pipelined``, ``weights``,
                ``complexity``, ``held``.

        Raises:
            InvalidArgument: No node can ever run it, or the command is not found.
            TypeError, ValueError: An option is wrong.
            ConnectionLost: No runner could be started.
        """
        fields = {**terms(command, **options), **surroundings(env, cwd, self._socket)}
        return self._watch(Task(self, self._ask(SubmitTask, **fields)))

    def task(self, task: int) -> Task:
        """Return the task with an id, which any program may have submitted.

        Raises:
            UnknownName: There is none.
        """
        return self._watch(Task(self, self._ask(ShowTask, task=task)))

    def list(self, *, all: bool = False, limit: int = 0) -> list[dict[str, Any]]:  # noqa: A002
        """Return the tasks that wait or run, as ``gpuctl task list --json`` does.

        Args:
            all: Also those that have ended.
            limit: The latest so many; 0: all.
        """
        rows: list[dict[str, Any]] = self._ask(ListTasks, all=all, limit=limit)["tasks"]
        return rows

    def _ask(self, message: type[Any], **fields: Any) -> Any:
        with self._lock:
            if self._asking is None:
                self._asking = RunnerClient()
            try:
                return self._asking.ask(message, **fields)
            except ConnectionLost:
                self._asking.close()
                self._asking = None
                raise

    # -- futures

    def _watch(self, task: Task) -> Task:
        """Have a task settled when it has ended."""
        with self._lock:
            first = not self._watched
            self._watched.setdefault(task.id, []).append(task)
            watching = self._watching
        if first:
            thread = threading.Thread(target=self._settle_all, name="gpud tasks", daemon=True)
            thread.start()
        elif watching is not None:
            with suppress(GpudError):  # the thread finds out, too
                watching.send(AwaitTask, task=task.id)
        return task

    def _settle_all(self) -> None:
        """Settle tasks as they end, until there are none; begins anew if the runner has gone."""
        while True:
            try:
                runner = RunnerClient()
            except ConnectionLost as error:
                self._give_up(error)
                return
            with runner, suppress(ConnectionLost):  # the next runner knows of all tasks
                with self._lock:
                    self._watching, waits = runner, list(self._watched)
                for task in waits:
                    runner.send(AwaitTask, task=task)
                while self._settle_next(runner):
                    pass
                return

    def _give_up(self, error: ConnectionLost) -> None:
        with self._lock:
            left, self._watched = self._watched, {}
        for tasks in left.values():
            for task in tasks:
                with suppress(concurrent.futures.InvalidStateError):
                    task.set_exception(error)

    def _settle_next(self, runner: RunnerClient) -> bool:
        _, row = runner.receive()
        if isinstance(row, GpudError):
            return True  # it was asked for twice
        with self._lock:
            settled = self._watched.pop(int(row["id"]), [])
            more = bool(self._watched)
            if not more:
                self._watching = None
        for task in settled:
            task._settle(row)
        return more
