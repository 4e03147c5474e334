"""Checks every invariant of a scheduler's state from scratch, in tests and under ``debug``.

Properties checked, as named in `gpud.core.scheduler`: capacity, quota, reservation, partitions,
prepared, paused; and of the bookkeeping: sums (of devices and of users), filed (see
`gpud.core.device`), service (`counted` in `gpud.core.service`), sessions (each unfinished job is in
exactly one session). Properties of a history rather than of one state (once, awake, equal_logs) are
checked by the tests, against a model of a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpud.core.capacity import to_fraction
from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.lifecycles import DeviceState, JobState
from gpud.core.session import SessionRecord
from gpud.errors import InternalError
from gpud.units import JobId, SessionId

__all__ = ["problems", "validate"]


def validate(
    devices: Mapping[int, DeviceRecord],
    sessions: Mapping[SessionId, SessionRecord],
    jobs: Mapping[JobId, JobRecord],
    *,
    keeps_reservations: bool,
) -> None:
    """Check every invariant of a scheduler with these devices, open sessions and unfinished jobs.

    Raises:
        InternalError: one is violated; the message lists all violations, each with the history of
            the object concerned.
    """
    violations = list(problems(devices, sessions, jobs, keeps_reservations=keeps_reservations))
    if violations:
        raise InternalError("; ".join(violations), stage="scheduler")


def problems(
    devices: Mapping[int, DeviceRecord],
    sessions: Mapping[SessionId, SessionRecord],
    jobs: Mapping[JobId, JobRecord],
    *,
    keeps_reservations: bool,
) -> Iterator[str]:
    """Yield the violations, each beginning with the name of the property."""
    for device in devices.values():
        yield from _device(device, keeps_reservations=keeps_reservations)
    for session in sessions.values():
        for job in session.jobs.values():
            if jobs.get(job.id) is not job:
                yield f"sessions: {_story(job)} is in {session.what} and nowhere else"
    if sum(len(session.jobs) for session in sessions.values()) != len(jobs):
        yield "sessions: there are jobs without a session"
    for job in jobs.values():
        on_record = devices[job.device].jobs.get(job.id) is job
        if on_record is (job.state in (JobState.BLOCKED, JobState.PREPARING)):
            yield f"filed: {_story(job)} is {'' if on_record else 'not '}on its device's record"


def _device(device: DeviceRecord, *, keeps_reservations: bool) -> Iterator[str]:
    jobs = list(device.jobs.values())
    if device.allocated > device.capacity:
        yield (
            f"capacity: {device.what} has {device.sms} SMs, {to_fraction(device.allocated)} of "
            "them are allocated"
        )
    if device.unpromised < 0 <= device.free:
        yield (
            f"promised: idle lanes of {device.what} have lent {to_fraction(device.promised)} of "
            f"its {device.sms} SMs, {to_fraction(-device.unpromised)} of which nobody can give back"
        )
    if list(device.lending) != [job.id for job in jobs if job.lending] and sorted(
        device.lending
    ) != sorted(job.id for job in jobs if job.lending):
        yield f"sums: {device.what} counts {list(device.lending)} as lanes that lend"
    for job in jobs:
        yield from _job(job, keeps_reservations=keeps_reservations)
        if device.state is DeviceState.STARTING:
            yield f"filed: {_story(job)} is ready on {device.what}, which is not up"
        if job.prepared_generation != device.host_generation:
            yield f"prepared: {_story(job)} is ready on a host that lacks something it needs"
    sums = {
        "allocated": sum(job.alloc for job in jobs),
        "charged": sum(job.charge for job in jobs),
        "pending_release": sum(job.pending_release for job in jobs),
        "online_allocated": sum(job.alloc for job in jobs if job.online),
        "releasable": sum(entry[2].alloc for entry in device.shrinkable),
        "promised": sum(job.promised for job in jobs if job.online),
        "held_back": sum(amount for _, amount in device.holds),
        "working": sum(
            not job.online and (job.live or job.state is JobState.WAITING) for job in jobs
        ),
    }
    for name, total in sums.items():
        if getattr(device, name) != total:
            yield f"sums: {device.what} counts {name} as {getattr(device, name)}, it is {total}"
    yield from _accounts(device, jobs)
    if device.service is not None:
        yield from _service(device, jobs)
    own = [job.partition for job in jobs if job.started and job.exclusive]
    if sum(own) > device.partitions.most or any(
        sms % max(1, device.partitions.step) for sms in own
    ):
        yield f"partitions: {device.what} sets {own} SMs apart, and can {device.partitions}"
    yield from _paused(device, jobs)
    yield from _filed(device, jobs)


def _paused(device: DeviceRecord, jobs: list[JobRecord]) -> Iterator[str]:
    pause = device.pause
    if pause is None:
        return
    for job in jobs:
        if job.started_ns is not None and job.started_ns > pause.at_ns:
            yield f"paused: {_story(job)} was started, {device.what} is paused since {pause.at_ns}"


def _accounts(device: DeviceRecord, jobs: list[JobRecord]) -> Iterator[str]:
    for account in device.users.accounts.values():
        own = [job for job in jobs if job.account is account]
        sums = {
            "allocated": sum(job.alloc + job.promised for job in own),
            "online": sum(job.alloc + job.promised for job in own if job.online),
            "charged": sum(job.charge + job.promised for job in own),
            "offline_jobs": sum(not job.online for job in own),
        }
        for name, total in sums.items():
            if getattr(account, name) != total:
                has = getattr(account, name)
                yield f"sums: user {account.user.name} has {name} {has}, it is {total}"
    if device.users.sharing != sum(one.offline_jobs > 0 for one in device.users.accounts.values()):
        yield f"sums: {device.what} counts {device.users.sharing} users with offline jobs"


def _service(device: DeviceRecord, jobs: list[JobRecord]) -> Iterator[str]:
    service = device.service
    assert service is not None, "only for policies that count it"
    hungry = [job for job in jobs if job.hunger is not None]
    sums = {
        "weight": sum(job.weight for job in hungry),
        "rate": sum(job.alloc for job in hungry),
        "served": sum(job.served_at(service.at_ns) for job in hungry),
    }
    for name, total in sums.items():
        if getattr(service, name) != total:
            yield f"service: {device.what} counts {name} as {getattr(service, name)}, it is {total}"


def _job(job: JobRecord, *, keeps_reservations: bool) -> Iterator[str]:
    if job.slices < 0 or job.held < 0:
        yield f"capacity: {_story(job)} has {job.slices} slices and holds {job.held}"
    if not job.online and job.live and job.slices > job.quota_slices:
        yield f"quota: {_story(job)} has {job.slices} slices, its quota is {job.quota_slices}"
    if not job.online and job.quota is not None and job.allocation > job.quota:
        yield f"quota: {_story(job)} has {job.allocation} SMs, its quota is {job.quota}"
    if (
        keeps_reservations
        and job.online
        and job.live
        and not job.exhausted
        and job.reservation is not None
        and to_fraction(job.alloc + job.promised) < job.reservation
    ):
        yield f"reservation: {_story(job)} has {job.allocation} of {job.reservation} SMs"


def _filed(device: DeviceRecord, jobs: list[JobRecord]) -> Iterator[str]:
    for job in jobs:
        if job.entries != device.queue_entries(job):
            yield f"filed: {_story(job)} is not where it belongs"
    queues = [device.waiting_online, device.waiting, device.shrinkable, *device.growable.values()]
    for queue in queues:
        if queue != sorted(queue):
            yield f"filed: {device.what} has a queue out of order"
    if sum(map(len, queues)) != sum(len(job.entries) for job in jobs):
        yield f"filed: {device.what} has jobs in its queues that are gone"


def _story(job: JobRecord) -> str:
    story = ", ".join(f"{text} at {at_ns}" for at_ns, text in job.history)
    return f"job {job.name} ({job.state}: {story})"
