"""The interface of scheduling policies; `gpud.core.policies` has them."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.errors import GpudError

__all__ = ["Policy"]


class Policy(Protocol):
    """Decides the allocation of each job of a device. Stateless: all state is in `DeviceRecord`.

    Attributes:
        name: as in the configuration.
        separates_online: online jobs wait in a queue of their own and are never shrunk.
        keeps_reservations: a started online job never has less than its reservation; if not, no
            job can be online.
        resizes: it can take from a running job what it has, and give it back later.
        counts_service: it shares by the service that jobs received (`gpud.core.service`).
        lends: lanes that are idle lend their share to offline jobs (`gpud.core.lanes`).
    """

    name: ClassVar[str]
    separates_online: ClassVar[bool]
    keeps_reservations: ClassVar[bool]
    resizes: ClassVar[bool]
    counts_service: ClassVar[bool]
    lends: ClassVar[bool]

    def size(self, job: JobRecord, device: DeviceRecord) -> GpudError | None:
        """Compute the job's sizes, or return why the device can never grant what it asks for."""
        ...

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """Apply new sizes to a started job, or return why they cannot be applied."""
        ...

    def take_back(self, device: DeviceRecord) -> None:
        """Shrink offline jobs until no more is allocated than there is, after a lane has woken."""
        ...

    def rebalance(self, device: DeviceRecord) -> None:
        """Start, grow and shrink jobs after something has changed.

        Called after every change. It must do all that is possible now: what it leaves undone is
        not tried again before the next change.
        """
        ...
