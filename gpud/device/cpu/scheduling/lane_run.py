"""The run of a lane: persistent blocks that stay on their SMs and run one launch after another.

`gpud.device.cpu.sm.lane_launches` is what they do there. A run is laid out for the launch sites
that the lane had when the run was made: M is the largest of theirs, and a block's memory enough for
each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.records import (
    LANE,
    LANE_BYTES,
    LANE_COPY,
    LANE_LAUNCHES,
    LAUNCH,
    LAUNCH_BYTES,
    NONE,
    RUN,
    RUN_BYTES,
    SHARE,
    SHARE_BYTES,
    Standby,
    launches_at,
)
from gpud.device.cpu.occupancy import DeviceLimits
from gpud.device.cpu.scheduling.failure import failure_of, spinning_error
from gpud.device.cpu.scheduling.layout import CPURunRecords, SequenceLayout, layout_of
from gpud.device.cpu.scheduling.persistent_block import PersistentBlock, word_of
from gpud.device.cpu.scheduling.run import CPURun, RunScheduler
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.cpu.sm.stillness import WATCHED_BYTES
from gpud.device.cpu.sm.virtual_sm import VirtualSM
from gpud.device.interface import LaunchInfo, LaunchSpec
from gpud.device.printf import PrintfOutput
from gpud.wire.lane_ring import FLAGS_AT, MOST_SITES

__all__ = ["LaneRecord", "LaneRun", "LaneSites", "LaunchSite"]

_GRID = tuple(cw.GRID // 4 + axis for axis in range(3))
_NEXT, _DONE, _TOTAL = (LAUNCH[name][0] // 4 for name in ("next", "done", "total"))
_LAUNCH_WORDS = LAUNCH_BYTES // 4
_FIRST = RUN["first_ns"][0] // 4
_LANE, _STOP = RUN["lane"][0] // 4, RUN["stop"][0] // 4
_LAUNCH = word_of("launch")
_SLICES, _STANDBY = RUN["slices"][0] // 4, SHARE["standby"][0] // 4


class LaneRecord:
    """The `LANE` record of a lane, by the names of its fields."""

    def __init__(self, ring: int, sms: Sequence[VirtualSM], sites: int) -> None:
        self._memory = np.zeros(LANE_BYTES + 64, np.uint8)
        skip = -self._memory.ctypes.data % 64
        self.address: int = self._memory.ctypes.data + skip
        view = self._memory.data[skip : skip + LANE_BYTES]
        self._words, self._longs = view.cast("I"), view.cast("Q")
        self.sms = tuple(sms)
        self._sms = np.array([sm.address for sm in sms], np.uint64)
        self._longs[LANE["ring"][0] // 8] = ring
        self._longs[LANE["sites"][0] // 8] = sites
        self._longs[LANE["sms"][0] // 8] = self._sms.ctypes.data
        self["sm_count"] = len(sms)
        self["current"] = NONE

    def __getitem__(self, name: str) -> int:
        return self._words[LANE[name][0] // 4]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[LANE[name][0] // 4] = value

    @property
    def flags(self) -> int:
        """Those of the launch record that was read last."""
        return self._words[(LANE_COPY + FLAGS_AT) // 4]

    def long(self, name: str) -> int:
        """Return a field of 64 bits."""
        return self._longs[LANE[name][0] // 8]

    def set_long(self, name: str, value: int) -> None:
        """Set a field of 64 bits."""
        self._longs[LANE[name][0] // 8] = value


class LaunchSite(NamedTuple):
    """A launch site: everything about a launch but its grid and its parameters."""

    name: str
    form: str
    layout: SequenceLayout


class LaneSites:
    """The launch sites of a lane, as native code reads them.

    Attributes:
        all: in order; a launch record names one by its index.
    """

    def __init__(self, limits: DeviceLimits) -> None:
        self._limits = limits
        self.all: list[LaunchSite] = []
        self._memory = np.zeros(MOST_SITES * LAUNCH_BYTES + 64, np.uint8)
        skip = -self._memory.ctypes.data % 64
        self.address: int = self._memory.ctypes.data + skip
        self._view = self._memory.data[skip : skip + MOST_SITES * LAUNCH_BYTES]

    def make(self, spec: LaunchSpec) -> LaunchSite:
        """Return a launch site for `put`; its grid and parameters are of no account.

        Raises:
            LaunchConfigError, KernelRejected: as for any launch.
        """
        layout = layout_of(self._limits, [spec._replace(grid=(1, 1, 1))], None)
        return LaunchSite(layout.launches[0].name, spec.form, layout)

    def put(self, number: int, site: LaunchSite) -> None:
        """Have a launch site under a number: the next one, or that of another, unused one."""
        layout = site.layout
        image = bytearray(layout.image[layout.launches_at :][:LAUNCH_BYTES])
        at = LAUNCH["users"][0]
        image[at : at + 4] = layout.params_bytes[0].to_bytes(4, "little")
        first = number * LAUNCH_BYTES
        self._view[first : first + LAUNCH_BYTES] = image
        self.all[number : number + 1] = [site]


class LaneLayout:
    """What a run has of a `SequenceLayout`, for launches of any of some sites."""

    def __init__(
        self, lane: LaneRecord, sites: Sequence[LaunchSite], occupancy: int, sms: int
    ) -> None:
        layouts = [site.layout for site in sites]
        self.occupancy = occupancy
        self.max_occupancy = max(one.max_occupancy for one in layouts)
        self.block_bytes = max(one.block_bytes for one in layouts)
        watched = self.block_bytes <= WATCHED_BYTES and all(one.is_watched() for one in layouts)
        self.watched_bytes = self.block_bytes if watched else 0
        self.params_room = max(one.params_bytes[0] for one in layouts) + 23 & ~7
        self.owner = layouts[-1].owner
        self.launches_at = launches_at(sms)
        self.totals = [0] * LANE_LAUNCHES
        self.blocks_before = [0] * LANE_LAUNCHES
        self.total = 0
        self.largest = [NONE] * LANE_LAUNCHES
        self.fixed = 0
        self.checked = False
        self.fixed_launches = [False] * LANE_LAUNCHES
        self._lane, self._sites = lane, sites

    def fits(self, site: LaunchSite) -> bool:
        """Return whether its runs can run launches of another site, too."""
        return (
            site.layout.max_occupancy <= self.max_occupancy
            and site.layout.block_bytes <= self.block_bytes
            and site.layout.params_bytes[0] + 23 & ~7 <= self.params_room
            and site.layout.owner is self.owner
            and (site.layout.is_watched() or not self.watched_bytes)
        )

    def reach(self, _: int, block: int) -> tuple[tuple[int, int], ...]:
        """Return (address, size) of what a block of the present launch may read by pointers."""
        return self._sites[self._lane["site"]].layout.reach(0, block)


class _Records:
    """What a run has of a sequence: its layout, and records for it."""

    def __init__(self, layout: LaneLayout, lane: LaneRecord) -> None:
        self.layout = layout
        first = layout.launches_at + LANE_LAUNCHES * LAUNCH_BYTES
        fresh = np.zeros((first + LANE_LAUNCHES * layout.params_room) // 4, np.uint32)
        for name, value in {
            "launches": LANE_LAUNCHES,
            "occupancy": layout.occupancy,
            "max_occupancy": layout.max_occupancy,
            "launches_at": layout.launches_at,
            "watched_bytes": layout.watched_bytes,
        }.items():
            fresh[RUN[name][0] // 4] = value
        fresh[_LANE : _LANE + 2] = np.array([lane.address], np.uint64).view(np.uint32)
        for at in range(LANE_LAUNCHES):
            word = (layout.launches_at + at * LAUNCH_BYTES + LAUNCH["params"][0]) // 4
            fresh[word] = first + at * layout.params_room
        self._fresh = fresh.tobytes()

    def acquire_records(self) -> CPURunRecords:
        records = CPURunRecords(len(self._fresh))
        records.reset(self._fresh)
        return records

    def release_records(self, records: CPURunRecords) -> None:
        """They are not used again."""


class _Printed(PrintfOutput):
    """The output of a lane's launch, whose end Python then reports."""

    def __init__(self, lane: LaneRecord) -> None:
        super().__init__()
        self._lane = lane

    def add(self, text: bytes) -> None:
        self._lane["printed"] = 1
        super().add(text)


