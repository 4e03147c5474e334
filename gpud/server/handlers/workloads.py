"""Handles requests about workloads: open, iterate, grow, end."""

from __future__ import annotations

from gpud.server.hosts.devices import Devices
from gpud.server.state.session import Session
from gpud.server.workloads.workloads import Workloads
from gpud.wire import messages as wm

__all__ = ["WorkloadRequests"]


class WorkloadRequests:
    """Handles requests about workloads.

    Args:
        workloads: all of them.
        devices: by index.
    """

    def __init__(self, workloads: Workloads, devices: Devices) -> None:
        self._devices = devices
        self._workloads = workloads
        self.begin = workloads.begin
        self.end_iteration = workloads.end_iteration
        self.grow = workloads.grow
        self.fit = workloads.fit
        self.region_moved = workloads.region_moved
        self.end = workloads.end

    def open(self, session: Session, message: wm.OpenWorkload) -> None:
        """Handle `OpenWorkload`: answer `WorkloadOpened` when there is room."""
        if message.device is not None:
            self._devices.usable(message.device)
        self._workloads.open(session, message)
