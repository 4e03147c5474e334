"""A virtual SM: one OS thread that runs the persistent blocks added to it, outside the GIL.

The thread runs native code (`gpud.device.cpu.sm.loop`). It returns to Python only to report blocks
that have left or that spin in vain; it also waits in native code, so that a job starts without
switching Python threads.

SM threads have lower priority than the processes that serve clients: nice 10. With every core busy
with SM threads, a byte echoed over a socket pair took 2,084 us at the 99th percentile with equal
priorities, 33 us with nice 10, 43 us with nice 19, 60 us with SCHED_IDLE, and 1,237 us with
SCHED_BATCH (two cores; 33 us with no kernel at all). Nice 10 leaves
them a tenth of a core beside any other busy process; 19 and SCHED_IDLE leave next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

import numpy as np

from gpud.device.cpu.abi.records import SM, SM_BYTES, SM_GONE
from gpud.device.cpu.sm.loop import CLOSING, SPINNING, native_loop

__all__ = ["VirtualSM"]

_GONE = SM["gone"][0] // 4

_NICER = 10
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1000
"""Naps of polling SMs are tens of microseconds; Linux's default slack would add 50."""


class VirtualSM:
    """One OS thread and the persistent blocks that it runs.

    Args:
        index: its number, the value of ``%smid``.
        left: called on the SM's thread with the SM and the addresses of blocks that have left;
            nothing runs on the SM meanwhile.
        spinning: called on it with the SM when one of its blocks has been still for long.

    Attributes:
        used: capacity that its blocks take, see `gpud.device.cpu.scheduling.block_scheduler`.
        blocks: number of its persistent blocks, including those whose leaving is not reported yet.
    """

    def __init__(
        self,
        index: int,
        left: Callable[[VirtualSM, list[int]], None],
        spinning: Callable[[VirtualSM], None],
    ) -> None:
        self.index = index
        self.used = 0
        self.blocks = 0
        self._left = left
        self._spinning = spinning
        self._memory = np.zeros(SM_BYTES + 64, np.uint8)
        skip = -self._memory.ctypes.data % 64
        view = self._memory.data[skip : skip + SM_BYTES]
        self._words = view.cast("I")
        self._gone = view[SM_GONE:].cast("Q")
        self._words[SM["index"][0] // 4] = index
        self.address: int = self._memory.ctypes.data + skip
        # Compiled here, not on the SM's own thread: LLVM must not be running when Python exits.
        self._native = native_loop()
        self._thread = threading.Thread(target=self._run, name=f"sm{index}", daemon=True)
        self._thread.start()

    def add(self, block: int, run: int, index: int) -> None:
        """Add a persistent block, by its address; it begins in the next round.

        Calls must not overlap.
        """
        self._native.add(self.address, block, run, index)

    def close(self) -> None:
        """End the thread after the current turn; blocks that still run are dropped."""
        self._words[SM["closing"][0] // 4] = 1
        self._native.wake(self.address)
        if self._thread is not threading.current_thread():
            # With a timeout: a kernel that never yields cannot be stopped from outside.
            self._thread.join(timeout=5)

    def _run(self) -> None:
        _lower_priority()
        loop, address, words = self._native.loop, self.address, self._words
        while (why := loop(address)) != CLOSING:
            count = words[_GONE]
            blocks = self._gone[:count].tolist()
            words[_GONE] = 0
            try:
                if why == SPINNING:
                    self._spinning(self)
                else:
                    self._left(self, blocks)
            except Exception:  # noqa: BLE001 - any error of a caller's callback
                # Report it, and keep the SM running for the others.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))


def _lower_priority() -> None:
    """Lower this thread's priority below the normal one."""
    me = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + _NICER))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS), 0, 0, 0)
