"""Logs jobs whose result was not retrieved: failed ones, and those that a session cancels.

Failures are rate-limited: a faulty loop may drop 20,000 jobs with the same error.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping

from gpud_client.connection.pending import PendingJob

__all__ = ["UnretrievedFailure", "log_cancelled", "log_failed"]

_LOG = logging.getLogger("gpud_client")
_EACH = 10
_WHILE_S = 60.0


class _Failures:
    """The count since ``began_s``. Without a lock, as finalizers may run between any two lines."""

    began_s = 0.0
    numbers = itertools.count(1)


class UnretrievedFailure:
    """A job's failure, logged when it is dropped with its job and nobody has asked for it.

    Attributes:
        asked: Whether somebody has.
    """

    __slots__ = ("_error", "_name", "_what", "asked")

    def __init__(self, name: str, what: str, error: Exception) -> None:
        self._name = name
        self._what = what
        self._error = error
        self.asked = False

    def __del__(self) -> None:
        if not self.asked:
            log_failed(self._name, self._what, self._error)


def log_failed(name: str, what: str, error: Exception) -> None:
    """Log that a job failed, unless too many have.

    Within a minute the first ten are logged, then the 100th, the 1,000th and so on.
    """
    now_s = time.monotonic()
    if now_s - _Failures.began_s > _WHILE_S:
        _Failures.began_s, _Failures.numbers = now_s, itertools.count(1)
    number = next(_Failures.numbers)
    if number <= _EACH or number == 10 ** (len(str(number)) - 1):
        more = (
            ""
            if number < _EACH
            else f" (number {number:,}; the next to be logged is {number * 10:,})"
        )
        _LOG.error(
            "job %s (%s) failed, its result was not retrieved: %s%s", name, what, error, more
        )


def log_cancelled(jobs: Mapping[int, PendingJob]) -> None:
    """Log the unfinished jobs that were not waited for when their session is closed."""
    left = [job for job in list(jobs.values()) if not job._asked]
    if left:
        few = ", ".join(f"{job.id} ({job._what})" for job in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        _LOG.warning(
            "the session is left before these jobs have ended, and they are cancelled: %s%s; wait "
            "with result()", few, more,
        )  # fmt: skip
