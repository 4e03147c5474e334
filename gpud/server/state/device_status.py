"""The state of a device, as all parts of the server may read it."""

from __future__ import annotations

from gpud.device.host.messages import HostReady

__all__ = ["DeviceStatus"]


class DeviceStatus:
    """One device; `gpud.server.hosts.device.Device` is one and keeps it up to date.

    Attributes:
        index: the device's number, from 0.
        spec: the device as in ``--device``.
        state: ``starting``, ``ready``, ``failed`` (given up) or ``stopped``.
        info: the properties that the host reported when it became ready; kept while the next one
            starts.
        always_polls: whether every kernel runs with kill polls on the device. On the CPU they cost
            2 %, and an endless kernel without them can only be ended with the host and all its
            jobs. On a GPU their cost is not known, and only jobs with a timeout have them.
        failures: how earlier hosts ended, the latest last.
        restarts: how often a host was started again.
    """

    def __init__(self, index: int, spec: str) -> None:
        self.index = index
        self.spec = spec
        self.state = "starting"
        self.info: HostReady | None = None
        self.always_polls = False
        self.failures: list[str] = []
        self.restarts = 0
