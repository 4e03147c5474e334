"""One process of a co-location measurement: online requests, offline kernels, or both.

Runs as a child of `bench.gpu.colocation_window`: reads one line of JSON (its task), prepares it,
writes ``ready``, reads a line with the start time (of `time.monotonic`), works for the window,
writes one line of JSON with its results, and ends. Native sides launch through the driver; the gpud
side is a client of a daemon.

Requests come in an open loop: each is started at its time, whether or not the one before is done;
its latency is from the planned arrival to the moment at which this process knows that it is done.
"""

from __future__ import annotations

import collections
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpud_client as gc
from bench.gpu.workloads.colocation_work import ENTRY, OUT_BLOCKS, SOURCE, THREADS, Sized

BATCH_US = 10_000.0
MOST_BATCH = 256
AHEAD = 3
"""Offline batches that are in flight at once."""
DRAIN_S = 30.0


class OnlineSide(Protocol):
    """Runs requests of one kind."""

    def warm_up(self) -> None:
        """Run a request before the window."""

    def serve(self, arrivals_s: list[float], began: float) -> list[float]:
        """Run requests at their arrival times; latencies in seconds, in order of arrival."""


class OfflineSide(Protocol):
    """Runs the same kernel again and again."""

    def warm_up(self) -> None:
        """Run a batch."""

    def run(self, began: float, until: float) -> list[tuple[float, int]]:
        """Run batches until a moment: (end time, number of kernels) of each."""


def wait_until(moment: float) -> None:
    """Sleep, and spin for the last 0.3 ms."""
    time.sleep(max(0.0, moment - time.monotonic() - 3e-4))
    while time.monotonic() < moment:
        pass


# -- through the driver ------------------------------------------------------------------------


class Native:
    """The kernel in the primary context, or in a green one with some of the SMs.

    Args:
        share_sms: how many SMs the online side has exclusively; None: both sides share all.
    """

    def __init__(self, share_sms: int | None = None) -> None:
        from bench.gpu.instrumentation.driver import Buffer, Gpu

        self.gpu = Gpu()
        self._green = None if share_sms is None else _green_contexts(self.gpu, share_sms)
        self.out: Buffer = self.gpu.buffer(np.zeros(THREADS * OUT_BLOCKS, np.float32))

    def sequence(self, sizes: list[Sized], *, online: bool) -> NativeSequence:
        """Make launches that are started together; make their context current in this thread."""
        from bench.gpu.instrumentation.driver import check

        cu, gpu = self.gpu.cu, self.gpu
        priority = gpu.highest_priority if online else gpu.lowest_priority
        if self._green is None:
            context = gpu.context
            check(cu.cuCtxSetCurrent(context))
            stream = gpu.stream(priority)
        else:
            green = self._green[0 if online else 1]
            context = check(cu.cuCtxFromGreenCtx(green))
            check(cu.cuCtxSetCurrent(context))
            stream = check(cu.cuGreenCtxStreamCreate(green, 1, priority))
        # Whether launches into green contexts can be captured is not stated: they are made singly.
        graph = self._green is None
        return NativeSequence(gpu, context, stream, sizes, self.out, graph=graph)


def _green_contexts(gpu: Any, online_sms: int) -> tuple[Any, Any]:
    """Two green contexts: one with at least ``online_sms`` SMs, and one with the rest."""
    from bench.gpu.instrumentation.driver import check

    cu = gpu.cu
    kind = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = check(cu.cuDeviceGetDevResource(gpu.device, kind))
    groups, _, rest = check(cu.cuDevSmResourceSplitByCount(1, whole, 0, online_sms))

    def context(resource: Any) -> Any:
        described = check(cu.cuDevResourceGenerateDesc([resource], 1))
        return check(cu.cuGreenCtxCreate(described, gpu.device, 1))

    return context(groups[0]), context(rest)


