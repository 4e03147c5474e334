"""What blocking and awaited jobs have in common: state, statistics, resizing, and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from gpud.errors import ConnectionLost, GpudError, JobCancelled, PredecessorFailed, from_wire
from gpud.units import SessionId, Share, job_id, job_name
from gpud.wire.messages import Finished
from gpud_client.connection import operations
from gpud_client.connection.faces import operation, queried
from gpud_client.connection.pending import KeptJob, Operation, PendingJobs
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.displays import Display, Displayed
from gpud_client.launch.shares import resolve
from gpud_client.launch.streams import Failure, StreamBase
from gpud_client.launch.unretrieved import UnretrievedFailure

__all__ = ["JobBase"]

_UNLOGGED = (JobCancelled, ConnectionLost, PredecessorFailed)

_NO_STATS: dict[str, Any] = {
    "queued_s": None,
    "first_block_s": None,
    "run_s": None,
    "release_s": None,
    "resizes": 0,
    "capsm_seconds": None,
    "queued_as": None,
}


class JobBase(Displayed):
    """State and operations common to `Job` and `AsyncJob`.

    Args:
        session: Kept, as the connection would be closed when it is collected.
        channel: Of the session.
        what: The kernel's name, or how many kernels, for messages.
        device: The device on which it runs.
        stream: In which it is.
        total: Its task blocks.
    """

    # See `gpud_client.connection.pending.PendingJob`. Of the class, so that making a job
    # sets no more than it has to.
    _ref = (0, 0)
    _settled = False
    _asked = False
    _begun = False
    _kept: KeptJob | None = None
    _end: Finished | None = None
    _error: GpudError | None = None
    _cancelled_here = False
    _users: Iterable[PendingJobs] = ()
    _failure: Failure | None = None
    _unretrieved: UnretrievedFailure | None = None

    def __init__(
        self,
        session: object,
        channel: Any,
        what: str,
        device: Device,
        stream: StreamBase,
        total: int,
    ) -> None:
        self._session = session
        self._channel = channel
        self._what = what
        self._device = device
        self._stream = stream
        self._total = total
        self._waiting: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[Any], object]] = []

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
        """Return whether the job has ended: done, failed or cancelled."""
        return self._settled

    def cancelled(self) -> bool:
        """Return whether the job has ended because it was cancelled."""
        return self._settled and self._final_state() == "cancelled"

    __reduce__ = ProtocolState.__reduce__  # else the future's lock fails first, unexplained

    def __repr__(self) -> str:
        state = "not ended" if not self._settled else self._final_state()
        return f"<{type(self).__name__} {self.id} {self._what}: {state}>"

    def _display(self) -> Display:
        """Return what is known without asking the daemon; jobs that block ask it."""
        ended = self._settled
        return self._shown(self._final_state() if ended else "not ended", self._final_progress())

    def _displayed(self, row: dict[str, Any] | None) -> Display:
        """Return what a row of topic "jobs" says, or what is known where there is none."""
        if row is None:
            return JobBase._display(self)
        done, total = row["progress"]
        more = [("has now", f"{row['allocation']} CapSM")]
        if row.get("waits_for"):
            more.append(("because", str(row["waits_for"])))
        return self._shown(str(row["state"]), (int(done), int(total)), more)

    def _shown(
        self, state: str, progress: tuple[int, int], more: Sequence[tuple[str, str]] = ()
    ) -> Display:
        rows = [("state", state), ("device", f"{self._device.index}: {self._device.name}"), *more]
        if self._settled and self._error is not None:
            rows.append(("error", str(self._error)))
        if self.output:
            rows.append(("output", self.output))
        return Display(f"{type(self).__name__} {self.id}: {self._what}", rows, progress)

    @operation
    def cancel(self) -> Operation[bool]:
        """Ask the daemon to end the job; returns whether it will end cancelled.

        Waits for the daemon's answer only. Running task blocks are finished or ended; `result`
        raises `JobCancelled` once nothing of the job runs any more.
        """
        if self._settled:
            return self._final_state() == "cancelled"
        self._cancelled_here = self._asked = True  # its end is expected, so it is not logged
        ended = yield from operations.cancel(self._ref)
        return ended or (self._has_ended() and self._final_state() == "cancelled")

    @operation
    def running(self) -> Operation[bool]:
        """Return whether the job is running; queries the daemon."""
        row = yield from self._describe()
        return row is not None and row["state"] in ("running", "paused", "ending")

    @operation
    def resize(
        self, *, reservation: Share | None = None, quota: Share | None = None
    ) -> Operation[None]:
        """Change the job's reservation or quota while it waits or runs.

        Returns when the daemon has confirmed it; the allocation follows within about a task block's
        time.

        Raises:
            AdmissionError: The device can never grant that share. Nothing has changed.
            ValueError: Both or neither are given, or it is not a share.
            GpudError: The job has ended, or is of the other kind (online, offline).
        """
        if (reservation is None) == (quota is None):
            raise ValueError("give a reservation or a quota, one of them")
        new_reservation = resolve("reservation", reservation, self._device)
        new_quota = resolve("quota", quota, self._device)
        yield from operations.resize(self._ref, new_reservation, new_quota)

    # -- state and statistics

    @queried
    def state(self) -> Operation[str]:
        """The job's state; queries the daemon until the job has ended.

        ``blocked`` (by its stream or ``after``), ``preparing`` (its modules are loaded and its
        arrays copied to the device), ``waiting`` (for capacity), ``running``, ``paused`` (without
        an allocation for now, keeping its progress) or ``ending`` (its blocks are leaving); then
        ``done``, ``failed`` or ``cancelled``.
        """
        row = yield from self._describe()
        return str(row["state"]) if row is not None else self._final_state()

    @queried
    def progress(self) -> Operation[tuple[int, int]]:
        """Task blocks done, and their total. Queries the daemon."""
        row = yield from self._describe()
        if row is None:
            return self._final_progress()
        done, total = row["progress"]
        return int(done), int(total)

    @queried
    def allocation(self) -> Operation[Fraction]:
        """The job's current allocation in CapSM; 0 when it has ended. Queries the daemon."""
        row = yield from self._describe()
        return Fraction(0) if row is None else Fraction(row["allocation"])

    @queried
    def stats(self) -> Operation[dict[str, Any]]:
        """Statistics of the job; queries the daemon until the job has ended.

        In seconds: ``queued_s`` from submission to start, ``first_block_s`` from start to the first
        task block, ``run_s`` from start to end or until now, and ``release_s``, the longest time
        that blocks took to leave after they were told to release. Then ``resizes``, how often its
        allocation has changed, and ``capsm_seconds``. On a GPU ``queued_as``, once it has ended:
        how often its launches were queued as a CUDA ``graph``, by ``native`` calls or ``one by
        one``, and why. None where unknown.
        """
        row = yield from self._describe()
        if row is None:
            return _NO_STATS | (self._end.stats if self._end is not None else {})
        return {name: row.get(name, unknown) for name, unknown in _NO_STATS.items()}

    # -- settling

    def _settle(self, message: Finished) -> None:
        """Settle it with the daemon's message; called again after an interrupt."""
        if not self._settled:
            self._end_with(message)

    def _end_with(self, message: Finished) -> None:
        self._end = message
        self._kept = None
        if message.error is not None:
            self._error = from_wire(message.error)
        elif message.state == "cancelled":
            self._error = JobCancelled(f"job {self.id} ({self._what}) was cancelled")
        elif message.state == "failed":
            self._error = GpudError(f"job {self.id} ({self._what}) failed")
        if self._error is not None:
            self._fail_stream()
        self._finish()

    def _lose(self, error: GpudError) -> None:
        """Settle it after the connection was lost; called again after an interrupt."""
        if not self._settled:
            self._error = error
            self._kept = None
            self._fail_stream()
            self._finish()

    def _fail_stream(self) -> None:
        """Have its stream and its arrays know that it has failed, and nobody has seen it."""
        if not (self._cancelled_here and isinstance(self._error, JobCancelled)):
            self._failure = self._stream._job_failed(self)
            for pending in self._users if self._failure is not None else ():
                pending.failure = self._failure

    def _finish(self) -> None:
        """Mark it as settled, and wake everything that waits for it."""
        raise NotImplementedError

    def _ask(self) -> GpudError | None:
        """Return the error with which it has ended, which the log then does not have to tell."""
        self._asked = True
        if self._unretrieved is not None:
            self._unretrieved.asked = True
        if self._failure is not None:
            self._failure.see()
        return self._error

    def _note_failure(self) -> None:
        """Have a failure logged unless somebody asks for it: the arrays just hold wrong values."""
        # A lost connection is reported elsewhere, and would be logged for every job.
        # What a failed predecessor kept from running says no more than that one's error.
        error = self._error
        if not (self._asked or isinstance(error, _UNLOGGED) or error is None):
            self._unretrieved = UnretrievedFailure(self.id, self._what, error)

    def _has_ended(self) -> bool:
        """Return `_settled`, which a step may have changed: type checkers do not know."""
        return self._settled

    def _final_state(self) -> str:
        if self._end is not None:
            return str(self._end.state)
        return "cancelled" if isinstance(self._error, JobCancelled) else "failed"

    def _final_progress(self) -> tuple[int, int]:
        if self._end is None:
            return 0, self._total
        done, total = self._end.progress
        return done, total or self._total

    # -- steps of operations

    def _describe(self) -> Operation[dict[str, Any] | None]:
        """Query its row in topic "jobs"; None if it has ended."""
        if self._settled:
            return None
        row = yield from operations.describe(self._ref)
        return None if self._has_ended() else row

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