class LaneRun(CPURun):
    """A run of a lane, until the lane's blocks have to leave.

    Attributes:
        done: task blocks of the launch in which it ended, and their total.
    """

    __slots__ = ("_sites", "done", "lane")

    def __init__(
        self,
        scheduler: RunScheduler,
        lane: LaneRecord,
        layout: LaneLayout,
        sites: Sequence[LaunchSite],
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
        owner: object = None,
    ) -> None:
        self.lane = lane
        self._sites = sites
        self.done = (0, 0)
        records: Any = _Records(layout, lane)
        super().__init__(scheduler, records, priority, 1, on_left, on_over, exclusive)
        self.owner = owner
        self.printed = _Printed(lane)

    @property
    def missing(self) -> int:
        """How many blocks it would add if there were room."""
        if self.over or self._is_exhausted() or not self.slices:
            return 0
        return max(0, self._allotted - len(self.kept) - len(self._moving))

    releasable = False  # but by Python

    def let_stand_by(self, slices: int) -> None:
        """Have native code begin blocks on standby as if it had so many slices."""
        self._words[_SLICES] = slices

    def stand_by(self, sm: VirtualSM, standby: int) -> None:
        """Say whether its blocks on an SM are on standby, as a `Standby`."""
        self._words[(RUN_BYTES + SHARE_BYTES * sm.index) // 4 + _STANDBY] = standby

    def is_ready(self, sm: VirtualSM | None) -> bool:
        """Return whether its block on an SM is on standby, and has room but for who leaves."""
        at = (RUN_BYTES + SHARE_BYTES * sm.index) // 4 + _STANDBY if sm is not None else 0
        return sm is not None and self._words[at] == Standby.READY

    def retire(self) -> None:
        """Have its blocks leave once the present launch is over; the run is over then."""
        with self._scheduler.lock:
            self._scheduler.settle()
            if not self.over:  # else the lane has another run
                self.lane["retire"] = 1
                self._wake()
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def end(self) -> None:
        """Release all blocks; see `CPURun.end`."""
        with self._scheduler.lock:
            self._scheduler.settle()
            if not self.over:
                self.lane["retire"] = 1
        super().end()
        self._wake()

    def _wake(self) -> None:
        wake = native_loop().wake
        with self._scheduler.lock:
            for sm in self.blocks_by_sm:
                wake(sm.address)

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        super().resize(slices)
        self._wake()  # blocks that sleep have to leave

    def block_left(self, block: PersistentBlock) -> None:
        """Record that a block has left its SM, whose thread may have been the one that listened."""
        super().block_left(block)
        self._wake()

    def launched(self) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """Return the grid of the latest launch, and its task blocks done and in all."""
        at = (self.lane["next_launch"] - 1) % LANE_LAUNCHES
        word = self._launches + at * _LAUNCH_WORDS
        words = self._words
        x, y, z = (words[word + axis] for axis in _GRID)
        total = words[word + _TOTAL]
        return (x, y, z), (min(words[word + _DONE], total), total)

    @property
    def began_at_ns(self) -> int:
        """When the first task block of the latest launch began, monotonic; 0: none has."""
        first: int = self._words[_FIRST] | self._words[_FIRST + 1] << 32
        return first

    def _progress(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def _is_exhausted(self) -> bool:
        # A launch whose blocks have all left is not over: others run the rest of it.
        between = self.lane["current"] == NONE
        return bool(self._words[_STOP] or (between and self.lane["retire"]))

    def check_finished(self) -> bool:
        """Mark the run as over if it is; return whether it has become so with this call."""
        if self.over or self.present or not self._is_exhausted():
            return False
        self.done = self.launched()[1]
        return super().check_finished()

    def fail_if_it_spins(self) -> None:
        """Do as `CPURun.fail_if_it_spins`, for the present launch."""
        at = self.lane["current"]
        if at == NONE:
            return
        word = self._launches + at * _LAUNCH_WORDS
        left = max(0, self._words[word + _TOTAL] - self._words[word + _NEXT])
        if left and self._spins():
            failed: Any = self._failed_launch()
            self.lane["retire"] = 1
            self._end_spinning(spinning_error(failed, 0, len(self.kept), left))
            self._wake()

    def _failed_launch(self) -> _FailedLaunch:
        grid, (_, total) = self.launched()
        return _FailedLaunch(self._sites[self.lane["site"]], grid, total)

    def _fail(self, block: PersistentBlock) -> None:
        if self.error is None:
            failed: Any = self._failed_launch()
            block.words[_LAUNCH] = 0
            self.error = failure_of(block, failed)
        self.lane["retire"] = 1
        self._stop()
        self._wake()


class _FailedLaunch:
    """What `failure_of` and `spinning_error` ask of a layout, of one launch."""

    def __init__(self, site: LaunchSite, grid: tuple[int, int, int], total: int) -> None:
        self.launches = (LaunchInfo(site.name, site.form, grid),)
        self.block_shapes = site.layout.block_shapes
        self.reach = site.layout.reach
        self.kernel_of = site.layout.kernel_of
        self.totals = (total,)
        self.fixed_launches = (False,)
