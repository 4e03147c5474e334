"""Graphs: what was captured from a stream, to be launched again as it was captured.

The launches of one executable graph follow each other, whatever streams they are on. A graph that
is launched after one of its kernels' programs was unloaded is a misuse: the driver checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as real

from tests.driver_model.handles import Misuse
from tests.driver_model.streams import Captured, Point

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver


class Executable:
    """An executable graph; ``last``: the end of its last launch."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.last = Point(0.0)


class Graphs:
    """All graphs, and the streams that are captured."""

    def __init__(self, driver: ModelDriver) -> None:
        self._driver = driver

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        if mode != real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
            raise Misuse(f"the model does not capture in mode {mode!r}")
        found = self._driver.streams.of(stream)
        if found is self._driver.streams.null or found.captured is not None:
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        found.captured = Captured()
        return None

    def cuStreamEndCapture(self, stream: Any) -> Any:
        found = self._driver.streams.of(stream)
        captured, found.captured = found.captured, None
        if captured is None:
            return real.CUresult.CUDA_ERROR_ILLEGAL_STATE
        return self._driver.handles.new("graph", captured)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        captured: Captured = self._driver.handles.of("graph", graph)
        return self._driver.handles.new("graph_exec", Executable(captured))

    def cuGraphDestroy(self, graph: Any) -> None:
        self._driver.handles.drop("graph", graph)

    def cuGraphExecDestroy(self, graph: Any) -> None:
        self._driver.handles.drop("graph_exec", graph)  # what is launched of it goes on

    def cuGraphLaunch(self, graph: Any, stream: Any) -> None:
        found: Executable = self._driver.handles.of("graph_exec", graph)
        loaded = {id(program) for program in self._driver.handles.all("module")}
        if any(id(program) not in loaded for program in found.captured.programs):
            raise Misuse("a graph is launched that has a kernel of a module that was unloaded")
        streams = self._driver.streams
        before, found.last = found.last, Point()
        ended = found.last

        def begin(over: Callable[[], None]) -> None:
            with self._driver.lock:
                if before.at is None:
                    before.waiting.append(over)
                    return
            over()

        streams.put(stream, begin)
        for one in found.captured.items:
            streams.put(stream, one)
        streams.now(stream, lambda: streams.reach(ended))
