"""Submitted jobs: waiting for their end, state and statistics, resize and cancel."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gpud.errors import ConnectionLost, GpudError, JobCancelled, from_wire
from gpud.units import SessionId, Share, job_id, job_name
from gpud.wire.messages import Cancel, Describe, Finished, Resize
from gpud_client.connection.protocol_state import Operation, ProtocolState, Request
from gpud_client.launch.shares import resolve
from gpud_client.launch.unretrieved import log_failed

if TYPE_CHECKING:
    from gpud_client.connection.channel import Channel
    from gpud_client.devices import Device

__all__ = ["Job", "JobBase"]

_NO_STATS: dict[str, Any] = {
    "queued_s": None,
    "first_block_s": None,
    "run_s": None,
    "release_s": None,
    "resizes": 0,
    "capsm_seconds": None,
}


class JobBase:
    """State and operations common to `Job` and `AsyncJob`.

    Args:
        what: The kernel's name, or how many kernels, for messages.
        device: The device on which it runs.
        stream: The number of its stream.
        total: Its task blocks.
        path: The daemon's socket.

    Users hold these objects, so the attributes for other modules of the library are private, too:
    ``_ref`` (the numbers of its session and its own, once submitted), ``_settled``, ``_settle`` and
    ``_lose``.
    """

    def __init__(self, what: str, device: Device, stream: int, total: int, path: str) -> None:
        self._path = path
        self._what = what
        self._device = device
        self._stream_number = stream
        self._settled = False
        self._ref = (0, 0)
        self._total = total
        self._end: Finished | None = None
        self._asked = False
        self._error: GpudError | None = None

    @property
    def id(self) -> str:
        """The job's id in logs and ``gpuctl``: ``"3.17"`` is job 17 of session 3."""
        session, number = self._ref
        return job_name(job_id(SessionId(session), number))

    @property
    def output(self) -> str:
        """The output of its kernels' ``printf``; empty until the job has ended."""
        return "" if self._end is None else self._end.output.decode("utf-8", "replace")

    @property
    def device(self) -> Device:
        """The device on which it runs."""
        return self._device

    def done(self) -> bool:
        """Whether the job has ended: done, failed or cancelled."""
        return self._settled

    def cancelled(self) -> bool:
        """Whether the job has ended because it was cancelled."""
        return self._settled and self._final_state() == "cancelled"

    __reduce__ = ProtocolState.__reduce__  # else the future's lock fails first, unexplained

    def __repr__(self) -> str:
        state = "not ended" if not self._settled else self._final_state()
        return f"<{type(self).__name__} {self.id} {self._what}: {state}>"

    def __del__(self) -> None:
        # Else the failure might go unnoticed: the arrays just hold wrong values.
        error = getattr(self, "_error", None)
        if error is None or self._asked:
            return
        # A lost connection is reported elsewhere, and would be logged for every job.
        if not isinstance(error, JobCancelled | ConnectionLost):
            log_failed(self.id, self._what, error)

    # -- settling

    def _settle(self, message: Finished) -> None:
        """Settle it with the daemon's message; called again after an interrupt."""
        if self._settled:
            return
        self._end = message
        if message.error is not None:
            self._error = from_wire(message.error)
        elif message.state == "cancelled":
            self._error = JobCancelled(f"job {self.id} ({self._what}) was cancelled")
        elif message.state == "failed":
            self._error = GpudError(f"job {self.id} ({self._what}) failed")
        self._finish()

    def _lose(self, error: GpudError) -> None:
        """Settle it after the connection was lost; called again after an interrupt."""
        if not self._settled:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        """Mark it as settled, and wake everything that waits for it."""
        raise NotImplementedError

    def _has_ended(self) -> bool:
        """`_settled`, which a step of an operation may have changed (hidden from type checkers)."""
        return self._settled

    def _final_state(self) -> str:
        if self._end is not None:
            return str(self._end.state)
        return "cancelled" if isinstance(self._error, JobCancelled) else "failed"

    def _final_stats(self) -> dict[str, Any]:
        return _NO_STATS | (self._end.stats if self._end is not None else {})

    def _final_progress(self) -> tuple[int, int]:
        if self._end is None:
            return 0, self._total
        done, total = self._end.progress
        return done, total or self._total

    # -- operations

    def _describe(self) -> Operation[dict[str, Any] | None]:
        """Its row in topic "jobs"; None if it has ended."""
        if self._settled:
            return None
        ref = self._ref
        answer = yield Request(lambda number: Describe(number, (ref,)))
        rows = answer.value
        return rows[0] if rows and not self._has_ended() else None

    def _get_state(self) -> Operation[str]:
        row = yield from self._describe()
        return str(row["state"]) if row is not None else self._final_state()

    def _get_progress(self) -> Operation[tuple[int, int]]:
        row = yield from self._describe()
        if row is None:
            return self._final_progress()
        done, total = row["progress"]
        return int(done), int(total)

    def _get_allocation(self) -> Operation[Fraction]:
        row = yield from self._describe()
        return Fraction(0) if row is None else Fraction(row["allocation"])

    def _get_stats(self) -> Operation[dict[str, Any]]:
        row = yield from self._describe()
        if row is None:
            return self._final_stats()
        return {name: row.get(name, unknown) for name, unknown in _NO_STATS.items()}

    def _resize(self, reservation: Share | None, quota: Share | None) -> Operation[None]:
        if (reservation is None) == (quota is None):
            raise ValueError("give a reservation or a quota, one of them")
        ref = self._ref
        new_reservation = resolve("reservation", reservation, self._device)
        new_quota = resolve("quota", quota, self._device)
        yield Request(lambda number: Resize(number, ref, new_reservation, new_quota))

    def _cancel(self) -> Operation[bool]:
        if self._settled:
            return self._final_state() == "cancelled"
        self._asked = True  # its end is expected, so it is not logged
        ref = self._ref
        answer = yield Request(lambda number: Cancel(number, ref))
        return bool(answer.value) or (self._has_ended() and self._final_state() == "cancelled")

    def _late(self, timeout: float | None) -> Operation[TimeoutError]:
        row = yield from self._describe()
        name = f"job {self.id} ({self._what})"
        if row is None:
            return TimeoutError(f"{name} had not ended after {timeout} s")
        done, total = row["progress"]
        return TimeoutError(
            f"{name} has not ended after {timeout} s: it is {row['state']}, {done} of {total} task "
            f"blocks are done, its allocation is {row['allocation']} CapSM; it goes on"
        )


