"""Jobs of a lane: as any job to who holds one, and made of next to nothing until asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from gpud.errors import InvalidArgument
from gpud.units import Share
from gpud.wire.lane_ring import BEGUN
from gpud.wire.messages import CancelLaunch, Finished, LaunchEnded, PrepareLaunch
from gpud_client.connection import operations
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Notification, Operation, Request
from gpud_client.devices import Device
from gpud_client.launch.jobs import Job
from gpud_client.launch.kernels import Launch
from gpud_client.launch.lanes import Lane, check_machine
from gpud_client.launch.shares import admissible
from gpud_client.launch.submit_options import SubmitOptions

__all__ = ["LaneJob", "open_lane", "submit_in_lane"]

_UNIT = 32  # slices of an SM, of a lane

_MASK = 0xFFFFFFFF
_MOST_WEIGHT = 1000


class LaneJob(Job):
    """A job of a `Lane`."""

    def __init__(
        self, session: Any, lane: Lane, what: str, total: int, memory: Sequence[object]
    ) -> None:
        super().__init__(session, session._channel, what, lane.device, lane._number, total)
        self._lane = lane
        self._first = self._last = 0
        self._memory = memory
        self._at_ns = time.monotonic_ns()
        self._ref = (session._core.session, lane._number)

    @property
    def id(self) -> str:
        """The job's id: ``"3.17:5"`` is launch 5 of the lane that is job 17 of session 3."""
        return f"{super().id}:{self._first}"

    def __getattr__(self, name: str) -> Any:
        if name in ("_condition", "_waiters"):  # somebody waits for it as for any future
            self._lane._watch()
        return super().__getattr__(name)

    def done(self) -> bool:
        """Return whether the job has ended: done, failed or cancelled."""
        self._look()
        return super().done()

    def cancelled(self) -> bool:
        """Return whether the job has ended because it was cancelled."""
        self._look()
        return super().cancelled()

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call ``fn(job)`` when the job has ended; see `Job.add_done_callback`."""
        super().add_done_callback(fn)
        if not self._settled:
            self._lane._watch()

    @operation
    def cancel(self) -> Operation[bool]:
        """End the job; returns whether it had not ended. See `Job.cancel`."""
        self._look()
        if self._settled:
            return self._final_state() == "cancelled"
        self._asked = True
        for number in self._numbers():
            yield Notification(CancelLaunch(self._lane._number, number))
        return True

    @operation
    def resize(
        self, *, reservation: Share | None = None, quota: Share | None = None
    ) -> Operation[None]:
        """Say that its share is the lane's.

        Raises:
            InvalidArgument: always.
        """
        yield from ()
        raise InvalidArgument("a job in a lane runs in the lane's share: it has none to resize")

    # -- settling

    def _numbers(self) -> Iterator[int]:
        count = ((self._last - self._first) & _MASK) + 1
        return ((self._first + index) & _MASK for index in range(count))

    def _look(self) -> None:
        """Settle what has ended."""
        lane = self._lane
        if not self._settled:
            with lane._lock:
                if lane._opened and not lane._finished:
                    lane._harvest()

    def _complete(self, told: Sequence[LaunchEnded], times: tuple[int, int, int]) -> None:
        """Settle it with its completions, and the messages about some."""
        accepted, began, ended = times
        stats = {
            "queued_s": max(0, accepted - self._at_ns) / 1e9,
            "first_block_s": (began - accepted) / 1e9 if began else None,
            "run_s": max(0, ended - accepted) / 1e9,
        }
        state, error, done = "done", None, self._total
        for one in told:
            if one.state != "done":
                done -= one.progress[1] - one.progress[0]
            if state == "done":
                state, error = one.state, one.error
        output = b"".join(one.output for one in told)
        self._memory = ()
        self._settle(Finished(0, state, error, output, stats, (done, self._total)))

    def _wait_for_end(self, timeout: float | None) -> BaseException | None:
        if not self._settled and not self._lane.wait(self._last, timeout):
            late = self._channel.run(self._late(timeout))
            if not self._settled:
                raise late
        self._asked = True
        return None if self._error is None else self._ask()

    def _describe(self) -> Operation[dict[str, Any] | None]:
        self._look()
        if self._settled:
            return None
        lane = self._lane
        row = yield from operations.describe(self._ref)
        if self._has_ended() or row is None:
            return None
        begun = (lane._words[BEGUN // 4] - self._first - 1) & _MASK < 1 << 31
        row = {**row, "state": "running" if begun else "waiting", "progress": [0, self._total]}
        row["queued_s"] = (time.monotonic_ns() - self._at_ns) / 1e9
        return {**row, "first_block_s": None, "run_s": None, "release_s": None, "resizes": 0}


def submit_in_lane(
    session: Any, launches: Sequence[Launch], lane: Lane, options: SubmitOptions
) -> Operation[LaneJob]:
    """Write launches into a lane's ring as one job; waits while the ring is full.

    Raises:
        ValueError: an option that a lane has itself, or does not have, was given.
        GpudError: the lane has ended, or cannot run one of the kernels.
    """
    _check_options(session, lane, options)
    lane._check()
    after = options["after"]
    if after:
        yield [job for job in after if not job._settled]
    records: list[tuple[int, tuple[int, int, int], bytes]] = []
    memory: list[object] = []
    for launch in launches:
        if launch._device is not None and launch._device is not lane.device:
            raise ValueError(f"{launch!r} has arrays on another device than {lane!r}")
        kernel = launch.kernel
        if kernel._session is not session:
            raise ValueError(f"{launch!r} is of another session")
        key = (kernel, launch.block, launch.shared)
        site = lane._sites.get(key)
        if site is None:
            site = yield from _prepare(lane, launch)
            lane._sites[key] = site
        for array in launch._arrays:
            array._live_address()  # raises if it was freed
            memory.append(array._allocation)
        records.append((site, launch.grid, launch._parameters))
    what = launches[0].kernel._name
    if len(launches) > 1:
        what = f"{len(launches)} kernels from {what} on"
    job = LaneJob(session, lane, what, sum(launch._total for launch in launches), memory)
    lane._write(job, records)
    for launch in launches:
        for array in launch._arrays:
            array._lane_jobs[lane] = job
    return job


def _prepare(lane: Lane, launch: Launch) -> Operation[int]:
    """Have the device make a launch site."""
    kernel = launch.kernel
    packed = yield from kernel._pack(launch, lane.device)
    index = kernel._indices[lane.device.index]
    number, block, shared = packed.number, launch.block, launch.shared
    answer = yield Request(
        lambda request: PrepareLaunch(request, lane._number, number, index, block, shared)
    )
    return int(answer.value)


def _check_options(session: Any, lane: Lane, options: SubmitOptions) -> None:
    if lane._session is not session:
        raise ValueError(f"{lane!r} is of another session")
    if options["reservation"] is not None or options["quota"] is not None:
        raise ValueError("a job in a lane runs in the lane's share: give it to gpu.lane(...)")
    if options["weight"] != 1:
        raise ValueError("a job in a lane has the lane's weight: give it to gpu.lane(...)")
    if options["deadline"] is not None:
        raise ValueError("deadline orders jobs that wait for a share, and a lane has its share")
    if options["exclusive"]:
        raise ValueError("lanes cannot have SMs of their own yet: submit to another stream")
    if options["timeout"] is not None:
        raise ValueError("timeout does not work in lanes yet: submit to another stream, or cancel")
    if options["device"] is not None and session._on(options["device"]) is not lane.device:
        raise ValueError(f"{lane!r} is on {lane.device.name}")


def open_lane(
    session: Any,
    reservation: Share | None,
    quota: Share | None,
    weight: int,
    device: Device | int | None,
) -> Operation[Lane]:
    """Open a lane; see `Session.lane`."""
    check_machine()
    if type(weight) is not int or not 1 <= weight <= _MOST_WEIGHT:
        raise ValueError(f"a weight is a whole number from 1 to {_MOST_WEIGHT}, not {weight!r}")
    on = session._on(device)
    amounts = admissible(reservation, quota, _UNIT, on)
    lane = Lane(session, on, 0)
    session._channel.opening_lane(lane, (on.index, *amounts, weight))
    try:
        yield [lane]  # type: ignore[list-item]
    except BaseException:
        lane.close(wait=False)
        raise
    if not lane._opened:
        assert lane._error is not None
        raise lane._error
    return lane
