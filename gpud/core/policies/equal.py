"""The equal-sharing policy, a baseline: all jobs of a device share it by weight, at once.

Jobs of equal weight get the same share; quotas and grid sizes still limit a job. When a job
arrives, the others shrink to their new share at once, and it starts at once. If there are more jobs
than slices, the first jobs have one slice each and the others wait in line.

No job can be online: one with a reservation is refused, since its share would depend on how many
others there are.

Properties:
    weighted: shares are those of `gpud.core.policies.fair_share`, by weight, within quotas;
    no_reservations: a job with a reservation is refused at submission, with what to do instead.
"""

from __future__ import annotations

from typing import ClassVar

from gpud.core.device import DeviceRecord
from gpud.core.policies.fair_share import Candidate, fill
from gpud.core.policies.resizing import Resizing

__all__ = ["Equal"]


class Equal(Resizing):
    """Equal sharing; see the module."""

    name: ClassVar[str] = "equal"
    separates_online: ClassVar[bool] = False
    keeps_reservations: ClassVar[bool] = False
    counts_service: ClassVar[bool] = False

    def rebalance(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.rebalance`."""
        sharing = []
        left = device.capacity
        for job in device.jobs.values():
            if job.live and not job.whole and not job.exhausted:
                sharing.append(job)
            elif job.started:
                left -= job.alloc
        room = left - sum(job.slice for job in sharing)
        for job in device.waiting.jobs():
            if job.whole:
                if job.least * job.slice > device.free:
                    break
                device.start(job, job.least)
                left -= job.alloc
                room -= job.alloc
            else:
                room -= job.slice
                if room < 0:
                    break
                sharing.append(job)
        shares = fill(left, [Candidate(0, job.slice, job.most, job.weight) for job in sharing])
        plan = list(zip(sharing, shares, strict=True))
        for job, slices in plan:
            if job.started and slices < job.slices:
                device.resize(job, slices)
        for job, slices in plan:
            if not job.started and slices:
                device.start(job, slices)
            elif slices > job.slices:
                grown = job.slices + min(slices - job.slices, job.growth_room)
                if grown > job.slices:
                    device.resize(job, grown)
