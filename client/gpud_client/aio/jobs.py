"""Jobs of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from gpud.errors import GpudError, JobCancelled
from gpud_client.connection.faces import Awaited
from gpud_client.connection.pending import wake
from gpud_client.displays import LIVE_S, Display, is_notebook, show_in_place
from gpud_client.launch.job_base import JobBase

__all__ = ["AsyncJob"]


class AsyncJob(JobBase, Awaited):
    """A submitted job, to be awaited: ``await job`` is ``await job.result()``. See `Job`."""

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

    def add_done_callback(self, fn: Callable[[AsyncJob], object]) -> None:
        """Have the event loop call ``fn(job)`` soon after the job has ended."""
        if self._settled:
            self._channel.call_soon(fn, self)
        else:
            self._callbacks.append(fn)

    _row: dict[str, Any] | None = None  # as of the last look for a notebook
    _follows: asyncio.Task[None] | None = None

    def _display(self) -> Display:
        return self._displayed(None if self._settled else self._row)

    def _ipython_display_(self) -> None:
        """In a notebook, show its progress until it has ended; elsewhere as anything else."""
        if not is_notebook():
            raise NotImplementedError
        show_anew = show_in_place(self)

        async def follow() -> None:
            while not self._settled:
                with suppress(GpudError):  # the connection is lost: the job ends, too
                    self._row = await self._channel.run(self._describe())
                show_anew()
                await asyncio.sleep(LIVE_S)
            show_anew()

        if not self._settled:
            self._follows = asyncio.get_running_loop().create_task(follow())

    def _finish(self) -> None:
        self._note_failure()
        self._settled = True
        wake(self._waiting)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._channel.call_soon(callback, self)

    async def _wait_for_end(self, limit_s: float | None) -> BaseException | None:
        if not self._settled:
            try:
                async with asyncio.timeout(limit_s):
                    await self._channel.wait(self)
            except TimeoutError:
                late = await self._channel.run(self._late(limit_s))
                if not self._settled:
                    raise late from None
        return self._ask()
