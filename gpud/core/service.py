"""The service that the offline jobs of a device have received, as in start-time fair queueing.

Problem: allocations are equal to the weights only on the average. Bursts of online jobs take from
few jobs, a share is rounded to slices, and there can be more jobs than slices. What a job lacked in
one moment it must get in another, in proportion to its weight; but nobody saves up for later.

Approach: every job counts its service. The jobs that could use more than they have, the *hungry*
ones, define the *virtual time*: their mean service by weight. A job that arrives begins at the
virtual time, so that it neither has to catch up with the past of others nor they with its own. What
a job is ahead or behind of it is its *surplus*; policies take from jobs that are ahead and give to
those that are behind. A job that has all that its quota or its grid allows is not hungry: it does
not slow the others' virtual time, and is owed little, however long it has less than others.

Terms (units in brackets):
    service [amount x ns]: the allocation of a job, summed over time.
    virtual time [amount x ns by weight]: service by weight of the hungry jobs, together. Kept as
        the two sums, so that all arithmetic is exact.
    surplus [amount x ns]: a job's service beyond virtual time x weight; negative if it is behind.
    hold: the setting ``rebalance_hold``.
    slack: what a hungry job of a weight is served in a hold, on the average.
    horizon: `HORIZON_HOLDS` holds.
    lead of a job [amount]: its surplus beyond the slack, divided by the horizon. So much capacity
        over the horizon would make up for it; smaller surpluses are left to chance.
    limit of a surplus: what the job's part of a whole device is served in `LIMIT_HOLDS` holds, and
        three of its slices in the horizon.

Algorithm: three sums over the hungry jobs, of weights, of service, and of allocations, which is the
rate at which the second grows. They change when an allocation or a job's hunger does.

Properties:
    counted: the sums are those over the hungry jobs;
    no_credit: a newcomer has a surplus of 0, whatever was served before it;
    limited: a job that becomes hungry has at most the limit, ahead or behind, so that what nobody
        else could use, or it could not use itself, is soon forgotten;
    idle: while nobody is hungry nothing is owed, and a newcomer begins at the mean of who runs.

Source: virtual time, and start tags that never lie before it, are those of P. Goyal, H. Vin and
H. Cheng, "Start-time Fair Queuing" (SIGCOMM 1996); the mean as virtual time and the limit are those
of I. Stoica et al., "A Proportional Share Resource Allocation Algorithm for Real-Time, Time-Shared
Systems" (RTSS 1996), which needs no order of service on one server; that jobs which cannot use
their weight do not hold back the others, of A. Chandra et al., "Surplus Fair Scheduling"
(OSDI 2000), for several processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpud.core.job import JobRecord
from gpud.core.sort_keys import level

__all__ = ["HORIZON_HOLDS", "ServiceRecord"]

HORIZON_HOLDS = 5
"""By default 0.5 s: short in a minute, and long compared with task blocks and launches."""

LIMIT_HOLDS = 10
"""By default 1 s, 2 % of a minute."""

_LIMIT_SLICES = 3


class ServiceRecord:
    """The sums over the hungry jobs of a device, at one time.

    Attributes:
        weight: sum of their weights.
        served: sum of their service, at ``at_ns``.
        rate: sum of their allocations.
        at_ns: see `advance`.
        hold_ns: the hold.
    """

    __slots__ = ("at_ns", "hold_ns", "rate", "served", "weight")

    def __init__(self, hold_ns: int, now_ns: int) -> None:
        self.weight = self.served = self.rate = 0
        self.hold_ns = hold_ns
        self.at_ns = now_ns

    def advance(self, now_ns: int) -> None:
        """Move to another time, at which `surplus` is then meant."""
        self.served += self.rate * (now_ns - self.at_ns)
        self.at_ns = now_ns

    def surplus(self, job: JobRecord) -> int:
        """Return how far a job is ahead of virtual time, of which there must be one."""
        return job.served_at(self.at_ns) - job.weight * self.served // self.weight

    def part(self, free: int) -> int | None:
        """Return the level of the hungry jobs if ``free`` is theirs; None if there are none."""
        return level(self.rate + free, self.weight) if self.weight else None

    def lead(self, job: JobRecord) -> int:
        """Return the lead of a job, negative if it is behind."""
        total = self.weight
        if not total:
            return 0
        # This is on the path of every decision: `JobRecord.served_at` and `surplus`, written out.
        weight = job.weight
        surplus = job.service_base + job.capsm_scaled_ns - weight * self.served // total
        if job.alloc:
            surplus += job.alloc * (self.at_ns - job.counted_to_ns)
        slack = weight * self.hold_ns * self.rate // total
        if -slack <= surplus <= slack:
            return 0
        beyond = surplus - slack if surplus > 0 else surplus + slack
        return beyond // (HORIZON_HOLDS * self.hold_ns)

    # -- bookkeeping

    def join(self, job: JobRecord, running: Callable[[], Iterable[JobRecord]]) -> None:
        """Let a newcomer begin at the virtual time, or at the mean of the ``running`` jobs."""
        served, weight = self.served, self.weight
        if not weight:
            for other in running():
                served += other.served_at(self.at_ns)
                weight += other.weight
        if weight:
            job.service_base += job.weight * served // weight - job.served_at(self.at_ns)

    def limit(self, job: JobRecord, capacity: int) -> None:
        """Move a job's surplus to within its limit, on a device of this capacity."""
        surplus = self.surplus(job)
        most = self._most(job, capacity, self.weight)
        beyond = surplus - most if surplus > most else min(0, surplus + most)
        job.service_base -= beyond
        if job.hunger is not None:
            self.served -= beyond

    def limit_all(self, jobs: Sequence[JobRecord], capacity: int) -> None:
        """Move jobs to within their limit of the one that is ahead; none of them is hungry."""
        now_ns = self.at_ns
        weight = sum(job.weight for job in jobs)
        ahead = max(jobs, key=lambda job: level(job.served_at(now_ns), job.weight))
        served, by = ahead.served_at(now_ns), ahead.weight
        for job in jobs:
            least = job.weight * served // by - self._most(job, capacity, weight)
            job.service_base += max(0, least - job.served_at(now_ns))

    def _most(self, job: JobRecord, capacity: int, weight: int) -> int:
        part = LIMIT_HOLDS * capacity * job.weight // weight
        return self.hold_ns * (part + _LIMIT_SLICES * HORIZON_HOLDS * job.slice)

    def reweigh(self, job: JobRecord, weight: int) -> None:
        """Change a job's weight; its surplus, and virtual time, stay as they are."""
        if not self.weight:
            has = job.served_at(self.at_ns)
            job.service_base += has * weight // job.weight - has
        else:
            change = (weight - job.weight) * self.served // self.weight
            job.service_base += change
            if job.hunger is not None:
                self.served += change
                self.weight += weight - job.weight
        job.weight = weight

    def recount(self, job: JobRecord, hungry: bool, capacity: int, now_ns: int) -> None:
        """Count a job that has changed, and compute its lead anew."""
        if now_ns != self.at_ns:
            self.advance(now_ns)
        before = job.hunger
        if not hungry:
            assert before is not None, "it is counted"
            self.rate -= before
            self.weight -= job.weight
            self.served -= job.served_at(now_ns)
            job.hunger = None
        elif before is None:
            if self.weight:
                self.limit(job, capacity)
            self.admit(job)
        else:
            self.rate += job.alloc - before
            job.hunger = job.alloc
        job.lead = self.lead(job)

    def admit(self, job: JobRecord) -> None:
        """Count a job that has become hungry."""
        self.rate += job.alloc
        self.weight += job.weight
        self.served += job.served_at(self.at_ns)
        job.hunger = job.alloc
