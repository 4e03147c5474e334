"""The well-behaved clients of a soak, in one process; for `soak`.

    python -m campaigns.soak.good_clients SOCKET SECONDS

* *online*: every 50 ms a sequence of four launches with a reservation; its latency is from the time
  at which it was due to its result. One that is a second late is not submitted: it is *missed*.
* *offline*: two clients that submit one job after the other.
* *visitors*: a new session each half second that runs one job and disconnects.

Every job's result is checked: a kernel adds 1 to each number of the client's array, so after k
launches each number must be k. That detects jobs that fail, are lost, or write into others' memory.
Prints one JSON object: jobs of each kind, problems, and the latencies by tenths of the time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

import gpud_client as gc
from gpud.demo.metrics import percentile

SOURCE = r"""
extern "C" __global__ void tick(unsigned* ticks, int rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = i;
    for (int r = 0; r < rounds; r++) x = x * 1664525u + 1013904223u;
    ticks[i] += 1 + (x == 0xffffffffu && rounds < 0);
}"""
TENTHS = 10
_PERIOD_S = 0.05
_GIVE_UP_S = 1.0  # a request that is this late is not submitted
_VISIT_S = 0.5
_BLOCK = 64
_PATIENCE_S = 120.0
_KEPT_PROBLEMS = 20


class SoakClients:
    """Counts and latencies of the clients.

    Args:
        path: the daemon's socket.
        seconds: how long they run.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._began = time.monotonic()
        self._latencies = [array("f") for _ in range(TENTHS)]
        self._lock = threading.Lock()
        self.jobs = {"online": 0, "offline": 0, "visitors": 0}
        self.wrong: list[str] = []
        self.wrongs = 0
        self.missed = 0

    def run(self) -> dict[str, Any]:
        """Run all clients until the time is over; returns the report."""
        roles: list[tuple[str, Callable[[], None]]] = [
            ("online", self._online),
            ("offline", self._offline),
            ("offline", self._offline),
            ("visitors", self._visitors),
        ]
        threads = [threading.Thread(target=self._guarded, args=role, daemon=True) for role in roles]
        self._began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._seconds + 2 * _PATIENCE_S)
            if thread.is_alive():
                self._note("a client has hung")
        return {
            "jobs": self.jobs,
            "missed": self.missed,
            "wrong": self.wrongs,
            "first_wrong": self.wrong,
            "online_ms": [
                {
                    "requests": len(tenth),
                    "p50": round(1e3 * percentile(tenth, 50), 2) if tenth else None,
                    "p99": round(1e3 * percentile(tenth, 99), 2) if tenth else None,
                    "most": round(1e3 * max(tenth), 1) if tenth else None,
                }
                for tenth in self._latencies
            ],
        }

    def _guarded(self, role: str, client: Callable[[], None]) -> None:
        served = False
        while not served or self._left_s() > 0:
            try:
                client()
                served = True
            except (gc.GpudError, OSError, TimeoutError) as error:
                served = True
                self._note(f"{role}: {type(error).__name__}: {error}"[:400])
                time.sleep(0.1)

    def _note(self, problem: str) -> None:
        with self._lock:
            self.wrongs += 1
            if len(self.wrong) < _KEPT_PROBLEMS:
                self.wrong.append(f"at {time.monotonic() - self._began:.1f} s, {problem}")

    def _left_s(self) -> float:
        return self._began + self._seconds - time.monotonic()

    def _online(self) -> None:
        with gc.connect(self._path) as gpu:
            kernel = gpu.kernel(SOURCE, "tick")
            ticks = gpu.zeros(8 * _BLOCK, np.uint32)
            call = kernel.call(8, _BLOCK, (ticks, np.int32(2000)))
            due = time.monotonic()
            runs = 0
            while not runs or self._left_s() > 0:
                time.sleep(max(0.0, due - time.monotonic()))
                gpu.sequence([call] * 4, reservation=1).result(_PATIENCE_S)
                now = time.monotonic()
                tenth = int(TENTHS * (now - self._began) / self._seconds)
                self._latencies[min(tenth, TENTHS - 1)].append(now - due)
                runs += 1
                self._check("online", ticks, 4 * runs)
                due += _PERIOD_S
                while due < now - _GIVE_UP_S:  # a service would have rejected these
                    self.missed += 1
                    due += _PERIOD_S

    def _offline(self) -> None:
        with gc.connect(self._path) as gpu:
            kernel = gpu.kernel(SOURCE, "tick")
            ticks = gpu.zeros(64 * _BLOCK, np.uint32)
            runs = 0
            while not runs or self._left_s() > 0:
                kernel.submit(64, _BLOCK, (ticks, np.int32(20_000)), quota=1).result(_PATIENCE_S)
                runs += 1
                self._check("offline", ticks, runs)

    def _visitors(self) -> None:
        while True:
            with gc.connect(self._path) as gpu:
                ticks = gpu.zeros(4 * _BLOCK, np.uint32)
                kernel = gpu.kernel(SOURCE, "tick")
                kernel.submit(4, _BLOCK, (ticks, np.int32(100))).result(_PATIENCE_S)
                self._check("visitors", ticks, 1)
            if self._left_s() < _VISIT_S:
                return
            time.sleep(_VISIT_S)

    def _check(self, role: str, ticks: Any, expected: int) -> None:
        bad = int((ticks.numpy() != expected).sum())
        if bad:
            self._note(f"{role}: {bad} numbers are not {expected}")
            ticks.numpy()[:] = expected  # so that later jobs do not report it again
        with self._lock:
            self.jobs[role] += 1


def main() -> int:
    """Run the clients."""
    path, seconds = sys.argv[1:]
    print(json.dumps(SoakClients(path, float(seconds)).run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
