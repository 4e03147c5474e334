"""Streams of the model: the items of one stream happen in order, concurrently with other streams'.

The null stream is ordered with itself only: all others are non-blocking.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as real

from tests.driver_model.handles import Misuse

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver

Begin = Callable[[Callable[[], None]], None]
"""An item of a stream: begins, and calls its argument when it is over."""

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_BAD = real.CUresult.CUDA_ERROR_INVALID_VALUE


class Captured:
    """What a graph is made of.

    Attributes:
        items: as of a stream.
        programs: that its kernels belong to.
    """

    def __init__(self) -> None:
        self.items: list[Begin] = []
        self.programs: list[Any] = []


class Stream:
    """The items of a stream that are not over.

    Attributes:
        sms: where its kernels run; None: anywhere.
        queue: the items, in order; while the stream is busy, the first has begun.
        captured: what is being captured into a graph; None: it is not capturing.
    """

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self.sms: tuple[int, ...] | None = None
        self.queue: deque[Begin] = deque()
        self.busy = False
        self.captured: Captured | None = None

    @property
    def idle(self) -> bool:
        """Whether it has no items."""
        return not self.queue


class Point:
    """A position in a stream that an event recorded; ``at``: when it was reached, in seconds."""

    def __init__(self, at: float | None = None) -> None:
        self.at = at
        self.waiting: list[Callable[[], None]] = []


class Event:
    """An event: the last recorded point, if any."""

    def __init__(self, flags: int) -> None:
        self.timed = not flags & int(real.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self.point = Point(0.0)
        self.recorded = False


class Streams:
    """All streams and events.

    Attributes:
        null: the null stream.
        all: every existing stream, in the order of creation.
        copied_bytes: by asynchronous copies.
    """

    def __init__(self, driver: ModelDriver) -> None:
        self._driver = driver
        self._here = threading.local()
        self.null = Stream()
        self.all: list[Stream] = [self.null]
        self.copied_bytes = 0

    # -- order

    def put(self, handle: Any, begin: Begin) -> None:
        """Put an item on a stream."""
        on = self.of(handle)
        with self._driver.lock:
            if on.captured is not None:
                on.captured.items.append(begin)
                return
            on.queue.append(begin)
        self._driver.moved(on)

    def of(self, handle: Any) -> Stream:
        """The stream of a handle; 0 or None is the null stream."""
        if handle is None or int(handle) == 0:
            return self.null
        found: Stream = self._driver.handles.of("stream", handle)
        return found

    def begin_next(self, on: Stream) -> bool:
        """Begin the next item of a stream; whether there was one."""
        with self._driver.lock:
            if on.busy or not on.queue:
                return False
            on.busy = True
            begin = on.queue[0]
        begin(lambda: self._over(on))
        return True

    def go_on(self, on: Stream) -> None:
        """Begin the next item, and those behind it as long as they are over at once."""
        inside: set[Stream] = self._here.__dict__.setdefault("inside", set())
        if on in inside:
            return  # an outer call of this loop continues
        inside.add(on)
        try:
            while self.begin_next(on):
                pass
        finally:
            inside.discard(on)

    def _over(self, on: Stream) -> None:
        with self._driver.lock:
            on.busy = False
            on.queue.popleft()
        self._driver.moved(on)

    def are_idle(self) -> bool:
        """Whether all streams are idle."""
        return all(one.idle for one in self.all)

    def reach(self, point: Point) -> None:
        """Have a point be reached now, and what waits for it go on."""
        with self._driver.lock:
            point.at = time.perf_counter()
            waiting, point.waiting = point.waiting, []
        for call in waiting:
            call()

    def now(self, handle: Any, act: Callable[[], object]) -> None:
        """Put an item on a stream that is over at once."""

        def begin(over: Callable[[], None]) -> None:
            act()
            over()

        self.put(handle, begin)

    # -- streams

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> Any:
        if flags != int(real.CUstream_flags.CU_STREAM_NON_BLOCKING):
            raise Misuse("the model has no streams that wait for the null stream")
        made = Stream(priority)
        with self._driver.lock:
            self.all.append(made)
        return self._driver.handles.new("stream", made)

    def cuStreamDestroy(self, stream: Any) -> None:
        found = self.of(stream)
        if not found.idle or found is self.null:
            raise Misuse("a stream is destroyed on which something is, or the null stream")
        self._driver.handles.drop("stream", stream)
        with self._driver.lock:
            self.all.remove(found)

    def cuStreamSynchronize(self, stream: Any) -> None:
        found = self.of(stream)
        if found.captured is not None:
            raise Misuse("a stream that is captured cannot be waited for")
        self._driver.wait(lambda: found.idle, self.null if found is self.null else None)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        point = self._driver.handles.of("event", event).point  # later records do not matter

        def begin(over: Callable[[], None]) -> None:
            with self._driver.lock:
                if point.at is None:
                    point.waiting.append(over)
                    return
            over()

        self.put(stream, begin)

    def cuLaunchHostFunc(self, stream: Any, function: Any, data: int) -> None:
        call = _HOST_FUNCTION(int(function))
        self.now(stream, lambda: call(data))

    # -- events

    def cuEventCreate(self, flags: int) -> Any:
        return self._driver.handles.new("event", Event(flags))

    def cuEventDestroy(self, event: Any) -> None:
        self._driver.handles.drop("event", event)

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        found: Event = self._driver.handles.of("event", event)
        if self.of(stream).captured is not None:
            raise Misuse("an event is captured, which can be neither queried nor waited for then")
        found.recorded = True
        point = found.point = Point()

        self.now(stream, lambda: self.reach(point))

    def cuEventQuery(self, event: Any) -> Any:
        reached = self._driver.handles.of("event", event).point.at is not None
        return None if reached else real.CUresult.CUDA_ERROR_NOT_READY

    def cuEventSynchronize(self, event: Any) -> None:
        point = self._driver.handles.of("event", event).point
        self._driver.wait(lambda: point.at is not None)

    def cuEventElapsedTime(self, first: Any, second: Any) -> Any:
        events: list[Event] = [self._driver.handles.of("event", one) for one in (first, second)]
        if not all(one.timed and one.recorded for one in events):
            return real.CUresult.CUDA_ERROR_INVALID_HANDLE
        began, ended = (one.point.at for one in events)
        if began is None or ended is None:
            return real.CUresult.CUDA_ERROR_NOT_READY
        return 1e3 * (ended - began)

    # -- memory in stream order

    def cuMemcpyHtoDAsync(self, to: Any, source: Any, size: int, stream: Any) -> Any:
        return self._copied(int(to), int(source), size, stream, host=int(source))

    def cuMemcpyDtoHAsync(self, to: Any, source: Any, size: int, stream: Any) -> Any:
        return self._copied(int(to), int(source), size, stream, host=int(to))

    def cuMemcpyDtoDAsync(self, to: Any, source: Any, size: int, stream: Any) -> Any:
        return self._copied(int(to), int(source), size, stream, host=None)

    def _copied(self, to: int, source: int, size: int, stream: Any, host: int | None) -> Any:
        memory = self._driver.memory
        for at in (to, source):
            if at != host and not memory.reaches(at, size):
                return _BAD
        if host is not None and not memory.is_locked(host, size):
            raise Misuse("a copy that is not to be waited for needs page-locked memory")

        def copy() -> None:
            if memory.reaches(to, size) and memory.reaches(source, size):
                ctypes.memmove(to, source, size)
            else:  # it was freed meanwhile
                self._driver.lose("ILLEGAL_ADDRESS")

        self.copied_bytes += size
        self.now(stream, copy)
        return None

    def cuMemsetD32Async(self, to: Any, word: int, count: int, stream: Any) -> Any:
        return self._set(int(to), int(word).to_bytes(4, "little") * count, stream)

    def cuStreamWriteValue32(self, stream: Any, to: Any, value: int, flags: int) -> Any:
        return self._set(int(to), int(value).to_bytes(4, "little"), stream)

    def _set(self, to: int, raw: bytes, stream: Any) -> Any:
        memory = self._driver.memory
        if to % 4 or not memory.reaches(to, len(raw)):
            return _BAD

        def write() -> None:
            if not memory.reaches(to, len(raw)):
                self._driver.lose("ILLEGAL_ADDRESS")
                return
            ctypes.memmove(to, raw, len(raw))
            self._driver.modules.programs.written(to)

        self.now(stream, write)
        return None
