"""One window of a co-location measurement: runs both sides in child processes at the same time.

Starts the children (`bench.gpu.colocation_process`), tells them when the window begins, and
combines their results.
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
_SCRIPT = Path(__file__).with_name("colocation_process.py")


@dataclass(frozen=True)
class WindowResult:
    """Result of a window.

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
        asks: the requests' share, as keywords of `gpud_client.Session.sequence`.
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
) -> WindowResult:
    """Run the given sides for one window, each in a process or both in one."""
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
        children = [
            stack.enter_context(Child(task, system.environment.get(side, {})))
            for side, task in tasks.items()
        ]
        for child in children:
            child.await_ready()
        began = time.monotonic() + LEAD_IN_S
        for child in children:
            child.begin(began)
        found = [child.result(seconds) for child in children]
    latencies = [value for one in found for value in one["latencies_s"]]
    done = [(at, count) for one in found for at, count in one["done"]]
    return WindowResult(latencies, rate_of(done, began, began + seconds))


def rate_of(done: Sequence[tuple[float, int]], began: float, until: float) -> float:
    """Kernels per second between the first and the last batch that ended in the window."""
    inside = [(at, count) for at, count in done if began <= at <= until]
    if len(inside) < 2:
        return 0.0
    return sum(count for _, count in inside[1:]) / (inside[-1][0] - inside[0][0])


class Child:
    """A child process with one task; ended with the context."""

    def __init__(self, task: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self._say(json.dumps(task))

    def __enter__(self) -> Child:
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
        """Wait until it has prepared its task.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(
                f"a child ended with {self._process.wait(READY_S)} before its window"
            )

    def begin(self, moment: float) -> None:
        """Tell it when the window begins."""
        self._say(repr(moment))

    def result(self, seconds: float) -> dict[str, Any]:
        """Wait for its results.

        Raises:
            RuntimeError: it failed.
        """
        text, _ = self._process.communicate(timeout=seconds + WINDOW_MARGIN_S)
        if self._process.returncode:
            raise RuntimeError(f"a child ended with {self._process.returncode} in its window")
        found: dict[str, Any] = json.loads(text)
        return found
