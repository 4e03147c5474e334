"""Makes a lane's take-back plan ready for native code, and notes what that has done with it.

See `gpud.device.cpu.sm.lane_take_back` for how it is carried out. Here its steps, jobs and how many
slices each loses, become the blocks that are to leave, and a block of the lane is put on standby
on each SM where there is room for it then.

Blocks, runs and plans change under the block scheduler's lock, and only while no plan is ready:
whoever changes something calls `TakeBack.disarm` of each lane before, through
`BlockScheduler.settle`, and `arm` afterwards, through `BlockScheduler.update`. If the plan was
carried out meanwhile, `disarm` brings the records of Python up to date first.

Properties:
* a block takes room on its SM, or is on standby, or leaves;
* no two lanes' plans name the same block, or use the same room;
* what was taken of a run stays away from it until its job has been told, see `CPURun.taken`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpud.device.cpu.abi.records import MAX_SLOTS, Lent, Standby
from gpud.device.cpu.occupancy import SM_CAPACITY
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.cpu.sm.virtual_sm import VirtualSM

if TYPE_CHECKING:
    from gpud.device.cpu.scheduling.lane_run import LaneRecord, LaneRun
    from gpud.device.cpu.scheduling.persistent_block import PersistentBlock
    from gpud.device.cpu.scheduling.run import CPURun

__all__ = ["Step", "TakeBack", "arm"]

Step = tuple[int, Any, int]
"""A job's number, its run, and how many slices it loses."""


class _Scheduler(Protocol):
    """What is needed of the block scheduler."""

    sms: list[VirtualSM]

    def may_use(self, sm: VirtualSM, run: CPURun) -> bool:
        """Return whether a run may have blocks on an SM."""

    def add_on_standby(self, run: CPURun, sm: VirtualSM, index: int) -> None:
        """Add a block of a lane's run to an SM without taking room there."""


def arm(scheduler: _Scheduler, take_backs: Collection[TakeBack]) -> None:
    """Make the plans of lanes ready, as far as they can be; with the scheduler's lock."""
    room = {sm: SM_CAPACITY - sm.used for sm in scheduler.sms}
    planned: dict[CPURun, _Planned] = {}
    for one in take_backs:
        one.arm(scheduler, room, planned)


class _Planned:
    """What plans take from a run."""

    def __init__(self) -> None:
        self.slices = 0
        self.blocks = 0


class TakeBack:
    """The take-back plan of a lane that lends its share; the block scheduler's lock guards it.

    Attributes:
        run: the lane's present run, if it has one.
        steps: the plan; None: none has come.
        taken: jobs' numbers, and the slices that native code has taken from each, until somebody
            has asked; None: nothing was carried out.
    """

    def __init__(self, lane: LaneRecord) -> None:
        self._lane = lane
        self._native = native_loop()
        self._rows = np.zeros(0, np.uint64)
        self._victims: list[tuple[CPURun, list[PersistentBlock], int]] = []
        self._ready: list[PersistentBlock] = []
        self.run: LaneRun | None = None
        self.slices = 0
        self.steps: Sequence[Step] | None = None
        self.taken: tuple[tuple[int, int], ...] | None = None
        self._noted = False

    def begin(self) -> None:
        """Begin an idle period: the lane has no blocks."""
        self.steps = self.taken = None
        self._noted = False
        self._lane["lent"] = Lent.OPEN

    def disarm(self) -> None:
        """Have nothing taken back until `arm`, and note it if that has happened."""
        was = self._native.change(self._lane.address, Lent.PLANNED, Lent.OPEN)
        if was != Lent.TAKEN or self._noted:
            return
        assert self.steps is not None
        self._noted = True
        self.taken = tuple((number, slices) for number, _, slices in self.steps)
        for run, blocks, slices in self._victims:
            run.note_taken(blocks, slices)
        for block in self._ready:
            if block.run is self.run and not block.counted:
                self._count(block)

    def arm(
        self, scheduler: _Scheduler, room: dict[VirtualSM, int], planned: dict[CPURun, _Planned]
    ) -> None:
        """Make the plan ready, unless native code cannot carry it out.

        Args:
            scheduler: has the SMs.
            room: that no plan uses yet, by SM.
            planned: what plans take from runs.
        """
        self.disarm()
        run, steps = self.run, self.steps
        if run is None or steps is None or self._lane["lent"] != Lent.OPEN:
            return
        if run.over or self._lane["retire"] or not all(_simple(one) for _, one, _ in steps):
            return
        self._victims = []
        for _, job, slices in steps:
            before = planned.setdefault(job, _Planned())
            before.slices += slices
            blocks = job.leaving_with(max(0, job.slices - before.slices))[before.blocks :]
            before.blocks += len(blocks)
            self._victims.append((job, blocks, slices))
            for block in blocks:
                room[block.sm] += job.cost
        self._stand_by(scheduler, run, room)
        leaving = [block.address for _, blocks, _ in self._victims for block in blocks]
        self._rows = np.array(leaving, np.uint64)
        self._lane.set_long("rows", self._rows.ctypes.data)
        self._lane["row_count"] = len(leaving)
        self._native.change(self._lane.address, Lent.OPEN, Lent.PLANNED)

    def _stand_by(self, scheduler: _Scheduler, run: LaneRun, room: dict[VirtualSM, int]) -> None:
        """Put a block on standby on each SM that has room for one."""
        run.let_stand_by(self.slices)
        left = run.blocks_of(self.slices)
        present = {block.sm: block for block in run.kept.values()}
        self._ready = []
        for sm in sorted(room, key=room.__getitem__, reverse=True):
            fit = min(room[sm] // run.cost, left)
            has = sm in present or sm.blocks < MAX_SLOTS
            if fit <= 0 or not has or not scheduler.may_use(sm, run):
                run.stand_by(sm, Standby.WAITS)
                continue
            left -= fit
            room[sm] -= fit * run.cost
            run.stand_by(sm, Standby.READY)
            if sm not in present:
                index = next(one for one in range(MAX_SLOTS) if one not in run.kept)
                scheduler.add_on_standby(run, sm, index)
                present[sm] = run.kept[index]
            self._ready.append(present[sm])

    def end(self) -> None:
        """End the idle period: blocks on standby take room, or leave where there is none."""
        self.disarm()
        run = self.run
        if run is None:
            self._lane["lent"] = Lent.NO
            return
        # Room that was taken back may still have the blocks that leave it.
        waiting = {one.sm for one in run.kept.values() if one.counted and run.is_ready(one.sm)}
        for block in [one for one in run.kept.values() if not one.counted]:
            assert block.sm is not None
            if block.sm.used + run.cost <= SM_CAPACITY:
                self._count(block)
            else:
                run.vacate(block)
        for sm in self._lane.sms:
            run.stand_by(sm, Standby.LEAVING if sm in waiting else Standby.NO)
        self._lane["lent"] = Lent.NO

    def _count(self, block: PersistentBlock) -> None:
        assert block.sm is not None
        assert self.run is not None
        block.counted = True
        block.sm.used += self.run.cost


def _simple(run: Any) -> bool:
    """Return whether native code can release blocks of a run: not of a lane, nor in form whole."""
    return getattr(run, "releasable", False)
