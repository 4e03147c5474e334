"""One device: who has what of it, who waits, and in which order.

Problem: a policy must see what is free, who waits first, who can grow and who can give way, after
every event, without looking at all jobs.

Approach: sums are kept as differences when a job changes. Jobs are filed in sorted lists under the
keys of `gpud.core.sort_keys`, and filed anew when something that the key depends on changes.

Terms (amounts of `gpud.core.capacity` for the device, over its started jobs):
    allocated: what the jobs have by decision; never over the capacity. A job that was told to end
        has none, and one of which every task block is claimed has what its blocks still hold.
    charged: what is taken physically: allocated, or still held by blocks that were told to leave.
    pending_release: the part of charged that comes free without another decision.
    held_back: what an ended online job left, and offline jobs may not take yet.

Properties:
    sums: each equals the sum over the jobs;
    filed: each job is where its state says, once, under its present key.
`gpud.core.validate` checks both.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from fractions import Fraction

from gpud.core import sort_keys
from gpud.core.capacity import SCALE, amount_of
from gpud.core.commands import Command, ResizeJob, StartJob
from gpud.core.job import JobRecord
from gpud.core.lifecycles import DEVICES, DeviceInput, DeviceState, JobInput, JobState, Lifecycle
from gpud.core.settings import Settings
from gpud.errors import DeviceLost
from gpud.units import JobId, Partitions, job_name

__all__ = ["DeviceRecord", "JobQueue"]

Entry = tuple[int, int, JobRecord]
# Members by global names: looking one up in its class takes ten times as long.
_WAITING, _RUNNING, _PAUSED = JobState.WAITING, JobState.RUNNING, JobState.PAUSED
_ENDING = JobState.ENDING
_WORK = (_WAITING, _RUNNING, _PAUSED)


class JobQueue(list[Entry]):
    """Jobs sorted by a key of two integers, the second of which is the job's own."""

    def jobs(self) -> list[JobRecord]:
        """Returns the jobs in order."""
        return [entry[2] for entry in self]


