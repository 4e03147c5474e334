"""The default policy: online jobs get their reservations at once, offline jobs share the rest.

Problem: an online job must start when it arrives, although the device is full of offline work,
which should get back soon what it lost; and offline jobs, whenever they come and however often
online jobs disturb them, should be served in proportion to their weights.

Approach: the rules of `gpud.core.policies.arrival`, and each decision about offline jobs takes into
account what service they have received (`gpud.core.service`).

Rules, beyond those of the arrival policy:
    1. Who gives way to an online job is chosen by service (`gpud.core.policies.victims`).
    2. Capacity that comes free goes to the offline job with the lowest standing, that is, by what
       it has and what it is ahead or behind.
    3. Jobs that have more than their part give some of it up for jobs that have less
       (`gpud.core.policies.rebalancing`), after a hold time, and each only so often. Capacity that
       is released for a job with large slices is kept for it until all of it has come free.

Properties (checked by `tests.property.share_simulation` under these names):
    shares: over any minute, the service of offline jobs that are there all the time is that of
        weighted max-min within their quotas, to 5 %, whatever online jobs come and go, as long as
        each job's part of the minute is long compared with a turn;
    fair: as in `gpud.core.policies.rebalancing`, whenever nothing has changed for long enough;
    bounded: in no second does a job give up capacity for offline jobs more often than
        ``rebalance_limit``;
and those of `gpud.core.validate`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import ClassVar

from gpud.core.device import DeviceRecord, JobQueue
from gpud.core.job import Because, JobRecord
from gpud.core.policies import victims
from gpud.core.policies.arrival import Arrival
from gpud.core.policies.fair_share import Candidate
from gpud.core.policies.rebalancing import plan
from gpud.core.service import HORIZON_HOLDS
from gpud.core.sort_keys import WITH_SLICES, level
from gpud.errors import GpudError

__all__ = ["Reservations"]


class Reservations(Arrival):
    """Reservations first, then service by weight; see the module."""

    name: ClassVar[str] = "reservations"
    counts_service: ClassVar[bool] = True

    def rebalance(self, device: DeviceRecord) -> None:
        """As `gpud.core.policy.Policy.rebalance`."""
        if not device.rebalancing:
            super().rebalance(device)
            planned_ns = device.rebalance_at_ns
            # What was planned for long from now did not know of what has changed.
            holds = 1 if planned_ns is None or device.waiting else HORIZON_HOLDS
            soon_ns = device.now_ns + holds * device.rebalance_hold_ns
            if (planned_ns is None or planned_ns > soon_ns) and _is_contended(device):
                device.rebalance_at_ns = soon_ns
            return
        device.rebalancing = False
        device.reserved_for = None
        super().rebalance(device)
        if not _is_contended(device):
            return
        self.limit(device)
        decided = plan(device)
        before = [(job, job.slices, job.changed_ns, job.kept_until_ns) for job, _ in decided.givers]
        with device.changing(Because.SHARE):
            for job, slices in decided.givers:
                device.resize(job, slices)
        device.reserved_for = decided.reserved_for
        device.rebalance_at_ns = decided.next_ns
        if decided.givers:
            super().rebalance(device)
        for job, slices, changed_ns, kept_until_ns in before:
            if job.slices < slices:
                job.kept_until_ns = device.now_ns + device.turn_ns
                continue
            # It got that again: who was to have it waits behind others for what they need.
            job.kept_until_ns = kept_until_ns
            if job.slices == slices:
                job.changed_ns = changed_ns

    def resize(self, device: DeviceRecord, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policy.Policy.resize`; what a lower quota kept from a job is not owed."""
        service = device.service
        assert service is not None, "this policy counts service"
        if job.live and not job.online and job.hunger is None and job.slices < job.most:
            service.advance(device.now_ns)
            service.join(job, device.sharing)
        return super().resize(device, job)

    def limit(self, device: DeviceRecord) -> None:
        """Forget what running jobs are too far ahead or behind."""
        service = device.service
        assert service is not None, "this policy counts service"
        service.advance(device.now_ns)
        if service.weight:
            for job in device.sharing():
                service.limit(job, device.capacity)

    def choose_victims(
        self, device: DeviceRecord, shortfall: int, most: int
    ) -> list[victims.Victim] | None:
        """As `gpud.core.policies.arrival.Arrival.choose_victims`, by service."""

        def rate(pool: list[victims.Entry]) -> list[tuple[int, bool]]:
            return _rate(device, [entry[2] for entry in pool])

        return victims.choose_by_service(device.shrinkable, shortfall, most, rate)

    def first(self, queue: JobQueue, count: int) -> list[JobRecord]:
        """As `gpud.core.policies.arrival.Arrival.first`: of those with slices, and those without.

        The former are sorted by standing, the latter by service, and either may come first.
        """
        jobs = super().first(queue, count)
        if jobs and not jobs[0].slices:
            without = bisect_left(queue, WITH_SLICES)
            jobs += [entry[2] for entry in islice(queue, max(count, without), without + count)]
        return jobs

    def rank(self, device: DeviceRecord, candidates: list[JobRecord]) -> list[Candidate]:
        """As `gpud.core.policies.arrival.Arrival.rank`, by standing, then by service."""
        service = device.service
        assert service is not None, "this policy counts service"
        service.advance(device.now_ns)
        rows = []
        for job in candidates:
            slices, piece, weight = job.slices, job.slice, job.weight
            if slices:
                has = slices * piece + job.lead
            else:
                has = job.lead = service.lead(job)
            # `growth_room`, which is ``most`` for a job that waits, written out: this is on the
            # path of every decision.
            most = min(job.most - slices, job.quota_slices - job.held)
            # Equal ones in the order of the queue in which they are.
            entry = job.entries[0][1]
            rows.append((level(has, weight), entry, Candidate(has, piece, most, weight)))
        rows.sort()
        candidates[:] = [entry[2] for _, entry, _ in rows]
        return [candidate for _, _, candidate in rows]

    def part(self, device: DeviceRecord) -> int | None:
        """As `gpud.core.policies.arrival.Arrival.part`: what there is, by weight of the hungry."""
        service = device.service
        assert service is not None, "this policy counts service"
        return service.part(device.physically_free)

    def is_kept(self, device: DeviceRecord, free: int) -> bool:
        """As `gpud.core.policies.arrival.Arrival.is_kept`, and for who others have given for."""
        if device.reserved_for is not None:
            job, slices = device.reserved_for
            if not job.works or job.exhausted or job.slices >= min(slices, job.most):
                device.reserved_for = None
            elif free < job.slice <= free + device.pending_release:
                return True
        return super().is_kept(device, free)


def _is_contended(device: DeviceRecord) -> bool:
    """Whether a job could use more than is free, while another has something."""
    if not device.shrinkable:
        return False
    return bool(device.waiting) or any(device.growable.values())


def _rate(device: DeviceRecord, jobs: list[JobRecord]) -> list[tuple[int, bool]]:
    """Return the level of each job's service, and whether it is behind; see `victims`."""
    service, now_ns = device.service, device.now_ns
    assert service is not None, "this policy counts service"
    service.advance(now_ns)
    served, weight, rate = service.served, service.weight, service.rate
    if not weight:
        # All have what they may have: nothing is owed for the time before.
        service.limit_all(jobs, device.capacity)
        weight = sum(job.weight for job in jobs)
        served = sum(job.served_at(now_ns) for job in jobs)
        rate = sum(job.alloc for job in jobs)
    slack = device.rebalance_hold_ns * rate
    rates = []
    for job in jobs:
        has = job.served_at(now_ns)
        behind = has * weight < job.weight * (served - slack)
        rates.append((level(has, job.weight), behind))
    return rates
