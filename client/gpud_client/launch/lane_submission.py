"""Submits launches in lanes: checks them, prepares launch sites, and opens lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpud.units import Share
from gpud_client.connection.pending import Operation
from gpud_client.devices import Device
from gpud_client.launch.kernels import Launch
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_futex import check_machine
from gpud_client.launch.lane_job_base import LaneJobBase
from gpud_client.launch.lane_sites import LaunchSite, pinned, prepare, unpin, written
from gpud_client.launch.shares import admissible
from gpud_client.launch.submit_options import SubmitOptions, as_ns

__all__ = ["lane_terms", "submit_in_lane"]

_UNIT = 32  # slices of an SM, of a lane
_MOST_WEIGHT = 1000
_MOST_MS = (1 << 32) - 1


def submit_in_lane(
    session: Any, launches: Sequence[Launch], lane: LaneBase, options: SubmitOptions
) -> Operation[LaneJobBase]:
    """Write launches into a lane's ring as one job; waits while the ring is full.

    Raises:
        LimitExceeded: the ring is full, and that is not to be waited for.
        ValueError: an option that a lane has itself, or does not have, was given.
        GpudError: the lane has ended, or cannot run one of the kernels.
    """
    limit_ms = _check_options(session, lane, options)
    lane._check()
    after = options["after"]
    if after:
        yield [job for job in after if not job._settled]
    if session._core.checking is not None:
        session._core.checking.settle()
    sites: list[LaunchSite] = []
    try:
        return (yield from _submit(session, launches, lane, (limit_ms, options["wait"]), sites))
    finally:
        unpin(lane, sites)


def _submit(
    session: Any,
    launches: Sequence[Launch],
    lane: LaneBase,
    terms: tuple[int, bool],
    sites: list[LaunchSite],
) -> Operation[LaneJobBase]:
    """Write launches, whose sites are added to ``sites`` and pinned.

    ``terms``: the time limit in ms, 0 for none, and whether to wait while the ring is full.
    """
    records: list[tuple[int, tuple[int, int, int], bytes]] = []
    allocations: list[Any] = []
    for launch in launches:
        if launch._device is not None and launch._device is not lane.device:
            raise ValueError(f"{launch!r} has arrays on another device than {lane!r}")
        kernel = launch.kernel
        if kernel._session is not session:
            raise ValueError(f"{launch!r} is of another session")
        site = pinned(lane, launch)
        if site is None:
            site = yield from prepare(lane, launch)
        sites.append(site)
        for array in launch._arrays:
            array._live_address()  # raises if it was freed
            allocations.append(array._allocation)
        records.append((site.number, launch.grid, launch._parameters))
    what = launches[0].kernel._name
    if len(launches) > 1:
        what = f"{len(launches)} kernels from {what} on"
    totals = tuple([launch._total for launch in launches])
    job: LaneJobBase = lane._job_class(lane, what, sum(totals))
    job._totals = totals
    limit_ms, wait = terms
    try:
        yield from lane._write(job, records, allocations, limit_ms, wait=wait)
    finally:
        written(lane, sites)
    return job


def _check_options(session: Any, lane: LaneBase, options: SubmitOptions) -> int:
    """Refuse options that are the lane's; returns the timeout in ms, 0 for none."""
    if lane._session is not session:
        raise ValueError(f"{lane!r} is of another session")
    if options["reservation"] is not None or options["quota"] is not None:
        raise ValueError("a job in a lane runs in the lane's share: give it to gpu.lane(...)")
    if options["weight"] != 1:
        raise ValueError("a job in a lane has the lane's weight: give it to gpu.lane(...)")
    if options["deadline"] is not None:
        raise ValueError("deadline orders jobs that wait for a share, and a lane has its share")
    if options["exclusive"]:
        raise ValueError(
            "a job in a lane runs on the lane's SMs: open it with gpu.lane(exclusive=True)"
        )
    if options["device"] is not None and session._on(options["device"]) is not lane.device:
        raise ValueError(f"{lane!r} is on {lane.device.name}")
    if options["timeout"] is None:
        return 0
    return min(_MOST_MS, -(-as_ns("timeout", options["timeout"]) // 1_000_000))


def lane_terms(
    session: Any,
    reservation: Share | None,
    quota: Share | None,
    weight: int,
    device: Device | int | None,
    deadline: float | None,
    exclusive: bool,
) -> tuple[Device, tuple[Any, ...]]:
    """Check the options of a lane; returns its device, and the terms for the daemon.

    Raises:
        GpudError, TypeError, ValueError: see `Session.lane`.
    """
    check_machine()
    if type(weight) is not int or not 1 <= weight <= _MOST_WEIGHT:
        raise ValueError(f"a weight is a whole number from 1 to {_MOST_WEIGHT}, not {weight!r}")
    on = session._on(device)
    amounts = admissible(reservation, quota, _UNIT, on)
    if exclusive and reservation is None:
        raise ValueError("exclusive goes with a reservation: how many SMs are the lane's own")
    deadline_ns = None if deadline is None else as_ns("deadline", deadline)
    return on, (on.index, *amounts, weight, deadline_ns, bool(exclusive))
