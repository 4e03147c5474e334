"""Errors of requests to the daemon in general: protocol, arguments, names, limits, shutdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gpud.errors.base import CallerError, DaemonError

__all__ = [
    "Draining",
    "FrameError",
    "InvalidArgument",
    "LaneRefused",
    "LimitExceeded",
    "ProtocolError",
    "TaskFailed",
    "UnknownName",
]


class ProtocolError(CallerError, ValueError):
    """A message violates the protocol. The connection stays open."""

    code = "protocol"
    fields: ClassVar[Mapping[str, str]] = {
        "request": "the message's request number, None if it has none or it cannot be read",
        "job": "the number of the job that the message concerns, None if it concerns none",
    }
    request: int | None
    job: int | None

    def __init__(self, message: str, *, request: int | None = None, job: int | None = None) -> None:
        super().__init__(message, request=request, job=job)


class FrameError(ProtocolError):
    """The stream has no valid frame, or a frame has no valid msgpack. The connection is closed."""

    code = "frame"


class InvalidArgument(CallerError, ValueError):
    """An argument or a setting has a value that is not allowed."""

    code = "invalid-argument"


class LaneRefused(InvalidArgument):
    """No lane can launch this kernel; a job of another stream can."""

    code = "lane-refused"
    fields: ClassVar[Mapping[str, str]] = {
        "reason": "'whole', the form that needs all blocks at once, or 'checked', compiled for the "
        "checking mode",
    }
    reason: str

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message, reason=reason)


class UnknownName(CallerError, LookupError):
    """There is no such job, module, array, variable or device, or the client may not access it."""

    code = "unknown-name"


class LimitExceeded(CallerError):
    """The request exceeds a limit of the daemon."""

    code = "limit"
    fields: ClassVar[Mapping[str, str]] = {
        "limit": "name of the limit: that of the setting, if a setting determines it",
        "value": "the limit itself",
    }
    limit: str | None
    value: int | None

    def __init__(self, message: str, *, limit: str | None = None, value: int | None = None) -> None:
        super().__init__(message, limit=limit, value=value)


class TaskFailed(CallerError):
    """A task has failed: its program ended with another status than 0, or could not be run."""

    code = "task-failed"
    fields: ClassVar[Mapping[str, str]] = {
        "task": "its id",
        "exit_status": "of its last attempt; None: it had none",
    }
    task: int | None
    exit_status: int | None

    def __init__(
        self, message: str, *, task: int | None = None, exit_status: int | None = None
    ) -> None:
        super().__init__(message, task=task, exit_status=exit_status)


class Draining(DaemonError):
    """The daemon is shutting down: it finishes accepted jobs and accepts no more."""

    code = "draining"
