"""Jobs of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from fractions import Fraction
from typing import Any

from gpud.errors import JobCancelled
from gpud.units import Share
from gpud_client.aio.channel import AsyncChannel
from gpud_client.connection.protocol_state import wake
from gpud_client.devices import Device
from gpud_client.launch.jobs import JobBase

__all__ = ["AsyncJob"]


class AsyncJob(JobBase):
    """A submitted job, to be awaited: ``await job`` is ``await job.result()``. See `Job`."""

    def __init__(
        self,
        channel: AsyncChannel,
        what: str,
        device: Device,
        stream: int,
        total: int,
        keep: object,
    ) -> None:
        super().__init__(what, device, stream, total, channel.where)
        self._channel = channel
        self._keep = keep
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._calls: list[Callable[[AsyncJob], object]] = []

    def __await__(self) -> Generator[Any, Any, None]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (as a future)
        """Wait until the job has ended; see `Job.result`. Cancelling this wait leaves the job."""
        error = await self._wait_for_end(timeout)
        if error is not None:
            raise error

    async def exception(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  (as a future)
    ) -> BaseException | None:
        """Wait until the job has ended; see `Job.exception`."""
        error = await self._wait_for_end(timeout)
        if isinstance(error, JobCancelled):
            raise error
        return error

    async def cancel(self) -> bool:
        """Ask the daemon to end the job; see `Job.cancel`."""
        return await self._channel.run(self._cancel())

    async def running(self) -> bool:
        """Whether the job is running; queries the daemon."""
        return await self.state in ("running", "paused", "ending")

    def add_done_callback(self, fn: Callable[[AsyncJob], object]) -> None:
        """Have the event loop call ``fn(job)`` soon after the job has ended."""
        if self._settled:
            self._channel.call_soon(fn, self)
        else:
            self._calls.append(fn)

    @property
    def state(self) -> Coroutine[Any, Any, str]:
        """See `Job.state`; to be awaited."""
        return self._channel.run(self._get_state())

    @property
    def progress(self) -> Coroutine[Any, Any, tuple[int, int]]:
        """Task blocks done, and their total; to be awaited."""
        return self._channel.run(self._get_progress())

    @property
    def allocation(self) -> Coroutine[Any, Any, Fraction]:
        """The job's current allocation in CapSM; to be awaited."""
        return self._channel.run(self._get_allocation())

    @property
    def stats(self) -> Coroutine[Any, Any, dict[str, Any]]:
        """See `Job.stats`; to be awaited."""
        return self._channel.run(self._get_stats())

    async def resize(self, *, reservation: Share | None = None, quota: Share | None = None) -> None:
        """Change the job's reservation or quota; see `Job.resize`."""
        await self._channel.run(self._resize(reservation, quota))

    def _finish(self) -> None:
        self._settled = True
        wake(self._waiting)
        calls, self._calls = self._calls, []
        for call in calls:
            self._channel.call_soon(call, self)

    async def _wait_for_end(self, limit_s: float | None) -> BaseException | None:
        if not self._settled:
            try:
                async with asyncio.timeout(limit_s):
                    await self._channel.wait(self)
            except TimeoutError:
                late = await self._channel.run(self._late(limit_s))
                if not self._settled:
                    raise late from None
        self._asked = True
        return self._error
