"""What a device is given by the daemon, and tells it: see `gpud.server.hosts.device.Device`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.compilation.modules import Module
from gpud.units import JobId

if TYPE_CHECKING:
    from gpud.server.hosts.device import Device

__all__ = ["HOST_COMMAND", "Connect", "DeviceObserver", "HostLimits"]

HOST_COMMAND = ("-m", "gpud.device.host")
"""What Python is given to start a device host."""

Connect = Callable[[], socket.socket]
"""Stands in for starting a process, in tests: returns the front's end of a new host's link."""


class HostLimits(NamedTuple):
    """How long a host may take, in seconds.

    Attributes:
        silent: how long it may not answer, at the least.
        compile: how long it may be at one compilation.
        start: how long it may take to start.
    """

    silent: float = 30.0
    compile: float = 60.0
    start: float = 60.0


class DeviceObserver(Protocol):
    """What a device tells: `gpud.server.scheduling.runner.Runner`."""

    def device_ready(self, device: Device) -> None:
        """A host is up."""

    def device_failed(
        self, device: Device, reason: str, culprit: JobId | None, unstarted: tuple[JobId, ...]
    ) -> None:
        """A host that was up is gone; see `gpud.core.events.DeviceFailed`."""

    def device_given_up(self, device: Device, reason: str) -> None:
        """There will be no other host."""

    def job_prepared(self, job: JobId, error: GpudError | None) -> None:
        """The current host has what a job needs, or cannot have it."""

    def blocks_left(self, message: hm.BlocksLeft) -> None:
        """See `gpud.device.host.messages.BlocksLeft`."""

    def job_ended(self, message: hm.JobEnded) -> None:
        """See `gpud.device.host.messages.JobEnded`."""

    def variables_lost(self, module: Module) -> None:
        """What kernels may have written to a module's variables is gone with its host."""

    def arrays_lost(self, device: Device, session: int, count: int, size_bytes: int) -> None:
        """Arrays of a session were in the memory of a host that is lost, and nowhere else."""

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """(base, size, descriptor) of a session's memory on a device, if it has any there."""
