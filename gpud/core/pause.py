"""The pause of a device: who asked for it, since when, and how far it goes.

Problem: somebody has to work on a machine, or needs it alone for an hour. Nothing new may start on
a device then, what runs goes on or makes room, and afterwards all goes on where it was.

Approach: a device has a `PauseState` or none. While it has one, its waiting jobs are in no queue,
so that no policy sees them. With ``now``, all that jobs can give up is taken from them, and the
policy is not asked until the pause ends, so that nobody gets it. The pause is the device's: it
outlasts the device's hosts, and ends with the daemon.

Properties (checked by `gpud.core.validate` and `tests.property.scheduler_simulation` as "paused"):
    no job is started on a paused device;
    on one that is paused with ``now``, nothing is given to a job without a reservation, and those
    that can be resized have nothing, but for the task blocks that they still run;
    when the pause ends, what can run does.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PauseState"]


class PauseState(NamedTuple):
    """Why a device is paused.

    Attributes:
        by, since: who did it and when, for messages.
        now: running jobs have given up what they had, too.
        at_ns: the time of the first request.
    """

    by: str
    since: str
    now: bool
    at_ns: int
