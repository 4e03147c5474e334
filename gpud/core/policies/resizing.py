"""What policies share: a job's sizes come from admission, and form whole is not resized."""

from __future__ import annotations

from typing import ClassVar

from gpud.core import admission
from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.errors import GpudError, InvalidArgument

__all__ = ["Resizing"]


class Resizing:
    """The base of policies; by default, lanes keep their share."""

    resizes: ClassVar[bool] = True
    lends: ClassVar[bool] = False

    def size(self, job: JobRecord, device: DeviceRecord) -> GpudError | None:
        """As `gpud.core.policy.Policy.size`."""
        assert device.sms is not None, "sizes are computed for a device of known size"
        return admission.size(job, device.sms, device.floor_sms, device.partitions)

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policy.Policy.resize`."""
        if job.whole:
            return InvalidArgument(
                f"job {job.name} runs a kernel in form whole, which cannot be resized once it runs"
            )
        return self.resize_running(device, job)

    def take_back(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.take_back`; nothing is lent."""

    def resize_running(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `resize`, of a job that can be resized.

        By default it shrinks to what it may have; growing is left to `rebalance`.
        """
        if job.slices > job.most:
            device.resize(job, job.most)
        else:
            device.update(job)
        return None
