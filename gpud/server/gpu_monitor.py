"""A GPU's own figures for people: read from NVML from time to time, beside the event loop.

Problem: NVML takes milliseconds, may hang with a GPU that does, and is not there everywhere; what
it says is of use, and nothing depends on it.

Approach: `GpuMonitor.poll`, called each second, has a thread read while the daemon goes on; what
was read last is what queries show. Where NVML is not there nobody asks again.

Properties:
    quick: nothing here waits;
    one_at_a_time: while a reading has not come back, no other is begun;
    soft: whatever NVML does, figures are unknown and the daemon goes on.
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
    """Of one GPU.

    Args:
        loop: the event loop.
        gpu: its UUID as the driver tells it, beginning with ``GPU-``.
        on_xid: called on the loop with the number of each Xid error.
        connect: stands in for `NvmlReader`, in tests.
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
        """What was read last, by names that begin with ``gpu_``; None: unknown."""
        known = {f"gpu_{name}": value for name, value in self._state._asdict().items()}
        return {**known, "gpu_last_xid": self._last_xid}

    def poll(self) -> None:
        """Have the figures read anew, unless that is under way."""
        if not (self._reading or self._over):
            self._reading = True
            # Not the loop's executor: its end waits for its threads, and this one may hang.
            threading.Thread(target=self._read, name="nvml", daemon=True).start()

    def close(self) -> None:
        """Read nothing more."""
        self._over = True

    def _read(self) -> None:
        found: tuple[GPUState, list[int]] | None = None
        problem = ""
        try:
            if self._reader is None:
                self._reader = self._connect(self._gpu)
            found = self._reader.read(), self._reader.xid_events()
            if self._over:
                self._reader.close()
        except GpudError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a bug of the bindings' is no reason to end
            problem = f"{type(error).__name__}: {error}"
        try:
            self._loop.call_soon_threadsafe(self._was_read, found, problem)
        except RuntimeError:  # the loop has ended
            return

    def _was_read(self, found: tuple[GPUState, list[int]] | None, problem: str) -> None:
        self._reading = False
        if found is None:
            self._over = True
            self._state = _UNKNOWN
            _LOG.info("the figures of %s are unknown: %s", self._gpu, problem)
            return
        self._state, xids = found
        for number in xids:
            self._last_xid = number
            self._on_xid(number)