class NativeSequence:
    """Kernels that are launched together on a stream, with an event behind each start."""

    def __init__(
        self, gpu: Any, context: Any, stream: Any, sizes: list[Sized], out: Any, *, graph: bool
    ) -> None:
        from bench.gpu.instrumentation.driver import Graph, check
        from gpud.compiler.pipeline import compile_program
        from gpud.device.interface import pack_parameters

        self._gpu, self._context, self._stream = gpu, context, stream
        self._out = out  # kept while launches use it
        text = compile_program(SOURCE, form="persistent", kill=False).original_ptx
        self._function = gpu.load(text).function(ENTRY)
        self._launches = [
            (
                (one.blocks, 1, 1),
                pack_parameters(
                    self._function.parameters,
                    [out.address.to_bytes(8, "little"), one.loops.to_bytes(4, "little")],
                ),
            )
            for one in sizes
        ]
        self._graph: Graph | None = None
        if graph:
            with Graph(gpu, stream) as captured:
                self._launch_all()
            self._graph = captured
        # Blocking-sync: a waiting thread sleeps.
        self._free = [check(gpu.cu.cuEventCreate(3)) for _ in range(64)]
        self._check = check

    def _launch_all(self) -> None:
        for grid, buffer in self._launches:
            self._function.launch(grid, (THREADS, 1, 1), buffer, stream=self._stream)

    def use(self) -> None:
        """Make its context current in the calling thread."""
        self._check(self._gpu.cu.cuCtxSetCurrent(self._context))

    def start(self) -> Any:
        """Launch them; returns an event behind them."""
        event = self._free.pop() if self._free else self._check(self._gpu.cu.cuEventCreate(3))
        if self._graph is None:
            self._launch_all()
        else:
            self._graph.launch()
        self._check(self._gpu.cu.cuEventRecord(event, self._stream))
        return event

    def over(self, event: Any) -> bool:
        """Whether everything before an event is done; if so, the event is reused."""
        (status,) = self._gpu.cu.cuEventQuery(event)
        if int(status) == 0:
            self._free.append(event)
            return True
        if int(status) != int(self._gpu.cu.CUresult.CUDA_ERROR_NOT_READY):
            self._check((status,))
        return False

    def wait(self, event: Any) -> None:
        """Wait until everything before an event is done, and reuse the event."""
        self._check(self._gpu.cu.cuEventSynchronize(event))
        self._free.append(event)


class NativeOnline:
    """Runs each request as one graph launch on a stream of the highest priority."""

    def __init__(self, native: Native, sizes: list[Sized]) -> None:
        self._sequence = native.sequence(sizes, online=True)

    def warm_up(self) -> None:
        self._sequence.use()
        for _ in range(3):
            self._sequence.wait(self._sequence.start())

    def serve(self, arrivals_s: list[float], began: float) -> list[float]:
        sequence = self._sequence
        sequence.use()
        latencies: list[float] = []
        coming = collections.deque(began + at for at in arrivals_s)
        waiting: collections.deque[tuple[float, Any]] = collections.deque()
        while coming or waiting:
            if coming and time.monotonic() >= coming[0]:
                waiting.append((coming.popleft(), sequence.start()))
            if waiting and sequence.over(waiting[0][1]):
                latencies.append(time.monotonic() - waiting.popleft()[0])
            elif not waiting and coming:
                wait_until(coming[0])
        return latencies


class NativeOffline:
    """Runs batches of the kernel on a stream of the lowest priority, some in flight."""

    def __init__(self, native: Native, size: Sized, kernels: int) -> None:
        self._kernels = kernels
        self._sequence = native.sequence([size] * kernels, online=False)

    def warm_up(self) -> None:
        self._sequence.use()
        self._sequence.wait(self._sequence.start())

    def run(self, began: float, until: float) -> list[tuple[float, int]]:
        sequence = self._sequence
        sequence.use()  # this is another thread
        wait_until(began - 0.2)  # full before the window begins
        done: list[tuple[float, int]] = []
        flying = collections.deque(sequence.start() for _ in range(AHEAD))
        while not done or done[-1][0] < until:
            sequence.wait(flying.popleft())
            done.append((time.monotonic(), self._kernels))
            flying.append(sequence.start())
        for event in flying:
            sequence.wait(event)
        return done


# -- through gpud ------------------------------------------------------------------------------


