"""Lanes of the asyncio client, and their jobs.

A thread sleeps on the ring's count of completions while somebody waits, and wakes the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Self

from gpud_client.aio.jobs import AsyncJob
from gpud_client.connection.contexts import AwaitedContext
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_job_base import LaneJobBase

__all__ = ["AsyncLane", "AsyncLaneJob"]


class AsyncLaneJob(LaneJobBase, AsyncJob):
    """A job of an `AsyncLane`."""

    def add_done_callback(self, fn: Callable[[AsyncJob], object]) -> None:
        """Have the event loop call ``fn(job)`` soon after the job has ended."""
        with self._lane._lock:  # a thread may be settling it
            super().add_done_callback(fn)
            if not self._settled:
                self._watch()

    def _finish(self) -> None:
        """Mark it as settled, on any thread; who waits for it watches the lane."""
        self._note_failure()
        self._settled = True
        for callback in self.__dict__.pop("_callbacks", ()):
            self._channel.call_from_thread(callback, self)

    async def _wait_for_end(self, limit_s: float | None) -> BaseException | None:
        await super()._wait_for_end(limit_s)
        self._look()
        return self._ask()


class AsyncLane(LaneBase, AwaitedContext):
    """A stream with a share of its own; made by `AsyncSession.lane`. See `Lane`.

    ``async with gpu.lane(...) as lane:`` or ``lane = await gpu.lane(...)`` opens it.
    """

    _job_class = AsyncLaneJob

    def __await__(self) -> Generator[Any, Any, Self]:
        """Open it, unless it is open; returns it."""
        yield from self._channel.run(self._enter()).__await__()
        return self

    def _made(self) -> Self:
        return self
