"""Rebalancing: which offline jobs give up capacity for other offline jobs.

Problem: a newcomer finds the device full; a quota was raised; a share is a slice and a half; there
are more jobs than slices. Jobs that have more than their part must then give some up, few at a
time and not to and fro, since each change costs a launch and the end of some task blocks.

Approach: compute what each job would have if all capacity were handed out anew, by
`gpud.core.policies.fair_share`, and let those give that have more, if that does not leave them with
less than who gets it. A job's lead counts like capacity that it has beside its slices. So a job
that is behind gets more than its part until it has caught up, and of jobs that cannot all have the
same each has its turn.

Terms (see also `gpud.core.service`):
    hold: the setting ``rebalance_hold``. Jobs that were changed within it are left alone, and a
        job that waits is given to only after it;
    turn: 1 s / ``rebalance_limit``. A job that started, was resumed, or gave, keeps what it has;
    standing of a job [amount]: its slices and its lead, together. Standings are compared by
        weight.

Algorithm, at a time that the policy has set a timer for:
    1. take all jobs together that may be changed, and their capacity, and what is free;
    2. if a job in form whole is first in the queue, and what it needs in a horizon is not more than
       its part in that and the time that it has waited, set its need aside for it;
    3. hand out the rest anew, lowest standing first, a slice at a time, and the last slices first
       to who is below an equal part;
    4. a job gives what it has beyond that if, by standing, it is then not below the lowest job that
       gets something would be with a slice more; or if that is needed by a job that has nothing;
    5. if somebody would get something and nobody gives so, all of it may be too much to give, or
       the lowest may have so small a weight that a slice lifts it above the others: one job gives
       what another needs for one slice, if by standing it is then not below that one. Not if a
       job here is under its user's cap.

Properties:
    fair: once nothing has changed for a hold and a turn, no job could give a slice to one that
        would not be above it afterwards;
    patient: no job gives within a hold of its last change, nor within a turn of its last giving or
        start;
    steady: where shares have been handed out so, and standings have not changed, nobody gives;
    useful: nobody gives what nobody takes;
    whole: a job in form whole starts although others would not end.

Source: the weighted max-min rule is that of D. Bertsekas and R. Gallager, "Data Networks" (section
6.5.2); capacity by what was served is the surplus rule of A. Chandra et al., "Surplus Fair
Scheduling" (OSDI 2000). Slack, horizon, and the test before a change are our own.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.policies.fair_share import Candidate, fill_within
from gpud.core.service import HORIZON_HOLDS
from gpud.core.sort_keys import level

__all__ = ["SharePlan", "plan"]

_TRIES = 4  # with slices of several sizes: how many jobs are passed over that need large ones


class SharePlan(NamedTuple):
    """What is to be done now, and when to look again.

    Attributes:
        givers: jobs, and the slices that they keep.
        reserved_for: a job that free capacity is kept for, because others have smaller slices, and
            the slices that it is to have.
        next_ns: when something may have to be done again if nothing else changes; None for never.
    """

    givers: list[tuple[JobRecord, int]]
    reserved_for: tuple[JobRecord, int] | None
    next_ns: int | None


class _Row(NamedTuple):
    """A job that takes part: what it has, and what its lead counts for."""

    job: JobRecord
    slices: int
    lead: int

    def standing(self, slices: int) -> int:
        """Return its standing by weight if it had so many slices."""
        return level(self.lead + slices * self.job.slice, self.job.weight)


def plan(device: DeviceRecord) -> SharePlan:
    """Decide who gives."""
    now_ns = device.now_ns
    settled_ns = now_ns - device.rebalance_hold_ns
    soonest: list[int] = []
    rows: list[_Row] = []
    sharing = device.sharing()
    device.update_leads(sharing)
    for job in sharing:
        free_at_ns = max(job.changed_ns + device.rebalance_hold_ns, job.kept_until_ns)
        if free_at_ns > now_ns:
            soonest.append(free_at_ns)
        else:
            rows.append(_Row(job, job.slices, job.lead))
    free = max(0, device.free - device.held_back)
    total = sum(row.job.alloc for row in rows) + free
    # Of equal ones, those that have most come first, so that they keep a slice that is left over.
    rows.sort(key=lambda row: (-row.standing(row.slices), row.job.order))
    takers = _without(device, total)
    device.update_leads(takers)
    ready = [job for job in takers if job.changed_ns <= settled_ns]
    soonest += [job.changed_ns + device.rebalance_hold_ns for job in takers[len(ready) :][:1]]
    rows += [_Row(job, 0, job.lead) for job in ready]
    aside = _whole_need(device, rows, total)
    assert device.service is not None, "the policy counts service"
    part = device.service.part(free)
    givers, reserved_for = _givers(rows, total - aside, aside - free, part)
    if givers:
        soonest.append(now_ns + device.rebalance_hold_ns)
    elif takers or device.waiting:
        soonest.append(now_ns + device.rebalance_hold_ns)
    elif (turn_ns := _next_turn_ns(rows, HORIZON_HOLDS * device.rebalance_hold_ns)) is not None:
        soonest.append(now_ns + turn_ns)
    return SharePlan(givers, reserved_for, max(now_ns + 1, min(soonest)) if soonest else None)


def _next_turn_ns(rows: list[_Row], horizon_ns: int) -> int | None:
    """Return how long no job can give to another if nothing changes, or a horizon; None for ever.

    A lead by weight grows, relative to another's, at most by the difference of their allocations by
    weight, in each horizon. So long it takes until the highest of those that have something, with
    a slice less, is not below the lowest of those with room, with a slice more.
    """
    givers = [row for row in rows if row.slices]
    takers = [row for row in rows if row.slices < row.job.most]
    if not givers or not takers:
        return None
    growth = max(level(row.job.alloc, row.job.weight) for row in givers)
    growth -= min(level(row.job.alloc, row.job.weight) for row in takers)
    if growth <= 0:
        return None
    apart = min(row.standing(row.slices + 1) for row in takers)
    apart -= max(row.standing(row.slices - 1) for row in givers)
    return max(horizon_ns, apart * horizon_ns // growth)


def _without(device: DeviceRecord, total: int) -> list[JobRecord]:
    """Return jobs that have nothing, oldest change first: as many as could have something."""
    jobs = []
    for queue in device.growable.values():
        if queue and not queue[0][2].slices:
            first = islice(queue, total // queue[0][2].slice)
            jobs += [entry[2] for entry in first if not entry[2].slices]
    held: dict[int, int] = {}  # of users with caps, by those who are before
    for _, _, job in device.waiting:
        account = job.account
        if account.hold is not None:
            before = held.get(account.user.number, account.online)
            if before + job.slice > account.hold:
                continue
            held[account.user.number] = before + job.slice
        total -= job.slice
        if total < 0 or job.whole:
            break
        jobs.append(job)
    jobs.sort(key=lambda job: (job.changed_ns, job.order))
    return jobs


def _whole_need(device: DeviceRecord, rows: list[_Row], total: int) -> int:
    """Return what is set aside for a job in form whole that is first in the queue, or 0."""
    if not device.waiting or device.waiting_online:
        return 0
    job = device.waiting[0][2]
    need = job.least * job.slice
    waited_ns = device.now_ns - job.changed_ns
    if not job.whole or waited_ns < device.rebalance_hold_ns:
        return 0
    if need > min(total, device.unpromised):
        return 0
    part = job.weight * total // (job.weight + sum(row.job.weight for row in rows))
    horizon_ns = HORIZON_HOLDS * device.rebalance_hold_ns
    return need if need * horizon_ns <= part * (waited_ns + horizon_ns) else 0


def _givers(
    rows: list[_Row], total: int, needed: int, part: int | None
) -> tuple[list[tuple[JobRecord, int]], tuple[JobRecord, int] | None]:
    """Return who gives and for whom; ``needed`` is due to one who is not in ``rows``."""
    mosts = [row.job.most for row in rows]
    rooms = list(mosts)
    groups = _groups(rows)
    mixed = len({row.job.slice for row in rows}) > 1
    for _ in range(_TRIES if mixed else 1):
        targets = fill_within(
            total,
            [
                Candidate(row.lead, row.job.slice, room, row.job.weight)
                for row, room in zip(rows, rooms, strict=True)
            ],
            groups,
            part,
        )
        givers, lowest = _compared(rows, targets, needed)
        if lowest is None:
            if givers or rooms == mosts:
                return givers, None
            break
        if givers:
            taker = rows[lowest].job
            if any(job.slice < taker.slice for job, _ in givers):
                return givers, (taker, targets[lowest])
            return givers, None
        # It needs a larger slice than anybody can spare: see who else needs one.
        rooms[lowest] = rows[lowest].slices
    # Under caps it depends on what others of a user have whether it could be taken.
    return ([], None) if groups else _for_one_slice(rows)


def _groups(rows: list[_Row]) -> list[tuple[list[int], int]]:
    """Return the rows of each user with a cap, and what these jobs may have together."""
    groups: dict[int, tuple[list[int], int]] = {}
    for index, row in enumerate(rows):
        account = row.job.account
        if account.hold is not None:
            indices, rest = groups.get(account.user.number, ([], account.hold - account.allocated))
            groups[account.user.number] = ([*indices, index], rest + row.slices * row.job.slice)
    return list(groups.values())


def _compared(
    rows: list[_Row], targets: list[int], needed: int
) -> tuple[list[tuple[JobRecord, int]], int | None]:
    """Return who gives, and the row of the lowest job that gets something, if there is one."""
    below = [index for index, row in enumerate(rows) if targets[index] > row.slices]
    lowest = min(below, key=lambda at: rows[at].standing(rows[at].slices + 1), default=None)
    if lowest is None and needed <= 0:
        return [], None
    needed += sum(targets[at] * rows[at].job.slice for at in below if not rows[at].slices)
    least = None if lowest is None else rows[lowest].standing(rows[lowest].slices + 1)
    givers = []
    for row, target in zip(rows, targets, strict=True):
        if target < row.slices and (
            needed > 0 or (least is not None and row.standing(target) >= least)
        ):
            givers.append((row.job, target))
            needed -= (row.slices - target) * row.job.slice
    return givers, lowest


def _for_one_slice(
    rows: list[_Row],
) -> tuple[list[tuple[JobRecord, int]], tuple[JobRecord, int] | None]:
    """Return as `_givers`, of one job that gives what one slice of another needs."""
    # Of jobs with slices of one size the lowest is easiest to give to.
    lowest: dict[int, tuple[int, _Row]] = {}
    for row in rows:
        if row.slices < row.job.most:
            size, gets = row.job.slice, row.standing(row.slices + 1)
            if size not in lowest or gets < lowest[size][0]:
                lowest[size] = gets, row
    for piece, (least, taker) in sorted(lowest.items(), key=lambda one: one[1][0]):
        givers = [
            (row.standing(keeps), row.job, keeps)
            for row in rows
            if (keeps := row.slices - -(-piece // row.job.slice)) >= 0 and row is not taker
        ]
        left, job, keeps = max(givers, key=lambda one: one[0], default=(least - 1, taker.job, 0))
        if left >= least:
            reserved = (taker.job, taker.slices + 1) if job.slice < piece else None
            return [(job, keeps)], reserved
    return [], None