class GpudOnline:
    """Runs each request as one sequence; ``asks``: keywords of `gpud_client.Session.sequence`."""

    def __init__(self, gpu: gc.Session, sizes: list[Sized], asks: dict[str, Any]) -> None:
        self._gpu, self._asks = gpu, asks
        kernel = gpu.kernel(SOURCE, ENTRY)
        self._out = gpu.zeros(THREADS * OUT_BLOCKS, np.float32)
        self._calls = [
            kernel.call(one.blocks, THREADS, (self._out, np.int32(one.loops))) for one in sizes
        ]

    def warm_up(self) -> None:
        for _ in range(3):
            self._submit().result(DRAIN_S)

    def _submit(self) -> gc.Job:
        return self._gpu.sequence(self._calls, **self._asks)

    def serve(self, arrivals_s: list[float], began: float) -> list[float]:
        ended: dict[int, float] = {}
        noted = threading.Semaphore(0)
        jobs = []

        def note(number: int) -> Callable[[object], None]:
            def over(_: object) -> None:
                ended[number] = time.monotonic()
                noted.release()

            return over

        for number, at in enumerate(arrivals_s):
            wait_until(began + at)
            job = self._submit()
            job.add_done_callback(note(number))
            jobs.append(job)
        for job in jobs:
            job.result(DRAIN_S)
        for _ in jobs:  # a result may be there before the callback has run
            noted.acquire(timeout=DRAIN_S)
        return [ended[number] - began - at for number, at in enumerate(arrivals_s)]


class GpudOffline:
    """Runs batches of the kernel as sequences with the whole device as quota, some in flight."""

    def __init__(self, gpu: gc.Session, size: Sized, kernels: int) -> None:
        self._gpu, self._kernels = gpu, kernels
        kernel = gpu.kernel(SOURCE, ENTRY)
        self._out = gpu.zeros(THREADS * OUT_BLOCKS, np.float32)
        self._calls = [
            kernel.call(size.blocks, THREADS, (self._out, np.int32(size.loops)))
        ] * kernels

    def warm_up(self) -> None:
        self._gpu.sequence(self._calls).result(DRAIN_S)

    def run(self, began: float, until: float) -> list[tuple[float, int]]:
        wait_until(began - 0.2)
        done: list[tuple[float, int]] = []
        flying = collections.deque(self._gpu.sequence(self._calls) for _ in range(AHEAD))
        while not done or done[-1][0] < until:
            flying.popleft().result(DRAIN_S)
            done.append((time.monotonic(), self._kernels))
            flying.append(self._gpu.sequence(self._calls))
        for job in flying:
            job.result(DRAIN_S)
        return done


# -- the process -------------------------------------------------------------------------------


def sides(task: dict[str, Any]) -> tuple[OnlineSide | None, OfflineSide | None]:
    """Return the sides that a task asks for; see `main`."""
    online_sizes = [Sized(**one) for one in task.get("online") or ()]
    offline_size = Sized(**task["offline"]) if task.get("offline") else None
    kernels: int = task.get("batch", 1)
    online: OnlineSide | None = None
    offline: OfflineSide | None = None
    if task.get("socket"):
        # A connection each: their jobs have nothing to do with each other.
        if online_sizes:
            online = GpudOnline(gc.connect(task["socket"]), online_sizes, task["asks"])
        if offline_size:
            offline = GpudOffline(gc.connect(task["socket"]), offline_size, kernels)
        return online, offline
    native = Native(task.get("green_sms"))
    if offline_size:
        offline = NativeOffline(native, offline_size, kernels)
    if online_sizes:
        online = NativeOnline(native, online_sizes)
    return online, offline


def batch_of(kernel_us: float) -> int:
    """Offline kernels of one batch: about `BATCH_US`."""
    return max(1, min(MOST_BATCH, round(BATCH_US / kernel_us)))


def main() -> int:
    """Do one task, whose keys are read here and in `sides`."""
    sys.setswitchinterval(1e-4)  # two threads take turns
    task = json.loads(sys.stdin.readline())
    online, offline = sides(task)
    for side in (offline, online):
        if side is not None:
            side.warm_up()
    print("ready", flush=True)
    line = sys.stdin.readline()
    if not line:
        return 1
    began = float(line)
    found: dict[str, Any] = {"latencies_s": [], "done": []}
    thread = None
    if offline is not None:
        until = began + float(task["seconds"])

        def work(side: OfflineSide = offline) -> None:
            found["done"] = side.run(began, until)

        thread = threading.Thread(target=work, name="offline")
        thread.start()
    if online is not None:
        found["latencies_s"] = online.serve(task["arrivals_s"], began)
    if thread is not None:
        thread.join()
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
