"""A window of a co-location measurement: the sides run in child processes, for a while together.

What a child does is `bench.gpu.colocation_process`'s. Here they are started and told when the
window begins, and what they saw is put together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.colocation_process import batch_of
from bench.gpu.workloads.colocation_work import Sized

LEAD_IN_S = 0.5
READY_S, WINDOW_MARGIN_S = 120.0, 90.0
PEER = Path(__file__).with_name("colocation_process.py")


@dataclass(frozen=True)
class Seen:
    """What a window showed.

    Attributes:
        latencies_s: of the requests, in order of arrival.
        rate: offline kernels per second inside the window; 0 where none ran.
    """

    latencies_s: list[float]
    rate: float


@dataclass(frozen=True)
class System:
    """How the two sides are run.

    Attributes:
        together: both sides in one process.
        socket: gpud's; empty: native.
        green_sms: SMs of the online side's green context; None: none.
        environment: of the online and of the offline process.
        asks: what requests ask for, as `gpud_client.Session.sequence` takes it.
    """

    together: bool
    socket: str = ""
    green_sms: int | None = None
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asks: Mapping[str, Any] = field(default_factory=lambda: {"reservation": "100%"})


def window(
    system: System,
    seconds: float,
    online: Sequence[Sized] = (),
    arrivals_s: Sequence[float] = (),
    offline: Sized | None = None,
    kernel_us: float = 1.0,
) -> Seen:
    """Runs the sides that are given for one window, each in a process or both in one."""
    common = {"seconds": seconds, "socket": system.socket, "green_sms": system.green_sms}
    requests = {
        "online": [one.plain() for one in online],
        "arrivals_s": list(arrivals_s),
        "asks": dict(system.asks),
    }
    work = {"offline": offline.plain(), "batch": batch_of(kernel_us)} if offline else {}
    tasks: dict[str, dict[str, Any]] = {}
    if system.together:
        tasks["both"] = {**common, **(requests if online else {}), **work}
    else:
        if online:
            tasks["online"] = {**common, **requests}
        if offline:
            tasks["offline"] = {**common, **work}
    with ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(task, system.environment.get(side, {})))
            for side, task in tasks.items()
        ]
        for peer in peers:
            peer.await_ready()
        began = time.monotonic() + LEAD_IN_S
        for peer in peers:
            peer.begin(began)
        found = [peer.result(seconds) for peer in peers]
    latencies = [value for one in found for value in one["latencies_s"]]
    done = [(at, count) for one in found for at, count in one["done"]]
    return Seen(latencies, rate_of(done, began, began + seconds))


def rate_of(done: Sequence[tuple[float, int]], began: float, until: float) -> float:
    """Kernels per second between the first and the last batch that ended in the window."""
    inside = [(at, count) for at, count in done if began <= at <= until]
    if len(inside) < 2:
        return 0.0
    return sum(count for _, count in inside[1:]) / (inside[-1][0] - inside[0][0])


class Peer:
    """A child process with one task; ended with the context."""

    def __init__(self, task: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PEER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self._say(json.dumps(task))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def await_ready(self) -> None:
        """Until it has everything in place.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a peer ended with {self._process.wait(READY_S)} before its window")

    def begin(self, moment: float) -> None:
        """Tell it when the window begins."""
        self._say(repr(moment))

    def result(self, seconds: float) -> dict[str, Any]:
        """What it saw.

        Raises:
            RuntimeError: it failed.
        """
        text, _ = self._process.communicate(timeout=seconds + WINDOW_MARGIN_S)
        if self._process.returncode:
            raise RuntimeError(f"a peer ended with {self._process.returncode} in its window")
        found: dict[str, Any] = json.loads(text)
        return found
