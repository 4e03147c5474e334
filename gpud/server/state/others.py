"""What a user is shown of what others hold: how much, and by the setting ``others`` whose it is.

Problem: a user sees only jobs and arrays of their own. With a device full of others' jobs, tables
of these alone say that nothing is on it.

Approach: sums by device and user, of the scheduler's accounts and the memory of arrays. Programs,
kernels and numbers of jobs are not in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpud.core.capacity import to_fraction
from gpud.core.scheduler import Scheduler
from gpud.server.state.access import Peer, may_manage, user_name
from gpud.server.state.arenas import Arenas

__all__ = ["Others"]


class Others:
    """Sums of what others hold.

    Args:
        scheduler: has the accounts.
        arenas: the memory of sessions' arrays.
        names: whether users are named.

    Attributes:
        names: may be changed.
    """

    def __init__(self, scheduler: Scheduler, arenas: Arenas, *, names: bool) -> None:
        self._scheduler = scheduler
        self._arenas = arenas
        self.names = names

    def job_of(self, uid: int) -> str:
        """Return how a job of another user's is called."""
        return f"a job of {user_name(uid)}'s" if self.names else "another user's job"

    def rows(self, peer: Peer) -> list[dict[str, Any]]:
        """Return what those whose jobs ``peer`` may not see hold, by device and user."""
        sums: dict[tuple[int, int | None], list[int]] = {}

        def add(device: int, uid: int, amounts: Iterable[int]) -> None:
            if may_manage(peer, uid) or not any(amounts):
                return
            key = (device, uid if self.names else None)
            sums[key] = [a + b for a, b in zip(sums.get(key, (0, 0, 0)), amounts, strict=True)]

        for index, device in self._scheduler.devices.items():
            for number, account in device.users.accounts.items():
                add(index, number, (account.allocated, account.online, 0))
        for use in self._arenas.usage():
            add(use.device, use.user, (0, 0, use.used_bytes))
        return [
            {
                "device": device,
                "user": None if uid is None else user_name(uid),
                "allocated": str(to_fraction(allocated)),
                "online": str(to_fraction(online)),
                "memory_bytes": memory_bytes,
            }
            for (device, uid), (allocated, online, memory_bytes) in sorted(
                sums.items(), key=lambda row: (row[0][0], -row[1][0], row[0][1] or 0)
            )
        ]
