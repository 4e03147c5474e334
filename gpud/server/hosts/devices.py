"""The devices of the daemon, by index."""

from __future__ import annotations

from gpud.errors import DeviceLost, UnknownName
from gpud.server.hosts.device import Device

__all__ = ["Devices"]


class Devices(list[Device]):
    """All devices; the daemon adds them at its start."""

    def usable(self, index: int) -> Device:
        """Return the device with that index.

        Raises:
            UnknownName: there is none.
            DeviceLost: it is there no more, and will not be again.
        """
        if index >= len(self):
            raise UnknownName(f"there is no device {index}; the daemon has {len(self)}, from 0")
        device = self[index]
        if device.state == "failed":
            raise DeviceLost(
                f"device {index} ({device.spec}) does not start any more: its host "
                f"{device.last_failure}; see the daemon's log, and restart the daemon",
                device=device.spec,
            )
        return device
