"""How a lane on the CPU device lends its share, and has it back."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpud.device.cpu.abi.records import Lent
from gpud.device.cpu.scheduling.lane_take_back import Step, TakeBack
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.record_wait import wake_private

if TYPE_CHECKING:
    from gpud.device.cpu.scheduling.block_scheduler import BlockScheduler
    from gpud.device.cpu.scheduling.lane_run import LaneRecord, LaneRun

__all__ = ["LaneLending"]

_LOOK_S = 0.0002  # much less than a hold


class LaneLending:
    """A lane's share while it is lent.

    Args:
        scheduler: places the lane's blocks; its lock guards this.
    """

    def __init__(self, scheduler: BlockScheduler, lane: LaneRecord) -> None:
        self._scheduler = scheduler
        self._lane = lane
        self._bell = ctypes.c_uint32()
        self._take_back = TakeBack(lane)
        self._wait = native_loop().wait
        self._closed = False
        self.lent = False

    def begin(self, run: LaneRun | None, slices: int) -> None:
        """Give up all blocks; returns when none is left."""
        with self._scheduler.lock:
            self.lent = True
            self.has(run, slices)
        if run is not None:
            run.resize(0)
        while run is not None and run.present and not run.over:
            time.sleep(_LOOK_S)
        with self._scheduler.lock:
            if not self._closed:
                self._take_back.begin()
                self._scheduler.take_backs.append(self._take_back)

    def has(self, run: LaneRun | None, slices: int) -> None:
        """Take note of the lane's present run and slices."""
        self._take_back.run, self._take_back.slices = run, slices

    def resize(self, run: LaneRun | None, slices: int) -> None:
        """Take note of other slices."""
        with self._scheduler.lock:
            self._scheduler.settle()
            self.has(run, slices)
            self._scheduler.update(())
        self._scheduler.notify_over()

    def plan(self, steps: Sequence[Step] | None) -> None:
        """Have the share taken back in this way, when a record comes; None: not by itself."""
        with self._scheduler.lock:
            self._scheduler.settle()
            if self._take_back in self._scheduler.take_backs and self._lane["lent"] == Lent.OPEN:
                self._take_back.steps = steps
            self._scheduler.update(())
        self._scheduler.notify_over()

    def wait(self) -> None:
        """Sleep until a record is there, and take the share back if there is a plan."""
        self._wait(self._lane.address, ctypes.addressof(self._bell))

    def taken(self) -> tuple[tuple[int, int], ...] | None:
        """Return what was taken back, as jobs' numbers and slices, once; None without a plan."""
        with self._scheduler.lock:
            self._scheduler.settle()
            self._scheduler.update(())
            found, self._take_back.taken = self._take_back.taken, None
        self._scheduler.notify_over()
        return found

    def end(self) -> None:
        """End the time in which the share is lent."""
        with self._scheduler.lock:
            self._scheduler.settle()
            self.lent = False
            if self._take_back in self._scheduler.take_backs:
                self._scheduler.take_backs.remove(self._take_back)
                self._take_back.end()
            self._lane["lent"] = Lent.NO

    def close(self) -> None:
        """End with the lane: nothing is lent any more."""
        with self._scheduler.lock:
            self._closed = True
            self.end()

    def interrupt(self) -> None:
        """End `wait`, now and from now on."""
        self._bell.value = 1
        wake_private(ctypes.addressof(self._bell))
