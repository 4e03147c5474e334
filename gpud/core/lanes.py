"""Lanes: jobs with a standing share, which they lend while they are idle.

Problem: a lane has its share so that a launch in it starts at once, although most of the time it
may have none. Offline jobs could use the share meanwhile. But then it must be back before a
decision could be made: the way to the scheduler and back takes longer than the release.

Approach: decide ahead. When the device reports that a lane is idle, its share is *lent*: policies
hand it out like any free capacity, and with it the device gets a *take-back plan*, which says who
is to lose how many slices. When a launch comes the device carries out the plan by itself, and the
scheduler books what it has done. So the plan is a command, the wake an event, and what they mean is
settled by numbers:

* An *epoch* numbers the idle periods of a lane. A plan for a period that is over is forgotten by
  the device, whose `LaneWoke` is on its way then.
* A step says how many slices a job loses, not how many it keeps: plans of several lanes add up.
* What was taken from a job counts as taken from all that it is resized to, until a `ResizeJob` says
  that it is booked. So a decision that did not know of the wake gives nothing back by mistake.

Terms: those of `gpud.core.device`; promised of a lane [amount]: what it lends, and gets when it
wakes. An online lane's promise is kept against everybody: it is not reserved for others, nor given
to jobs in form whole, which cannot give it back. An offline lane's is what online jobs leave of it.

What is lent is not allocated to the lane: it counts neither as its service nor in its accounts. It
does count under its user's caps, which the lane must not exceed when it wakes.

Properties (checked by `tests.property.scheduler_simulation` under these names):
    promised: whichever lanes wake, all at once too, no more is allocated than there is, and each
        online lane has its reservation;
    planned: each lane that lends has a plan for its idle period, whose jobs have what they are to
        lose, after each event;
    few: if one job can give what a lane takes back, no more than one loses slices that it still
        needs;
    settled: once the device has reported a wake, the lane has its share, whatever was decided while
        the report was on its way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from gpud.core.commands import TakeBackPlan
from gpud.core.device import DeviceRecord
from gpud.core.events import LaneIdle, LaneWoke
from gpud.core.job import Because, JobRecord
from gpud.core.lifecycles import DeviceState
from gpud.core.policy import Policy
from gpud.units import JobId

__all__ = ["Lanes"]

Steps = tuple[tuple[JobId, int], ...]


class Lanes:
    """Books what lanes do, and plans what devices are to do when they wake.

    Args:
        devices: the device records by index.
        jobs: those that have not ended, by id.
        policy: decides who gets what is lent.
    """

    def __init__(
        self,
        devices: Mapping[int, DeviceRecord],
        jobs: Mapping[JobId, JobRecord],
        policy: Policy,
    ) -> None:
        self._devices = devices
        self._jobs = jobs
        self.policy = policy

    def idle(self, event: LaneIdle) -> None:
        """Let an idle lane lend its share, unless its SMs are its own."""
        lane = self._jobs.get(event.job)
        if lane is None or not lane.lane or not lane.live or lane.lending:
            return
        device = self._devices[lane.device]
        device.now_ns = max(device.now_ns, event.now_ns)
        lane.idle_epoch, lane.plan = event.epoch, None
        if self.policy.lends and not lane.exclusive:
            device.lend(lane)

    def woke(self, event: LaneWoke) -> None:
        """Book that a device has taken back a lane's share, and take the rest if it was less."""
        lane = self._jobs.get(event.job)
        for job_id, slices in event.taken:
            job = self._jobs.get(job_id)
            if job is not None and job.live:
                job.note_taken(slices)
                device = self._devices[job.device]
                device.now_ns = max(device.now_ns, event.now_ns)
                with device.changing(_because(lane), lane):
                    device.resize(job, max(0, job.slices - slices))
        if lane is None or lane.idle_epoch != event.epoch:
            return
        lane.idle_epoch = 0
        if not lane.lending:
            return
        device = self._devices[lane.device]
        device.now_ns = max(device.now_ns, event.now_ns)
        device.wake(lane)
        with device.changing(_because(lane), lane):
            self.policy.take_back(device)

    def plan(self, device: DeviceRecord) -> list[TakeBackPlan]:
        """Return the plans that have changed, after the policy has decided on a device."""
        if device.state is not DeviceState.READY:
            return []
        commands = []
        for lane, steps in self._all_steps(device):
            if steps != lane.plan:
                lane.plan = steps
                commands.append(TakeBackPlan(lane.id, device.index, lane.idle_epoch, steps))
        return commands

    def _all_steps(self, device: DeviceRecord) -> list[tuple[JobRecord, Steps]]:
        """Return each lane's steps, online lanes first; offline ones promise no more than is left.

        If that makes a promise smaller, the policy decides again.
        """
        lanes = sorted(device.lending.values(), key=lambda lane: (not lane.online, lane.order))
        while True:
            pool = _Pool(device)
            planned = []
            for lane in lanes:
                if not lane.online and pool.left < lane.promised:
                    with device.changing(Because.SHARE):
                        device.resize(lane, pool.left // lane.slice)
                    if device.pause is None or not device.pause.now:
                        self.policy.rebalance(device)
                    break
                planned.append((lane, pool.take(lane.promised)))
            else:
                return planned


class _Pool:
    """What lanes can take back on a device: what is free, and what offline jobs can release."""

    def __init__(self, device: DeviceRecord) -> None:
        self.left = device.free + device.releasable
        self._free = device.free
        self._exhausted = [entry[2] for entry in device.shrinkable if entry[2].exhausted]
        # By size; equal ones as in the device's own queue.
        self._entries = [
            (job.alloc, place, job)
            for place, (_, _, job) in enumerate(device.shrinkable)
            if not job.exhausted
        ]

    def take(self, amount: int) -> Steps:
        """Return who loses how many slices for an amount, which is no longer there then."""
        self.left -= amount
        steps: list[tuple[JobId, int]] = []
        # Their blocks leave anyway: nothing is lost.
        while self._free < amount and self._exhausted:
            job = self._exhausted.pop()
            steps.append((job.id, job.slices))
            self._free += job.alloc
        entries = self._entries
        while self._free < amount and entries:
            missing = amount - self._free
            at = min(bisect_left(entries, (missing,)), len(entries) - 1)
            has, place, job = entries.pop(at)
            slices = min(has // job.slice, -(-missing // job.slice))
            steps.append((job.id, slices))
            self._free += slices * job.slice
            if slices * job.slice < has:
                insort(entries, (has - slices * job.slice, place, job))
        self._free -= amount
        return tuple(steps)


def _because(lane: JobRecord | None) -> Because:
    return Because.SHARE if lane is None or not lane.online else Because.ONLINE
