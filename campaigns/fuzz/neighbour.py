"""A well-behaved client beside a fuzzed daemon: it must be served all the time, and rightly."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

import numpy as np

import gpud_client as gc

SOURCE = r"""
extern "C" __global__ void tick(unsigned* ticks) {
    ticks[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}"""
_BLOCKS, _BLOCK = 8, 64
_PATIENCE_S = 60.0


class Neighbour:
    """Submits an online job and an offline one in turn, from a thread, and checks each result.

    Args:
        path: the daemon's socket.
        pause_s: between jobs.
    """

    def __init__(self, path: str, pause_s: float = 0.01) -> None:
        self._pause_s = pause_s
        self._gpu = gc.connect(path)
        self._ticks = self._gpu.zeros(_BLOCKS * _BLOCK, np.uint32)
        self._kernel = self._gpu.kernel(SOURCE, "tick")
        self._over = threading.Event()
        self._jobs = 0
        self._longest_s = 0.0
        self._wrong: list[str] = []
        self._kernel.submit(_BLOCKS, _BLOCK, (self._ticks,)).result(_PATIENCE_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._gpu.close()

    def names(self) -> dict[str, list[Any]]:
        """What another client might try to name, by field."""
        session = self._gpu._core.session
        return {
            "job": [[session, number] for number in (1, 2, 50, 1000)],
            "module": [1],
            "array": [self._ticks.ptr],
        }

    def end(self) -> dict[str, Any]:
        """What came of it: jobs, the longest that one took, and what was wrong."""
        self._over.set()
        self._thread.join(2 * _PATIENCE_S)
        if self._thread.is_alive():
            self._wrong.append("the neighbour has hung")
        longest = round(self._longest_s, 3)
        return {"jobs": self._jobs, "longest_s": longest, "wrong": self._wrong}

    def _run(self) -> None:
        runs = 1
        try:
            while not self._over.is_set():
                began = time.monotonic()
                more: dict[str, Any] = {"reservation": 1} if runs % 2 else {"quota": 1}
                self._kernel.submit(_BLOCKS, _BLOCK, (self._ticks,), **more).result(_PATIENCE_S)
                self._longest_s = max(self._longest_s, time.monotonic() - began)
                runs += 1
                self._jobs += 1
                bad = int((self._ticks.numpy() != runs).sum())
                if bad:
                    self._wrong.append(f"neighbour: {bad} numbers are not {runs}")
                    return
                self._over.wait(self._pause_s)
        except (gc.GpudError, OSError, TimeoutError) as error:
            self._wrong.append(f"neighbour: {type(error).__name__}: {error}"[:400])