class Job(JobBase, concurrent.futures.Future[None]):
    """A submitted job: a `concurrent.futures.Future` with state, statistics and resizing.

    Made by `Kernel.submit` and `Session.sequence`. It works wherever a future does, as with
    `concurrent.futures.wait`, ``as_completed`` and `asyncio.wrap_future`. Thread-safe.

    If this object is dropped, the job goes on and its arrays stay allocated; closing the session
    cancels it.
    """

    def __init__(
        self, channel: Channel, what: str, device: Device, stream: int, total: int, keep: object
    ) -> None:
        concurrent.futures.Future.__init__(self)
        JobBase.__init__(self, what, device, stream, total, channel.where)
        self._channel = channel
        self._keep = keep  # the session, whose connection would be closed when it is collected
        self._waiting_calls: list[Callable[[concurrent.futures.Future[None]], object]] = []

    # -- as a future

    # The future's own state: it is set before waiters of futures are notified.

    def done(self) -> bool:
        """Whether the job has ended: done, failed or cancelled."""
        return concurrent.futures.Future.done(self)

    def cancelled(self) -> bool:
        """Whether the job has ended because it was cancelled."""
        return concurrent.futures.Future.cancelled(self)

    def result(self, timeout: float | None = None) -> None:
        """Wait until the job has ended. Returns nothing: results are in the arrays.

        Args:
            timeout: In seconds; None: no limit.

        Raises:
            JobError: The job failed, or was cancelled (`JobCancelled`). Its output arrays hold
                unspecified values.
            TimeoutError: It has not ended in time; the message states its progress. It goes on.
            ConnectionLost: The connection to the daemon is lost; how the job ends is unknown.
        """
        error = self._wait_for_end(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the job has ended; returns its error, None if it is done.

        Args:
            timeout: In seconds; None: no limit.

        Raises:
            JobCancelled: It was cancelled.
            TimeoutError: It has not ended in time. It goes on.
        """
        error = self._wait_for_end(timeout)
        if isinstance(error, CancelledError):
            raise error
        return error

    def cancel(self) -> bool:
        """Ask the daemon to end the job; returns whether it will end cancelled.

        Blocks for the daemon's answer only. Running task blocks are finished or ended; `result`
        raises `JobCancelled` once nothing of the job runs any more.
        """
        return self._channel.run(self._cancel())

    def running(self) -> bool:
        """Whether the job is running; queries the daemon."""
        return self.state in ("running", "paused", "ending")

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[None]], object]) -> None:
        """Call ``fn(job)`` when the job has ended; at once if it has.

        It is called in the thread that reads the connection then, with no lock held. Its exceptions
        are logged.
        """
        with self._condition:
            if not self._settled:
                self._waiting_calls.append(fn)
                return
        _call(fn, self)

    # -- state and statistics

    @property
    def state(self) -> str:
        """The job's state; queries the daemon until the job has ended.

        ``blocked`` (by its stream or ``after``), ``preparing`` (its modules are loaded and its
        arrays copied to the device), ``waiting`` (for capacity), ``running``, ``paused`` (without
        an allocation for now, keeping its progress) or ``ending`` (its blocks are leaving); then
        ``done``, ``failed`` or ``cancelled``.
        """
        return self._channel.run(self._get_state())

    @property
    def progress(self) -> tuple[int, int]:
        """Task blocks done, and their total. Queries the daemon."""
        return self._channel.run(self._get_progress())

    @property
    def allocation(self) -> Fraction:
        """The job's current allocation in CapSM; 0 when it has ended. Queries the daemon."""
        return self._channel.run(self._get_allocation())

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics of the job; queries the daemon until the job has ended.

        In seconds: ``queued_s`` from submission to start, ``first_block_s`` from start to the first
        task block, ``run_s`` from start to end or until now, and ``release_s``, the longest time
        that blocks took to leave after they were told to release. Then ``resizes``, how often its
        allocation has changed, and ``capsm_seconds``. None where unknown.
        """
        return self._channel.run(self._get_stats())

    def resize(self, *, reservation: Share | None = None, quota: Share | None = None) -> None:
        """Change the job's reservation or quota while it waits or runs.

        Returns when the daemon has confirmed it; the allocation follows within about a task block's
        time.

        Raises:
            AdmissionError: The device can never grant that share. Nothing has changed.
            ValueError: Both or neither are given, or it is not a share.
            GpudError: The job has ended, or is of the other kind (online, offline).
        """
        self._channel.run(self._resize(reservation, quota))

    # -- settling: called in the thread that reads the connection

    def _finish(self) -> None:
        error = self._error
        try:
            if error is None:
                self.set_result(None)
            elif isinstance(error, JobCancelled):
                super().cancel()
                with suppress(RuntimeError):
                    self.set_running_or_notify_cancel()
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass  # the future was settled, and an interrupt came before `_settled` was set
        with self._condition:
            self._settled = True
        if self._waiting_calls:
            self._channel.call_later(self._call_all)

    def _call_all(self) -> None:
        calls, self._waiting_calls = self._waiting_calls, []
        for call in calls:
            _call(call, self)

    def _wait_for_end(self, timeout: float | None) -> BaseException | None:
        if not self._settled and not self._channel.wait(self, timeout):
            late = self._channel.run(self._late(timeout))
            if not self._settled:
                raise late
        self._asked = True
        return self._error


def _call(fn: Callable[[Any], object], job: Job) -> None:
    try:
        fn(job)
    except Exception:
        logging.getLogger("concurrent.futures").exception("exception calling callback for %r", job)
