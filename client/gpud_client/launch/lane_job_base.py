"""Jobs of a lane: as any job to who holds one, and made of next to nothing until asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gpud.errors import GpudError, InvalidArgument
from gpud.units import SessionId, Share, job_id, job_name
from gpud.wire.lane_ring import BEGUN, SLICES
from gpud.wire.messages import CancelLaunch, Finished, LaunchEnded
from gpud_client.connection import operations
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Notification, Operation
from gpud_client.launch.job_base import JobBase
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_completions import Batch

__all__ = ["LaneJobBase"]

_MASK = 0xFFFFFFFF
_TRIES = 3

_LATER: dict[str, Callable[[LaneBase], Any]] = {
    # Attributes of a job that few are asked for.
    "_session": lambda lane: lane._session,
    "_channel": lambda lane: lane._session._channel,
    "_device": lambda lane: lane.device,
    "_stream": lambda lane: lane,
    "_waiting": lambda lane: [],
    "_callbacks": lambda lane: [],
}


class LaneJobBase(JobBase):
    """State and operations common to `LaneJob` and `AsyncLaneJob`."""

    _over = False
    _totals: tuple[int, ...] = ()  # of its launches, unless it has one
    _batches: tuple[Batch, ...]
    _first: int
    _last: int

    def __init__(
        self, lane: LaneBase, what: str, total: int
    ) -> None:  # the rest when it is asked for
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
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__.setdefault(name, make(self._lane))

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

    @operation
    def cancel(self) -> Operation[bool]:
        """End the job; returns whether it had not ended. See `Job.cancel`."""
        if self._settled:
            return self._final_state() == "cancelled"
        self._cancelled_here = self._asked = True
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

    def _watch(self) -> None:
        """Have a thread settle it when it has ended, though nobody asks."""
        lane = self._lane
        lane._watch(self._last, lambda: lane._settle_job(self))

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
            self._fail_stream()
            self._finish()

    def _complete(
        self, told: Sequence[LaunchEnded], times: tuple[int, int, int], slices_ns: int
    ) -> None:
        """Settle it with its completions, and the messages about some."""
        accepted, began, ended = times
        stats = {
            "queued_s": max(0, accepted - self._at_ns) / 1e9,
            "first_block_s": (began - accepted) / 1e9 if began else None,
            "run_s": max(0, ended - accepted) / 1e9,
            "capsm_seconds": slices_ns / SLICES / 1e9,
        }
        state, error, done = "done", None, self._total
        for one in told:
            if one.state != "done":
                done -= one.progress[1] - one.progress[0]
            if state == "done":
                state, error = one.state, one.error
        output = b"".join(one.output for one in told)
        self._end_with(Finished(0, state, error, output, stats, (done, self._total)))

    def _begun_launches(self) -> int:
        """Return how many of its launches have begun."""
        begun = (self._lane._words[BEGUN // 4] - self._first) & _MASK
        return min(begun, self._last - self._first + 1) if begun < 1 << 31 else 0

    def _describe(self) -> Operation[dict[str, Any] | None]:
        if self._settled:
            return None
        lane = self._lane
        row: dict[str, Any] = {}
        begun = present = 0  # launches, and task blocks done of the latest
        for _ in range(_TRIES):
            begun = self._begun_launches()
            asked = yield from operations.describe((lane._session._core.session, lane._number))
            if self._has_ended() or asked is None:
                return None
            row = asked
            if begun == self._begun_launches():  # else the row may tell of another launch
                present = row["progress"][0]
                break
        done, first_s, run_s, capsm_s = 0, None, None, None
        now = queued_to = time.monotonic_ns()
        if begun:
            done = sum(self._totals[: begun - 1]) + present
            queued_to = lane._accepted_ns(self._first)
            run_s = max(0, now - queued_to) / 1e9
            first_s = row["first_block_s"] if begun == 1 else None
            capsm_s = float(Fraction(row["allocation"])) * run_s
        return {
            **row,
            "state": "running" if begun else "waiting",
            "progress": [done, self._total],
            "queued_s": max(0, queued_to - self._at_ns) / 1e9,
            "first_block_s": first_s,
            "run_s": run_s,
            "release_s": None,
            "resizes": 0,
            "capsm_seconds": capsm_s,
        }
