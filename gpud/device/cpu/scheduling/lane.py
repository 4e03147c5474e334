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
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpud.device.cpu.abi.records import NONE, RingError
from gpud.device.cpu.arena import CPUArena
from gpud.device.cpu.occupancy import DeviceLimits
from gpud.device.cpu.scheduling.block_scheduler import BlockScheduler
from gpud.device.cpu.scheduling.lane_lending import RecordWait, wake_shared
from gpud.device.cpu.scheduling.lane_run import LaneLayout, LaneRecord, LaneRun, LaneSites
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.interface import LaunchSpec
from gpud.errors import AdmissionError, GpudError, InvalidArgument, LimitExceeded, ProtocolError
from gpud.wire import lane_ring as ring

__all__ = ["CPULane", "EndedLaunch", "LaneObserver"]

_LOOK_S = 0.0002  # much less than a hold
_BARRIER = threading.Lock()
_WRONG = {
    RingError.HEAD: "{wrong} slots are said to be written, and there are {slots}",
    RingError.NUMBER: "launch {number} was to come, not {wrong}",
    RingError.SITE: "there is no launch site {wrong}; it has {sites}",
    RingError.SIZE: "the parameters of launch {number} are said to have {wrong} bytes, which are "
    "not the kernel's",
    RingError.GRID: "the grid of launch {number} has {wrong} in a dimension, or too many task "
    "blocks in all",
    RingError.CUT: "launch {number} takes {wrong} slots, and fewer are written",
}


class EndedLaunch(NamedTuple):
    """A launch whose end is reported with more than a completion.

    Attributes:
        site: its launch site.
        state: ``done``, ``failed`` or ``cancelled``.
        progress: task blocks done, and their total.
    """

    number: int
    site: int
    state: str
    error: GpudError | None
    output: bytes
    progress: tuple[int, int]


class LaneObserver(Protocol):
    """Whoever is told what happens to a lane; on any thread."""

    def launch_ended(self, launch: EndedLaunch) -> None:
        """Take notice of a launch that did not simply run to its end."""

    def on_left(self) -> None:
        """Take notice that blocks have left."""

    def on_over(self) -> None:
        """Take notice that the lane has ended; the last call."""


