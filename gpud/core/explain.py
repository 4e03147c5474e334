"""Explains in plain words what a job waits for, why its share changed, and who has what it needs.

Everything is read from the scheduler's own record, so a replay of an event log gives the same words
(`gpud.cli.replay`). Who else's jobs may be named is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from gpud.core.capacity import to_fraction
from gpud.core.device import DeviceRecord
from gpud.core.job import Because, JobRecord, ShareChange
from gpud.core.lifecycles import DeviceState, JobState
from gpud.core.scheduler import Scheduler
from gpud.core.wait_reasons import waiting_reason
from gpud.units import JobId, job_name

__all__ = ["Explained", "changes_of", "explain", "name_job", "seconds"]

_MOST_HOLDERS = 6
_MOST_CHANGES = 6

Name = Callable[[JobId], str]
"""What a job is called: ``job 3.1``, or less if its name is not for everybody."""

TimeLeft = Callable[[JobId], float | None]
"""For how many seconds a job will run on, estimated; None if that is not known."""

_BECAUSE = {
    Because.ONLINE: "to make room for {}, which is online",
    Because.SHARE: "for other offline jobs, which had less than their part",
    Because.CAP: "because its user had more than the user may hold",
    Because.OWNER: "because its quota or reservation was changed",
    Because.FREE: "from what had come free",
    Because.PAUSE: "because its device was paused",
}


def name_job(job: JobId) -> str:
    """Name any job, as for somebody who may see all of them."""
    return f"job {job_name(job)}"


def explain(
    job: JobRecord,
    device: DeviceRecord,
    now_ns: int,
    name: Name = name_job,
    left_s: TimeLeft = lambda job: None,
) -> list[str]:
    """Return lines about a job that has not ended, the most important first."""
    return [*_present(job, device, name, left_s, now_ns), *changes_of(job.changes, now_ns, name)]


class Explained:
    """What is said of one job as a log is replayed: `explain` after each event, until it ends."""

    def __init__(self, job: JobId) -> None:
        self.job = job
        self.lines: list[str] = []

    def __call__(self, scheduler: Scheduler) -> None:
        """Look at the job after an event."""
        record = scheduler.jobs.get(self.job)
        if record is not None:
            device = scheduler.devices[record.device]
            self.lines = explain(record, device, scheduler.now_ns)
        elif self.job in scheduler.finished:
            record = scheduler.finished[self.job]
            changes = changes_of(record.changes, scheduler.now_ns)
            self.lines = [f"it is {record.state}", *changes]


def _present(
    job: JobRecord, device: DeviceRecord, name: Name, left_s: TimeLeft, now_ns: int
) -> Iterator[str]:
    reason = waiting_reason(job, device)
    if reason is not None:
        since_s = (now_ns - max(job.changed_ns, job.history[-1][0])) / 1e9
        yield f"it is {job.state}, for {seconds(since_s)}: {reason}"
    elif job.state is JobState.ENDING:
        yield f"it is being ended: {job.cause or 'it was closed'}"
    elif job.lending:
        yield f"it is idle, and lends {_sms(to_fraction(job.promised))} until its next launch"
        for giver_id, slices in job.plan or ():
            giver = device.jobs[giver_id]
            amount = to_fraction(slices * giver.slice)
            yield f"{name(giver_id)} is to give {_sms(amount)} back then"
        return
    else:
        yield f"it is {job.state}, with {_sms(job.allocation)} of {_wanted(job, device)}"
        if job.exhausted:
            yield "all its task blocks are begun; what it has falls as they end"
    if device.pause is not None and (device.pause.now or job.state is JobState.WAITING):
        yield "gpuctl resume, by root or the daemon's own user, lets it go on"
        return
    if job.state is JobState.BLOCKED or device.state is not DeviceState.READY:
        return
    lacks = job.state in (JobState.WAITING, JobState.PAUSED) or job.slices < job.most
    if not lacks or job.exhausted:
        return
    online, offline = device.online_allocated, device.allocated - device.online_allocated
    leaving = device.charged - device.allocated
    parts = [
        f"online jobs have {_sms(to_fraction(online))}",
        f"offline jobs {_sms(to_fraction(offline))}",
    ]
    if leaving > 0:
        parts.append(f"{_sms(to_fraction(leaving))} are being released")
    if device.held_back:
        parts.append(f"{_sms(to_fraction(device.held_back))} are held back for online jobs")
    if device.floor and job.online:
        parts.append(f"{_sms(device.floor_sms)} are kept for offline jobs")
    yield f"of the {device.sms} SMs of device {device.index}, {', '.join(parts)}"
    holders = [one for one in device.jobs.values() if one.alloc and one is not job]
    holders.sort(key=lambda one: (-one.alloc, one.order))
    for one in holders[:_MOST_HOLDERS]:
        kind = "online" if one.online else "offline"
        until = _until(one, left_s, now_ns)
        yield f"{name(one.id)} ({kind}) has {_sms(one.allocation)}, {until}"
    if len(holders) > _MOST_HOLDERS:
        yield f"{len(holders) - _MOST_HOLDERS} more jobs have some"
    if job.state is JobState.WAITING:
        queue = device.waiting_online if job in device.waiting_online.jobs() else device.waiting
        before = queue.jobs().index(job)
        if before:
            yield f"{before} job{'s wait' if before > 1 else ' waits'} in front of it"


def _until(job: JobRecord, left_s: TimeLeft, now_ns: int) -> str:
    estimate = left_s(job.id)
    timeout_ns = job.submission.timeout_ns
    texts = []
    if estimate is not None:
        texts.append(f"for about {seconds(estimate)} more at its present rate")
    if timeout_ns is not None and job.started_ns is not None:
        most_s = (job.started_ns + timeout_ns - now_ns) / 1e9
        texts.append(f"for {seconds(max(0.0, most_s))} at most, by its timeout")
    return ", and ".join(texts) or "nobody knows for how long"


def changes_of(changes: Sequence[ShareChange], now_ns: int, name: Name = name_job) -> list[str]:
    """Return lines about the latest changes of a job's share, and its moves to another host."""
    return [
        f"{seconds((now_ns - change.at_ns) / 1e9)} ago: {_described(change, name)}"
        for change in changes[-_MOST_CHANGES:]
    ]


def _described(change: ShareChange, name: Name) -> str:
    if change.because is Because.MOVED:
        return "its device's host was lost before the job began: it waits for the next"
    before, after = (Fraction(slices, change.occupancy) for slices in (change.before, change.after))
    if change.first:
        return f"it started with {_sms(after)}"
    other = "an online job" if change.job is None else name(change.job)
    return f"it went from {_sms(before)} to {_sms(after)}, {_BECAUSE[change.because].format(other)}"


def _wanted(job: JobRecord, device: DeviceRecord) -> str:
    most = Fraction(job.most, job.occupancy)
    if job.online:
        kind = "its reservation"
    elif job.most < job.quota_slices:
        kind = "all that its task blocks fill"
    else:
        kind = "the whole device" if job.quota is None else "its quota"
    return f"{_sms(most)}, {kind}"


def _sms(amount: Fraction) -> str:
    """Write an amount for people."""
    text = f"{float(amount):.2f}".rstrip("0").rstrip(".")
    return f"{text} SM" if amount == 1 else f"{text} SMs"


def seconds(value: float) -> str:
    """Write a time for people."""
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
