"""Programs with workloads, for tests: kernels, daemons, loops."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.gpu.served_daemon import Served
from tests.support.daemon_process import DaemonProcess

STEP = r"""
extern "C" __global__ void step(float* kept, float* scratch, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { scratch[i] = kept[i] * 0.5f; kept[i] = kept[i] - scratch[i] + 1.0f; }
}
extern "C" __global__ void linger(int* out, long long turns) {
    volatile int a = 0;
    for (long long i = 0; i < turns; ++i) a = a + 1;
    out[0] = a;
}
extern "C" __global__ void spin(volatile unsigned* go) { while (!*go) {} }
extern "C" __global__ void poke(float* own, unsigned long long where) {
    own[0] = *(float*)where;
}"""
N = 1 << 12
WIDE = 1 << 20


@contextmanager
def serving(*options: str) -> Iterator[DaemonProcess]:
    """Serve with options; no bug is left in the log."""
    with DaemonProcess() as daemon:
        daemon.serve(*options)
        yield daemon
        assert not daemon.bugs()


def gpuctl(daemon: DaemonProcess | Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run gpuctl."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from gpud_client.cli import main; raise SystemExit(main())",
            *arguments,
        ],
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def train(gpu: Any, work: Any, iterations: int, seen: Callable[[], None] = lambda: None) -> Any:
    """Iterate, closing at the end; returns what persisted."""
    kernel = gpu.kernel(STEP, "step", device=work.device)
    kept = work.zeros(N, np.float32)
    for number in range(iterations):
        with work.iteration() as turn:
            seen()
            scratch = turn.empty(N, np.float32)
            kernel.submit(grid=N // 256, block=256, args=(kept, scratch, N))
        assert work.iterations_begun == number + 1
    return kept.get()


def expected(iterations: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return what `train` keeps after so many iterations."""
    kept = np.zeros(N, np.float32)
    for _ in range(iterations):
        kept = kept - kept * np.float32(0.5) + np.float32(1)
    return kept


def awaited(ask: Callable[[], list[Any]], count: int = 2) -> list[Any]:
    """Return what ``ask`` does once it has so many elements, or after 10 s."""
    deadline = time.monotonic() + 10
    while len(found := ask()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def begin(work: Any) -> float:
    """Have one iteration; return when it began."""
    with work.iteration():
        return time.monotonic()


def overstays(gpu: Any) -> list[Any]:
    """Return the events about workloads that overstay."""
    events = gpu.query("events")["events"]
    return [event for event in events if event["event"] == "workload-overstays"]