class DeviceRecord(Lifecycle[DeviceState, DeviceInput]):
    """A device as the policy sees it. Policies call `start` and `resize` and change nothing else.

    What they decide is collected until `take_commands`.

    Attributes:
        index: which device it is.
        name: as in ``--device``.
        sms: S; None before it was up for the first time.
        capacity: S as an amount, or 0.
        partitions: which numbers of SMs can be one job's alone.
        floor, floor_sms: what online jobs leave to offline ones, as an amount and in CapSM.
        host_generation: how many hosts it has lost.
        jobs: that are ready, by id: waiting or started here.
        waiting_online: sorted by deadline, then arrival.
        waiting: all others that have not started, by arrival.
        growable: jobs that could be given more, by M, least served first.
        shrinkable: jobs that can give way, smallest allocation first.
    """

    def __init__(
        self, device: int, settings: Settings, separates_online: bool, now_ns: int
    ) -> None:
        super().__init__(DEVICES, DeviceState.STARTING, now_ns)
        self.index = device
        self.name = str(device)
        self.sms: int | None = None
        self.capacity = 0
        self.partitions = Partitions()
        self.floor = 0
        self.floor_sms = Fraction(0)
        self.culprit: JobId | None = None
        self.host_generation = 0
        self.jobs: dict[JobId, JobRecord] = {}
        self.allocated = self.charged = self.pending_release = self.held_back = 0
        self.online_allocated = 0
        self.releasable = 0  # what jobs have that can give way
        self.working = 0  # offline jobs that wait or run
        self.waiting_online = JobQueue()
        self.waiting = JobQueue()
        self.growable: dict[int, JobQueue] = {}
        self.shrinkable = JobQueue()
        self.holds: deque[tuple[int, int]] = deque()  # (until, amount)
        self.hold_timer_ns = -1
        self.resized: dict[JobId, JobRecord] = {}
        self.starting: list[JobRecord] = []
        self.dirty = False
        self.now_ns = now_ns
        self._hold_ns = settings.hold_ns if separates_online else 0
        self._separates_online = separates_online
        self._starts = 0

    @property
    def what(self) -> str:
        """Returns what the device is called in messages."""
        return f"device {self.index}"

    @property
    def free(self) -> int:
        """Returns what no job has, by decision. Online jobs may take it."""
        return self.capacity - self.allocated

    @property
    def physically_free(self) -> int:
        """Returns what offline jobs may take; negative while online jobs wait for blocks to go."""
        return self.capacity - self.charged - self.held_back

    def can_partition(self, job: JobRecord) -> bool:
        """Whether the SMs that are to be a job's own, if any, can be set apart now."""
        if not job.exclusive:
            return True
        taken = sum(one.partition for one in self.jobs.values() if one.started)
        return taken + job.partition <= self.partitions.most

    # -- what a policy does

    def start(self, job: JobRecord, slices: int) -> None:
        """Starts a waiting job."""
        self._starts += 1
        job.start_order = self._starts
        job.step(JobInput.START, self.now_ns)
        job.started_ns = self.now_ns
        job.begin(slices)
        self.starting.append(job)
        if job.online and self.held_back:
            self._take_held_back(slices * job.slice)
        self.update(job)

    def resize(self, job: JobRecord, slices: int) -> None:
        """Changes what a started job has."""
        job.set_slices(slices)
        self.resized[job.id] = job
        if slices == 0 and job.state is _RUNNING:
            job.step(JobInput.PAUSE, self.now_ns)
        elif slices and job.state is _PAUSED:
            job.step(JobInput.RESUME, self.now_ns)
        if job.online and self.held_back and slices > job.sent_slices:
            self._take_held_back((slices - job.sent_slices) * job.slice)
        self.update(job)

    # -- what the scheduler does

    def add(self, job: JobRecord) -> None:
        """Takes in a job that is ready."""
        self.jobs[job.id] = job
        # It has nothing yet: this is all of `update` that is needed.
        self.dirty = True
        if not job.online:
            job.works = True
            self.working += 1
        self._update_queues(job)

    def remove(self, job: JobRecord) -> None:
        """Forgets a job that has ended; its state says so already."""
        if self.jobs.pop(job.id, None) is None:
            return
        self.resized.pop(job.id, None)
        self.update(job)

    def mark_ending(self, job: JobRecord) -> None:
        """Takes in that a started job was told to end."""
        self.resized.pop(job.id, None)
        job.mark_ending()
        self.update(job)

    def requeue(self, job: JobRecord) -> None:
        """Takes out a job of which its device, which was lost, never heard."""
        del self.jobs[job.id]
        self.resized.pop(job.id, None)
        job.step(JobInput.REQUEUE, self.now_ns)
        job.reset()
        self.update(job)

    def update(self, job: JobRecord) -> None:
        """Works out sums and places anew after a job has changed."""
        self.dirty = True
        state = job.state
        piece = job.slice
        slices, held, exhausted = job.slices, job.held, job.exhausted
        if job.exclusive:  # what is set apart for it is nobody else's before its end
            held, exhausted = max(slices, held), False
        if state is _RUNNING or state is _PAUSED:
            charge = held * piece
            if exhausted:
                alloc = min(slices, held) * piece
                pending_release = charge
            else:
                alloc = slices * piece
                pending_release = charge - alloc
        elif state is _ENDING:
            alloc = 0
            charge = pending_release = held * piece
        else:
            alloc = charge = pending_release = 0
        if alloc != job.alloc:
            change = alloc - job.alloc
            job.capsm_scaled_ns += job.alloc * (self.now_ns - job.counted_to_ns)
            job.counted_to_ns = self.now_ns
            self.allocated += change
            if job.online:
                self.online_allocated += change
            if not (job.whole or (job.online and self._separates_online)):
                self.releasable += change
            job.alloc = alloc
        if charge != job.charge:
            change = charge - job.charge
            self.charged += change
            if change < 0 and job.online and self._hold_ns:
                self.holds.append((self.now_ns + self._hold_ns, -change))
                self.held_back -= change
            job.charge = charge
        if pending_release != job.pending_release:
            self.pending_release += pending_release - job.pending_release
            job.pending_release = pending_release
        works = not job.online and state in _WORK
        if works is not job.works:
            self.working += 1 if works else -1
            job.works = works
        self._update_queues(job)

    def expire_holds(self, now_ns: int) -> None:
        """Gives up what was kept until now."""
        while self.holds and self.holds[0][0] <= now_ns:
            self.held_back -= self.holds.popleft()[1]
            self.dirty = True

    def mark_ready(self, sms: int, floor_sms: Fraction, partitions: Partitions) -> None:
        """Takes in that the device is up, without jobs on it, perhaps with another size."""
        self.sms = sms
        self.capacity = sms * SCALE
        self.floor_sms = floor_sms
        self.floor = amount_of(floor_sms)
        self.partitions = partitions
        self.dirty = True

    def mark_lost(self) -> None:
        """Takes in that everything that ran is gone; its jobs were removed."""
        self.holds.clear()
        self.held_back = 0
        self.dirty = True

    def take_commands(self) -> list[Command]:
        """Returns what the device is to be told of decisions since the last time.

        Jobs shrink before others start and grow.
        """
        smaller: list[Command] = []
        larger: list[Command] = []
        for job in self.resized.values():
            if job.slices != job.sent_slices:
                job.epoch += 1
                command = ResizeJob(job.id, self.index, job.slices, job.epoch)
                (smaller if job.slices < job.sent_slices else larger).append(command)
                job.sent_slices = job.slices
        self.resized.clear()
        started: list[Command] = [
            StartJob(job.id, self.index, job.occupancy, job.slices, 0, job.online, job.partition)
            for job in self.starting
        ]
        self.starting.clear()
        return smaller + started + larger

    def lost_error(self, what: str, culprit: JobId | None = None) -> DeviceLost:
        """Returns the error for a job that the device cannot run; ``what`` has happened to it."""
        name = None if culprit is None else job_name(culprit)
        return DeviceLost(f"device {self.name} {what}", device=self.name, culprit=name)

    # -- order

    def queue_entries(self, job: JobRecord) -> list[tuple[JobQueue, Entry]]:
        """Returns where a job belongs now: queues, and the entries in them."""
        state = job.state
        if state is _WAITING:
            if job.online and self._separates_online:
                return [(self.waiting_online, (*sort_keys.deadline_key(job), job))]
            return [(self.waiting, (*sort_keys.start_key(job), job))]
        if state is not _RUNNING and state is not _PAUSED:
            return []
        if job.whole or (job.online and self._separates_online):
            return []
        found = []
        if not job.exhausted and job.growth_room > 0:
            queue = self.growable.get(job.occupancy)
            if queue is None:
                queue = self.growable[job.occupancy] = JobQueue()
            found.append((queue, (*sort_keys.level_key(job), job)))
        if job.alloc:
            found.append((self.shrinkable, (*sort_keys.size_key(job), job)))
        return found

    def _update_queues(self, job: JobRecord) -> None:
        for queue, entry in job.entries:
            del queue[bisect_left(queue, entry)]
        job.entries = self.queue_entries(job)
        for queue, entry in job.entries:
            insort(queue, entry)

    def _take_held_back(self, amount: int) -> None:
        while amount > 0 and self.holds:
            until, first = self.holds[0]
            taken = min(amount, first)
            amount -= taken
            self.held_back -= taken
            if taken == first:
                self.holds.popleft()
            else:
                self.holds[0] = (until, first - taken)
