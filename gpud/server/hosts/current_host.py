"""The interface to a device's current host that the parts of `Device` depend on."""

from __future__ import annotations

from typing import Protocol

from gpud.errors import DeviceLost
from gpud.server.hosts.resources import ResourceRegistry
from gpud.server.ipc.child_process import ChildProcess

__all__ = ["CurrentHost"]


class CurrentHost(Protocol):
    """The device's current host, if it has one; implemented by `gpud.server.hosts.device.Device`.

    The host process may be replaced at any time; state that belongs to one process is in
    `registry`, of which each host gets a new one.

    Attributes:
        state: see `gpud.server.state.device_status.DeviceStatus`.
        registry: see `gpud.server.hosts.device.Device`.
        process: the host process; None if there is none.
    """

    state: str
    process: ChildProcess | None
    registry: ResourceRegistry

    @property
    def alive(self) -> bool:
        """Whether there is a host that can receive messages."""

    @property
    def last_failure(self) -> str:
        """How the last host ended."""

    def lost_error(self, reason: str) -> DeviceLost:
        """Return the error for a request that this device cannot serve now."""
