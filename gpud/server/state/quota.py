"""Quotas of users and sessions: memory in the front, connections and jobs.

Problem: everything that a client sends may have to wait: launches for the scheduler, sources for
the compiler, answers for the client to read them. A client, or a user with many of them, must not
be able to exhaust the front's memory, nor take all connections or the scheduler's time.

Approach: a `Quota` counts bytes against a limit and passes them on to its parent, the user's; code
that keeps something charges it first, and uncharges it when it is dropped. `Users` has one `User`
for each user with a connection or a session.

Terms (units in brackets):
    host memory [bytes]: an estimate of what the front keeps for a client: the bytes as received,
        and a fixed amount for each object. Arrays are not included; `gpud.core.memory.ledger`
        counts them.

Properties:
    limited: no quota is over its limit, except by `Quota.force_charge`, for what cannot be refused;
    atomic: a `charge` that raises has changed nothing;
    unused_dropped: a user without connections and sessions is dropped.
"""

from __future__ import annotations

from gpud.config import Config, UserTerms
from gpud.errors import LimitExceeded
from gpud.server.state.access import account_of, user_name
from gpud.server.state.user_terms import terms_of

__all__ = ["ARRAY_BYTES", "FOLLOWED_BYTES", "JOB_BYTES", "LAUNCH_BYTES", "Quota", "User", "Users"]

JOB_BYTES = 4096
"""Charged for a job beside its launches, in front and scheduler; measured: 1.5 KiB of objects."""

LAUNCH_BYTES = 256
"""Charged for a launch beside its bytes."""

FOLLOWED_BYTES = 32
"""Charged for each job that a job waits for; measured: 20."""

ARRAY_BYTES = 512
"""Charged for an array beside its values; measured: 450 where it is copied, else 90."""


class Quota:
    """The bytes kept for one session or user, and their limit.

    Args:
        limit_bytes: the limit.
        setting: the name of the setting for the limit.
        whose: ``session`` or ``user``, for messages.
        above: the parent quota, which is charged too.
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
            LimitExceeded: that would exceed a limit; the message names ``what`` they are for.
        """
        quota: Quota | None = self
        while quota is not None:
            if quota.used_bytes + size > quota.limit_bytes:
                raise quota.exceeded(f"{what} would take {size} bytes more")
            quota = quota._above
        quota = self
        while quota is not None:
            quota.used_bytes += size
            quota = quota._above

    def uncharge(self, size: int) -> None:
        """Count ``size`` bytes less."""
        quota: Quota | None = self
        while quota is not None:
            quota.used_bytes -= size
            quota = quota._above

    def force_charge(self, size: int) -> LimitExceeded | None:
        """Count ``size`` bytes more in any case; returns the error if a limit is exceeded.

        For bytes that are kept already.
        """
        self.used_bytes += size
        problem = None if self._above is None else self._above.force_charge(size)
        if self.used_bytes > self.limit_bytes:
            return self.exceeded("messages that were not read, or not sent to their end, take more")
        return problem

    def close(self) -> None:
        """Uncharge the rest from the parent, which later calls leave unchanged."""
        if self._above is not None:
            self._above.uncharge(self.used_bytes)
            self._above = None

    def exceeded(self, problem: str) -> LimitExceeded:
        """Return the error for ``problem``, which exceeds the limit."""
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
    """Totals over the connections and sessions of one user.

    Attributes:
        connections: how many are open.
        jobs: how many have not ended.
        sessions: how many have not ended, including those whose client has disconnected.
        host_memory: the quota for what the daemon keeps for all of them.
        name: of the user.
        terms: what the configuration says of the user.
    """

    __slots__ = (
        "_config", "connections", "host_memory", "jobs", "name", "sessions", "terms", "uid"
    )  # fmt: skip

    def __init__(self, uid: int, config: Config) -> None:
        self.uid = uid
        self.connections = 0
        self.sessions = 0
        self.jobs = 0
        self.name = user_name(uid)
        self.host_memory = Quota(config.user_host_memory, "user_host_memory", "user")
        self.change_config(config)

    def change_config(self, config: Config) -> None:
        """Apply other settings; what is there already stays."""
        self._config = config
        self.terms = terms_of(config, self.uid)
        self.host_memory.limit_bytes = config.user_host_memory

    def session_quota(self) -> Quota:
        """Return a quota for a new session of this user."""
        return Quota(
            self._config.session_host_memory,
            "session_host_memory",
            "session",
            above=self.host_memory,
        )

    def check_connections(self) -> None:
        """Check the limit on the user's connections, the latest included.

        Raises:
            LimitExceeded: there is one too many.
        """
        most = self._config.max_user_connections
        if self.connections > most:
            raise LimitExceeded(
                f"the user has {most} connections, as many as one user may have; close some, or "
                "raise max_user_connections in the daemon's configuration",
                limit="max_user_connections",
                value=most,
            )

    @property
    def most_jobs_of_session(self) -> int:
        """How many jobs a session of this user may have, if it is the only one."""
        config, queue = self._config, self.terms.queue
        most = min(config.max_jobs_per_session, config.max_jobs_per_user)
        return max(1, most if queue is None else min(most, queue))

    def check_jobs(self, in_session: int) -> None:
        """Check that the user may submit another job in a session that has this many.

        Raises:
            LimitExceeded: the session or the user has as many as allowed.
        """
        most = self._config.max_jobs_per_session
        if in_session >= most:
            raise LimitExceeded(
                f"the session has {most} jobs that have not ended; wait for some, or raise "
                "max_jobs_per_session in the daemon's configuration",
                limit="max_jobs_per_session",
                value=most,
            )
        queue = self.terms.queue
        if queue is not None and self.jobs >= queue:
            raise LimitExceeded(
                f"user {self.name} has {self.jobs} jobs that have not ended, in all sessions, and "
                f"may queue {queue}; wait for some, or have queue raised for the user in the "
                "daemon's configuration (users, groups)",
                limit="queue",
                value=queue,
            )
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
        self._announced: dict[int, UserTerms] = {}

    def __len__(self) -> int:
        return len(self._users)

    def user(self, uid: int) -> User:
        """Return the totals of a user's account, created at the first call."""
        uid = account_of(uid)
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = User(uid, self._config)
        return user

    def change_config(self, config: Config) -> None:
        """Apply other settings to every user."""
        self._config = config
        for user in self._users.values():
            user.change_config(config)

    def all(self) -> list[User]:
        """Return every user."""
        return list(self._users.values())

    def news_of(self, user: User) -> UserTerms | None:
        """Return a user's terms if the scheduler was not told them yet; they count as told then."""
        if self._announced.get(user.uid, UserTerms()) == user.terms:
            return None
        self._announced[user.uid] = user.terms
        return user.terms

    def forget_unused(self, user: User) -> None:
        """Drop a user without connections and sessions."""
        if not user.connections and not user.sessions:
            self._users.pop(user.uid, None)
