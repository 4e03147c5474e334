"""A device's current host, as the parts of the device see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpud.errors import DeviceLost
    from gpud.server.arrays.device_memory import DeviceArrays
    from gpud.server.hosts.resources import ResourceRegistry

__all__ = ["CurrentHost"]


class CurrentHost(Protocol):
    """Whichever host the device has now, or none: `gpud.server.hosts.device.Device`.

    Hosts come and go under it; what holds for one of them is in its registry.

    Attributes:
        state: see `gpud.server.hosts.device.Device`.
        memory: likewise.
        registry: likewise.
    """

    state: str
    memory: DeviceArrays | None
    registry: ResourceRegistry

    @property
    def alive(self) -> bool:
        """Whether there is a host that can be told something."""

    @property
    def last_failure(self) -> str:
        """What has become of the last host."""

    def send(self, message: Any) -> None:
        """Send it a command that is not answered; it is lost if there is none."""

    def lost_error(self, reason: str) -> DeviceLost:
        """The error for what cannot be done on this device now."""