class CPULane:
    """A lane of a CPU device; thread-safe.

    Args:
        scheduler: places its blocks.
        limits: of the device.
        descriptor: of the ring's file; it may be closed afterwards.
        occupancy: the lane's slices are 1/``occupancy`` of an SM.
        priority: of its runs.
        observer: is told.

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
    ) -> None:
        self._scheduler = scheduler
        self._occupancy = occupancy
        self._priority = priority
        self._observer = observer
        self._native = native_loop()
        self._ring = CPUArena(descriptor, _RING_PAGES)
        self._sites = LaneSites(limits)
        self._lane = LaneRecord(self._ring.address, scheduler.sms, self._sites.address)
        self._sms = limits.sms
        self._pending: list[tuple[int, Callable[[int], None]]] = []
        self._run: LaneRun | None = None
        self._layout: LaneLayout | None = None
        self._ending = self._over = False
        self._lent = False
        self._wait = RecordWait()
        self._skips: set[int] = set()  # launches that are not to begin
        self.slices = 0
        self.error: GpudError | None = None

    # -- as of a run

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        with self._scheduler.lock:
            self.slices = slices
            run = None if self._lent else self._run
        if run is not None:
            run.resize(slices)

    @property
    def held(self) -> int:
        """Slices that it may use, or that its blocks still hold."""
        with self._scheduler.lock:
            return max(self.slices, 0 if self._run is None else self._run.held)

    exhausted = False
    output = b""
    progress = (0, 0, 0)
    complete = True
    first_block_ns = 0
    release_ns = 0
    ways: Mapping[str, int] = MappingProxyType({})

    def end(self) -> None:
        """Run no further launch; running task blocks go on to their end, and the lane ends."""
        self._end(kill=False)

    def kill(self) -> None:
        """Do `end`, and have running blocks leave at their next kill poll."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        with self._scheduler.lock:
            self._ending = True
            run = self._run
            idle = run is None and not self._over
        if run is not None:
            if kill:
                run.kill()
            run.end()
        elif idle:
            self._finish()

    # -- launches

    def add_site(self, spec: LaunchSpec, added: Callable[[int], None]) -> None:
        """Prepare launches of a kernel with a block shape; ``added`` gets the site's number.

        It is called at once, or when the present launch is over.

        Raises:
            InvalidArgument: the kernel's form cannot run in a lane.
            AdmissionError: the lane's share has no room for one of its blocks.
            LimitExceeded: the lane has `MOST_SITES` launch sites.
            LaunchConfigError: as for any launch.
        """
        if spec.form == "whole":
            raise InvalidArgument(
                f"{spec.kernel.name} is in form whole, which needs all its blocks at once, and a "
                "lane's share may change: submit it as a job of another stream"
            )
        with self._scheduler.lock:
            if len(self._sites.all) >= ring.MOST_SITES:
                raise LimitExceeded(
                    f"the lane has {ring.MOST_SITES} launch sites, for as many kernels and block "
                    "shapes; close it and open another",
                    limit="launch sites",
                    value=ring.MOST_SITES,
                )
            number = len(self._sites.all)
            site = self._sites.add(spec)
            if site.layout.checked:
                self._sites.all.pop()
                raise InvalidArgument(
                    f"{site.name} was compiled for the checking mode, which lanes do not have: "
                    "submit it as a job of another stream"
                )
            most = site.layout.occupancy
            if self.slices and self.slices * most < self._occupancy:
                self._sites.all.pop()
                raise AdmissionError(
                    f"the lane's share holds no block of {site.name}, of which {most} fit on an "
                    f"SM; open a lane with 1/{most} SM or more",
                    requested=self.slices,
                    capacity=self._sms,
                )
            fits = self._run is not None and self._layout is not None and self._layout.fits(site)
            if fits:
                self._lane["site_count"] = number + 1
            else:
                self._pending.append((number, added))
            run = self._run
        if fits:
            added(number)
        elif run is not None:
            run.retire()  # the next one has room for it
        else:
            self._begin()

    def cancel(self, number: int) -> None:
        """Cancel a launch that has not ended: it does not begin, or its blocks are ended."""
        with self._scheduler.lock:
            run, following = self._run, self._lane["number"]
            ahead = (number - following) & 0xFFFFFFFF
            if ahead < ring.SLOTS:
                self._skips.add(number)
                self._arm()
                with _BARRIER:  # this store is seen before the next load
                    following = self._lane["number"]  # it may have begun just now
            runs = (number + 1) & 0xFFFFFFFF == following and self._lane["current"] != NONE
        if runs and run is not None:
            run.kill()

    # -- lending, as `gpud.device.host.lane_watch` needs it

    def activity(self) -> int | None:
        """Return the number of the next launch; None while one runs or is to run."""
        with self._scheduler.lock:
            return None if self._ending or self._has_work() else self._lane["number"]

    def _has_work(self) -> bool:
        lane = self._lane
        return lane["current"] != NONE or lane["tail"] != self._get(ring.HEAD)

    def lend(self) -> None:
        """Give up all blocks, and keep the slices; returns when no block is left."""
        with self._scheduler.lock:
            self._lent = True
            run = self._run
        if run is not None:
            run.resize(0)
        while self._has_blocks():
            time.sleep(_LOOK_S)

    def _has_blocks(self) -> bool:
        with self._scheduler.lock:
            return self._run is not None and self._run.present > 0 and not self._ending

    def wait_for_record(self) -> None:
        """Sleep until a record is there, or `interrupt` was called; on a lane that lends."""
        # No block is there that would count itself in or out at the same time.
        self._set(ring.LISTENING, 1)
        while not (self._wait.interrupted or self._ending or self._has_work()):
            self._wait.sleep(self._ring.address + ring.HEAD, self._lane["tail"])
        self._set(ring.LISTENING, 0)

    def take_up(self) -> None:
        """Have blocks again, as many as its slices are for."""
        with self._scheduler.lock:
            self._lent = False
            run, slices = self._run, self.slices
        if run is not None:
            run.resize(slices)

    def interrupt(self) -> None:
        """End `wait_for_record`, now or the next time; the lane has ended."""
        self._wait.interrupt()

    def _arm(self) -> None:
        """Have native code stop at the next launch that is not to begin; with the lock."""
        following = self._lane["number"]
        self._skips = {one for one in self._skips if (one - following) & 0xFFFFFFFF < ring.SLOTS}
        nearest = min(self._skips, key=lambda one: (one - following) & 0xFFFFFFFF, default=-1)
        self._lane["skip"] = (nearest + 1) & 0xFFFFFFFF

    # -- one run after another

    def _begin(self) -> None:
        """Begin the next run."""
        with self._scheduler.lock:
            layout = self._layout
            if layout is None or self._pending:
                layout = self._layout = LaneLayout(
                    self._lane, self._sites.all, self._occupancy, self._sms
                )
            lane = self._lane
            lane["retire"] = lane["printed"] = lane["unreported"] = 0
            lane["current"] = NONE
            lane["site_count"] = len(self._sites.all)
            added, self._pending = self._pending, []
            self._run = run = LaneRun(
                self._scheduler,
                lane,
                layout,
                self._sites.all,
                self._priority,
                self._observer.on_left,
                self._run_over,
            )
            slices = 0 if self._lent else self.slices
        run.resize(slices)
        for number, tell in added:
            tell(number)

    def _run_over(self) -> None:
        """Report the launch with which the run has ended, and begin the next one."""
        with self._scheduler.lock:
            run, lane = self._run, self._lane
            assert run is not None
            self._run = None
            open_ = lane["current"] != NONE
            ended = open_ or lane["unreported"]
        if ended:
            self._report(run, was_open=open_)
        error = lane["error"]
        if error:
            self.error = ProtocolError(
                "the lane's ring holds what is no launch: "
                + _WRONG[error].format(
                    wrong=lane["wrong"],
                    number=lane["number"],
                    slots=ring.SLOTS,
                    sites=lane["site_count"],
                )
            )
        if error or self._ending:
            self._finish()
        else:
            self._begin()

    def _report(self, run: LaneRun, *, was_open: bool) -> None:
        lane = self._lane
        number = (lane["number"] - 1) & 0xFFFFFFFF
        skipped = lane["skip"] == (number + 1) & 0xFFFFFFFF
        progress = run.done
        state = "done"
        if was_open:
            state = "failed" if run.error is not None else "cancelled"
        elif skipped:
            state, progress = "cancelled", (0, progress[1])
        if skipped:
            self._skips.discard(number)
            self._arm()
        output = b"" if skipped and not was_open else run.output
        self._observer.launch_ended(
            EndedLaunch(number, lane["site"], state, run.error, output, progress)
        )
        self._native.report(lane.address, run.began_at_ns, number, ring.SEE_MESSAGE)

    def _finish(self) -> None:
        with self._scheduler.lock:
            if self._over:
                return
            self._over = True
        self._set(ring.ENDED, 1)
        self._wake(ring.COMPLETED)
        self._observer.on_over()

    def close(self) -> None:
        """Unmap the ring of a lane that has ended."""
        self._ring.close()

    def _set(self, at: int, value: int) -> None:
        ctypes.c_uint32.from_address(self._ring.address + at).value = value

    def _get(self, at: int) -> int:
        return ctypes.c_uint32.from_address(self._ring.address + at).value

    def _wake(self, at: int) -> None:
        wake_shared(self._ring.address + at)


_RING_PAGES = -(-ring.RING_BYTES // 4096) * 4096
