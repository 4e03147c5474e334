"""What one user's worst costs another: round trips, a running job, and the status meanwhile.

    python -m campaigns.neighbour_costs.run

A neighbour has a job that runs all the time, submits empty kernels one after the other and asks for
the status. Meanwhile another client does one of the attacks; each is told with the neighbour's p50,
p99 and worst, beside what they are when nobody attacks. An attack is contained if no round trip
takes `WORST_S`, the neighbour's job runs on, no device's process is replaced, and no callback of
the daemon's event loop takes longer than `gpud.server.ipc.event_loop.LIMIT_S`.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import gpud_client as gc
from campaigns.frame import Campaign, Figures, Plan, run
from campaigns.neighbour_costs.kernels import COSTLY, GATE, SHARED_NAMES
from gpud.demo.metrics import percentile
from gpud.server.ipc.event_loop import LIMIT_S
from gpud.wire import messages as wm
from tests.support.daemon_process import DaemonProcess, connected, serving

WORST_S = 1.0
_PATIENCE_S = 120.0
_LIMIT_S = 0.5
_CONNECTIONS = 200
_ALONE_S = 3.0
_EMPTY = 'extern "C" __global__ void k() {}'

Attack = Callable[[DaemonProcess, "TimedNeighbour"], str]


class TimedNeighbour:
    """A well-behaved client: a running job, round trips and the status; all are timed."""

    def __init__(self, path: str) -> None:
        self._gpu = gc.connect(path)
        self._gate = self._gpu.zeros(2, np.int32)
        self._words = self._gate.numpy()
        done = self._gpu.zeros(1, np.int32)
        self.job = self._gpu.kernel(GATE, "waits").submit(1, 32, (self._gate, done), quota=1)
        self._empty = self._gpu.kernel(_EMPTY, "k")
        self._lane = self._gpu.stream()

    @contextmanager
    def measuring(self, into: dict[str, Any]) -> Iterator[None]:
        """Measure until the block ends; ``into`` gets the figures."""
        over = threading.Event()
        trips: list[float] = []
        asked: list[float] = []
        wrong: list[str] = []

        def go_on() -> None:
            while not over.is_set():
                try:
                    began = time.monotonic()
                    self._empty.submit(1, 32, (), stream=self._lane).result(_PATIENCE_S)
                    trips.append(time.monotonic() - began)
                    began = time.monotonic()
                    self._gpu.query("status")
                    asked.append(time.monotonic() - began)
                except (gc.GpudError, TimeoutError) as error:
                    wrong.append(f"{type(error).__name__}: {error}"[:200])
                    return

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            into |= {
                "round_trips": len(trips),
                "round_trip_ms": _figures(trips),
                "status_ms": _figures(asked),
                "job_runs_on": self.job.running(),
                "failed": wrong,
            }

    def close(self) -> None:
        """End the job, and leave."""
        self._words[0] = 1
        with suppress(gc.GpudError, TimeoutError):
            self.job.result(_PATIENCE_S)
        self._gpu.close()


def _figures(times_s: list[float]) -> dict[str, float]:
    if not times_s:
        return {}
    ms = [1e3 * one for one in times_s]
    return {
        "p50": round(percentile(ms, 50), 2),
        "p99": round(percentile(ms, 99), 2),
        "worst": round(max(ms), 1),
    }


def _kernel(source: str) -> Attack:
    def attack(daemon: DaemonProcess, neighbour: TimedNeighbour) -> str:
        del neighbour
        with gc.connect(str(daemon.path)) as gpu:
            try:
                data = gpu.zeros(1 << 14, np.int32)
                kernel = gpu.kernel(source, "k")
                job = kernel.submit(64, 1024, (data,), quota=1, timeout=_LIMIT_S)
                error = job.exception(_PATIENCE_S)
            except (gc.GpudError, TimeoutError) as refused:
                error = refused
            return "done" if error is None else type(error).__name__

    return attack


def _status_storm(daemon: DaemonProcess, neighbour: TimedNeighbour) -> str:
    """Ask for the status on many connections of another user, without a pause."""
    del neighbour
    question = wm.CLIENT_PROTOCOL.encode(wm.Query(2, "status")) * 4
    socks: list[socket.socket] = []
    try:
        for _ in range(_CONNECTIONS):
            sock = connected(daemon.path, other_user=True)
            socks.append(sock)
            sock.sendall(wm.CLIENT_PROTOCOL.encode(wm.Hello(1, 1, "storm")))
            sock.setblocking(False)
        until = time.monotonic() + _ALONE_S
        while time.monotonic() < until:
            for sock in socks:
                with suppress(OSError):
                    sock.send(question)
                with suppress(OSError):
                    while sock.recv(1 << 20):
                        pass
    finally:
        for sock in socks:
            sock.close()
    return f"{len(socks)} connections"


def _nothing(daemon: DaemonProcess, neighbour: TimedNeighbour) -> str:
    del daemon, neighbour
    time.sleep(_ALONE_S)
    return "nothing"


ATTACKS: dict[str, Attack] = {
    "nothing": _nothing,
    **{name: _kernel(source) for name, source in COSTLY.items()},
    "shared names": _kernel(SHARED_NAMES),
    "status storm": _status_storm,
}


def measure(plan: Plan) -> Figures:
    """Do the attacks one after the other, each on a daemon of its own."""
    found: list[dict[str, Any]] = []
    while len(found) < plan.count and time.monotonic() < plan.until:
        name = list(ATTACKS)[len(found) % len(ATTACKS)]
        with serving(plan.device, max_user_connections=_CONNECTIONS + 50) as daemon:
            neighbour = TimedNeighbour(str(daemon.path))
            one: dict[str, Any] = {"attack": name}
            with neighbour.measuring(one):
                one["came_to"] = ATTACKS[name](daemon, neighbour)
            with gc.connect(str(daemon.path)) as gpu:
                status = gpu.query("status")
            one["longest_callback_ms"] = round(1e3 * status["loop_longest_stall_s"], 1)
            one["hosts_replaced"] = status["devices"][0]["restarts"]
            neighbour.close()
        found.append(one)
    return {"seed": plan.seed, "attacks": len(found), "each": found}


def report(found: Figures) -> None:
    """Print the figures."""
    for one in found["each"]:
        trips, asked = one["round_trip_ms"], one["status_ms"]
        print(
            f"{one['attack']:<14} {one['came_to']:<16} round trip p50 {trips.get('p50')} p99 "
            f"{trips.get('p99')} worst {trips.get('worst')} ms; status worst {asked.get('worst')} "
            f"ms; longest callback {one['longest_callback_ms']} ms; "
            f"{'runs on' if one['job_runs_on'] else 'LOST its job'}"
        )


def wrong(found: Figures) -> list[str]:
    """Return what an attack has cost the neighbour that it must not."""
    problems = []
    for one in found["each"]:
        problems += [f"{one['attack']}: {text}" for text in one["failed"]]
        if not one["job_runs_on"] or one["hosts_replaced"]:
            problems.append(f"{one['attack']}: the neighbour's running job was lost")
        if one["round_trip_ms"].get("worst", 0) > 1e3 * WORST_S:
            problems.append(
                f"{one['attack']}: a round trip took {one['round_trip_ms']['worst']} ms"
            )
        if one["longest_callback_ms"] > 1e3 * LIMIT_S:
            problems.append(f"{one['attack']}: a callback took {one['longest_callback_ms']} ms")
    return problems


NEIGHBOUR_COSTS = Campaign(
    name="neighbour_costs",
    does="what one user's worst costs another",
    unit="attacks",
    count=5 * len(ATTACKS),
    few=len(ATTACKS),
    measure=measure,
    report=report,
    wrong=wrong,
)


if __name__ == "__main__":
    sys.exit(run(NEIGHBOUR_COSTS, sys.argv[1:]))
