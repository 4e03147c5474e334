"""The arrival policy: reservations first; offline jobs keep what they got when they came.

The baseline that `gpud.core.policies.reservations` is compared with, and the part of it that does
not depend on the service that jobs received.

Problem: an online job must start when it arrives, although the device is full of offline work,
which should lose no more than needed and get it back soon.

Approach: capacity is *allocated* when the scheduler decides it and *charged* while blocks hold it.
An online job takes what is not allocated; if that is too little, offline jobs are commanded to
release the rest, which is deducted from their allocations at once. The online job's blocks wait on
the device until released blocks leave. Offline jobs take only what is not charged, so that their
quotas are kept physically and not only in the accounting.

Rules:
    1. Waiting online jobs start in the order of deadline, then arrival. The first one blocks those
       behind it, even if they would fit, so that a large job is not starved.
    2. An online job starts if its reservation, in slices, fits beside the other reservations and
       the floor of the offline jobs, and the shortfall can be released.
    3. Capacity that is not charged goes to offline jobs: the running ones, and the waiting ones in
       order of arrival as far as they fit. It is shared by weighted max-min fairness. Offline jobs
       do not take capacity from each other.
    4. A waiting offline job that does not fit blocks those behind it. If pending releases will
       cover what it lacks (blocks being released, jobs that end), free capacity is kept for it;
       otherwise running jobs grow in the meantime. So a job with large slices, or one in form
       whole, is never starved by small jobs that arrive later.
    5. An exclusive job has dedicated whole SMs, in numbers that the device supports. They stay
       allocated to it until it has ended, and it is not resized.
    6. A job in form whole starts with all that it needs and keeps it. No such offline job is
       started while an online job waits.

Properties: those of `gpud.core.validate`.
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

from gpud.core.capacity import to_fraction
from gpud.core.device import DeviceRecord, JobQueue
from gpud.core.job import Because, JobRecord
from gpud.core.policies import caps, victims
from gpud.core.policies.fair_share import Candidate, fill_within
from gpud.core.policies.resizing import Resizing
from gpud.core.sort_keys import level_key
from gpud.errors import AdmissionError, GpudError

__all__ = ["Arrival"]


class Arrival(Resizing):
    """Reservations first, then arrival; see the module."""

    name: ClassVar[str] = "arrival"
    separates_online: ClassVar[bool] = True
    keeps_reservations: ClassVar[bool] = True
    counts_service: ClassVar[bool] = False
    lends: ClassVar[bool] = True

    def resize_running(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policies.resizing.Resizing.resize_running`; online jobs grow at once."""
        more = job.most - job.slices
        if more < 0:
            device.resize(job, job.most)
        elif not job.online or job.exhausted:
            device.update(job)  # an offline job grows in the next `rebalance`
        elif not job.account.admits(more * job.slice):
            return _cap_refusal(device, job)
        else:
            with device.changing(Because.ONLINE, job):
                if job.lending:
                    has_room = more * job.slice <= _online_room(device)
                else:
                    has_room = more == 0 or self.make_room(device, more * job.slice)
            if not has_room:
                return _growth_refusal(device, job)
            device.resize(job, job.most)
        return None

    def rebalance(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.rebalance`."""
        if device.users.has_caps:
            self.keep_caps(device)
        while device.waiting_online and (job := caps.first_waiting_online(device)) is not None:
            need = job.least * job.slice
            if not device.can_partition(job):
                break
            # Not `DeviceRecord.changing`: this is on the path of every decision.
            device.because, device.because_of = Because.ONLINE, job.id
            has_room = self.make_room(device, need)
            device.because, device.because_of = Because.FREE, None
            if not has_room:
                break
            device.start(job, job.least)
            if device.users.has_caps:
                self.keep_caps(device)
        while self.distribute(device):
            pass

    def keep_caps(self, device: DeviceRecord) -> None:
        """Shrink offline jobs of users who have more than they may hold together."""
        for account in device.users.accounts.values():
            if account.hold is None or account.allocated <= account.hold:
                continue
            own = [entry for entry in device.shrinkable if entry[2].account is account]
            over = min(account.allocated - account.hold, sum(entry[0] for entry in own))
            chosen = victims.choose_by_size(own, over, sum(entry[0] for entry in own))
            with device.changing(Because.CAP):
                for job, slices in chosen or ():
                    device.resize(job, slices)

    # -- online

    def make_room(self, device: DeviceRecord, amount: int) -> bool:
        """Shrinks offline jobs so that ``amount`` is free for an online job, if that is possible.

        Returns whether it is; if not, nothing is changed.
        """
        if amount > _online_room(device):
            return False
        shortfall = amount - device.free
        if shortfall <= 0:
            return True
        chosen = self.choose_victims(device, shortfall, _releasable(device))
        if chosen is None:
            return False
        for job, slices in chosen:
            device.resize(job, slices)
        return True

    def take_back(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.take_back`; the floor gives way to what was promised."""
        missing = -device.free
        if missing > 0:
            most = max(missing, _releasable(device))
            chosen = self.choose_victims(device, missing, most)
            if chosen is None:
                chosen = self.choose_victims(device, missing, device.releasable)
            for job, slices in chosen or ():
                device.resize(job, slices)

    def choose_victims(
        self, device: DeviceRecord, shortfall: int, most: int
    ) -> list[victims.Victim] | None:
        """Choose who releases ``shortfall``, and at most ``most``; None if that is not possible."""
        return victims.choose_by_size(device.shrinkable, shortfall, most)

    # -- offline

    def distribute(self, device: DeviceRecord) -> bool:
        """Shares free capacity among offline jobs; whether another round could give more."""
        waiting = device.waiting
        if waiting and (first := caps.first_waiting(device)) is not None and first.whole:
            self._start_whole(device)
        free = device.physically_free
        if free <= 0:
            return False
        growable = [queue for queue in device.growable.values() if queue]
        if not (waiting or growable) or self.is_kept(device, free):
            return False
        candidates = _waiting(device, free)
        behind = len(candidates) < len(waiting)
        for queue in growable:
            if device.users.has_caps:
                candidates += [entry[2] for entry in queue if not device.users.is_capped(entry[2])]
            else:
                candidates += self.first(queue, free // queue[0][2].slice)
        if device.users.has_caps:
            candidates = caps.without_kept(device, candidates)
        if len(candidates) == 1 and not device.users.has_caps:
            only = candidates[0]
            _grow_or_start(device, only, min(_room(only), free // only.slice))
        elif candidates:
            rows = self.rank(device, candidates)
            groups = caps.groups(candidates) if device.users.has_caps else ()
            grants = fill_within(free, rows, groups, self.part(device))
            for job, slices in zip(candidates, grants, strict=True):
                _grow_or_start(device, job, slices)
        return behind and bool(candidates) and device.physically_free > 0

    def first(self, queue: JobQueue, count: int) -> list[JobRecord]:
        """Return those that can be among the first ``count`` to grow, of jobs of one M."""
        return [entry[2] for entry in islice(queue, count)]

    def rank(self, device: DeviceRecord, candidates: list[JobRecord]) -> list[Candidate]:
        """Sort jobs by who grows first, and return what each has and can take."""
        candidates.sort(key=level_key)
        return [
            Candidate(job.slices * job.slice, job.slice, _room(job), job.weight)
            for job in candidates
        ]

    def part(self, device: DeviceRecord) -> int | None:
        """Return the level of an equal part by weight, for `fill_within`; None: it is not used."""
        return None

    def _start_whole(self, device: DeviceRecord) -> None:
        while (job := caps.first_waiting(device)) is not None:
            if not job.whole or caps.first_waiting_online(device) is not None:
                return
            if job.least * job.slice > min(device.physically_free, device.unpromised):
                return
            device.start(job, job.least)

    def is_kept(self, device: DeviceRecord, free: int) -> bool:
        """Whether free capacity is kept for the offline job that has waited longest without any."""
        first: JobRecord | None = None
        waits = caps.first_waiting(device)
        if waits is not None and not (
            waits.whole and caps.first_waiting_online(device) is not None
        ):
            first = waits
        for queue in device.growable.values():
            if queue and not queue[0][2].slices:
                paused = queue[0][2]
                if device.users.has_caps and device.users.is_capped(paused):
                    continue
                if first is None or paused.order < first.order:
                    first = paused
        if first is None:
            return False
        needed = (1 if first.started else first.least) * first.slice
        return free < needed <= free + device.pending_release


def _room(job: JobRecord) -> int:
    """Return the slices that a job can take."""
    return job.growth_room if job.started else job.most


def _grow_or_start(device: DeviceRecord, job: JobRecord, slices: int) -> None:
    if slices and job.started:
        device.resize(job, job.slices + slices)
    elif slices:
        device.start(job, slices)


def _waiting(device: DeviceRecord, free: int) -> list[JobRecord]:
    """Return the first waiting jobs, up to one of which no slice fits or that is in form whole."""
    first = []
    for _, _, job in device.waiting:
        if device.users.has_caps and device.users.is_capped(job):
            continue
        free -= job.slice
        if free < 0 or job.whole:
            break
        first.append(job)
    return first


def _releasable(device: DeviceRecord) -> int:
    """Return the amount that offline jobs can be made to release."""
    if not device.floor:
        return device.releasable
    offline = device.allocated - device.online_allocated
    return max(0, min(device.releasable, offline - device.floor))


def _online_room(device: DeviceRecord) -> int:
    """Return by how much the allocations of online jobs could grow."""
    floor = device.floor if device.working else 0
    reservable = device.capacity - floor - device.online_allocated
    return min(reservable, device.free + _releasable(device)) - device.promised


def _cap_refusal(device: DeviceRecord, job: JobRecord) -> AdmissionError:
    account = job.account
    assert account.reserve is not None, "a cap has refused"
    most = to_fraction(account.reserve - account.online + job.alloc + job.promised)
    return AdmissionError(
        f"job {job.name} has {job.allocation} SMs, and with a reservation of {job.reservation} the "
        f"online jobs of user {account.user.name} would have more than the "
        f"{to_fraction(account.reserve)} SMs of device {device.index} that they may reserve "
        f"together; ask for at most {most}, or wait until another of them has ended",
        requested=job.reservation,
        capacity=most,
    )


def _growth_refusal(device: DeviceRecord, job: JobRecord) -> AdmissionError:
    has = job.alloc + job.promised
    most = to_fraction((has + max(0, _online_room(device))) // job.slice * job.slice)
    return AdmissionError(
        f"{job.what} has {to_fraction(has)} SMs, and a reservation of {job.reservation} is more "
        f"than other jobs leave to it now; ask for at most {most}, or wait until one has ended",
        requested=job.reservation,
        capacity=most,
    )
