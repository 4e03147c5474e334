"""The scheduler's record of one device: its capacity accounting and its job queues.

Problem: after every event a policy must see how much is free, which job waits first, which jobs
can grow and which can shrink, without examining all jobs.

Approach: sums are updated by differences when a job changes. Jobs are kept in sorted queues under
the keys of `gpud.core.sort_keys`, and re-inserted when a change affects their key.

Terms (amounts of `gpud.core.capacity`, summed over the started jobs of the device):
    allocated: what the scheduler has decided to give; never over the capacity. A job being ended
        has 0; a job of which every task block is claimed has at most what its blocks still hold.
    charged: what is physically occupied: allocated, or still held by blocks being released.
    pending_release: the part of charged that will become free without another decision.
    held_back: capacity freed by online jobs that offline jobs may not take yet.
    promised: what online lanes that are idle have lent, and take back without asking; see
        `gpud.core.lanes`. It is not allocated to them meanwhile.

Properties:
    sums: each of these equals the sum over the jobs;
    filed: each job is in the queues that belong to its state, once, under its present key.
`gpud.core.validate` checks both.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction

from gpud.core import sort_keys
from gpud.core.capacity import SCALE, amount_of
from gpud.core.commands import Command, ResizeJob, StartJob
from gpud.core.device_users import DeviceUsers
from gpud.core.job import Because, JobRecord
from gpud.core.lifecycles import DEVICES, DeviceInput, DeviceState, JobInput, JobState, Lifecycle
from gpud.core.pause import PauseState
from gpud.core.service import ServiceRecord
from gpud.core.settings import Settings
from gpud.core.users import UserRecord
from gpud.errors import DeviceLost
from gpud.units import JobId, Partitions, job_name

__all__ = ["DeviceRecord", "JobQueue"]

Entry = tuple[int, int, JobRecord]
# Members by global names: looking one up in its class takes ten times as long.
_WAITING, _RUNNING, _PAUSED = JobState.WAITING, JobState.RUNNING, JobState.PAUSED
_ENDING, _START = JobState.ENDING, JobInput.START
_WORK = (_WAITING, _RUNNING, _PAUSED)


class JobQueue(list[Entry]):
    """Jobs sorted by a key of two integers, the second of which is unique to the job."""

    def jobs(self) -> list[JobRecord]:
        """Return the jobs in order."""
        return [entry[2] for entry in self]


class DeviceRecord(Lifecycle[DeviceState, DeviceInput]):
    """A device as the policy sees it. Policies call `start` and `resize` and modify nothing else.

    Their decisions are collected until `take_commands`.

    Attributes:
        index: number of the device.
        name: as in ``--device``.
        sms: S; None before the device was ready for the first time.
        capacity: S as an amount, or 0.
        partitions: how many SMs the device can dedicate to single jobs.
        floor, floor_sms: what online jobs leave to offline ones, as an amount and in CapSM.
        culprit: the job because of which the host is being replaced; None otherwise.
        host_generation: how many hosts the device has lost.
        jobs: the waiting and the started jobs of the device, by id.
        online_allocated: the part of allocated that online jobs have.
        releasable: the part of allocated that policies may take back.
        lending: the lanes that lend their share, by id.
        working: number of offline jobs that wait for capacity or have started and are not ending.
        waiting_online: sorted by deadline, then arrival.
        waiting: all other jobs that wait for capacity, by arrival.
        growable: jobs that could be given more, by M and the number of bits of their weight, so
            that jobs of large weight are found among many of small; in each those with the least
            allocation relative to their weight first.
        shrinkable: jobs that capacity can be taken from, smallest allocation first.
        users: the users with jobs here, and their caps.
        service: what the offline jobs received, if the policy counts it; None otherwise.
        rebalance_at_ns: when the policy is to move capacity between offline jobs; None for never.
        rebalancing: that time has been reached.
        reserved_for: the job that free capacity is kept for, and the slices that it is to have,
            after others have been told to release capacity for it; None otherwise.
        rebalance_hold_ns, turn_ns: as in `gpud.core.settings.Settings`.
        holds: what makes up held_back: (when the hold expires, amount), oldest first.
        resized, starting: jobs for which `take_commands` has to issue commands.
        because, because_of: why `resize` is called, and for which online job.
        pause: who has paused the device; None: nobody.
        dirty: something has changed since the policy was last run.
    """

    def __init__(
        self,
        device: int,
        settings: Settings,
        *,
        separates_online: bool,
        counts_service: bool,
        now_ns: int,
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
        self.releasable = 0
        self.promised = 0
        self.lending: dict[JobId, JobRecord] = {}
        self.working = 0
        self.waiting_online = JobQueue()
        self.waiting = JobQueue()
        self.growable: dict[tuple[int, int], JobQueue] = {}
        self.shrinkable = JobQueue()
        self.users = DeviceUsers(now_ns)
        self.service: ServiceRecord | None = None
        if counts_service:
            self.service = ServiceRecord(settings.rebalance_hold_ns, now_ns)
        self.rebalance_at_ns: int | None = None
        self.rebalancing = False
        self.reserved_for: tuple[JobRecord, int] | None = None
        self.rebalance_hold_ns = settings.rebalance_hold_ns
        self.turn_ns = settings.turn_ns
        self.holds: deque[tuple[int, int]] = deque()
        self.hold_timer_ns = -1
        self.resized: dict[JobId, JobRecord] = {}
        self.starting: list[JobRecord] = []
        self.because = Because.FREE
        self.because_of: JobId | None = None
        self.pause: PauseState | None = None
        self.dirty = False
        self.now_ns = now_ns
        self._hold_ns = settings.hold_ns if separates_online else 0
        self._separates_online = separates_online
        self._work_conserving = settings.work_conserving
        self._starts = 0
        self._online_taken, self._online_counted_ns = 0, now_ns

    @property
    def what(self) -> str:
        """How messages refer to the device."""
        return f"device {self.index}"

    @property
    def free(self) -> int:
        """The amount that is not allocated, which online jobs may take."""
        return self.capacity - self.allocated

    @property
    def physically_free(self) -> int:
        """The amount that offline jobs may take.

        It is negative while online jobs wait for released blocks to leave.
        """
        return self.capacity - self.charged - self.held_back

    @property
    def unpromised(self) -> int:
        """The amount that can be given to jobs that never give it back when lanes wake."""
        return self.capacity - self.allocated + self.releasable - self.promised

    def online_taken(self, now_ns: int) -> int:
        """Return what online jobs have had so far [amount x ns]."""
        return self._online_taken + self.online_allocated * (now_ns - self._online_counted_ns)

    def can_partition(self, job: JobRecord) -> bool:
        """Whether the device can now dedicate the SMs that an exclusive job needs, if it is one."""
        if not job.exclusive:
            return True
        taken = sum(one.partition for one in self.jobs.values() if one.started)
        return taken + job.partition <= self.partitions.most

    # -- users

    def tag_for(self, user: UserRecord) -> int:
        """Return the tag of a user's offline job that was unblocked; 0 if users take no turns."""
        return 0 if self.service is None else self.users.take_tag(user)

    # -- called by policies

    @contextmanager
    def changing(self, because: Because, job: JobRecord | None = None) -> Iterator[None]:
        """Say why jobs are resized, for their record."""
        before = self.because, self.because_of
        self.because, self.because_of = because, None if job is None else job.id
        try:
            yield
        finally:
            self.because, self.because_of = before

    def start(self, job: JobRecord, slices: int) -> None:
        """Start a waiting job."""
        self._starts += 1
        job.start_order = self._starts
        job.step(_START, self.now_ns)
        job.started_ns = job.changed_ns = self.now_ns
        job.kept_until_ns = self.now_ns + self.turn_ns
        self.users.note_start(job)
        job.note_change(slices, self.now_ns, Because.FREE, None)
        job.begin(slices)
        self.starting.append(job)
        if job.online and self.held_back:
            self._take_held_back(slices * job.slice)
        self.update(job)

    def resize(self, job: JobRecord, slices: int) -> None:
        """Change the slices of a started job."""
        job.note_change(slices, self.now_ns, self.because, self.because_of)
        job.set_slices(slices)
        job.changed_ns = self.now_ns
        self.resized[job.id] = job
        if slices == 0 and job.state is _RUNNING:
            job.step(JobInput.PAUSE, self.now_ns)
        elif slices and job.state is _PAUSED:
            job.step(JobInput.RESUME, self.now_ns)
            job.kept_until_ns = self.now_ns + self.turn_ns
        if job.online and self.held_back and slices > job.sent_slices:
            self._take_held_back((slices - job.sent_slices) * job.slice)
        self.update(job)

    # -- called by the scheduler

    def set_times(self, settings: Settings) -> None:
        """Use these settings from now on; what is to be moved is decided anew."""
        self._hold_ns = settings.hold_ns if self._separates_online else 0
        self.rebalance_hold_ns = settings.rebalance_hold_ns
        self.turn_ns = settings.turn_ns
        if self.service is not None:
            self.service.advance(self.now_ns)
            self.service.hold_ns = settings.rebalance_hold_ns
        if self.rebalance_at_ns is not None:
            self.rebalance_at_ns = None
            self.rebalancing = True
        self.dirty = True

    def set_pause(self, pause: PauseState | None) -> None:
        """Pause the device, or end that: jobs that wait are in no queue while it is paused."""
        self.pause = pause
        self.dirty = True
        for job in self.jobs.values():
            if job.state is _WAITING:
                self.update_queues(job)

    def add(self, job: JobRecord, user: UserRecord) -> None:
        """Add a job that waits for capacity."""
        self.jobs[job.id] = job
        job.account = account = self.users.account(user)
        # It has no allocation yet: this is all of `update` that is needed.
        self.dirty = True
        if not job.online:
            job.works = True
            self.working += 1
            self.users.count_offline(account, 1)
        job.changed_ns = self.now_ns
        if self.service is not None and not job.online:
            job.weight = job.submission.weight * account.factor
            self.service.advance(self.now_ns)
            self.service.join(job, self.sharing)
            if not job.whole:
                self.service.admit(job)
        self.update_queues(job)

    def remove(self, job: JobRecord) -> None:
        """Remove a job whose state is already one of ended jobs."""
        if self.jobs.pop(job.id, None) is None:
            return
        self.resized.pop(job.id, None)
        self._count_gone(job)
        self.update(job)

    def lend(self, lane: JobRecord) -> None:
        """Let a running lane lend its share."""
        lane.lending = self.users.changed = True
        self.lending[lane.id] = lane
        self.update(lane)

    def wake(self, lane: JobRecord) -> None:
        """Give a lane its share again; more may be allocated then than there is."""
        lane.lending, self.users.changed = False, True
        del self.lending[lane.id]
        service = self.service
        if service is not None and not lane.online:
            service.advance(self.now_ns)
            if service.weight and service.surplus(lane) < 0:  # nobody saves up while he is idle
                service.join(lane, self.sharing)
        if lane.online and self.held_back:
            self._take_held_back(lane.promised)
        self.update(lane)

    def mark_ending(self, job: JobRecord) -> None:
        """Accounts for a started job whose state has become `JobState.ENDING`."""
        self.resized.pop(job.id, None)
        job.mark_ending()
        self.users.changed = True
        self.update(job)

    def requeue(self, job: JobRecord) -> None:
        """Remove a job, to be prepared again: its host was lost before it received the job."""
        del self.jobs[job.id]
        self.resized.pop(job.id, None)
        self._count_gone(job)
        job.note_change(0, self.now_ns, Because.MOVED, None)
        job.step(JobInput.REQUEUE, self.now_ns)
        job.reset()
        self.update(job)

    def _count_gone(self, job: JobRecord) -> None:
        if not job.online:
            self.users.count_offline(job.account, -1)

    def update(self, job: JobRecord) -> None:
        """Update sums and queues after a job has changed."""
        self.dirty = True
        state = job.state
        piece = job.slice
        slices, held, exhausted = job.slices, job.held, job.exhausted
        if job.exclusive:  # its dedicated SMs stay allocated to it until it has ended
            held, exhausted = max(slices, held), False
        if job.lending or job.promised:
            self._update_promise(job)
        if job.lending:
            alloc = charge = pending_release = 0
        elif state is _RUNNING or state is _PAUSED:
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
            job.account.allocated += change
            if job.online:
                self._online_taken = self.online_taken(self.now_ns)
                self._online_counted_ns = self.now_ns
                self.online_allocated += change
                job.account.online += change
            if not (job.whole or (job.online and self._separates_online)):
                self.releasable += change
            job.alloc = alloc
        if charge != job.charge:
            change = charge - job.charge
            self.charged += change
            job.account.charged += change
            if change < 0 and job.online and self._hold_ns and not job.lending:
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
        if self.service is not None and not job.online and not job.whole:
            hungry = (
                slices < job.most and not exhausted and not job.lending
                if state is _RUNNING or state is _PAUSED
                else state is _WAITING
            )
            if hungry or job.hunger is not None:
                self.service.recount(job, hungry, self.capacity, self.now_ns)
        self.update_queues(job)

    def _update_promise(self, lane: JobRecord) -> None:
        if lane.lending and not lane.live:
            lane.lending = False
            del self.lending[lane.id]
        change = (lane.slices * lane.slice if lane.lending else 0) - lane.promised
        lane.promised += change
        # What its user may have, with other jobs too, is what it has when the lane wakes.
        lane.account.allocated += change
        lane.account.charged += change
        if lane.online:
            self.promised += change
            lane.account.online += change

    def sharing(self) -> list[JobRecord]:
        """Return the running jobs that capacity can be taken from, and that can still use it."""
        return [entry[2] for entry in self.shrinkable if not entry[2].exhausted]

    def update_leads(self, jobs: Iterable[JobRecord]) -> None:
        """Compute the leads of jobs anew, and file them by these."""
        assert self.service is not None, "the policy counts service"
        self.service.advance(self.now_ns)
        for job in jobs:
            lead = self.service.lead(job)
            if lead != job.lead:
                job.lead = lead
                if job.slices:  # without any, it is not filed by its lead
                    self.update_queues(job)

    def expire_holds(self, now_ns: int) -> None:
        """Make the capacity of expired holds available to offline jobs."""
        while self.holds and self.holds[0][0] <= now_ns:
            self.held_back -= self.holds.popleft()[1]
            self.dirty = True

    def mark_ready(self, sms: int, floor_sms: Fraction, partitions: Partitions) -> None:
        """Accounts for a new host: nothing runs on the device, and its size may have changed."""
        self.sms = sms
        self.capacity = sms * SCALE
        self.floor_sms = floor_sms
        self.floor = amount_of(floor_sms)
        self.partitions = partitions
        self.users.set_sms(sms)
        self.dirty = True

    def mark_lost(self) -> None:
        """Clear the holds after the host was lost; its jobs were removed before."""
        self.holds.clear()
        self.held_back = 0
        self.rebalance_at_ns = self.reserved_for = None
        self.rebalancing = False
        self.dirty = True

    def take_commands(self) -> list[Command]:
        """Return the commands for all decisions since the last call.

        Commands that shrink jobs come before those that start and grow jobs.
        """
        smaller: list[Command] = []
        larger: list[Command] = []
        for job in self.resized.values():
            quota = job.sent_quota if job.whole else self._work_quota(job)
            if job.slices != job.sent_slices or job.booked or quota != job.sent_quota:
                job.epoch += 1
                command = ResizeJob(job.id, self.index, job.slices, job.epoch, job.booked, quota)
                (larger if job.slices > job.sent_slices else smaller).append(command)
                job.sent_slices = job.slices
                job.sent_quota = quota
                job.booked = 0
        self.resized.clear()
        started: list[Command] = []
        for job in self.starting:
            job.sent_quota = self._work_quota(job)
            started.append(
                StartJob(
                    job.id, self.index, job.occupancy, job.slices, 0, job.online, job.partition,
                    job.sent_quota,
                )
            )  # fmt: skip
        self.starting.clear()
        return smaller + started + larger

    def _work_quota(self, job: JobRecord) -> int:
        """Return the slices whose work a job may do at most; 0: as much as it can."""
        if self._work_conserving or job.online or job.quota is None:
            return 0
        return 0 if job.quota_slices * job.slice >= self.capacity else job.quota_slices

    def lost_error(self, what: str, culprit: JobId | None = None) -> DeviceLost:
        """Return the error for a job that the device cannot run.

        ``what`` says what has happened to the device, as a predicate.
        """
        name = None if culprit is None else job_name(culprit)
        return DeviceLost(f"device {self.name} {what}", device=self.name, culprit=name)

    # -- queues

    def queue_entries(self, job: JobRecord) -> list[tuple[JobQueue, Entry]]:
        """Return the queues that a job belongs in now, with its entries there."""
        state = job.state
        if state is _WAITING:
            if self.pause is not None:
                return []
            if job.online and self._separates_online:
                return [(self.waiting_online, (*sort_keys.deadline_key(job), job))]
            return [(self.waiting, (*sort_keys.start_key(job), job))]
        if state is not _RUNNING and state is not _PAUSED:
            return []
        if job.whole or job.lending or (job.online and self._separates_online):
            return []
        entries = []
        if not job.exhausted and job.growth_room > 0:
            kind = job.occupancy, job.weight.bit_length()
            queue = self.growable.get(kind)
            if queue is None:
                queue = self.growable[kind] = JobQueue()
            key = sort_keys.level_key if self.service is None else sort_keys.hunger_key
            entries.append((queue, (*key(job), job)))
        if job.alloc:
            entries.append((self.shrinkable, (*sort_keys.size_key(job), job)))
        return entries

    def update_queues(self, job: JobRecord) -> None:
        """File a job anew, after its keys have changed."""
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
