"""What the scheduler knows of one job, and what can be worked out from that alone."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from gpud.core.capacity import Amount, counted_occupancy, slice_of, to_fraction
from gpud.core.events import JobSubmitted, LaunchShape
from gpud.core.lifecycles import JOBS, JobInput, JobState, Lifecycle
from gpud.errors import GpudError
from gpud.units import JobId, job_name

__all__ = ["JobRecord"]

_NEVER_STARTED = (JobState.BLOCKED, JobState.PREPARING, JobState.WAITING)
_HOLDS = (JobState.RUNNING, JobState.PAUSED)


@lru_cache(maxsize=256)
def _facts(launches: tuple[LaunchShape, ...]) -> tuple[int, Amount, bool, int]:
    """Occupancy, slice, ``whole`` and ``use`` of jobs with these launches; most come again."""
    occupancy = counted_occupancy(min(launch.occupancy for launch in launches))
    whole = not all(launch.resizable for launch in launches)
    use = max(-(-launch.task_blocks * occupancy // launch.occupancy) for launch in launches)
    return occupancy, slice_of(occupancy), whole, use


class JobRecord(Lifecycle[JobState, JobInput]):
    """One job that has not ended. Only `gpud.core` changes it; others may read.

    Attributes:
        id, session, device: as submitted.
        state: a `JobState`.
        submission: the event that brought it.
        reservation, quota: as submitted or as last resized; both None for the whole device.
        online: it has a reservation.
        exclusive: its reservation is in whole SMs, which are its own from its start to its end.
        weight: an offline job's part when capacity is shared.
        occupancy: M, counted; `slice` is the amount of 1/M CapSM.
        whole: a launch of it cannot be resized, so that the job cannot.
        use: the most slices that its largest launch can fill, device and quota aside.
        slices: what it was given; what it has is `allocation`, less when it is about to end.
        held: an upper bound of the slices that its blocks occupy or will.
        exhausted: every task block is claimed, so that ``held`` only falls.
        epoch: how many resizes were commanded.
        least: the slices that it starts with, no fewer: an online or whole job's need, else 1.
        most: the slices that it can have: an online job's reservation, or what an offline job's
            quota, device and grids allow.
        quota_slices: what an offline job's quota allows.
        started_ns: when; None: it was not, or its host was lost before it was told.
        prepared_generation: how many hosts its device had lost before the one that has what the job
            needs; None: none has.
        preparations: how many hosts in a row were told to be prepared for it, and were not yet.
        killed: its task blocks were told to end where they are.
        cause: why it was told to end.
    """

    __slots__ = (
        "after_left",
        "alloc",
        "capsm_scaled_ns",
        "cause",
        "chain",
        "charge",
        "counted_to_ns",
        "deadline_ns",
        "device",
        "entries",
        "epoch",
        "exclusive",
        "exhausted",
        "followers",
        "grants",
        "growths",
        "held",
        "id",
        "killed",
        "least",
        "most",
        "occupancy",
        "online",
        "order",
        "pending_release",
        "preparations",
        "prepared_generation",
        "quota",
        "quota_slices",
        "reported",
        "reservation",
        "sent_slices",
        "session",
        "slice",
        "slices",
        "start_order",
        "started_ns",
        "stream_next",
        "stream_prev",
        "submission",
        "use",
        "weight",
        "whole",
        "works",
    )

    def __init__(self, event: JobSubmitted) -> None:
        now_ns = event.now_ns
        super().__init__(JOBS, JobState.BLOCKED, now_ns)
        self.id = event.job
        self.session = event.session
        self.device = event.device
        self.submission = event
        self.reservation = event.reservation
        self.quota = event.quota
        self.online = event.reservation is not None
        self.exclusive = event.exclusive
        self.weight = event.weight
        self.deadline_ns = event.deadline_ns
        self.occupancy, self.slice, self.whole, self.use = _facts(event.launches)
        self.chain = len(event.launches) > 1
        # Sizes in slices; the policy fills them in when the job's device is known to be up.
        self.least = self.most = self.quota_slices = 0
        # What it was given, and what its device told.
        self.slices = 0
        self.sent_slices = 0  # slices that the device was last told of
        self.reported = 0  # slices that the device last said are held
        self.held = 0
        self.exhausted = False
        self.epoch = 0
        self.growths: list[tuple[int, int]] = []  # (epoch, slices) that `reported` lacks
        self.grants: list[tuple[int, int]] = []  # (epoch, slices) since what the device has done
        # Amounts, kept by the device record.
        self.alloc = 0
        self.charge = 0
        self.pending_release = 0
        self.works = False  # counted among the offline jobs that wait or run
        self.entries: list[Any] = []  # where the device record has filed it
        # What it needs on its device.
        self.prepared_generation: int | None = None
        self.preparations = 0
        # Order.
        self.order = 0  # of becoming ready
        self.start_order = 0
        self.after_left = 0
        self.followers: list[JobId] = []
        self.stream_prev: JobRecord | None = None
        self.stream_next: JobRecord | None = None
        self.started_ns: int | None = None
        self.killed = False
        self.capsm_scaled_ns = 0
        self.counted_to_ns = now_ns
        self.cause: GpudError | None = None

    @property
    def name(self) -> str:
        """Returns what people call the job, such as ``"3.17"``."""
        return job_name(self.id)

    @property
    def what(self) -> str:
        """Returns what the job is called in messages."""
        return f"job {self.name}"

    @property
    def allocation(self) -> Fraction:
        """Returns what the job has now, in CapSM, exactly."""
        return to_fraction(self.alloc)

    @property
    def started(self) -> bool:
        """Whether its device was told to start it."""
        return self.state not in _NEVER_STARTED

    @property
    def live(self) -> bool:
        """Whether it was started and not told to end."""
        return self.state in _HOLDS

    @property
    def partition(self) -> int:
        """Returns how many whole SMs are its own from its start on."""
        return self.least // self.occupancy if self.exclusive else 0

    @property
    def growth_room(self) -> int:
        """Returns how many slices it could be given more, if there were capacity.

        Blocks that were told to leave count toward its quota until they have left.
        """
        return min(self.most - self.slices, self.quota_slices - self.held)

    def whole_need(self, sms: int) -> int:
        """Returns the slices that its launches in form ``whole`` need at once on ``sms`` SMs."""
        occupancy = self.occupancy
        return max(
            -(-min(launch.task_blocks, sms * launch.occupancy) * occupancy // launch.occupancy)
            for launch in self.submission.launches
            if not launch.resizable
        )

    def begin(self, slices: int) -> None:
        """Gives a job that starts its first slices."""
        self.slices = self.sent_slices = self.reported = self.held = slices
        self.grants.append((0, slices))

    def reset(self) -> None:
        """Takes in that its device was lost before it was told of the job."""
        self.prepared_generation = None
        self.slices = self.sent_slices = self.reported = self.held = self.epoch = 0
        self.exhausted = False
        self.growths.clear()
        self.grants.clear()
        self.started_ns = None

    def set_slices(self, slices: int) -> None:
        """Changes what a started job has; the device is to be told in the next epoch.

        New blocks come beside those that were told to leave, which do not come back.
        """
        self.slices = slices
        epoch = self.epoch + 1
        for list_ in (self.growths, self.grants):
            if list_ and list_[-1][0] == epoch:
                list_.pop()
        self.grants.append((epoch, slices))
        if slices > self.sent_slices:
            self.growths.append((epoch, slices - self.sent_slices))
        self._count_held()

    def mark_ending(self) -> None:
        """Takes in that the job is to end."""
        self._count_held()

    def blocks_left(self, epoch: int, held: int, *, exhausted: bool) -> bool:
        """Takes in what the device says of it; whether that changed anything."""
        before = self.held, self.exhausted
        self.reported = held
        self.exhausted = self.exhausted or exhausted
        while self.growths and self.growths[0][0] <= epoch:
            del self.growths[0]
        while len(self.grants) > 1 and self.grants[1][0] <= epoch:
            del self.grants[0]
        self._count_held()
        return before != (self.held, self.exhausted)

    def _count_held(self) -> None:
        """Works out what its blocks may hold, whatever of its commands the device has seen."""
        if self.exhausted:
            self.held = self.reported  # nothing is left that more slices could run
            return
        held = self.reported
        # The next launch of a chain may use what the one before could not, and any launch when the
        # next command is carried out. The end of a job has no epoch by which to see that it was.
        if self.state is not JobState.ENDING or self.chain or len(self.grants) > 1:
            held = max(held, self.grants[0][1])
        self.held = held + sum(slices for _, slices in self.growths)
