"""Submits launches as a job: checks the options, packs, and sends one message. The hot path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from gpud_client.connection.pending import KeptJob, Operation
from gpud_client.launch.job_base import JobBase
from gpud_client.launch.kernels import Launch
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_job_base import LaneJobBase
from gpud_client.launch.lane_submission import submit_in_lane
from gpud_client.launch.sequences import pack_sequence
from gpud_client.launch.shares import admissible, check_whole
from gpud_client.launch.streams import StreamBase
from gpud_client.launch.submit_options import SubmitOptions, as_ns
from gpud_client.workloads.use import memory_used

__all__ = ["listed", "submit_launches"]

_MOST_WEIGHT = 1000
_MOST_AMOUNTS = 1000

T = TypeVar("T")


def submit_launches(
    session: Any, launches: Sequence[Launch], options: SubmitOptions
) -> Operation[Any]:
    """Submit launches as one job of a session, and return the job."""
    lane = options["stream"]
    if isinstance(lane, LaneBase):
        return (yield from submit_in_lane(session, launches, lane, options))
    sequence = yield from pack_sequence(session, launches, options["device"])
    on = sequence.device
    reservation, quota = options["reservation"], options["quota"]
    key = (type(reservation), reservation, type(quota), quota, sequence.occupancy, on.index)
    try:
        amounts = session._amounts.get(key)
    except TypeError:  # not hashable, so not a share: `admissible` raises
        amounts = None
    if amounts is None:
        amounts = admissible(reservation, quota, sequence.occupancy, on)
        if len(session._amounts) >= _MOST_AMOUNTS:
            session._amounts.clear()
        session._amounts[key] = amounts
    if sequence.need:
        check_whole(amounts, sequence.need, sequence.occupancy, on)
    stream, after, weight = options["stream"], options["after"], options["weight"]
    deadline, timeout = options["deadline"], options["timeout"]
    line = session.default_stream if stream is None else _stream_of(session, stream)
    if after:
        after = listed("after is a list of jobs", after)
        yield [
            job for job in after if isinstance(job, LaneJobBase)
        ]  # of which the daemon knows nothing
        after = [job for job in after if not isinstance(job, LaneJobBase)]
    follow = _after(session, after) if after else ()
    deadline_ns = None if deadline is None else as_ns("deadline", deadline)
    timeout_ns = None if timeout is None else as_ns("timeout", timeout)
    if weight != 1 and (type(weight) is not int or not 1 <= weight <= _MOST_WEIGHT):
        raise ValueError(f"a weight is a whole number from 1 to {_MOST_WEIGHT}, not {weight!r}")
    exclusive = bool(options["exclusive"])
    if exclusive and reservation is None:
        raise ValueError("exclusive goes with a reservation: how many SMs are the job's own")
    if timeout is not None and reservation is None:
        for launch in launches:
            yield from launch.kernel._make_killable(launch, on)
    job = session._job_class(session, session._channel, sequence.what, on, line, sequence.total)
    memory_of = memory_used(launches) if session._core.workloads else None
    terms = (
        on.index, sequence.records, *amounts, line._number, follow, deadline_ns, timeout_ns, weight,
        exclusive, memory_of, line._sticky,
    )  # fmt: skip
    if session._core.resumable is not None:
        used = [array._allocation for launch in launches for array in launch._arrays]
        memory = [allocation for allocation in used if allocation is not None]
        for allocation in memory:
            allocation.lost = False  # its values will be what the job makes them
        job._kept = KeptJob(terms, sequence.users, memory)
    if session._core.checking is not None:
        session._core.checking.settle()
    yield from session._channel.submitting(job, terms, sequence.users, options["wait"])
    return job


def _stream_of(session: Any, stream: StreamBase) -> StreamBase:
    if not isinstance(stream, StreamBase):
        raise TypeError(f"stream is what gpu.stream() gives, not {stream!r}")
    if stream._core is not session._core:
        raise ValueError(f"{stream!r} is of another session")
    return stream


def _after(session: Any, after: Iterable[JobBase]) -> tuple[tuple[int, int], ...]:
    jobs = listed("after is a list of jobs", after)
    for job in jobs:
        if not isinstance(job, JobBase):
            raise TypeError(f"after is a list of jobs; {job!r} is not one")
        if job._channel.where != session._path:
            raise ValueError(f"{job!r} is a job of another daemon")
    return tuple([job._ref for job in jobs if not job._settled])


def listed(what: str, given: Iterable[T]) -> Sequence[T]:
    """Convert an iterable argument to a sequence; iterators are consumed once, here."""
    if isinstance(given, tuple | list):
        return given
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what}, not {given!r}")
    return tuple(given)
