"""How policies keep the caps of users: who may start or grow, and what is kept for whom.

Properties: ``capped`` of `gpud.core.users`; and a job that a cap keeps from its start blocks nobody
else's.
"""

from __future__ import annotations

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord

__all__ = ["first_waiting", "first_waiting_online", "groups", "without_kept"]


def first_waiting(device: DeviceRecord) -> JobRecord | None:
    """Return the first waiting job, of those which no cap keeps from their start."""
    if not device.users.has_caps:
        return device.waiting[0][2] if device.waiting else None
    jobs = (entry[2] for entry in device.waiting)
    return next((job for job in jobs if not device.users.is_capped(job)), None)


def first_waiting_online(device: DeviceRecord) -> JobRecord | None:
    """Return the first waiting online job, of those which no cap keeps from their start."""
    if not device.users.has_caps:
        return device.waiting_online[0][2] if device.waiting_online else None
    jobs = (entry[2] for entry in device.waiting_online)
    return next((job for job in jobs if job.account.admits(job.least * job.slice)), None)


def without_kept(device: DeviceRecord, candidates: list[JobRecord]) -> list[JobRecord]:
    """Leave out jobs for whose user's other job the room under a cap is kept, as by rule 4."""
    heads: dict[int, JobRecord] = {}
    if device.reserved_for is not None:
        taker, slices = device.reserved_for
        if taker.slices < min(slices, taker.most):
            heads[taker.account.user.number] = taker
    paused = (queue[0][2] for queue in device.growable.values() if queue)
    waiting = (entry[2] for entry in device.waiting)
    for job in (*paused, *waiting):
        if not job.slices:
            heads.setdefault(job.account.user.number, job)
    kept = set()
    for number, job in heads.items():
        account = job.account
        if account.hold is None:
            continue
        room = account.hold - account.charged
        need = (1 if job.started else job.least) * job.slice
        if room < need <= room + account.charged - account.allocated:
            kept.add(number)
    return [job for job in candidates if job.account.user.number not in kept]


def groups(candidates: list[JobRecord]) -> list[tuple[list[int], int]]:
    """Return the candidates of each user with a cap, and what they may get together."""
    by_user: dict[int, tuple[list[int], int]] = {}
    for index, job in enumerate(candidates):
        account = job.account
        if account.hold is not None:
            group = by_user.setdefault(account.user.number, ([], account.hold - account.charged))
            group[0].append(index)
    return list(by_user.values())
