"""A green context: some SMs of the device, on which the launches of its streams run.

Which SMs, and when it is made, `gpud.device.cuda.placement.partitioner` decides.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from gpud.device.cuda.driver.context import Context

__all__ = ["GreenContext"]

_STREAMS: Final = 4
"""Streams that a place is made with, of each priority: a run has one, and one for each helper."""


class GreenContext:
    """A place: some units' SMs, and the green context that has them once it is made.

    Attributes:
        numbers: of its SMs, as ``%smid`` reads; without those that belong to no unit.
        sms: how many SMs it has.
        made: whether the context has been made, so that it can be launched on.
    """

    def __init__(
        self, context: Context, units: frozenset[int], numbers: frozenset[int], sms: int
    ) -> None:
        self._context = context
        self.units = units
        self.numbers = numbers
        self.sms = sms
        self.made = False
        self._handle: Any = None
        self._streams: dict[tuple[int, int], list[Any]] = {}

    def make(self, handle: Any) -> None:
        """Take over a new context and create streams in it; may wait. The caller sets `made`.

        Raises:
            DriverError: a stream cannot be created; the context is destroyed.
        """
        context = self._context
        flags = int(context.driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._handle = handle
            for priority in {context.least_priority, context.greatest_priority}:
                made = self._streams[flags, priority] = []
                made += (self._new_stream(flags, priority) for _ in range(_STREAMS))
            undo.pop_all()

    def stream(self, flags: int, priority: int) -> Any:
        """Return a stream, owned by the caller, who destroys it before the place is closed."""
        kept = self._streams.get((flags, priority))
        return kept.pop() if kept else self._new_stream(flags, priority)

    def close(self) -> None:
        """Destroy the context, if it has one; all streams from `stream` are destroyed."""
        driver = self._context.enter()
        for kept in self._streams.values():
            while kept:
                driver.call("cuStreamDestroy", kept.pop())
        if self._handle is not None:
            handle, self._handle = self._handle, None
            driver.call("cuGreenCtxDestroy", handle)

    def _new_stream(self, flags: int, priority: int) -> Any:
        with self._context.watchdog.blocking_call("cuGreenCtxStreamCreate"):
            call = self._context.enter().call
            return call("cuGreenCtxStreamCreate", self._handle, flags, priority)
