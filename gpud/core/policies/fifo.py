"""The run-to-completion policy, a baseline: first come, first served, and no job is resized.

Online and offline jobs wait in one queue. The first one starts when the most that it may have is
free: an online job's reservation, or an offline job's quota as far as its grids can use it. The
jobs behind it wait until then, even if they would fit.
"""

from __future__ import annotations

from typing import ClassVar

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.policies.resizing import Resizing
from gpud.errors import GpudError, InvalidArgument

__all__ = ["Fifo"]


class Fifo(Resizing):
    """First come, first served; see the module."""

    name: ClassVar[str] = "fifo"
    separates_online: ClassVar[bool] = False
    keeps_reservations: ClassVar[bool] = True
    resizes: ClassVar[bool] = False
    counts_service: ClassVar[bool] = False

    def size(self, job: JobRecord, device: DeviceRecord) -> GpudError | None:
        """As `gpud.core.policy.Policy.size`: it needs all that it may have."""
        error = super().size(job, device)
        job.least = job.most
        return error

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policy.Policy.resize`: refused."""
        return InvalidArgument(
            f"job {job.name} runs under the policy {self.name}, which resizes no jobs"
        )

    def rebalance(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.rebalance`."""
        waiting = device.waiting
        while waiting:
            job = waiting[0][2]
            if job.least * job.slice > device.physically_free or not device.can_partition(job):
                return
            device.start(job, job.least)
