"""Admission: converts the share that a job asks for into slices, and accepts or refuses the job.

A reservation is rounded up to slices, or to SMs that the device can dedicate; a quota is rounded
down. A job that the device can never grant is refused at submission, with the most that would be
granted; a job that it cannot grant now waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from gpud.core.capacity import slices_above, slices_below
from gpud.core.device import DeviceRecord
from gpud.core.events import ResizeRequested
from gpud.core.job import JobRecord
from gpud.core.lifecycles import DeviceState, JobState
from gpud.core.policy import Policy
from gpud.core.users import UserRecord
from gpud.errors import (
    AdmissionError,
    GpudError,
    InvalidArgument,
    UnknownName,
)
from gpud.units import Partitions

__all__ = ["check_amounts", "check_caps", "check_resize", "check_submission", "size"]

_GONE = DeviceState.GONE  # a global: looking it up in its class takes ten times as long


def check_amounts(
    reservation: Fraction | None,
    quota: Fraction | None,
    *,
    exclusive: bool = False,
) -> GpudError | None:
    """Check the shares of a submission, in CapSM, independently of the device.

    Returns the error, or None if there is none.
    """
    if reservation is not None and quota is not None:
        return InvalidArgument(
            "a job has a reservation (then it is online) or a quota (offline), not both"
        )
    if exclusive and reservation is None:
        return InvalidArgument(
            "SMs of its own are for an online job: exclusive goes with a reservation"
        )
    for name, share in (("reservation", reservation), ("quota", quota)):
        if share is not None and share <= 0:
            return InvalidArgument(f"a {name} must be more than 0 SMs, not {share}")
    return None


def check_submission(
    job: JobRecord, user: UserRecord, devices: Mapping[int, DeviceRecord], policy: Policy
) -> GpudError | None:
    """Compute the sizes of a new job; return why it is refused, or None if it is accepted."""
    device = devices.get(job.device)
    if device is None:
        known = ", ".join(map(str, devices)) or "none"
        return UnknownName(f"there is no device {job.device}; there are: {known}")
    if device.state is _GONE:
        return device.lost_error("failed for good and is not started again; use another device")
    refusal = check_amounts(job.reservation, job.quota, exclusive=job.exclusive)
    if refusal is None and job.online and not policy.keeps_reservations:
        refusal = InvalidArgument(
            f"the daemon's policy {policy.name!r} keeps no reservations, and so takes no jobs that "
            "have one; submit the job without reservation, with weight for a larger share, or let "
            "the daemon run with policy 'reservations'"
        )
    if refusal is None and device.sms is not None:
        refusal = policy.size(job, device) or check_caps(job, user, device)
    return refusal


def check_caps(job: JobRecord, user: UserRecord, device: DeviceRecord) -> GpudError | None:
    """Check what a job, whose sizes are computed, needs against its user's caps."""
    assert device.sms is not None, "sizes are computed for a device of known size"
    account = device.users.account(user)
    if account.reserve is None:  # there is one whenever there is any cap
        return None
    need = job.least * job.slice
    return account.refuses(need, device.index, device.sms, online=job.online)


def check_resize(job: JobRecord, event: ResizeRequested) -> GpudError | None:
    """Check a resize independently of what is free; return why it is refused, or None."""
    if (event.reservation is None) == (event.quota is None):
        return InvalidArgument("a resize gives either a reservation or a quota")
    error = check_amounts(event.reservation, event.quota)
    if error is not None:
        return error
    if job.exclusive:
        return InvalidArgument(
            f"job {job.name} has SMs of its own, which it keeps as they are: it cannot be resized"
        )
    if job.state is JobState.ENDING:
        return InvalidArgument(f"job {job.name} is being ended and cannot be resized")
    if job.online != (event.reservation is not None):
        has, lacks = ("reservation", "quota") if job.online else ("quota", "reservation")
        kind = "online" if job.online else "offline"
        return InvalidArgument(
            f"job {job.name} is {kind}: its {has} can be changed, it has no {lacks}"
        )
    return None


def size(job: JobRecord, sms: int, floor: Fraction, partitions: Partitions) -> GpudError | None:
    """Compute ``least``, ``most`` and ``quota_slices`` of a job for a device of ``sms`` SMs.

    ``floor`` is the CapSM that online jobs leave to offline ones, ``partitions`` the SMs that the
    device can dedicate to single jobs. Returns an error if the device can never grant what the job
    asks for; its sizes are then unspecified.
    """
    need = job.whole_need(sms) if job.whole else 0
    if job.reservation is not None and job.exclusive:
        return _size_exclusive(job, job.reservation, sms - floor, partitions, need)
    if job.reservation is not None:
        return _size_online(job, job.reservation, sms, floor, need)
    every = sms * job.occupancy
    job.quota_slices = every if job.quota is None else slices_below(job.quota, job.occupancy)
    job.quota_slices = min(job.quota_slices, every)
    job.most = min(job.quota_slices, job.use)
    job.least = 1
    if job.quota_slices < 1:
        return AdmissionError(
            f"a quota of {job.quota} SMs holds no block of this kernel, of which {job.occupancy} "
            f"fit on an SM; the smallest quota that works is 1/{job.occupancy}",
            requested=job.quota,
            capacity=sms,
        )
    if job.whole:
        if job.quota_slices < need:
            return _whole_refusal(job, "quota", job.quota, need, sms)
        job.least = job.most = need
    return None


def _size_online(
    job: JobRecord, reservation: Fraction, sms: int, floor: Fraction, need: int
) -> GpudError | None:
    slices = slices_above(reservation, job.occupancy)
    rounded = Fraction(slices, job.occupancy)
    job.least = job.most = job.quota_slices = slices
    limit = sms - floor
    if rounded > limit:
        asked = f"a reservation of {reservation} SMs"
        if rounded != reservation:
            asked += f" (rounded up to slices of 1/{job.occupancy} SM: {rounded})"
        has = f"the device has {sms} SMs"
        if floor:
            has += f", of which {floor} are kept for offline jobs"
        most = Fraction(slices_below(limit, job.occupancy), job.occupancy)
        return AdmissionError(
            f"{asked} is more than can be granted: {has}; ask for at most {most}",
            requested=reservation,
            capacity=limit,
        )
    if slices < need:
        return _whole_refusal(job, "reservation", reservation, need, sms)
    return None


def _size_exclusive(
    job: JobRecord, reservation: Fraction, limit: Fraction, partitions: Partitions, need: int
) -> GpudError | None:
    step, most, why = partitions
    if not step:
        return AdmissionError(
            f"no SMs of the device can be one job's own: {why}; submit the job without exclusive",
            requested=reservation,
            capacity=0,
        )
    most = min(most, math.floor(limit)) // step * step
    own = math.ceil(reservation / step) * step
    if own > most:
        return AdmissionError(
            f"a reservation of {reservation} SMs is {own} SMs of the job's own, which the device "
            f"sets apart in multiples of {step}: more than the {most} that can be; ask for less",
            requested=reservation,
            capacity=most,
        )
    slices = own * job.occupancy
    job.least = job.most = job.quota_slices = slices
    if slices < need:
        return _whole_refusal(job, "reservation", Fraction(own), need, own)
    return None


def _whole_refusal(
    job: JobRecord, kind: str, share: Fraction | None, need: int, sms: int
) -> AdmissionError:
    needed = Fraction(need, job.occupancy)
    return AdmissionError(
        f"a kernel in form whole cannot be resized and needs all its {needed} SMs at once; a "
        f"{kind} of {share} SMs is too small, ask for {needed} or more, or launch fewer blocks",
        requested=share,
        capacity=sms,
    )
