"""What a scheduling policy is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.errors import GpudError

__all__ = ["Policy"]


class Policy(Protocol):
    """Decides what each job of a device has. Holds no state: all state is in the device record.

    Attributes:
        name: as in the configuration.
        separates_online: online jobs wait apart and give nothing up.
        keeps_reservations: an online job that was started never has less than its reservation.
    """

    name: ClassVar[str]
    separates_online: ClassVar[bool]
    keeps_reservations: ClassVar[bool]

    def size(self, job: JobRecord, device: DeviceRecord) -> GpudError | None:
        """Works out the job's sizes, or returns why the device can never grant what it asks."""
        ...

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """Carries out new sizes of a job that was started, or returns why that cannot be."""
        ...

    def rebalance(self, device: DeviceRecord) -> None:
        """Starts, grows and shrinks jobs after something has changed.

        Called again after every change, so it may leave for later what it cannot do now. What it
        leaves undone must be impossible until something changes.
        """
        ...
