"""Monitors a GPU through NVML: utilisation, temperature and so on, read on a thread.

Problem: NVML takes milliseconds, may hang with a GPU that does, and is not installed everywhere;
its metrics are useful to people, and nothing depends on them.

Approach: `GpuMonitor.poll`, called each second, starts a thread that reads while the daemon goes
on; queries show the last reading. Once NVML has failed it is not read again.

Properties:
    non_blocking: no method here waits for NVML;
    one_at_a_time: while a reading is under way, no other is started;
    fails_soft: if NVML fails, the metrics are unknown and the daemon goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from gpud.errors import GpudError
from gpud.telemetry.nvml import GPUState, NvmlReader

__all__ = ["GpuMonitor"]

_LOG = logging.getLogger(__name__)
_UNKNOWN = GPUState(*[None] * len(GPUState._fields))


class GpuMonitor:
    """Monitors one GPU.

    Args:
        loop: the event loop.
        gpu: its UUID as the driver reports it, beginning with ``GPU-``.
        on_xid: called on the loop with the number of each Xid error.
        connect: replaces `NvmlReader` in tests.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        gpu: str,
        on_xid: Callable[[int], None],
        connect: Callable[[str], Any] = NvmlReader,
    ) -> None:
        self._loop = loop
        self._gpu = gpu
        self._on_xid = on_xid
        self._connect = connect
        self._reader: Any = None
        self._state = _UNKNOWN
        self._last_xid: int | None = None
        self._reading = False
        self._over = False

    def metrics(self) -> dict[str, Any]:
        """Return the last reading, by names that begin with ``gpu_``; None: unknown."""
        known = {f"gpu_{name}": value for name, value in self._state._asdict().items()}
        return {**known, "gpu_last_xid": self._last_xid}

    def poll(self) -> None:
        """Start a reading, unless one is under way."""
        if not (self._reading or self._over):
            self._reading = True
            # Not the loop's executor: its end waits for its threads, and this one may hang.
            threading.Thread(target=self._read, name="nvml", daemon=True).start()

    def close(self) -> None:
        """Start no more readings."""
        self._over = True

    def _read(self) -> None:
        reading: tuple[GPUState, list[int]] | None = None
        problem = ""
        try:
            if self._reader is None:
                self._reader = self._connect(self._gpu)
            reading = self._reader.read(), self._reader.xid_events()
            if self._over:
                self._reader.close()
        except GpudError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a bug in the bindings must not end the daemon
            problem = f"{type(error).__name__}: {error}"
        try:
            self._loop.call_soon_threadsafe(self._was_read, reading, problem)
        except RuntimeError:  # the loop has ended
            return

    def _was_read(self, reading: tuple[GPUState, list[int]] | None, problem: str) -> None:
        self._reading = False
        if reading is None:
            self._over = True
            self._state = _UNKNOWN
            _LOG.info("the figures of %s are unknown: %s", self._gpu, problem)
            return
        self._state, xids = reading
        for number in xids:
            self._last_xid = number
            self._on_xid(number)
