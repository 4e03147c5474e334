"""What one user, and one session, can make the daemon keep: counted, and refused beyond a limit.

Problem: everything that a client sends may have to wait: launches for their turn, sources for the
compiler, answers for a reader. A client, or a user with many of them, must not be able to fill the
front's memory with it, nor take all connections or the scheduler's time.

Approach: a `Quota` counts bytes against a limit and passes them on to the one above it, the user's;
whoever keeps something takes before, and gives back when it is gone. `Users` has one `User` for
each user with a connection.

Terms (units in brackets):
    host memory [bytes]: what the front keeps for a client, about: the bytes as they came, and a
        round number for each object. Not the arrays, which are counted in
        `gpud.core.memory.ledger`.

Properties:
    limited: no quota is over its limit, but for `Quota.force_charge`, for what cannot be refused;
    atomic: a `charge` that raises has changed nothing;
    empty_at_the_end: a user without connections and sessions is forgotten.
"""

from __future__ import annotations

from gpud.config import Config
from gpud.errors import LimitExceeded

__all__ = ["ARRAY_BYTES", "FOLLOWED_BYTES", "JOB_BYTES", "LAUNCH_BYTES", "Quota", "User", "Users"]

JOB_BYTES = 4096
"""What a job takes in the front and in the scheduler beside its launches; measured: 2.6 KiB."""

LAUNCH_BYTES = 256
"""What a launch takes beside its bytes."""

FOLLOWED_BYTES = 32
"""What each job that a job is to follow takes; measured: 20."""

ARRAY_BYTES = 512
"""What an array takes beside its values; measured: 450 where it is copied, else 90."""


class Quota:
    """Bytes that are kept for somebody.

    Args:
        limit_bytes: the most.
        setting: which says so.
        whose: ``session`` or ``user``, for messages.
        above: the quota of which this is a part.
    """

    __slots__ = ("_above", "_setting", "_whose", "limit_bytes", "used_bytes")

    def __init__(
        self, limit_bytes: int, setting: str, whose: str, above: Quota | None = None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._setting = setting
        self._whose = whose
        self._above = above

    def charge(self, size: int, what: str) -> None:
        """Count ``size`` bytes more.

        Raises:
            LimitExceeded: that would be too many; ``what`` they are for is in the message.
        """
        quota: Quota | None = self
        while quota is not None:
            if quota.used_bytes + size > quota.limit_bytes:
                raise quota.exceeded(f"{what} would take {size} bytes more")
            quota = quota._above
        self.uncharge(-size)

    def uncharge(self, size: int) -> None:
        """Count ``size`` bytes less."""
        quota: Quota | None = self
        while quota is not None:
            quota.used_bytes -= size
            quota = quota._above

    def force_charge(self, size: int) -> LimitExceeded | None:
        """Count ``size`` bytes more that are there already; returns the error if a limit is broken.

        The bytes are counted in any case.
        """
        self.used_bytes += size
        found = None if self._above is None else self._above.force_charge(size)
        if self.used_bytes > self.limit_bytes:
            return self.exceeded("messages that were not read, or not sent to their end, take more")
        return found

    def close(self) -> None:
        """Give back all that is left; what is given later is counted nowhere."""
        if self._above is not None:
            self._above.uncharge(self.used_bytes)
            self._above = None

    def exceeded(self, problem: str) -> LimitExceeded:
        """The error for what goes over the limit."""
        used_bytes = min(self.used_bytes, self.limit_bytes)
        return LimitExceeded(
            f"the daemon keeps {used_bytes} of at most {self.limit_bytes} bytes for this "
            f"{self._whose} (queued launches, programs, requests, answers, a little for each "
            f"array), and {problem}; wait for jobs and answers, unload modules, free arrays, or "
            f"raise {self._setting} in its configuration",
            limit=self._setting,
            value=self.limit_bytes,
        )


class User:
    """What the connections and sessions of one user have together.

    Attributes:
        connections: open ones.
        jobs: those that have not ended.
        sessions: those that are not gone, whose client may be.
        host_memory: what the daemon keeps for them.
    """

    __slots__ = ("_config", "connections", "host_memory", "jobs", "sessions", "uid")

    def __init__(self, uid: int, config: Config) -> None:
        self._config = config
        self.uid = uid
        self.connections = 0
        self.sessions = 0
        self.jobs = 0
        self.host_memory = Quota(config.user_host_memory, "user_host_memory", "user")

    def session_quota(self) -> Quota:
        """For a new session of this user."""
        return Quota(
            self._config.session_host_memory,
            "session_host_memory",
            "session",
            above=self.host_memory,
        )

    def check_connections(self) -> None:
        """Look whether the latest connection is one too many.

        Raises:
            LimitExceeded: it is.
        """
        most = self._config.max_user_connections
        if self.connections > most:
            raise LimitExceeded(
                f"the user has {most} connections, as many as one user may have; close some, or "
                "raise max_user_connections in the daemon's configuration",
                limit="max_user_connections",
                value=most,
            )

    def check_jobs(self) -> None:
        """Look whether there is room for another job.

        Raises:
            LimitExceeded: there is none.
        """
        most = self._config.max_jobs_per_user
        if self.jobs >= most:
            raise LimitExceeded(
                f"the user has {most} jobs that have not ended, in all sessions; wait for some, or "
                "raise max_jobs_per_user in the daemon's configuration",
                limit="max_jobs_per_user",
                value=most,
            )


class Users:
    """Every user with a connection or a session."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._users: dict[int, User] = {}

    def __len__(self) -> int:
        return len(self._users)

    def user(self, uid: int) -> User:
        """The user's counts."""
        found = self._users.get(uid)
        if found is None:
            found = self._users[uid] = User(uid, self._config)
        return found

    def forget_unused(self, user: User) -> None:
        """Forget a user of whom nothing is left."""
        if not user.connections and not user.sessions:
            self._users.pop(user.uid, None)
