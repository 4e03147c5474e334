"""A node's framework process: it starts an executor a GPU, and speaks for the node.

It connects to the scheduler, says which GPUs there are, passes tasks on to their executors and ends
on to the scheduler, and sends offers: every period the state of processors, memory, disk and GPUs,
with what is free. An executor that ends is started again, and its tasks have failed.

    python -m gpud_ray.sets.run.framework < CONFIG
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, wait
from typing import Any

import gpud_client as gc
from gpud.errors import GpudError
from gpud_ray.sets.run.machine import CoreGroup, MachineState, split_cores
from gpud_ray.sets.run.messages import Message, receive, send

__all__ = ["Framework", "FrameworkConfig", "main"]

_END_S = 3.0


@dataclass(frozen=True, slots=True)
class FrameworkConfig:
    """What a framework process needs to know.

    Attributes:
        address: of the scheduler: a path, or a host and a port.
        key: that both sides know, in hexadecimal.
        node: the node's name.
        socket: of the node's gpud; None: the default one, unless ``private``.
        private: devices of a gpud that the framework starts and ends, such as ``["cpu:1"]``.
        parallel: tasks among which a device is split.
        threads: of an executor.
        mode: ``split`` or ``in turn``.
        offers_s: the period of offers.
    """

    address: str | tuple[str, int]
    key: str
    node: str
    socket: str | None = None
    private: tuple[str, ...] = ()
    parallel: int = 2
    threads: int = 2
    mode: str = "split"
    offers_s: float = 1.0


@dataclass(slots=True)
class _Executor:
    gpu: int
    cores: list[int]
    process: subprocess.Popen[bytes]
    connection: Any
    group: CoreGroup
    running: dict[int, Message] = field(default_factory=dict)


class Framework:
    """One node."""

    def __init__(self, config: FrameworkConfig) -> None:
        self._config = config
        if config.private:
            self._session = gc.local(config.private)
        else:
            self._session = gc.connect(config.socket, name="gpud-ray framework")
        self._scheduler = Client(config.address, authkey=bytes.fromhex(config.key))
        self._state = MachineState()
        cores = sorted(os.sched_getaffinity(0))
        parts = split_cores(cores, len(self._session.devices))
        self._notes: list[str] = []
        self._started = 0
        self._executors = [self._start(index, part) for index, part in enumerate(parts)]

    def run(self) -> None:
        """Serve until the scheduler says stop or is gone."""
        try:
            rows = [self._await_ready(executor) for executor in self._executors]
            node = {
                "is": "node", "name": self._config.node, "gpus": rows, "notes": self._notes,
                "state": self._offer(),
            }  # fmt: skip
            send(self._scheduler, node)
            self._serve()
        except (EOFError, OSError, GpudError):
            pass  # the scheduler or gpud is gone: there is nobody to tell
        finally:
            self._end()

    def _serve(self) -> None:
        next_s = time.monotonic()
        while True:
            if time.monotonic() >= next_s:
                send(self._scheduler, {"is": "offer", "state": self._offer()})
                next_s = time.monotonic() + self._config.offers_s
            connections = [self._scheduler, *(one.connection for one in self._executors)]
            for ready in wait(connections, max(0.0, next_s - time.monotonic())):
                if ready is self._scheduler:
                    message = receive(self._scheduler)
                    if message["is"] == "stop":
                        return
                    self._pass_on(message)
                else:
                    self._heard(next(e for e in self._executors if e.connection is ready))

    def _pass_on(self, message: Message) -> None:
        executor = self._executors[message["gpu"]]
        executor.running[message["task"]] = message
        with suppress(OSError):  # it has ended, which `_heard` finds
            send(executor.connection, message)

    def _heard(self, executor: _Executor) -> None:
        try:
            message = receive(executor.connection)
        except (EOFError, OSError):
            self._restart(executor)
            return
        if message["is"] == "ended":
            del executor.running[message["task"]]
        elif message["is"] == "began":
            executor.running[message["task"]]["began"] = True
        send(self._scheduler, message)

    def _restart(self, executor: _Executor) -> None:
        """Report the tasks of an executor that has ended, and start another one."""
        status = executor.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(executor.process.pid, signal.SIGKILL)
        executor.connection.close()
        executor.group.remove()
        fresh = self._start(executor.gpu, executor.cores)
        self._executors[executor.gpu] = fresh
        self._await_ready(fresh)
        for message in executor.running.values():
            send(
                self._scheduler,
                {
                    "is": "ended", "task": message["task"], "attempt": message["attempt"],
                    "reason": f"its executor ended (status {status})",
                    "took_s": 0.0, "kernels_s": 0.0, "output": "",
                    "may_have_run": message.get("began", False),
                },
            )  # fmt: skip

    def _start(self, gpu: int, cores: list[int]) -> _Executor:
        config = {
            "socket": self._session.path, "device": gpu, "parallel": self._config.parallel,
            "threads": self._config.threads, "mode": self._config.mode, "cores": cores,
        }  # fmt: skip
        ours, theirs = socket.socketpair()
        self._started += 1
        group = CoreGroup(f"{gpu}-{self._started}", cores)
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "gpud_ray.sets.run.executor", str(theirs.fileno()),
                    json.dumps(config),
                ],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group, to end with all that its tasks have started
            )  # fmt: skip
        group.add(process.pid)
        if group.problem and group.problem not in self._notes:
            self._notes.append(group.problem)
        return _Executor(gpu, cores, process, Connection(ours.detach()), group)

    def _await_ready(self, executor: _Executor) -> Message:
        message = receive(executor.connection)
        device = self._session.devices[executor.gpu]
        return {
            "index": executor.gpu, "memory_mb": message["memory_mb"], "cores": 64 * device.sms,
            "capsm_milli": message["capsm_milli"], "host_cores": message["cores"],
            "pid": executor.process.pid,
        }  # fmt: skip

    def _offer(self) -> dict[str, Any]:
        told = self._session.query("memory")
        rows = told["devices"]
        own = [0] * len(rows)
        for one in told["sessions"]:
            if _is_of(one["pid"], self._executors[one["device"]].process.pid):
                own[one["device"]] += one["used_bytes"] + one["waiting_bytes"]
        gpus = [
            {
                "index": row["index"], "state": row["state"],
                "memory_free_mb": (row["memory_bytes"] - (row.get("memory_used_bytes") or 0)) >> 20,
                # Of programs that are no task of this run: rounded up, it is not to be had.
                "memory_foreign_mb": -(
                    -max(0, (row.get("memory_used_bytes") or 0) - own[row["index"]]) >> 20
                ),
                "capsm_free_milli": round(1000 * (row["sms"] - float(row["allocated_sms"]))),
                "tasks": len(executor.running),
            }
            for row, executor in zip(rows, self._executors, strict=True)
        ]  # fmt: skip
        return {**self._state.read(), "gpus": gpus}

    def _end(self) -> None:
        for executor in self._executors:
            with suppress(OSError):
                send(executor.connection, {"is": "stop"})
        for executor in self._executors:
            try:
                executor.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                executor.process.kill()
                executor.process.wait()
            executor.connection.close()
            executor.group.remove()
        self._scheduler.close()
        self._session.close()


def _is_of(pid: int | None, executor: int) -> bool:
    """Return whether a process is an executor's, or one that its tasks have started."""
    try:
        return pid is not None and os.getsid(pid) == executor
    except ProcessLookupError:
        return False


def main() -> None:
    """Run a framework process; its config comes as JSON, with the key, on the standard input."""
    given = json.load(sys.stdin)
    if isinstance(given["address"], list):
        given["address"] = tuple(given["address"])
    given["private"] = tuple(given.get("private", ()))
    Framework(FrameworkConfig(**given)).run()


if __name__ == "__main__":
    main()
