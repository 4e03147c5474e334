"""A lane on the CUDA device, as its host sees it: a job whose run stays open, and lends its share.

What it does with its launches is in `gpud.device.cuda.lanes.lane_work`. A thread of the lane sleeps
on the ring while the lane is idle; under way, the thread that sees the end of a run begins the
next. While the lane lends, the thread that watches it sleeps on the ring in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpud.device.cuda.lanes.lane_work import LaneResources, LaneWork
from gpud.device.cuda.lanes.launch_groups import LaunchGroups
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import LaneObserver
from gpud.device.lane_sites import check_share, check_site
from gpud.device.record_wait import RecordWait
from gpud.errors import GpudError
from gpud.wire import lane_ring as ring

__all__ = ["CUDALane"]

_LOOK_S: Final = 0.0002  # much less than a hold
_MASK: Final = 0xFFFFFFFF


class CUDALane(LaneWork):
    """A lane of a CUDA device; thread-safe.

    Args:
        device: runs its launches.
        groups: has its launch sites.
        descriptor: of the ring's file; it may be closed afterwards.
        occupancy: the lane's slices are 1/``occupancy`` of an SM.
        observer: is told.
        attended: whether a thread sleeps on the ring; tests call `act` by hand instead.
    """

    exhausted = False
    output = b""
    complete = True
    release_ns = 0

    def __init__(
        self,
        device: LaneResources,
        groups: LaunchGroups,
        descriptor: int,
        occupancy: int,
        observer: LaneObserver,
        *,
        attended: bool = True,
    ) -> None:
        super().__init__(device, groups, descriptor, observer)
        self._occupancy = occupancy
        self._attended = attended
        self._attending, self._away = threading.Event(), threading.Event()
        self._attending.set()
        self._sleep, self._lending = RecordWait(), RecordWait()
        if attended:
            threading.Thread(target=self._attend, name="lane ring", daemon=True).start()
        else:
            self._away.set()

    # -- as of a run

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        with self._lock:
            fewer = slices < self.slices
            self.slices = slices
        self.act()
        if fewer:
            self._tell_left()

    def limit(self, quota: int) -> None:
        """Do nothing: a GPU's blocks run side by side, and a quota is how many there are."""

    @property
    def held(self) -> int:
        """Slices that it may use, or that its blocks still hold."""
        group = self._group
        return max(self.slices, 0 if group is None else group.run.held)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Of the present launch: 0, task blocks done, and their total; zeros without one."""
        group = self._group
        if self._over or group is None:
            return 0, 0, 0
        sequence, run = group.run.sequence, group.run
        done, now = run.progress[1], run.current
        total = sequence.prepared[now].total
        return 0, min(max(0, done - sequence.before[now]), total), total

    @property
    def first_block_ns(self) -> int:
        """Time from the present launch's start to its first task block; 0: not known."""
        group = self._group
        return 0 if group is None or self._at else group.run.first_block_ns

    def end(self) -> None:
        """End the lane: no further launch begins, and running blocks leave at their next kill poll.

        Who closes a lane in order has waited for its launches: nobody waits for what runs now.
        """
        with self._lock:
            self._ending = True
        self.act()

    kill = end

    # -- as of a run that waits for its partition

    @property
    def refused(self) -> GpudError | None:
        """Why it can have no SMs of its own."""
        return self._refused

    @refused.setter
    def refused(self, error: GpudError) -> None:
        self._refused = error
        threading.Thread(target=self.act, name="lane refused").start()

    def lose(self, error: GpudError) -> None:
        """End with this error: the device is lost."""
        self.refused = error

    def reconsider(self) -> None:
        """Do nothing: its run waits by itself until its partition is made."""

    # -- launches

    def add_site(
        self, spec: LaunchSpec, added: Callable[[int], None], replaces: int | None = None
    ) -> None:
        """Prepare launches of a kernel with a block shape; ``added`` gets the site's number.

        Args:
            spec: the launch.
            added: the callback.
            replaces: the site whose number it takes, once no launch of that is under way; None: it
                gets a new number.

        Raises:
            LaneRefused: the kernel's form cannot run in a lane.
            AdmissionError: the lane's share has no room for one of its blocks.
            LimitExceeded: the lane has `MOST_SITES` launch sites.
            UnknownName: it has no site to replace.
            LaunchConfigError: as for any launch.
        """
        check_site(spec, len(self._groups.sizes), replaces)
        most = self._device.check_site(spec)
        check_share(spec.kernel.name, most, self.slices, self._occupancy, self._device.sms)
        if replaces is not None:
            with self._lock:
                self._replacing.append((replaces, spec, added))
            self.act()
            return
        with self._lock:
            number = len(self._groups.sizes)
            self._groups.put(number, spec)
        added(number)

    def cancel(self, number: int) -> None:
        """Cancel a launch that has not ended: it does not begin, or its blocks are ended."""
        with self._lock:
            # Not before the oldest that is not complete; those to come are `SLOTS` at most.
            oldest = self._oldest()
            if (number - oldest) & _MASK < ring.SLOTS:
                self._skips.add(number)
        self.act()

    def end_overdue(self) -> None:
        """End the present launch if its job has run longer than it may."""
        group = self._group
        if group is None or self._at >= len(group.records):
            return
        record = group.records[self._at]
        if record.limit_ms and self._began_ns:
            if time.monotonic_ns() - self._job_ns >= record.limit_ms * 1_000_000:
                with self._lock:
                    self._overdue = record.number
                self.act()

    # -- lending, as `gpud.device.host.lane_watch` needs it

    def activity(self) -> int | None:
        """Return the number of the next launch; None while one runs or is to run."""
        with self._lock:
            return None if self._ending or self._has_work() else self.ring.number

    def _has_work(self) -> bool:
        return self._group is not None or bool(self._waiting) or self.ring.has_records

    def lend(self) -> None:
        """Give up all blocks, and keep the slices; returns when no block is left."""
        with self._lock:
            self._lent = True
        self._attending.clear()
        self._sleep.interrupt()
        # Else the client's wake, which is for one thread, could be for that one.
        while not self._away.wait(_LOOK_S) and not self._over:
            pass
        self.act()
        while True:
            group = self._group
            if group is None or self._ending or not group.run.held:
                return
            time.sleep(_LOOK_S)

    def wait_for_record(self) -> None:
        """Sleep until a record is there, or `interrupt` was called; on a lane that lends."""
        self.ring.listen(listening=True)
        while not (self._lending.interrupted or self._ending or self._has_work()):
            self._lending.sleep(self.ring.address + ring.HEAD, self.ring.tail)
        self.ring.listen(listening=False)

    def plan(self, steps: Sequence[tuple[int, Any, int]] | None) -> None:
        """Leave the plan to the device host, which carries it out when `wait_for_record` ends."""

    def taken_back(self) -> None:
        """Return nothing: the lane takes nothing back by itself."""

    def take_up(self) -> None:
        """Have blocks again, as many as its slices are for."""
        with self._lock:
            self._lent = False
        self.act()
        if not self._attended:
            return
        self._sleep = RecordWait()
        self._away.clear()
        self._attending.set()

    def interrupt(self) -> None:
        """End `wait_for_record`, now or the next time; the lane has ended."""
        self._lending.interrupt()

    def close(self) -> None:
        """Do nothing: a thread may look at the ring, which is unmapped with its last reference."""

    def _attend(self) -> None:
        """Sleep on the ring and act on what comes, while the lane does not lend."""
        while not self._over:
            if not self._attending.is_set():
                self._away.set()
                self._attending.wait()
                continue
            sleep, head = self._sleep, self.ring.head
            self.act()
            if self._attending.is_set():
                sleep.sleep(self.ring.address + ring.HEAD, head)

    def _ended(self) -> None:
        self._sleep.interrupt()
        self._attending.set()
