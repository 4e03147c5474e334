"""A device's present host, as the parts of the device see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpud.errors import DeviceLost
    from gpud.server.copied import CopiedMemory
    from gpud.server.stock import Stock

__all__ = ["PresentHost"]


class PresentHost(Protocol):
    """Whichever host the device has now, or none: `gpud.server.devices.Device`.

    Hosts come and go under it; what holds for one of them is in its stock.

    Attributes:
        state: see `gpud.server.devices.Device`.
        memory: likewise.
        stock: likewise.
    """

    state: str
    memory: CopiedMemory | None
    stock: Stock

    @property
    def alive(self) -> bool:
        """Whether there is a host that can be told something."""

    @property
    def last_failure(self) -> str:
        """What has become of the last host."""

    def send(self, message: Any) -> None:
        """Send it a command that is not answered; it is lost if there is none."""

    def lost(self, reason: str) -> DeviceLost:
        """The error for what cannot be done on this device now."""
