"""Messages of gpuctl and of who runs the daemon: its state, events, history and settings."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import choice, flag, listed, optional, plain, text, uint
from gpud.wire.messages.protocol import Request, from_client, from_daemon

__all__ = [
    "TOPICS",
    "AskHistory",
    "Drain",
    "Follow",
    "Happened",
    "Pause",
    "Query",
    "Reload",
    "SetSetting",
]

TOPICS = (
    "status", "jobs", "kernels", "memory", "workloads", "events", "trace", "doctor", "config",
)  # fmt: skip
"""The topics of `Query`."""


@from_client(13)
class Query(NamedTuple):
    """Ask about the daemon; `Answer` holds a map, restricted to what the user may see."""

    request: Request
    topic: Annotated[str, choice(*TOPICS), "what to report"]
    limit: Annotated[
        int, uint(32), "the most rows, latest first; 0 for all that are kept (4096 jobs)"
    ] = 0


@from_client(14)
class Follow(NamedTuple):
    """Subscribe to events, sent as `Happened`; answered by `Answer`."""

    request: Request
    on: Annotated[bool, flag(), "false ends it"] = True


@from_daemon(72)
class Happened(NamedTuple):
    """An event, sent to clients that have subscribed with `Follow`."""

    event: Annotated[
        dict[str, Any], plain(), 'a map: "at_s" (seconds since 1970), "event", and more'
    ]


@from_client(18)
class AskHistory(NamedTuple):
    """Ask for jobs that have ended, or for sums over them; answered by `Answer`.

    The answer is a map with "rows": jobs, the latest last, or sums, the largest use first. Users
    get their own jobs, root and the daemon's user those of all.
    """

    request: Request
    user: Annotated[str | None, optional(text(256)), "of this user only, by name or number"] = None
    since_s: Annotated[
        int | None, optional(uint(40)), "ended at this time or later, in seconds since 1970"
    ] = None
    until_s: Annotated[int | None, optional(uint(40)), "ended before this time"] = None
    state: Annotated[
        str | None, optional(choice("done", "failed", "cancelled")), "ended like this"
    ] = None
    by: Annotated[
        str | None,
        optional(choice("user", "program", "state", "device")),
        "sums by this instead of single jobs",
    ] = None
    limit: Annotated[int, uint(32, most=100_000), "the most rows; 0: as many as fit"] = 0


@from_client(24)
class Pause(NamedTuple):
    """Pause devices, or let them go on; for root and the daemon's own user.

    Answered by `Answer` with a map: "devices", for each its "index", "spec", "paused" (as in topic
    "status"), and how many jobs are "running", with a share of it, "stopped", begun and without
    one, and "waiting".
    """

    request: Request
    devices: Annotated[list[int], listed(uint(8), 0, 256), "their indices; empty: all"]
    on: Annotated[bool, flag(), "false: let them go on"]
    now: Annotated[
        bool, flag(), "what runs gives up what it has, if it can be resized and has no reservation"
    ] = False


@from_client(25)
class Drain(NamedTuple):
    """End the daemon in order, as SIGTERM does; for root and the daemon's own user.

    Answered by `Answer` with a map: "jobs", how many are waited for, and "timeout_s", how long.
    """

    request: Request


@from_client(26)
class SetSetting(NamedTuple):
    """Keep a setting in the daemon's file, then do as `Reload`; for root and the daemon's user."""

    request: Request
    key: Annotated[str, text(256), "as in the file"]
    value: Annotated[str, text(4096), "as a flag of `gpud serve` has it"]


@from_client(27)
class Reload(NamedTuple):
    """Read the settings again; for root and the daemon's own user.

    What can change while the daemon runs does. Answered by `Answer` with a map: "file", which was
    read (nil if there is none); "changed", rows as in topic "config" of what is in force now; and
    "restart", of what differs and is in force after a restart, as "next" says.
    """

    request: Request
