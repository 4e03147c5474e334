"""Streams: jobs of one stream run in the order in which they were submitted.

Where order is promised, what follows a failed job would run on values that were never made. So the
daemon fails what is behind a failed job in its stream, until this process says that its caller has
seen the failure. Here it is known what the caller has seen.

Terms:
    failure: what a stream's jobs have failed of, from the first that failed to those that were not
        run because of it, until the caller has seen the error of any of them.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from gpud.errors import GpudError, PredecessorFailed
from gpud.wire.messages import StreamFailure
from gpud_client.connection.faces import Blocking, operation
from gpud_client.connection.pending import Operation

__all__ = ["FailedJob", "Failure", "Stream", "StreamBase", "check_on_error", "unseen_failures"]

# Held for a few steps, by whoever sees a failure or adds to one: neither happens often.
_SEEING = threading.Lock()


class FailedJob(Protocol):
    """A job that has failed: its number in its session, and its error."""

    _ref: tuple[int, int]
    _error: GpudError | None
    _device: Any


class Failure:
    """A failure of a stream.

    Attributes:
        stream: whose it is.
        error: of the first job.
        number: of the latest job that has failed by itself.
        device: on which.
        seen: whether the caller has seen it.
    """

    __slots__ = ("device", "error", "number", "seen", "stream")

    def __init__(self, stream: StreamBase, error: GpudError, number: int, device: Any) -> None:
        self.stream = stream
        self.error = error
        self.number = number
        self.device = device
        self.seen = False

    def see(self) -> GpudError:
        """Return the error, which the caller sees now: what is submitted from now on runs."""
        with _SEEING:
            if not self.seen:
                self.seen = True
                self.stream._core.failed_streams.discard(self.stream)
                self.stream._failure_seen(self.number)
        return self.error


class StreamBase:
    """State and operations common to `Stream` and `AsyncStream`.

    Args:
        channel: Of the session.
        number: Its number.
        sticky: Whether what follows a failed job fails.
    """

    __slots__ = ("__weakref__", "_channel", "_core", "_failure", "_number", "_sticky")

    def __init__(self, channel: Any, number: int, sticky: bool) -> None:
        self._channel = channel
        self._core = channel.core
        self._number = number
        self._sticky = sticky
        self._failure: Failure | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._number}>"

    def __del__(self) -> None:
        """Have the daemon forget its failure: nothing can be submitted any more."""
        failure = getattr(self, "_failure", None)
        if failure is not None and not failure.seen:
            self._failure_seen(failure.number)

    @operation
    def synchronize(self) -> Operation[None]:
        """Wait until all that was submitted to it has ended.

        Raises:
            JobError: A job has failed, and its error was not seen before.
        """
        yield from self._wait_for_all()
        failure = self._failure
        if failure is not None and not failure.seen:
            raise failure.see()

    # -- steps of operations

    def _wait_for_all(self) -> Operation[None]:
        yield [job for job in list(self._core.jobs.values()) if job._stream is self]

    # -- failures

    @property
    def _has_failed(self) -> bool:
        """Whether it has a failure that was not seen."""
        return self._failure is not None and not self._failure.seen

    def _job_failed(self, job: FailedJob) -> Failure | None:
        """Take notice that a job has failed; returns the failure that it belongs to, if it counts.

        On the thread that reads the connection, or with the lane's lock.
        """
        error = job._error
        if not self._sticky or error is None:
            return None
        with _SEEING:
            failure = self._failure
            if isinstance(error, PredecessorFailed):
                if failure is None:  # of a job that this process knows nothing of
                    failure = self._failure = self._new_failure(job, error)
                elif error is not failure.error:
                    error.__cause__ = failure.error
            elif failure is None or failure.seen:
                failure = self._failure = self._new_failure(job, error)
            else:
                failure.number = self._count_failure(job)
            if not failure.seen:
                self._core.failed_streams.add(self)
        return failure

    def _new_failure(self, job: FailedJob, error: GpudError) -> Failure:
        return Failure(self, error, self._count_failure(job), job._device)

    def _count_failure(self, job: FailedJob) -> int:
        """Return what `_failure_seen` is to be called with, for a job that has failed by itself."""
        return job._ref[1]

    def _failure_seen(self, number: int) -> None:
        """Tell the daemon, before anything else is submitted; safe in a finalizer."""
        if self._core.lost is None:
            self._core.garbage.append(StreamFailure(self._number, number))


def unseen_failures(core: Any) -> list[Failure]:
    """Return the failures of a session's streams that nobody has seen."""
    with _SEEING:
        failures = [stream._failure for stream in core.failed_streams]
    return [one for one in failures if one is not None and not one.seen]


class Stream(StreamBase, Blocking):
    """A queue of jobs that run one after the other; made by `Session.stream`.

    Jobs of different streams may run at the same time. A stream without waiting jobs costs nothing,
    and need not be closed. If a job fails, those behind it fail with `PredecessorFailed`, until the
    failure was seen: `Job.result` or `Job.exception` of one of them, `synchronize`, or `Array.get`
    has raised or returned it.
    """


def check_on_error(on_error: str) -> bool:
    """Return whether a stream with this option is sticky.

    Raises:
        ValueError: it is none of the two.
    """
    if on_error not in ("fail", "continue"):
        raise ValueError(f"on_error is 'fail' or 'continue', not {on_error!r}")
    return on_error == "fail"
