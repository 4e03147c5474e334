"""The contract: online jobs have their reservations at once, offline jobs share what is left.

Problem: an online job must start when it arrives, though the device is full of offline work that
should lose no more than is needed and get it back soon.

Approach: capacity is *allocated* by decision and *charged* while blocks hold it. An online job
takes what is not allocated; if that is too little, offline jobs are told to release the rest, which
is taken from them at once. Its blocks wait in the device's queue for theirs to leave. Offline jobs
take only what nothing holds, so that their quotas hold on the device and not only in the books.

Rules:
    1. Waiting online jobs start in the order of deadline, then arrival. The first one holds those
       behind it, even if they would fit, so that a large one is not passed over for ever.
    2. An online job starts if reservations leave room for its own, in slices, beside the floor of
       the offline jobs, and what is missing can be released.
    3. Room that nothing holds goes to offline jobs: those that run, and those that wait, in order
       of arrival as far as they fit. It is shared by weighted max-min fairness.
    4. An offline job that waits and does not fit holds those behind it. If what it lacks is on its
       way (blocks that were told to leave, jobs that end), the room is kept for it; else jobs that
       run grow meanwhile. So a job with large slices, or one in form whole, is never starved by
       small ones that come later.
    5. An exclusive job has whole SMs of its own, as the device can set them apart. They are all its
       own until it has ended, and it is not resized.
    6. A job in form whole starts with all that it needs and keeps it. No such offline job is
       started while an online job waits.

Properties: those of `gpud.core.validate`.
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

from gpud.core import admission
from gpud.core.capacity import to_fraction
from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.policies import victims
from gpud.core.policies.fair_share import Candidate, fill
from gpud.core.sort_keys import level_key
from gpud.errors import AdmissionError, GpudError, InvalidArgument

__all__ = ["Reservations"]


class Reservations:
    """See the module."""

    name: ClassVar[str] = "reservations"
    separates_online: ClassVar[bool] = True
    keeps_reservations: ClassVar[bool] = True

    def size(self, job: JobRecord, device: DeviceRecord) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.size`."""
        assert device.sms is not None, "sizes are worked out for a device that was up"
        return admission.size(job, device.sms, device.floor_sms, device.partitions)

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.resize`."""
        if job.whole:
            return InvalidArgument(
                f"job {job.name} runs a kernel in form whole, which cannot be resized once it runs"
            )
        more = job.most - job.slices
        if more < 0:
            device.resize(job, job.most)
        elif not job.online or job.exhausted:
            device.update(job)  # an offline job grows when room is shared out
        elif more == 0 or self.make_room(device, more * job.slice):
            device.resize(job, job.most)
        else:
            return _too_little(device, job)
        return None

    def rebalance(self, device: DeviceRecord) -> None:
        """As `gpud.core.policies.interface.Policy.rebalance`."""
        waiting = device.waiting_online
        while waiting:
            job = waiting[0][2]
            if not device.can_partition(job) or not self.make_room(device, job.least * job.slice):
                break
            device.start(job, job.least)
        while self.distribute(device):
            pass

    # -- online

    def make_room(self, device: DeviceRecord, amount: int) -> bool:
        """Sees to it that ``amount`` is not allocated, for an online job; whether that is so.

        Changes nothing if it cannot be.
        """
        if amount > _online_room(device):
            return False
        shortfall = amount - device.free
        if shortfall <= 0:
            return True
        chosen = victims.choose_victims(device.shrinkable, shortfall, _releasable(device))
        if chosen is None:
            return False
        for job, slices in chosen:
            device.resize(job, slices)
        return True

    # -- offline

    def distribute(self, device: DeviceRecord) -> bool:
        """Gives free room to offline jobs; whether another round could give more."""
        waiting = device.waiting
        if waiting and waiting[0][2].whole:
            self._start_whole(device)
        free = device.physically_free
        if free <= 0:
            return False
        growable = [queue for queue in device.growable.values() if queue]
        if not (waiting or growable) or self._keep(device, free):
            return False
        candidates = _waiting(device, free)
        behind = len(candidates) < len(waiting)
        for queue in growable:
            candidates += [entry[2] for entry in islice(queue, free // queue[0][2].slice)]
        if len(candidates) == 1:
            only = candidates[0]
            _give(device, only, min(_room(only), free // only.slice))
        elif candidates:
            candidates.sort(key=level_key)
            rows = [
                Candidate(job.slices * job.slice, job.slice, _room(job), job.weight)
                for job in candidates
            ]
            for job, slices in zip(candidates, fill(free, rows), strict=True):
                _give(device, job, slices)
        return behind and bool(candidates) and device.physically_free > 0

    def _start_whole(self, device: DeviceRecord) -> None:
        waiting = device.waiting
        while waiting and waiting[0][2].whole and not device.waiting_online:
            job = waiting[0][2]
            if job.least * job.slice > device.physically_free:
                return
            device.start(job, job.least)

    def _keep(self, device: DeviceRecord, free: int) -> bool:
        """Whether what is free is kept for the job that has waited longest with nothing."""
        first: JobRecord | None = None
        if device.waiting and not (device.waiting[0][2].whole and device.waiting_online):
            first = device.waiting[0][2]
        for queue in device.growable.values():
            if queue and not queue[0][2].slices:
                paused = queue[0][2]
                if first is None or paused.order < first.order:
                    first = paused
        if first is None:
            return False
        needed = (1 if first.started else first.least) * first.slice
        return free < needed <= free + device.pending_release


def _room(job: JobRecord) -> int:
    return job.growth_room if job.started else job.most


def _give(device: DeviceRecord, job: JobRecord, slices: int) -> None:
    if slices and job.started:
        device.resize(job, job.slices + slices)
    elif slices:
        device.start(job, slices)


def _waiting(device: DeviceRecord, free: int) -> list[JobRecord]:
    """The jobs that wait first, as far as a slice of each fits and none is in form whole."""
    found = []
    for _, _, job in device.waiting:
        free -= job.slice
        if free < 0 or job.whole:
            break
        found.append(job)
    return found


def _releasable(device: DeviceRecord) -> int:
    """The amount that offline jobs can be told to release."""
    if not device.floor:
        return device.releasable
    offline = device.allocated - device.online_allocated
    return max(0, min(device.releasable, offline - device.floor))


def _online_room(device: DeviceRecord) -> int:
    """The amount that online jobs can have more."""
    floor = device.floor if device.working else 0
    reservable = device.capacity - floor - device.online_allocated
    return min(reservable, device.free + _releasable(device))


def _too_little(device: DeviceRecord, job: JobRecord) -> AdmissionError:
    most = to_fraction((job.alloc + max(0, _online_room(device))) // job.slice * job.slice)
    return AdmissionError(
        f"job {job.name} has {job.allocation} SMs, and a reservation of {job.reservation} is more "
        f"than other jobs leave to it now; ask for at most {most}, or wait until one has ended",
        requested=job.reservation,
        capacity=most,
    )
