"""Launches of a kernel of one block whose arguments differ, and the processes that they pass."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import gpud_client as gc
from bench.harness.processes import children

__all__ = ["one_by_one", "pipelined", "processes_of", "repeat", "side_of"]

KERNEL = 'extern "C" __global__ void put(int* out, int i, float a) { out[i & 1023] = (int)a; }'
IN_FLIGHT, STREAMS = 64, 8


def one_by_one(gpu: gc.Session) -> Callable[[], None]:
    """Return a function that submits a launch with other arguments each time, and waits for it."""
    kernel, out = gpu.kernel(KERNEL, "put"), gpu.zeros(1024, "int32")
    number = 0

    def one() -> None:
        nonlocal number
        number += 1
        kernel.submit(1, 32, (out, number, float(number))).result(30)

    return one


def repeat(call: Callable[[], None], count: int) -> None:
    """Call a function so many times."""
    for _ in range(count):
        call()


def pipelined(gpu: gc.Session) -> Callable[[int], None]:
    """Return a function that submits so many launches, `IN_FLIGHT` at a time."""
    kernel, out = gpu.kernel(KERNEL, "put"), gpu.zeros(1024, "int32")
    streams = [gpu.stream() for _ in range(STREAMS)]

    def many(count: int) -> None:
        flying: deque[gc.Job] = deque()
        for i in range(count):
            if len(flying) >= IN_FLIGHT:
                flying.popleft().result(30)
            stream = streams[i % STREAMS]
            flying.append(kernel.submit(1, 32, (out, i, float(i)), stream=stream))
        for job in flying:
            job.result(30)

    return many


def side_of(command: str) -> str | None:
    """Return which side a process is, by its command; None for others."""
    if "gpud.device.host" in command and "native" not in command:
        return "device host"
    return "front" if " serve" in command else None


def processes_of(front: int) -> dict[str, int]:
    """Return the process of each side, for the front with this process id."""
    pids = {"client": os.getpid(), "front": front}
    for child in children(front):
        command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if side_of(command) == "device host":
            pids["device host"] = child
    return pids
