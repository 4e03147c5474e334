"""Human-readable reasons why a job does not run."""

from __future__ import annotations

from gpud.core.capacity import to_fraction
from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.lifecycles import DeviceState, JobState

__all__ = ["lending_note", "waiting_reason"]


def waiting_reason(job: JobRecord, device: DeviceRecord) -> str | None:
    """Return why a job for ``device`` does not run now; None if it has capacity."""
    if job.state is JobState.BLOCKED:
        if job.stream_prev is not None:
            return f"follows job {job.stream_prev.name} in its stream"
        return f"follows {job.after_left} other job{'s' if job.after_left > 1 else ''}"
    if job.state is JobState.PAUSED:
        if device.pause is not None and device.pause.now:
            return _paused(device)
        if device.online_allocated:
            return "online jobs have its capacity"
        return "it is the turn of other offline jobs, which were served less"
    if job.started:
        return None
    if device.state is not DeviceState.READY:
        return f"device {device.name} is being started"
    if job.state is JobState.PREPARING:
        return f"what it needs is on its way to device {device.name}"
    if device.pause is not None:
        return _paused(device)
    needed = to_fraction(job.least * job.slice)
    capped = _capped_reason(job)
    if capped is not None:
        return capped
    ahead = [entry[2] for queue in (device.waiting_online, device.waiting) for entry in queue[:1]]
    needs = f"needs {needed} SM" if needed == 1 else f"needs {needed} SMs"
    if job not in ahead:
        return f"{needs}, and other jobs wait in front of it"
    return f"{needs}, {'which is' if needed == 1 else 'which are'} not free"


def _paused(device: DeviceRecord) -> str:
    assert device.pause is not None
    return f"device {device.index} is paused by {device.pause.by} since {device.pause.since}"


def lending_note(lane: JobRecord, device: DeviceRecord) -> str:
    """Say what an idle lane lends, and how it comes back; no other job is named."""
    lent = to_fraction(lane.promised)
    text = f"lends {lent} SM" if lent == 1 else f"lends {lent} SMs"
    steps = lane.plan or ()
    if not steps:
        return f"{text}, which nobody has now"
    back = to_fraction(sum(slices * device.jobs[job].slice for job, slices in steps))
    jobs = "1 job gives" if len(steps) == 1 else f"{len(steps)} jobs give"
    return f"{text}; {jobs} {back} back at its next launch"


def _capped_reason(job: JobRecord) -> str | None:
    """Return which cap of its user keeps a waiting job from its start."""
    account, need = job.account, job.least * job.slice
    name = account.user.name
    if job.online and account.reserve is not None and not account.admits(need):
        most, has = to_fraction(account.reserve), to_fraction(account.online)
        return f"user {name} may reserve {most} SMs, and has reserved {has}"
    if not job.online and account.hold is not None and account.is_full(need):
        most, has = to_fraction(account.hold), to_fraction(account.charged)
        return f"user {name} may hold {most} SMs, and has {has}"
    return None
