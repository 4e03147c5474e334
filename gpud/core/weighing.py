"""Gives the jobs of a device the weights that make shares fair by user first."""

from __future__ import annotations

from gpud.core.device import DeviceRecord
from gpud.core.lifecycles import JobState
from gpud.core.user_weights import factors

__all__ = ["weigh_users"]

_FEW_JOBS = 64  # so many are weighed anew, some 0.2 ms, at every change
_ONLINE_HOLDS = 10  # so often, by default once a second, it is seen what online jobs have had,
_ONLINE_PERIODS = 4  # of which this is about the number that counts,
_ONLINE_STEPS = 64  # and a change by less than this part of the device does not
_FACTOR_STEPS = 256  # a factor that changes by less than this part is left as it is


def weigh_users(device: DeviceRecord) -> None:
    """Compute the factors of a device's users, and the weights of their jobs.

    With many jobs it is done at most once in a hold: then the device is looked at again.
    """
    users, service, now_ns = device.users, device.service, device.now_ns
    if service is None or users.sharing < 2:
        users.changed = False
        return
    if not (_see_online(device) or users.changed):
        return
    users.changed = False
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
    for number, factor in factors(device.capacity - users.weighed_online, jobs).items():
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


def _see_online(device: DeviceRecord) -> bool:
    """Whether what online jobs have on the average has changed, since jobs were weighed.

    Weights for the whole device would take from a job that is limited in proportion, although the
    others could spare what online jobs take.
    """
    users = device.users
    passed_ns = device.now_ns - users.online_seen_ns
    if passed_ns >= _ONLINE_HOLDS * device.rebalance_hold_ns:
        taken = device.online_taken(device.now_ns)
        mean = (taken - users.online_seen) // passed_ns
        users.online_seen, users.online_seen_ns = taken, device.now_ns
        users.online += (mean - users.online) // _ONLINE_PERIODS
    if abs(users.online - users.weighed_online) * _ONLINE_STEPS <= device.capacity:
        return False
    users.weighed_online = min(users.online, device.capacity - 1)
    return True
