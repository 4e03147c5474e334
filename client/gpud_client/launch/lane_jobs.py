"""Jobs of a lane: as any job to who holds one, and made of next to nothing until asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from gpud.errors import GpudError, InvalidArgument
from gpud.units import SessionId, Share, job_id, job_name
from gpud.wire.lane_ring import BEGUN
from gpud.wire.messages import CancelLaunch, Finished, LaunchEnded
from gpud_client.connection import operations
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Notification, Operation
from gpud_client.launch.jobs import Job
from gpud_client.launch.lane_completions import Batch
from gpud_client.launch.lanes import Lane

__all__ = ["LaneJob"]

_MASK = 0xFFFFFFFF

_LATER: dict[str, Callable[[Lane], Any]] = {
    # Attributes of a job that few are asked for.
    "_session": lambda lane: lane._session,
    "_channel": lambda lane: lane._session._channel,
    "_device": lambda lane: lane.device,
    "_stream_number": lambda lane: lane._number,
    "_waiting": lambda lane: [],
    "_callbacks": lambda lane: [],
}


class LaneJob(Job):
    """A job of a `Lane`."""

    _over = False
    _batches: tuple[Batch, ...]
    _first: int
    _last: int

    def __init__(self, lane: Lane, what: str, total: int) -> None:  # the rest when it is asked for
        self._lane = lane
        self._what = what
        self._total = total
        self._at_ns = time.monotonic_ns()

    @property
    def id(self) -> str:
        """The job's id: ``"3.17:5"`` is launch 5 of the lane that is job 17 of session 3."""
        lane = self._lane
        name = job_name(job_id(SessionId(lane._session._core.session), lane._number))
        return f"{name}:{self._first & _MASK}"

    def __getattr__(self, name: str) -> Any:
        make = _LATER.get(name)
        if make is not None:
            return self.__dict__.setdefault(name, make(self._lane))
        if name in ("_condition", "_waiters"):  # somebody waits for it as for any future
            self._lane._watch(self)
        return super().__getattr__(name)

    @property
    def _settled(self) -> bool:
        return self._over or self._look()

    @_settled.setter
    def _settled(self, over: bool) -> None:
        self._over = over

    @property
    def output(self) -> str:
        """The output of its kernels' ``printf``; empty until the job has ended."""
        return super().output if self._settled else ""

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
            self._lane._watch(self)

    @operation
    def cancel(self) -> Operation[bool]:
        """End the job; returns whether it had not ended. See `Job.cancel`."""
        if self._settled:
            return self._final_state() == "cancelled"
        self._asked = True
        for number in range(self._first, self._last + 1):
            yield Notification(CancelLaunch(self._lane._number, number & _MASK))
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

    def _look(self) -> bool:
        """Settle it if it has ended; returns whether it is settled."""
        lane = self._lane
        with lane._lock:
            if not (self._over or lane._finished):
                lane._harvest()
            return lane._settle_job(self)

    def _lose(self, error: GpudError) -> None:
        if not self._over:
            self._error = error
            self._finish()

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
        self._end_with(Finished(0, state, error, output, stats, (done, self._total)))

    def _wait_for_end(self, timeout: float | None) -> BaseException | None:
        if not (self._over or (self._lane.wait(self._last, timeout) and self._look())):
            late = self._channel.run(self._late(timeout))
            if not self._settled:
                raise late
        self._asked = True
        return None if self._error is None else self._ask()

    def _describe(self) -> Operation[dict[str, Any] | None]:
        if self._settled:
            return None
        lane = self._lane
        row = yield from operations.describe((lane._session._core.session, lane._number))
        if self._has_ended() or row is None:
            return None
        begun = (lane._words[BEGUN // 4] - self._first - 1) & _MASK < 1 << 31
        row = {**row, "state": "running" if begun else "waiting", "progress": [0, self._total]}
        row["queued_s"] = (time.monotonic_ns() - self._at_ns) / 1e9
        return {**row, "first_block_s": None, "run_s": None, "release_s": None, "resizes": 0}
