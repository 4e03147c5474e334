"""A lane on the CPU device: its ring, its launch sites, and its present run.

Native code reads and runs its launches (`gpud.device.cpu.sm.lane_launches`). What is rare is done
here: when a launch has failed, printed or was cancelled, or a new launch site needs larger blocks,
all blocks leave and the run is over; its last launch is reported, and another run goes on with the
next record.

Properties:
* each accepted launch has one completion, in order; a message comes before a completion that refers
  to it;
* after the end of the lane nothing is read from its ring, and ``on_over`` is called once;
* a lane that lends has its slices and no blocks; who waits for its next record misses none.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gpud.device.cpu.abi.records import NONE
from gpud.device.cpu.arena import CPUArena
from gpud.device.cpu.occupancy import DeviceLimits
from gpud.device.cpu.scheduling.block_scheduler import BlockScheduler
from gpud.device.cpu.scheduling.lane_lending import LaneLending
from gpud.device.cpu.scheduling.lane_run import (
    LaneLayout,
    LaneRecord,
    LaneRun,
    LaneSites,
    LaunchSite,
)
from gpud.device.cpu.scheduling.lane_take_back import Step
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch, LaneObserver, ring_error
from gpud.device.lane_sites import check_share, check_site
from gpud.device.record_wait import wake_shared
from gpud.errors import GpudError, JobTimeout, LaneRefused
from gpud.wire import lane_ring as ring

__all__ = ["CPULane"]


class CPULane:
    """A lane of a CPU device; thread-safe.

    Args:
        scheduler: places its blocks.
        descriptor: of the ring's file; it may be closed afterwards.
        occupancy: the lane's slices are 1/``occupancy`` of an SM.
        observer: is told.
        exclusive: whole SMs that are the lane's alone; 0: none.

    Attributes:
        slices: how many it has.
        error: why it has ended, if it was not ended.
    """

    def __init__(
        self,
        scheduler: BlockScheduler,
        limits: DeviceLimits,
        descriptor: int,
        occupancy: int,
        priority: int,
        observer: LaneObserver,
        exclusive: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._occupancy = occupancy
        self._priority = priority
        self._observer = observer
        self._exclusive = exclusive
        self._native = native_loop()
        self._ring = CPUArena(descriptor, _RING_PAGES)
        self._sites = LaneSites(limits)
        self._lane = LaneRecord(self._ring.address, scheduler.sms, self._sites.address)
        self._sms = limits.sms
        self._pending: list[tuple[int, Callable[[int], None]]] = []
        self._replacing: dict[int, LaunchSite] = {}
        self._run: LaneRun | None = None
        self._layout: LaneLayout | None = None
        self._ending = self._over = False
        self._turning = False  # between two runs: who has ended the one begins the next
        self._lending = LaneLending(scheduler, self._lane)
        self._skips: set[int] = set()  # launches that are not to begin
        self._overdue: int | None = None  # a launch that was ended because of its timeout
        self._failures = 0  # of launches that have failed by themselves, and the latest of these
        self._failed: int | None = None
        self.slices = self._quota = 0
        self.error: GpudError | None = None
        if exclusive:
            with scheduler.lock:
                scheduler.assign_partition(self, exclusive)

    # -- as of a run

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        with self._scheduler.lock:
            self.slices = self._lane["slices"] = slices
            run, lent = self._run, self._lending.lent
        if lent:
            self._lending.resize(run, slices)
        elif run is not None:
            self._fit(run)

    def limit(self, quota: int) -> None:
        """Let it do no more work than so many slices can; 0: as much as it can."""
        with self._scheduler.lock:
            self._quota = quota
            if self._run is not None:
                self._run.limit(quota)

    @property
    def held(self) -> int:
        """Slices that it may use, or that its blocks still hold."""
        with self._scheduler.lock:
            return max(self.slices, 0 if self._run is None else self._run.held)

    exhausted = False
    output = b""
    complete = True
    release_ns = 0
    ways: Mapping[str, int] = MappingProxyType({})

    @property
    def progress(self) -> tuple[int, int, int]:
        """Of the present launch: 0, task blocks done, and their total; zeros without one."""
        with self._scheduler.lock:
            run = self._run
            if self._over or run is None or self._lane["current"] == NONE:
                return 0, 0, 0
            return 0, *run.launched()[1]

    @property
    def first_block_ns(self) -> int:
        """Time from the present launch's start to its first task block; 0: none has begun."""
        with self._scheduler.lock:
            run = self._run
            began = 0 if run is None or self._lane["current"] == NONE else run.began_at_ns
            return max(0, began - self._lane.long("accepted_ns")) if began else 0

    def end(self) -> None:
        """End the lane: no further launch begins, and running blocks leave at their next kill poll.

        Who closes a lane in order has waited for its launches: nobody waits for what runs now.
        """
        with self._scheduler.lock:
            self._ending = True
            run = self._run
            idle = run is None and not (self._over or self._turning)
        if run is not None:
            run.kill()
        elif idle:
            self._finish()

    kill = end

    # -- launches

    def add_site(
        self, spec: LaunchSpec, added: Callable[[int], None], replaces: int | None = None
    ) -> None:
        """Prepare launches of a kernel with a block shape; ``added`` gets the site's number.

        It is called at once, or when the present launch is over.

        Args:
            spec: the launch.
            added: the callback.
            replaces: the site whose number it takes, when no block is there; None: a new number.

        Raises:
            LaneRefused: the kernel's form cannot run in a lane.
            AdmissionError: the lane's share has no room for one of its blocks.
            LimitExceeded: the lane has `MOST_SITES` launch sites.
            UnknownName: it has no site to replace.
            LaunchConfigError: as for any launch.
        """
        with self._scheduler.lock:
            number = len(self._sites.all)
            check_site(spec, number, replaces)
            site = self._sites.make(spec)
            if site.layout.checked:
                raise LaneRefused(
                    f"{site.name} was compiled for the checking mode, which lanes do not have: "
                    "submit it as a job of another stream",
                    reason="checked",
                )
            check_share(site.name, site.layout.occupancy, self.slices, self._occupancy, self._sms)
            fits = self._run is not None and self._layout is not None and self._layout.fits(site)
            fits = fits and replaces is None
            if replaces is not None:
                number = replaces
                self._replacing[number] = site
            else:
                self._sites.put(number, site)
            if fits:
                self._lane["site_count"] = number + 1
            else:
                self._pending.append((number, added))
            run, turning = self._run, self._turning
        if fits:
            added(number)
        elif run is not None:
            run.retire()  # the next one has room for it
        elif not turning:
            self._begin()

    def cancel(self, number: int) -> None:
        """Cancel a launch that has not ended: it does not begin, or its blocks are ended."""
        with self._scheduler.lock:
            ahead = (number - self._lane["number"]) & 0xFFFFFFFF
            if ahead < ring.SLOTS:
                self._skips.add(number)
                self._arm()
        # The lock's release was a full barrier: this sees the launch, or native code `skip`.
        self._kill_launch(number)

    def end_overdue(self) -> None:
        """End the present launch if its job has run longer than it may."""
        with self._scheduler.lock:
            lane = self._lane
            limit_ms, number = lane["limit_ms"], (lane["number"] - 1) & 0xFFFFFFFF
            if not limit_ms or lane["current"] == NONE:
                return
            if time.monotonic_ns() - lane.long("job_ns") < limit_ms * 1_000_000:
                return
        self._kill_launch(number, overdue=True)

    def _kill_launch(self, number: int, *, overdue: bool = False) -> None:
        """End the blocks of a launch, if it is the present one."""

        def is_present() -> bool:
            lane = self._lane
            return (lane["number"] - 1) & 0xFFFFFFFF == number and lane["current"] != NONE

        run = self._run
        if run is None or not is_present():
            return
        run.retire()  # no launch follows it in this run, which might be ended in its place
        while self._lane["pulling"]:
            time.sleep(0)
        with self._scheduler.lock:
            if self._run is not run or not is_present():
                return
            self._overdue = number if overdue else None
        run.kill()

    # -- lending, as `gpud.device.host.lane_watch` needs it

    def activity(self) -> int | None:
        """Return the number of the next launch; None while one runs or is to run."""
        with self._scheduler.lock:
            return None if self._ending or self._over or self._has_work() else self._lane["number"]

    def _has_work(self) -> bool:
        lane = self._lane
        return lane["current"] != NONE or lane["tail"] != self._get(ring.HEAD)

    def lend(self) -> None:
        """Give up all blocks, and keep the slices; returns when no block is left."""
        with self._scheduler.lock:
            run, slices = self._run, self.slices
        self._lending.begin(run, slices)

    def plan(self, steps: Sequence[Step] | None) -> None:
        """Have the share taken back in this way, when a record comes; None: not by itself."""
        self._lending.plan(steps)

    def wait_for_record(self) -> None:
        """Sleep until a record is there, or `interrupt` was called; on a lane that lends.

        The share is taken back then, if there is a plan.
        """
        self._lending.wait()

    def taken_back(self) -> tuple[tuple[int, int], ...] | None:
        """Return what `wait_for_record` has taken back, as jobs' numbers and slices."""
        return self._lending.taken()

    def take_up(self) -> None:
        """Have blocks again, as many as its slices are for."""
        with self._scheduler.lock:
            self._lending.end()
            run = self._run
        if run is not None:
            self._fit(run)

    def interrupt(self) -> None:
        """End `wait_for_record`, now or the next time; the lane has ended."""
        self._lending.interrupt()

    def _arm(self) -> None:
        """Have native code stop at the next launch that is not to begin; with the lock."""
        following = self._lane["number"]
        self._skips = {one for one in self._skips if (one - following) & 0xFFFFFFFF < ring.SLOTS}
        nearest = min(self._skips, key=lambda one: (one - following) & 0xFFFFFFFF, default=-1)
        self._lane["skip"] = (nearest + 1) & 0xFFFFFFFF

    # -- one run after another

    def _begin(self) -> None:
        """Begin the next run, or finish if the lane is to end."""
        with self._scheduler.lock:
            run = None if self._ending else self._next_run()
            added, self._pending = self._pending, []
            self._turning = False
        if run is None:
            self._finish()
            return
        self._fit(run)
        for number, tell in added:
            tell(number)

    def _next_run(self) -> LaneRun:
        """Make the next run; with the lock."""
        layout, lane = self._layout, self._lane
        for number, site in self._replacing.items():  # no block is there
            self._sites.put(number, site)
        self._replacing.clear()
        if layout is None or self._pending:
            layout = self._layout = LaneLayout(lane, self._sites.all, self._occupancy, self._sms)
        lane["retire"] = lane["printed"] = lane["unreported"] = lane["skipped"] = 0
        lane["current"] = NONE
        lane["site_count"] = len(self._sites.all)
        run = self._run = LaneRun(
            self._scheduler,
            lane,
            layout,
            self._sites.all,
            self._priority,
            self._observer.on_left,
            self._run_over,
            self._exclusive,
            self,
        )
        run.limit(self._quota)
        self._lending.has(run, self.slices)
        return run

    def _fit(self, run: LaneRun) -> None:
        """Have the present run as large as it is to be, however many threads do so at once."""
        done = -1
        while True:
            with self._scheduler.lock:
                slices = 0 if self._lending.lent else self.slices
                if self._run is not run or slices == done:
                    return
            run.resize(slices)
            done = slices

    def _run_over(self) -> None:
        """Report the launch with which the run has ended, and begin the next one."""
        with self._scheduler.lock:
            run, lane = self._run, self._lane
            assert run is not None
            self._run, self._turning = None, True
            self._lending.has(None, self.slices)
            open_ = lane["current"] != NONE
            ended = open_ or lane["unreported"]
        if ended:
            self._report(run, was_open=open_)
        error = lane["error"]
        if error:
            self.error = ring_error(error, lane["wrong"], lane["number"], lane["site_count"])
            self._finish()
        else:
            self._begin()

    def _report(self, run: LaneRun, *, was_open: bool) -> None:
        lane = self._lane
        number = (lane["number"] - 1) & 0xFFFFFFFF
        state, error, progress, output = "done", run.error, run.done, run.output
        behind = None
        if lane["skipped"]:
            state, progress, output = "cancelled", (0, progress[1]), b""
            # A cancellation that came as it began may be in `_skips` no more.
            told = number in self._skips or not lane["broken"]
            if not (told or lane.flags & 1):
                state, behind = "failed", self._failed
        elif was_open and error is None and self._overdue == number:
            state, error = "failed", JobTimeout(lane["limit_ms"] * 1_000_000)
        elif was_open:
            state = "failed" if error is not None else "cancelled"
        self._overdue = None
        lane["broken"] = int(state != "done")
        if state == "failed" and behind is None:
            self._failures, self._failed = self._failures + 1, number
            lane["failures"] = self._failures % ring.EVERY
        with self._scheduler.lock:  # other launches are cancelled meanwhile
            if number in self._skips:
                self._skips.discard(number)
                self._arm()
        self._observer.launch_ended(
            EndedLaunch(number, lane["site"], state, error, output, progress, behind)
        )
        self._native.report(lane.address, run.began_at_ns, number, ring.SEE_MESSAGE)

    def _finish(self) -> None:
        with self._scheduler.lock:
            if self._over:
                return
            self._over = True
        self._lending.close()
        if self._exclusive:
            self._scheduler.release_partition(self)
        self._set(ring.ENDED, 1)
        self._wake(ring.COMPLETED)
        self._observer.on_over()

    def close(self) -> None:
        """Unmap the ring, if the lane has ended; nobody waits for its next record any more."""
        if self._over:
            self._ring.close()

    def _set(self, at: int, value: int) -> None:
        ctypes.c_uint32.from_address(self._ring.address + at).value = value

    def _get(self, at: int) -> int:
        return ctypes.c_uint32.from_address(self._ring.address + at).value

    def _wake(self, at: int) -> None:
        wake_shared(self._ring.address + at)


_RING_PAGES = -(-ring.RING_BYTES // 4096) * 4096
