"""Watches one lane: lends its share while nothing comes, and takes it back when something does.

Problem: native code runs a lane's launches, and must do so without a look at a clock; yet somebody
has to notice that nothing has come for a while, and be there when the next launch does, though the
lane has no block on any SM then.

Approach: a thread for each lane. While something runs in the lane it looks at it every few hold
times, and again after one once nothing does. Where nothing runs outside of lanes, nobody would use
what is lent at once, and these times are longer: a look, and lending in vain, take more of a core
than a launch. If nothing has come since the last look, the lane
gives up its blocks, and the thread itself sleeps on the word that the client's next launch changes.
When it does, the thread carries out the take-back plan and lets the lane have its blocks back,
which start as room comes free.

Properties:
* a lane is lent only after it was idle for the hold time, at most `BUSY_HOLDS` more of them; or
  with `ALONE_S` as hold time;
* a launch that comes while the lane is being lent is run: the lane is looked at again after it has
  given up its blocks;
* the front hears of each wake after the launch may begin, and not before;
* a launch whose job has run longer than it may is ended at the next look, or `LONGEST_S` later;
* the ring of a lane that has ended is unmapped, once nobody looks at it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from gpud.device.host.lending import Lending, PlannedLane

__all__ = ["ALONE_S", "BUSY_HOLDS", "LONGEST_S", "LaneWatch", "LendableLane"]


BUSY_HOLDS = 2
"""Hold times between two looks at a lane in use: a look takes some 10 us of a core."""


ALONE_S = 0.02
"""The shortest hold time while nothing but lanes runs on the device. A job that the front has
waiting for the share of a lane gets it that much later, once."""


LONGEST_S = 0.02
"""The longest time between two looks at whether a launch has run longer than it may."""


class LendableLane(PlannedLane, Protocol):
    """What is watched of a lane."""

    def activity(self) -> int | None:
        """Return a number that changes with each launch; None while one runs or is to run."""

    def end_overdue(self) -> None:
        """End the present launch if its job has run longer than it may."""

    def lend(self) -> None:
        """Give up all blocks, and keep the slices."""

    def wait_for_record(self) -> None:
        """Sleep until a record is there, or `interrupt` was called; on a lane that lends."""

    def taken_back(self) -> tuple[tuple[int, int], ...] | None:
        """Return what it has taken back by itself, by job; None: it was left to others."""

    def take_up(self) -> None:
        """Have blocks again, as many as its slices are for."""

    def interrupt(self) -> None:
        """End `wait_for_record`, now or the next time."""

    def close(self) -> None:
        """Unmap the ring, if the lane has ended; nothing else is called from then on."""


class LaneWatch:
    """Watches one lane of a device host.

    Args:
        lending: carries out plans, and reports.
        hold_s: how long nothing must have come before the lane lends its share.
        lost: called with an exception that nobody expects.
        wanted: whether something runs on the device that could use what is lent.
    """

    def __init__(
        self,
        number: int,
        lane: LendableLane,
        lending: Lending,
        hold_s: float,
        lost: Callable[[BaseException], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._wanted = wanted
        self._number = number
        self._lane = lane
        self._lending = lending
        self._hold_s = hold_s
        self._lost = lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lane{number}", daemon=True)

    def start(self) -> None:
        """Begin to watch, also a lane that has ended meanwhile: its ring is to be unmapped."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for it: the lane has ended. From any thread."""
        self._stopped.set()
        self._lane.interrupt()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - the lane would never wake again
            self._lost(error)
        finally:
            self._lending.forget(self._number)
            self._lane.close()

    def _watch(self) -> None:
        before, pause_s = None, self._hold_s
        while not self._stopped.is_set():
            self._pause(pause_s)
            now = self._lane.activity()
            hold_s = self._hold_s if self._wanted() else max(ALONE_S, self._hold_s)
            pause_s = hold_s * (BUSY_HOLDS if now is None else 1)
            if now is None or now != before:
                before = now
                continue
            self._lend()
            before = None

    def _pause(self, left_s: float) -> None:
        """Sleep, and end launches that have run longer than they may."""
        while not self._stopped.is_set():
            time.sleep(min(left_s, LONGEST_S))  # cheaper than to wait for an event
            self._lane.end_overdue()
            left_s -= LONGEST_S
            if left_s <= 0:
                return

    def _lend(self) -> None:
        lane, lending = self._lane, self._lending
        lane.lend()
        lending.idle(self._number, lane)
        lane.wait_for_record()
        by_itself = lane.taken_back()
        if self._stopped.is_set() and by_itself is None:
            return
        taken = lending.take_back(self._number, by_itself)
        lane.take_up()
        assert taken is not None, "it was reported idle"
        lending.report(self._number, taken)
