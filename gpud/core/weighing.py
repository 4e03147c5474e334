"""Gives the jobs of a device the weights that make shares fair by user first."""

from __future__ import annotations

from gpud.core.device import DeviceRecord
from gpud.core.lifecycles import JobState
from gpud.core.user_weights import factors

__all__ = ["weigh_users"]

_FEW_JOBS = 64  # so many are weighed anew, some 0.2 ms, at every change
_FACTOR_STEPS = 256  # a factor that changes by less than this part is left as it is


def weigh_users(device: DeviceRecord) -> None:
    """Compute the factors of a device's users, and the weights of their jobs.

    With many jobs it is done at most once in a hold: then the device is looked at again.
    """
    users, service, now_ns = device.users, device.service, device.now_ns
    users.changed = False
    if service is None or users.sharing < 2:
        return
    jobs = [
        job
        for job in device.jobs.values()
        if not (job.online or job.exhausted or job.lending) and job.state is not JobState.ENDING
    ]
    due_ns = users.weighed_ns + device.rebalance_hold_ns
    if len(jobs) > _FEW_JOBS and now_ns < due_ns:
        users.changed = True
        if device.rebalance_at_ns is None:
            device.rebalance_at_ns = due_ns
        return
    users.weighed_ns = now_ns
    changed = False
    for number, factor in factors(device.capacity, jobs).items():
        account = users.accounts[number]
        if abs(factor - account.factor) * _FACTOR_STEPS > account.factor:
            account.factor = factor
            changed = True
    if not changed:
        return
    service.advance(now_ns)
    for job in device.jobs.values():
        weight = job.submission.weight * job.account.factor
        if not job.online and job.weight != weight:
            service.reweigh(job, weight)
            device.update_queues(job)
