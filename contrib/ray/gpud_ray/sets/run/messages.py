"""Messages between scheduler, framework and executors: plain data, in msgpack, over a pipe or socket.

A message is a dict with its type under ``is``. Nothing that is received is executed or unpickled
but what a task says to run.

| is | from, to | fields |
| --- | --- | --- |
| ``node`` | framework, scheduler | ``name``, ``gpus``: rows of index, memory_mb, cores, capsm_milli; ``notes``, ``state`` as in an offer |
| ``start`` | scheduler, framework, executor | ``task``, ``attempt``, ``gpu``, ``program``, ``needs``, ``quota_milli`` |
| ``began`` | executor, framework, scheduler | ``task``, ``attempt`` |
| ``ended`` | executor, framework, scheduler | ``task``, ``attempt``, ``reason`` (empty: done), ``may_have_run``, ``took_s``, ``kernels_s``, ``output``, ``no_room`` (the device's memory was full) |
| ``offer`` | framework, scheduler | ``state``: of processors, memory, disk, and by GPU |
| ``ready`` | executor, framework | ``memory_mb``, ``capsm_milli``, ``cores`` |
| ``stop`` | scheduler, framework, executor | |
"""  # noqa: E501  (a table)

from __future__ import annotations

from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import msgpack

from gpud_ray.sets.model import Task
from gpud_ray.sets.setfile import Program

__all__ = ["Message", "needs_of", "program_of", "receive", "send", "start_message"]

Message = dict[str, Any]


def send(connection: Any, message: Message) -> None:
    """Send a message.

    Raises:
        OSError: the other side is gone.
    """
    connection.send_bytes(msgpack.packb(message))


def receive(connection: Connection[Any, Any]) -> Message:
    """Wait for a message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    message: Message = msgpack.unpackb(connection.recv_bytes())
    return message


def start_message(
    task: Task, program: Program, attempt: int, gpu: int, quota_milli: int | None
) -> Message:
    """Make the message that starts a task."""
    return {
        "is": "start", "task": task.id, "attempt": attempt, "gpu": gpu,
        "program": asdict(program), "needs": asdict(task), "quota_milli": quota_milli,
    }  # fmt: skip


def program_of(message: Message) -> Program:
    """Return what a start message runs."""
    fields = dict(message["program"])
    for name in ("arguments", "grid", "block"):
        fields[name] = tuple(fields[name])
    return Program(**fields)


def needs_of(message: Message) -> Task:
    """Return the needs in a start message."""
    return Task(**message["needs"])
