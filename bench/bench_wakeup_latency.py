"""Wake-up latency of a process while SM threads keep all cores busy, by their scheduling policy.

    python bench/bench_wakeup_latency.py [--seconds S]

A child process has one virtual SM for each core, and all of them run task blocks of about a
millisecond. Another child echoes one byte over a socket pair; a round trip takes two wake-ups. The
policies are set on the SM threads alone. They are interleaved in three repetitions, so that all see
the same noise.

Prints a table and writes bench/results/wakeup_latency.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import percentile_us

RESULT = Path(__file__).parent / "results" / "wakeup_latency.json"
POLICIES = ("no kernel runs", "normal", "nice 10", "nice 19", "batch", "batch, nice 19", "idle")
REPEAT = 3
WORK = """
extern "C" __global__ void work(float* out) {
    float x = threadIdx.x;
    for (int i = 0; i < 200000; i++) x = x * 1.0001f + 0.5f;
    out[threadIdx.x] = x;
}
"""


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each policy, in all")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "echo":
        return echo(options.fd)
    if options.role:
        return spin(options.role, options.fd)
    found: dict[str, list[int]] = {policy: [] for policy in POLICIES}
    for _ in range(REPEAT):
        for policy in POLICIES:
            found[policy] += round_trips(policy, options.seconds / REPEAT)
    rows = {policy: _row(times) for policy, times in found.items()}
    print(f"{'SM threads':<18}{'p50 us':>9}{'p99 us':>9}{'worst us':>10}{'round trips':>13}")
    for policy, row in rows.items():
        print(
            f"{policy:<18}{row['p50_us']:>9.0f}{row['p99_us']:>9.0f}{row['worst_us']:>10.0f}"
            f"{row['count']:>13.0f}"
        )
    RESULT.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")
    return 0


def _row(times_ns: list[int]) -> dict[str, float]:
    percents = {"p50_us": 50, "p99_us": 99, "worst_us": 100}
    row: dict[str, float] = {name: percentile_us(times_ns, at) for name, at in percents.items()}
    return {**row, "count": len(times_ns)}


def round_trips(policy: str, seconds: float) -> list[int]:
    """Measure round trips under a policy, in nanoseconds."""
    with Child("echo") as echoing, Child(policy) as spinning:
        assert spinning.recv(1) == b"r", "the SMs did not start"
        times = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter_ns()
            echoing.send(b"x")
            echoing.recv(1)
            times.append(time.perf_counter_ns() - began)
            time.sleep(0.001)  # like a front that sleeps between requests
        return times


class Child:
    """This script in another role, and the socket to it; it ends when the socket closes."""

    def __init__(self, role: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, "--role", role, "--fd", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(30)


def echo(descriptor: int) -> int:
    """Send received bytes back."""
    with socket.socket(fileno=descriptor) as mine:
        while data := mine.recv(1):
            mine.send(data)
    return 0


def spin(policy: str, descriptor: int) -> int:
    """Keep every core busy until the socket closes."""
    from gpud.compiler.pipeline import compile_program
    from gpud.device.cpu.device import CPUDevice
    from gpud.device.interface import LaunchSpec
    from tests.support.resizable_run import ResizableRun

    mine = socket.socket(fileno=descriptor)
    with CPUDevice() as device:
        for thread in threading.enumerate():
            if thread.name.startswith("sm"):
                tid = thread.native_id or 0
                while os.getpriority(os.PRIO_PROCESS, tid) == 0:
                    time.sleep(0.001)  # it sets its own policy first
                set_policy(tid, policy)
        kernel = device.load(compile_program(WORK).ptx).kernel("work")
        out = device.allocate(4 * 32)
        values = [out.address.to_bytes(8, "little")]
        launch = LaunchSpec.of(kernel, "persistent", 2**31 - 1, 32, values)
        job = ResizableRun(device, [launch])
        if policy != POLICIES[0]:
            job.resize(device.sms * device.occupancy(kernel, (32, 1, 1)))
            while job.progress[0] < device.sms:
                time.sleep(0.001)
        mine.send(b"r")
        mine.recv(1)
        job.end()
    mine.close()
    return 0


def set_policy(thread: int, policy: str) -> None:
    """Give one thread a scheduling policy."""
    kind = {"batch": os.SCHED_BATCH, "idle": os.SCHED_IDLE}.get(
        policy.partition(",")[0], os.SCHED_OTHER
    )
    os.sched_setscheduler(thread, kind, os.sched_param(0))
    nice = int(policy.rsplit(maxsplit=1)[-1]) if "nice" in policy else 0
    os.setpriority(os.PRIO_PROCESS, thread, nice)


if __name__ == "__main__":
    sys.exit(main())
