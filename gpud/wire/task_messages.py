"""The task protocol: every message between gpuctl or the client library and a user's runner.

The runner's socket is the user's own; see `gpud.wire.messages` for how messages travel.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import (
    amount,
    blob,
    choice,
    flag,
    listed,
    optional,
    plain,
    text,
    uint,
)
from gpud.wire.message_table import MessageTable, Sender

__all__ = [
    "TASK_PROTOCOL",
    "AskQueues",
    "AwaitTask",
    "ChangeTask",
    "Greet",
    "ListTasks",
    "ReportTasks",
    "ShowTask",
    "SubmitTask",
    "TaskAnswer",
    "TaskRefused",
]

TASK_PROTOCOL = MessageTable("task", 1)
_from_client = TASK_PROTOCOL.message(Sender.CLIENT)
_from_runner = TASK_PROTOCOL.message(Sender.DAEMON)
_Request = Annotated[int, uint(32), "the client's number for this request; the answer carries it"]
_Task = Annotated[int, uint(63), "the task's id"]
_MOST_BYTES = 1 << 21  # of all arguments, or of an environment: Linux takes no more


@_from_client(1)
class Greet(NamedTuple):
    """Ask who listens; answered with a map: "version", "pid", "protocol"."""

    request: _Request
    version: Annotated[str, text(64), "of the client's gpud"]


@_from_client(2)
class SubmitTask(NamedTuple):
    """Submit a task; answered with its row, see `ShowTask`."""

    request: _Request
    command: Annotated[
        tuple[bytes, ...], listed(blob(1 << 17), 1, 1 << 16), "the program and its arguments"
    ]
    directory: Annotated[bytes, blob(4096), "its working directory, an absolute path"]
    environment: Annotated[bytes, blob(_MOST_BYTES), "NAME=VALUE, each ended by a zero byte"]
    umask: Annotated[int, uint(9), "its umask"]
    limits: Annotated[
        tuple[Any, ...],
        listed(plain(), 0, 64),
        "its resource limits: for each its number, soft and hard limit, -1 for none",
    ]
    socket: Annotated[str, text(256), "the daemon whose devices are GPUs for it"]
    name: Annotated[str, text(256), "for people; empty: the program's"] = ""
    cores: Annotated[
        int | None,
        optional(uint(16, least=1)),
        "cores; nil: one, or with GPUs as many as it is found to need",
    ] = None
    gpus: Annotated[
        tuple[int, int] | None, optional(amount()), "GPUs; nil: none; less than 1: a part of one"
    ] = None
    reserved: Annotated[bool, flag(), "a part of a GPU is reserved, and not a quota"] = False
    memory_bytes: Annotated[int | None, optional(uint(63, least=1)), "the most it takes"] = None
    category: Annotated[str, text(64), "of a GPU task, such as image"] = ""
    pipelined: Annotated[bool, flag(), "its input is prepared while it computes"] = False
    weights_bytes: Annotated[int | None, optional(uint(63)), "of its model"] = None
    complexity: Annotated[
        int | None, optional(uint(8, most=100)), "of what it does on the CPU, in percent"
    ] = None
    after: Annotated[
        tuple[int, ...], listed(uint(63), 0, 1024), "tasks that must be done before it"
    ] = ()
    time_limit_ns: Annotated[
        int | None, optional(uint(63, least=1)), "how long an attempt may run"
    ] = None
    retries: Annotated[int, uint(16, most=1000), "how often it is run again if it fails"] = 0
    requeue: Annotated[bool, flag(), "it is run again if it is lost with its machine"] = True
    requeue_signal: Annotated[
        int | None, optional(uint(8, least=1, most=64)), "by which it is told to checkpoint and end"
    ] = None
    held: Annotated[bool, flag(), "it waits until it is released"] = False


@_from_client(3)
class ListTasks(NamedTuple):
    """Ask for tasks, the latest last; answered with a map: "tasks", rows as of `ShowTask`."""

    request: _Request
    all: Annotated[bool, flag(), "also those that have ended"] = False
    limit: Annotated[int, uint(32), "the latest so many; 0: all"] = 0


@_from_client(4)
class ShowTask(NamedTuple):
    """Ask for a task; answered with its row.

    A row has "id", "state", "exit_status" and more; this answer also "attempts" and "why".
    """

    request: _Request
    task: _Task


@_from_client(5)
class ChangeTask(NamedTuple):
    """Cancel, hold back or let go a task; answered with its row."""

    request: _Request
    task: _Task
    action: Annotated[str, choice("cancel", "hold", "release"), "what to do"]
    by: Annotated[str, text(256), "who wants it, for the record"] = ""


@_from_client(6)
class AwaitTask(NamedTuple):
    """Wait until a task has ended; answered then, with its row."""

    request: _Request
    task: _Task


@_from_client(7)
class AskQueues(NamedTuple):
    """Ask for nodes and queues; answered with a map: "nodes", "queues", "control"."""

    request: _Request


@_from_client(8)
class ReportTasks(NamedTuple):
    """Ask what tasks had of cores and GPUs; answered with a map: "rows", the largest use first."""

    request: _Request
    by: Annotated[str, choice("user", "program", "category"), "a row for each of these"]
    since_s: Annotated[int, uint(40), "of attempts that ended then or later, seconds since 1970"]


@_from_runner(64)
class TaskAnswer(NamedTuple):
    """The answer to a request."""

    request: _Request
    answer: Annotated[Any, plain(), "what was asked for"]


@_from_runner(65)
class TaskRefused(NamedTuple):
    """A request is refused."""

    request: _Request
    error: Annotated[dict[str, Any], plain(), "the error: code, message, fields"]
