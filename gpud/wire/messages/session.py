"""Messages that open and end a session, and the replies that all requests have in common."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import plain, text, uint
from gpud.wire.messages.protocol import Request, from_client, from_daemon

__all__ = ["Answer", "Failed", "Goodbye", "Hello", "Resume", "Welcome"]


@from_client(1)
class Hello(NamedTuple):
    """The first message of a connection; answered by `Welcome`."""

    request: Request
    version: Annotated[int, uint(16), "the newest protocol version that the client speaks"]
    program: Annotated[str, text(256), "the client program's name, shown by gpuctl"]


@from_daemon(64)
class Welcome(NamedTuple):
    """The connection is accepted as a session."""

    request: Request
    version: Annotated[int, uint(16), "the protocol version that both sides use"]
    session: Annotated[int, uint(32), "the session's number"]
    devices: Annotated[
        list[dict[str, Any]],
        plain(),
        'maps: "index", "spec" (as in --device), "state" ("starting", "ready", "failed" or '
        '"stopped"), "name", "kind" ("cpu" or "cuda"), "sms", "memory_bytes", "capability", '
        '"exclusive_step" (exclusive reservations are multiples of it, in SMs; 0: not supported), '
        '"online_sms" (the most that online jobs may have together, an exact number as text), '
        '"arrays" ("shared": the file of `Arena` is their memory; "copied": `Upload` and '
        "`Download` copy between it and the device)",
    ]
    limits: Annotated[
        dict[str, int],
        plain(),
        'a map: "message_bytes", "jobs" that have not ended, lanes included, "memory_bytes"',
    ]
    daemon: Annotated[dict[str, Any], plain(), 'a map: "version", "pid", "policy"']


@from_client(17)
class Resume(NamedTuple):
    """Make this session one that can outlive the daemon; answered by `Answer`.

    From now on `Began` is sent. When the daemon has ended, a client opens a session with the next
    one, sends this with the number of its latest job, and makes its arrays, with their addresses,
    and its modules again.
    """

    request: Request
    last_job: Annotated[int, uint(32), "jobs are numbered from the one after this"]


@from_daemon(69)
class Answer(NamedTuple):
    """A request has succeeded."""

    request: Request
    value: Annotated[Any, plain(), "the result, nil if there is none"] = None


@from_daemon(70)
class Failed(NamedTuple):
    """A request was refused or failed; it has changed nothing."""

    request: Annotated[int, uint(32), "0 if the request's number could not be read"]
    error: Annotated[dict[str, Any], plain(), 'a map: "code", "message", "fields"']


@from_daemon(73)
class Goodbye(NamedTuple):
    """The last message of a connection: why the daemon closes it."""

    error: Annotated[dict[str, Any], plain(), 'a map: "code", "message", "fields"']
