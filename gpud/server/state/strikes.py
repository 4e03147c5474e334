"""Stops users whose jobs cost a device's process, and with it everybody's running jobs, repeatedly.

Approach: each time that a job costs a process, its user gets a *strike*. With
`MOST` of them within `WINDOW_S`, no job of that user is started for `STOPPED_S`, while others use
the daemon. Alone, a user may go on: nobody else pays.

Properties:
    once: a job counts once, however its end is reported;
    forgotten: strikes count for `WINDOW_S`; nothing is kept of users without any.
"""

from __future__ import annotations

from gpud.errors import LimitExceeded
from gpud.server.state.access import user_name
from gpud.units import JobId, job_name

__all__ = ["MOST", "STOPPED_S", "WINDOW_S", "Strikes"]

MOST = 3
WINDOW_S = 600.0
STOPPED_S = 300.0


class Strikes:
    """The strikes of all users, at monotonic times in seconds."""

    def __init__(self) -> None:
        self._by_user: dict[int, dict[JobId, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_user)

    def add(self, uid: int, job: JobId, now_s: float) -> bool:
        """Add a strike for a job; return whether its user is stopped by it."""
        jobs = {one: at for one, at in self._of(uid, now_s).items() if one != job}
        fresh = job not in self._by_user.get(uid, {})
        self._by_user[uid] = {**jobs, job: now_s}
        return fresh and len(self._by_user[uid]) >= MOST

    def check(self, uid: int, now_s: float) -> None:
        """Check that a user's jobs may be started.

        Raises:
            LimitExceeded: the user is stopped; it says until when, and why.
        """
        jobs = self._of(uid, now_s)
        left_s = max(jobs.values(), default=0.0) + STOPPED_S - now_s
        if len(jobs) < MOST or left_s <= 0:
            return
        names = ", ".join(map(job_name, jobs))
        raise LimitExceeded(
            f"jobs {names} of user {user_name(uid)} have each ended a device's process, and with "
            f"it what others ran there: for {left_s:.0f} s no job of this user is taken; find out "
            "with gpuctl why what they did, and run them on a private daemon (gc.local) first",
            limit="strikes",
            value=MOST,
        )

    def _of(self, uid: int, now_s: float) -> dict[JobId, float]:
        """Return the strikes of a user that count."""
        jobs = self._by_user.get(uid)
        if jobs is None:
            return {}
        left = {job: at for job, at in jobs.items() if now_s - at < WINDOW_S}
        if left:
            self._by_user[uid] = left
        else:
            del self._by_user[uid]
        return left
