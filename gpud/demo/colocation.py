"""The co-location experiment: a daemon with online and offline clients, measured in time windows.

Problem: compare policies fairly. Approach: the same kernels with the same sizes, the same arrival
trace, the same window length; every result is checked in every window, and offline work counts only
if it was done inside the window, by the jobs' progress counters at its beginning and end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import gpud_client as gc
from gpud.demo.metrics import (
    Interval,
    harvest,
    interval_of_r99,
    offline_rate,
    percentile,
    r99,
)
from gpud.demo.offline_client import OfflineClient, Sized, size_kernel
from gpud.demo.offline_kernels import OFFLINE
from gpud.demo.online_client import OnlineAnswers, OnlineClient, layers_for

__all__ = [
    "Comparison",
    "DemoWindow",
    "Experiment",
    "Sizes",
    "compare",
    "open_experiment",
    "sizes_for",
]

_LEAD_IN_S = 0.3


@dataclass(frozen=True)
class Sizes:
    """The problem sizes for this machine: measured once, used in every window."""

    offline: tuple[Sized, ...]
    layers: int


@dataclass
class DemoWindow:
    """The measurements of one window.

    Attributes:
        name: ``alone`` or the policy.
        began_s: its beginning on the clock of `time.monotonic`.
        seconds: its length; online requests arrive during that time.
        answers: the outcomes of the online requests; empty if there were none.
        busy: share of the window in which an online request ran.
        rates: task blocks per second by kernel; empty if no offline work ran.
        jobs: ended offline jobs by kernel, including those that ended after the window.
        problems: wrong results and lost work; empty if there were none.
    """

    name: str
    began_s: float
    seconds: float
    answers: OnlineAnswers = field(default_factory=OnlineAnswers)
    busy: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """A co-located window, compared with the windows alone; see `gpud.demo.metrics`."""

    policy: str
    p50_s: float
    p99_s: float
    r99: float
    r99_interval: Interval
    offline_rate: float
    harvest: float

    def plain(self) -> dict[str, Any]:
        """Return the values for JSON, to four significant digits."""
        values: dict[str, Any] = {"policy": self.policy}
        for name, value in vars(self).items():
            if isinstance(value, float):
                values[name] = float(f"{value:.4g}")
        values["r99_interval"] = [float(f"{value:.4g}") for value in self.r99_interval]
        return values


class Experiment:
    """A private daemon with connected online and offline clients.

    Attributes:
        gpu: a further connection, for queries to the daemon.
    """

    def __init__(
        self, gpu: gc.Session, online: OnlineClient, offline: Sequence[OfflineClient]
    ) -> None:
        self.gpu = gpu
        self._online = online
        self._offline = offline

    def warm_up(self) -> None:
        """Run every kernel once, so that nothing is compiled or allocated in a window."""
        for client in self._offline:
            client.run_once()
        for number in range(2):
            self._online.answer(number)

    def measure(
        self, name: str, seconds: float, arrivals_s: Sequence[float] = (), *, offline: bool
    ) -> DemoWindow:
        """Measures a window; returns when all requests and jobs that began in it have ended.

        Args:
            name: name of the window.
            seconds: length of the window.
            arrivals_s: arrival times of online requests from the window's beginning; may be empty.
            offline: whether the offline clients run.
        """
        clients = self._offline if offline else ()
        for client in clients:
            client.start()
        try:
            began = time.monotonic() + _LEAD_IN_S
            time.sleep(_LEAD_IN_S)
            window = DemoWindow(name, began, seconds)
            first = _counts(clients)
            with ThreadPoolExecutor(1, "requests") as pool:
                # Queued requests may run long after the window; offline work is counted to its end.
                serving = pool.submit(self._online.serve, list(arrivals_s), began)
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                last = _counts(clients)
                window.answers = serving.result()
        finally:
            for client in clients:
                client.stop()
        for client, (start_s, before), (end_s, after) in zip(clients, first, last, strict=True):
            window.rates[client.name] = (after - before) / (end_s - start_s)
            window.jobs[client.name] = client.jobs
        window.busy = sum(window.answers.run_s) / seconds
        self._online.check()
        for problems in (self._online.problems, *(client.problems for client in clients)):
            window.problems += problems
            problems.clear()
        return window


def _counts(clients: Sequence[OfflineClient]) -> list[tuple[float, int]]:
    samples = []
    for client in clients:
        done = client.task_blocks_done()
        samples.append((time.monotonic(), done))
    return samples


@contextmanager
def open_experiment(
    device: str, policy: str, sizes: Sizes, *, lane: bool = False
) -> Iterator[Experiment]:
    """Open an `Experiment` on a private daemon with this device and policy.

    With ``lane`` the online requests run in a lane.
    """
    with ExitStack() as stack:
        gpu = stack.enter_context(gc.local(device, policy=policy))

        def connect() -> gc.Session:
            return stack.enter_context(gc.connect(gpu.path))

        offline = [OfflineClient(connect(), sized) for sized in sizes.offline]
        online = OnlineClient(connect(), sizes.layers, lane=lane)
        experiment = Experiment(gpu, online, offline)
        experiment.warm_up()
        yield experiment


def sizes_for(device: str, *, block_s: float, job_s: float, request_s: float) -> Sizes:
    """Determine problem sizes that give the wanted durations, by measuring on a separate daemon.

    Args:
        device: as for ``gpud serve --device``.
        block_s: target duration of an offline task block.
        job_s: target duration of an offline job with the whole device.
        request_s: target duration of an online request with the whole device.
    """
    with gc.local(device) as gpu:
        offline = tuple(size_kernel(gpu, kind, block_s, job_s) for kind in OFFLINE)
        return Sizes(offline, layers_for(gpu, request_s))


def compare(
    together: DemoWindow, online_alone: DemoWindow, offline_alone: DemoWindow, sizes: Sizes
) -> Comparison:
    """Compute the metrics of a co-located window.

    Raises:
        ValueError: a window lacks data because of problems in it.
    """
    latencies, alone = together.answers.latencies_s, online_alone.answers.latencies_s
    work = {sized.kind.name: sized.work_s for sized in sizes.offline}
    rate = offline_rate(together.rates, offline_alone.rates, work)
    return Comparison(
        together.name,
        percentile(latencies, 50),
        percentile(latencies, 99),
        r99(latencies, alone),
        interval_of_r99(latencies, alone),
        rate,
        harvest(rate, online_alone.busy),
    )
