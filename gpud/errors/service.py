"""What is wrong with a request to the daemon, whatever it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gpud.errors.base import CallerError, DaemonError

__all__ = [
    "Draining",
    "FrameError",
    "InvalidArgument",
    "LimitExceeded",
    "ProtocolError",
    "UnknownName",
]


class ProtocolError(CallerError, ValueError):
    """A message is not what the protocol says. The connection goes on."""

    code = "protocol"
    fields: ClassVar[Mapping[str, str]] = {
        "request": "the message's request number, None if it has none or it cannot be read",
        "job": "the number of the job that the message is for, None if it is for none",
    }
    request: int | None
    job: int | None

    def __init__(self, message: str, *, request: int | None = None, job: int | None = None) -> None:
        super().__init__(message, request=request, job=job)


class FrameError(ProtocolError):
    """What arrived is no frame, or holds no msgpack. Nothing that follows can be read."""

    code = "frame"


class InvalidArgument(CallerError, ValueError):
    """An argument or a setting is not one of those that are allowed."""

    code = "invalid-argument"


class UnknownName(CallerError, LookupError):
    """There is no such job, module, array, variable or device, or it belongs to somebody else."""

    code = "unknown-name"


class LimitExceeded(CallerError):
    """The request is within what the device can do, but over a limit of the daemon's."""

    code = "limit"
    fields: ClassVar[Mapping[str, str]] = {
        "limit": "the setting that limits, as in the configuration",
        "value": "what it is set to",
    }
    limit: str | None
    value: int | None

    def __init__(self, message: str, *, limit: str | None = None, value: int | None = None) -> None:
        super().__init__(message, limit=limit, value=value)


class Draining(DaemonError):
    """The daemon is shutting down: it ends what it has, and accepts nothing more."""

    code = "draining"
