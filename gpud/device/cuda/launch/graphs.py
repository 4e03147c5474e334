"""CUDA graphs of launches that are queued together.

Problem: a launch costs the driver a microsecond or two on the host even from native code, and a
request may have hundreds. A CUDA graph is launched by one call, however many kernels it has.

Approach: the commands of a batch (`gpud.device.cuda.launch.batch`) are captured from a stream as
they would be queued on it, and made an executable graph once. The kernels' parameters are in it by
value, so it belongs to one set of records. Kernels run on the SMs that the stream of the capture
has, and with the priority of the stream that they are launched on.

To instantiate a graph may take as long as a hundred launches, and the manual does not say whether
it waits for kernels. So it is done at the end of a run, when the same launches were queued a second
time, and the watchdog guards it.

Properties:
* what cannot be captured or instantiated is no error: it is queued without a graph;
* after `close` the driver holds no graph.

Source: CUDA Driver API 13.0, "Graph Management", ``cuStreamBeginCapture``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.native_calls import CommandTable, NativeCalls
from gpud.device.cuda.launch.stream_pool import StreamPool

__all__ = ["Graphs"]


class Graphs:
    """Makes executable graphs. Under the device's lock."""

    def __init__(self, context: Context, calls: NativeCalls, streams: StreamPool) -> None:
        self._context = context
        self._calls = calls
        self._streams = streams
        self._alive: dict[int, Any] = {}

    def make(self, table: CommandTable, count: int) -> Any:
        """Return an executable graph of the first ``count`` commands; None: the driver makes none.

        Raises:
            DeviceLost: the context is dead.
        """
        with suppress(DriverError):
            graph = self._captured(table, count)
            try:
                driver = self._context.enter()
                with self._context.watchdog.blocking_call("cuGraphInstantiate"):
                    made = driver.call("cuGraphInstantiate", graph, 0)
            finally:
                self._context.driver.call("cuGraphDestroy", graph)
            self._alive[int(made)] = made
            return made
        return None

    def destroy(self, graph: Any) -> None:
        """Destroy an executable graph; what is launched of it goes on."""
        made = self._alive.pop(int(graph), None)
        if made is not None:
            self._context.enter().call("cuGraphExecDestroy", made)

    def close(self) -> None:
        """Destroy all of them."""
        for graph in tuple(self._alive):
            self.destroy(graph)

    def _captured(self, table: CommandTable, count: int) -> Any:
        driver = self._context.enter()
        stream = self._streams.take_stream(urgent=False)
        try:
            mode = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            driver.call("cuStreamBeginCapture", stream, mode)
            made = self._calls.make(table, stream, 0, count)
            graph = driver.call("cuStreamEndCapture", stream)
            if made.error is not None:
                driver.call("cuGraphDestroy", graph)
                raise made.error
            return graph
        finally:
            self._streams.give_stream(stream, urgent=False)
