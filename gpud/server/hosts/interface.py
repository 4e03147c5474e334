"""Parameters and callbacks of `gpud.server.hosts.device.Device`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.state.device_status import DeviceStatus
from gpud.server.state.modules import Module
from gpud.units import JobId

__all__ = ["HOST_COMMAND", "Connect", "DeviceObserver", "HostLimits"]

HOST_COMMAND = ("-m", "gpud.device.host")
"""Arguments to Python that start a device host."""

Connect = Callable[[], socket.socket]
"""Replaces starting a process, in tests: returns the front's end of a socket to a new host."""


class HostLimits(NamedTuple):
    """Time limits of a host, in seconds.

    Attributes:
        silent: how long it may leave heartbeats unanswered.
        compile: how long one compilation may take.
        start: how long it may take to start.
    """

    silent: float = 30.0
    compile: float = 60.0
    start: float = 60.0


class DeviceObserver(Protocol):
    """Receives a device's notifications; implemented by `gpud.server.hosts.runner.Runner`."""

    def device_ready(self, device: DeviceStatus) -> None:
        """Take notice that a host has become ready."""

    def device_failed(
        self, device: DeviceStatus, reason: str, culprit: JobId | None, unstarted: tuple[JobId, ...]
    ) -> None:
        """Take notice that a ready host is lost; see `gpud.core.events.DeviceFailed`."""

    def device_given_up(self, device: DeviceStatus, reason: str) -> None:
        """Take notice that the device has failed for good: no other host is started."""

    def job_prepared(self, job: JobId, error: GpudError | None) -> None:
        """Take notice that the host is prepared for a job, or that this failed with ``error``."""

    def blocks_left(self, message: hm.SlicesHeld) -> None:
        """See `gpud.device.host.messages.SlicesHeld`."""

    def launch_ended(self, message: hm.LaneLaunchEnded) -> None:
        """Take notice that a launch of a lane has ended unusually."""

    def lane_idle(self, message: hm.LaneLent) -> None:
        """See `gpud.device.host.messages.LaneLent`."""

    def lane_woke(self, message: hm.LaneTookBack) -> None:
        """See `gpud.device.host.messages.LaneTookBack`."""

    def job_ended(self, message: hm.RunEnded) -> None:
        """See `gpud.device.host.messages.RunEnded`."""

    def variables_lost(self, module: Module) -> None:
        """Values that kernels may have written to a module's variables are lost with the host."""

    def arrays_lost(self, device: DeviceStatus, session: int, count: int, size_bytes: int) -> None:
        """Arrays of a session are lost: their values were only in the memory of the lost host."""

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """Return (base, size, descriptor) of a session's arena on a device, if it has one there."""
