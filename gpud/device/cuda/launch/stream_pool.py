"""Streams and events that launches use one after the other.

Problem: creating a stream or an event is slow, and whether it waits for kernels is not documented.
Approach: they are kept for reuse, and some are created when the device is opened.
"""

from __future__ import annotations

from typing import Any

from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.placement.green_context import GreenContext

__all__ = ["StreamPool"]

_FIRST_STREAMS = 4
"""Of each priority: so many runs and helpers begin before another one has to be created."""

_FIRST_EVENTS = 16


class StreamPool:
    """Idle streams and events, and all that were created. Under the device's lock."""

    def __init__(self, context: Context) -> None:
        self._context = context
        api = context.driver.api
        self._stream_flags = int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._event_flags = int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING) | int(
            api.CUevent_flags.CU_EVENT_BLOCKING_SYNC
        )
        self._streams: dict[tuple[GreenContext | None, bool], list[Any]] = {}
        self._events: list[Any] = []
        self._all_streams: list[Any] = []
        self._all_events: list[Any] = []

    def prepare(self) -> None:
        """Create some streams and events before anything runs."""
        for urgent in (True, False):
            for _ in range(_FIRST_STREAMS):
                self.give_stream(self._made_stream(urgent, None), urgent)
        for _ in range(_FIRST_EVENTS):
            self.give_event(self._made_event())

    def take_stream(self, urgent: bool, place: GreenContext | None = None) -> Any:
        """Return an idle stream.

        Args:
            urgent: whether it has the highest priority.
            place: the SMs that its launches run on; None: any.
        """
        free = self._streams.get((place, urgent))
        return free.pop() if free else self._made_stream(urgent, place)

    def give_stream(self, stream: Any, urgent: bool, place: GreenContext | None = None) -> None:
        """Reclaim a stream on which everything is over."""
        self._streams.setdefault((place, urgent), []).append(stream)

    def take_event(self) -> Any:
        """Return an event; until it is recorded it has the state of its last use."""
        return self._events.pop() if self._events else self._made_event()

    def give_event(self, event: Any) -> None:
        """Reclaim an event."""
        self._events.append(event)

    def synchronize(self) -> None:
        """Wait until nothing is on any stream: for ever, if a kernel never ends."""
        driver = self._context.enter()
        for stream in self._all_streams:
            driver.call("cuStreamSynchronize", stream)

    def close(self) -> None:
        """Destroy all streams and events; nothing is on the device."""
        driver = self._context.enter()
        for event in self._all_events:
            driver.call("cuEventDestroy", event)
        for stream in self._all_streams:
            driver.call("cuStreamDestroy", stream)
        self._all_events, self._all_streams = [], []

    def _made_stream(self, urgent: bool, place: GreenContext | None) -> Any:
        context = self._context
        priority = context.greatest_priority if urgent else context.least_priority
        driver = context.enter()
        if place is not None:
            made = place.stream(self._stream_flags, priority)
        else:
            with context.watchdog.blocking_call("cuStreamCreateWithPriority"):
                made = driver.call("cuStreamCreateWithPriority", self._stream_flags, priority)
        self._all_streams.append(made)
        return made

    def _made_event(self) -> Any:
        made = self._context.enter().call("cuEventCreate", self._event_flags)
        self._all_events.append(made)
        return made
