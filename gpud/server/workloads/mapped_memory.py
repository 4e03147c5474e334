"""The memory of workloads whose programs have contexts of their own on a GPU, and map it there.

What persists is the program's own memory: here it is counted. What is temporary is the device
host's, one allocation for all such workloads of a device (`gpud.device.cuda.memory.temporary_zone`)
that a program maps in its turn: the host sends it through a socket that is made for the turn.

Properties:
    cleared: between the turns of two programs the zone is zeroed; of one that ended in its turn the
        next has another allocation, as nobody knows whether the first has given it up;
    exact: the zone is as large as the largest need of those that are open;
    apart: programs of two users never have the same memory, as a program could keep it mapped.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpud.errors import GpudError, InvalidArgument
from gpud.server.ipc.child_process import OnReply
from gpud.server.state.arenas import Arenas
from gpud.server.workloads.workload import Workload
from gpud.wire import messages as wm

__all__ = ["MappedMemory", "ZoneOwner"]


class ZoneOwner(Protocol):
    """A device whose host has a temporary zone: `gpud.server.hosts.device.Device`."""

    def lend_zone(self, size: int, descriptor: int, on_reply: OnReply) -> None:
        """Have ``size`` bytes or more sent on a socket, given by its descriptor."""

    def clear_zone(self, on_reply: OnReply, *, free: bool) -> None:
        """Zero the zone, or give its memory back."""


class MappedMemory:
    """The memory of all such workloads.

    Args:
        arenas: count memory.
    """

    def __init__(self, arenas: Arenas) -> None:
        self._arenas = arenas
        self._zones: Mapping[int, ZoneOwner] = {}
        self._counted: dict[int, tuple[Workload, int, int]] = {}  # device, bytes
        self._dirty: dict[int, int] = {}  # by device: which workload has had its zone
        self._users: dict[int, int] = {}  # by device: the user of the last one that had it

    def set_up(self, zones: Mapping[int, ZoneOwner]) -> None:
        """Prepare for the devices whose memory programs can map."""
        self._zones = zones

    def check(self, device: int | None) -> None:
        """Check that workloads of a device can map its memory.

        Raises:
            InvalidArgument: they cannot.
        """
        if device is None:
            raise InvalidArgument("a program that maps its memory itself says on which device")
        if device not in self._zones:
            raise InvalidArgument(
                f"device {device} is no GPU, so a program cannot map its memory itself: use the "
                "arrays of gpu.workload() there"
            )

    def counted_bytes(self, device: int) -> int:
        """Return the persistent bytes of such workloads on a device."""
        return sum(size for _, on, size in self._counted.values() if on == device)

    def open_workload(self, workload: Workload, device: int, persistent: int) -> None:
        """Count a workload's persistent memory with its offset.

        That of a movable one is counted as part of the room that all such have together.

        Raises:
            OutOfMemory, LimitExceeded, InternalError: as `Arenas.reserve`.
        """
        owner = workload.owner
        if workload.movable:
            self._arenas.ledger.check_limits(device, persistent)
            persistent = 0
        self._arenas.reserve(owner.number, owner.account, device, persistent)
        self._counted[workload.number] = workload, device, persistent

    def shrink_workload(self, workload: Workload, persistent: int) -> None:
        """Count less."""
        _, device, before = self._counted[workload.number]
        self._arenas.release(workload.owner.number, device, before - persistent)
        self._counted[workload.number] = workload, device, persistent

    def close_workload(self, workload: Workload, *, freed: bool) -> None:
        """Count a workload's memory no more; ``freed``: its session's is counted no more."""
        _, device, size = self._counted.pop(workload.number)
        if not freed:
            self._arenas.release(workload.owner.number, device, size)
        alone = not any(on == device for _, on, _ in self._counted.values())
        if alone or self._dirty.get(device) == workload.number:  # it may have the zone mapped yet
            self._dirty.pop(device, None)
            self._users.pop(device, None)
            self._zones[device].clear_zone(_ignore, free=True)

    def begin_turn(self, workload: Workload, then: Callable[[GpudError | None], None]) -> None:
        """Have a workload's program get the zone, then call ``then`` with the error, or None."""
        assert workload.device is not None
        zone = self._zones[workload.device]
        if workload.lent is None:
            then(None)
            return
        other_user = self._users.get(workload.device, workload.owner.uid) != workload.owner.uid
        if other_user or self._dirty.get(workload.device, workload.number) != workload.number:
            zone.clear_zone(_ignore, free=other_user)  # an error: there is none any more
        self._dirty[workload.device] = workload.number
        self._users[workload.device] = workload.owner.uid
        ours, theirs = socket.socketpair()

        def lent(_: Any, error: GpudError | None) -> None:
            with theirs:
                if error is None:
                    message = wm.ZoneLent(workload.number)
                    workload.owner.send_with(message, theirs.fileno())
            then(error)

        with ours:
            zone.lend_zone(self._zone_bytes(workload.device), ours.fileno(), lent)

    def _zone_bytes(self, device: int) -> int:
        """Return the largest temporary need of such workloads on a device."""
        lent = (one.lent for one, on, _ in self._counted.values() if on == device)
        return max(pair[1] for pair in lent if pair is not None)

    def clear_temporary(self, workload: Workload, then: Callable[[], None]) -> None:
        """Zero the zone, which the program has given up, then call ``then``."""
        assert workload.device is not None
        if workload.device not in self._dirty:
            then()
            return
        self._dirty.pop(workload.device, None)
        # An error: the host is gone, and the zone with it.
        self._zones[workload.device].clear_zone(lambda _, error: then(), free=False)


def _ignore(_: Any, error: GpudError | None) -> None:
    """Ignore that the host is gone: what it had is gone with it."""
