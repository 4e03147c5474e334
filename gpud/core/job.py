"""The scheduler's record of one job: its state, its sizes, and what its device reported."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from gpud.core.capacity import MOST_SLICES, Amount, counted_occupancy, slice_of, to_fraction
from gpud.core.events import JobSubmitted, LaunchShape
from gpud.core.lifecycles import JOBS, JobInput, JobState, Lifecycle
from gpud.core.users import NO_ACCOUNT, Account
from gpud.errors import GpudError
from gpud.units import JobId, job_name

__all__ = ["Because", "JobRecord", "ShareChange"]

_MOST_CHANGES = 12
_UNBOUNDED = 1 << 40  # slices: more than any device has

_NEVER_STARTED = (JobState.BLOCKED, JobState.PREPARING, JobState.WAITING)
_HOLDS = (JobState.RUNNING, JobState.PAUSED)
_BLOCKED = JobState.BLOCKED  # a global: looking it up in its class takes ten times as long


class Because(StrEnum):
    """Why a job's share was changed."""

    FREE = "free"
    ONLINE = "online"
    SHARE = "share"
    CAP = "cap"
    OWNER = "owner"
    MOVED = "moved"
    PAUSE = "pause"


class ShareChange(NamedTuple):
    """A change of a job's share, in slices.

    Attributes:
        because: why.
        job: the online job that it was made for, if it was.
        first: whether the job had never had a share.
        occupancy: M.
    """

    at_ns: int
    before: int
    after: int
    because: Because
    job: JobId | None
    first: bool
    occupancy: int


@lru_cache(maxsize=256)
def _launch_sizes(launches: tuple[LaunchShape, ...]) -> tuple[int, Amount, bool, int]:
    """Return (occupancy, slice, whole, use) of a job; cached, since most launches recur.

    A lane, which has no launches, has the finest slices, and can use any number of them.
    """
    if not launches:
        return MOST_SLICES, slice_of(MOST_SLICES), False, _UNBOUNDED
    occupancy = counted_occupancy(min(launch.occupancy for launch in launches))
    whole = not all(launch.resizable for launch in launches)
    use = max(-(-launch.task_blocks * occupancy // launch.occupancy) for launch in launches)
    return occupancy, slice_of(occupancy), whole, use


class JobRecord(Lifecycle[JobState, JobInput]):
    """A job that has not ended. Only `gpud.core` modifies it; others may read it.

    A device executes resizes later than the scheduler decides them, so a job's size has several
    views, in slices unless the table says otherwise:

    | attribute     | view                                                     | changes when      |
    | ------------- | -------------------------------------------------------- | ----------------- |
    | `slices`      | the scheduler's latest decision                          | a policy decides  |
    | `sent_slices`,| what the device was last commanded                       | a command is sent |
    | `sent_quota`  |                                                          |                   |
    | `grants`      | (epoch, slices) of the decisions from the one that the   | decided; reported |
    |               | device last confirmed up to the latest                   |                   |
    | `reported`    | what the device last reported as held                    | `BlocksLeft`      |
    | `growths`     | (epoch, added slices) of growths not yet in `reported`   | decided; reported |
    | `held`        | upper bound of what its blocks occupy or will occupy,    | any of the above  |
    |               | computed from `reported`, `grants` and `growths`         |                   |
    | `allocation`  | what is accounted to the job, in CapSM: `slices`, or     | any of the above  |
    |               | `held` if fewer and the job is exhausted and not         |                   |
    |               | exclusive; 0 while it is ending                          |                   |

    Attributes:
        id, session, device: as submitted.
        state: a `JobState`.
        submission: the event that submitted it.
        reservation, quota: as submitted or as last resized; both None for the whole device.
        online: it has a reservation.
        exclusive: its reservation is in whole SMs, dedicated to it from its start to its end.
        lane: it is a lane, which stays open: it has no task blocks of its own to complete.
        account: its user's on its device; `NO_ACCOUNT` before it is there.
        tag: orders offline jobs that wait, before their ``order``: see `gpud.core.users`.
        weight: an offline job's weight when capacity is shared: that of its submission by its
            user's factor.
        occupancy: M as counted by `gpud.core.capacity`; `slice` is the amount of 1/M CapSM.
        whole: one of its launches cannot be resized, so the job cannot.
        use: the most slices that its largest launch can fill, regardless of device and quota.
        exhausted: every task block is claimed, so that ``held`` only falls.
        epoch: how many resizes were commanded.
        least: the fewest slices that it starts with: an online or whole job's need, else 1.
        most: the most slices that it can be given: an online job's reservation, or what an offline
            job's quota, device and grids allow.
        quota_slices: what an offline job's quota allows.
        started_ns: time of its start; None if it has not started, or if its host was lost before
            `StartJob` was sent.
        prepared_generation: the `DeviceRecord.host_generation` of the host that is prepared for the
            job; None if none is.
        preparations: how many hosts in a row were asked to prepare for it without completing.
        killed: its running task blocks were commanded to be killed.
        lending, promised, idle_epoch, plan: of a lane; see `gpud.core.lanes`.
        booked: slices that its device took back by plans, for the next command to say.
        forgiven: its owner has cancelled it, so that sticky jobs behind it run.
        cause: the error for which it is being ended; None of a lane that is being closed.
        hunger: its allocation as `gpud.core.service` counts it; None if it is not hungry.
        lead: its lead in `gpud.core.service`, as of its last change or a later rebalancing.
        service_base: its service in `gpud.core.service` is this and ``capsm_scaled_ns``.
        changes: the latest changes of its share.
        changed_ns: when it began to wait, started, or was last resized.
        kept_until_ns: until then it gives up nothing for other offline jobs.
    """

    __slots__ = (
        "account",
        "after_left",
        "alloc",
        "booked",
        "capsm_scaled_ns",
        "cause",
        "changed_ns",
        "changes",
        "charge",
        "counted_to_ns",
        "deadline_ns",
        "device",
        "entries",
        "epoch",
        "exclusive",
        "exhausted",
        "followers",
        "forgiven",
        "grants",
        "growths",
        "held",
        "hunger",
        "id",
        "idle_epoch",
        "is_sequence",
        "kept_until_ns",
        "killed",
        "lane",
        "lead",
        "least",
        "lending",
        "most",
        "occupancy",
        "online",
        "order",
        "pending_release",
        "plan",
        "preparations",
        "prepared_generation",
        "promised",
        "quota",
        "quota_slices",
        "reported",
        "reservation",
        "sent_quota",
        "sent_slices",
        "service_base",
        "session",
        "slice",
        "slices",
        "start_order",
        "started_ns",
        "stream_next",
        "stream_prev",
        "submission",
        "tag",
        "use",
        "weight",
        "whole",
        "works",
    )

    def __init__(self, event: JobSubmitted) -> None:
        now_ns = event.now_ns
        super().__init__(JOBS, _BLOCKED, now_ns)
        self.id = event.job
        self.session = event.session
        self.device = event.device
        self.submission = event
        self.reservation = event.reservation
        self.quota = event.quota
        self.online = event.reservation is not None
        self.exclusive = event.exclusive
        self.lane = event.lane
        self.weight = event.weight
        self.account: Account = NO_ACCOUNT
        self.tag = 0
        self.deadline_ns = event.deadline_ns
        self.occupancy, self.slice, self.whole, self.use = _launch_sizes(event.launches)
        self.is_sequence = len(event.launches) > 1
        # Sizes in slices, computed by the policy once the size of the job's device is known.
        self.least = self.most = self.quota_slices = 0
        # The views of its size: see the class.
        self.slices = 0
        self.sent_slices = self.sent_quota = 0
        self.reported = 0
        self.held = 0
        self.exhausted = False
        self.epoch = 0
        self.growths: list[tuple[int, int]] = []
        self.grants: list[tuple[int, int]] = []
        # Amounts, maintained by the device record.
        self.alloc = 0
        self.charge = 0
        self.pending_release = 0
        self.works = False  # offline and not ending; counted in `DeviceRecord.working`
        self.entries: list[Any] = []  # its entries in the device record's queues
        # Preparation of its device.
        self.prepared_generation: int | None = None
        self.preparations = 0
        # Order.
        self.order = 0  # rank by the time at which it was unblocked
        self.start_order = 0
        self.after_left = 0
        self.forgiven = False
        self.followers: list[JobId] = []
        self.stream_prev: JobRecord | None = None
        self.stream_next: JobRecord | None = None
        self.started_ns: int | None = None
        self.killed = False
        self.capsm_scaled_ns = 0
        self.counted_to_ns = now_ns
        self.hunger: int | None = None
        self.service_base = self.lead = 0
        self.changed_ns = self.kept_until_ns = now_ns
        self.cause: GpudError | None = None
        # Of lanes, and of jobs that lanes take from.
        self.lending = False
        self.promised = self.idle_epoch = self.booked = 0
        self.plan: tuple[tuple[JobId, int], ...] | None = None
        self.changes: list[ShareChange] = []

    @property
    def name(self) -> str:
        """The job's printed name, such as ``"3.17"``."""
        return job_name(self.id)

    @property
    def what(self) -> str:
        """How messages refer to the job: ``"job 3.17"``, or ``"lane 3.17"``."""
        return f"{'lane' if self.lane else 'job'} {self.name}"

    @property
    def allocation(self) -> Fraction:
        """The job's current allocation in CapSM, exact."""
        return to_fraction(self.alloc)

    @property
    def started(self) -> bool:
        """Whether the scheduler has started it."""
        return self.state not in _NEVER_STARTED

    @property
    def live(self) -> bool:
        """Whether it has started and is not being ended."""
        return self.state in _HOLDS

    @property
    def partition(self) -> int:
        """How many whole SMs are dedicated to it from its start on; 0 if not exclusive."""
        return self.least // self.occupancy if self.exclusive else 0

    @property
    def growth_room(self) -> int:
        """By how many slices it could grow, if there were capacity.

        Blocks being released count toward its quota until they have left.
        """
        return min(self.most - self.slices, self.quota_slices - self.held)

    def served_at(self, now_ns: int) -> int:
        """Return its service, see `gpud.core.service`, at a time since its last change."""
        since_ns = now_ns - self.counted_to_ns
        return self.service_base + self.capsm_scaled_ns + self.alloc * since_ns

    def whole_need(self, sms: int) -> int:
        """Return the slices that its launches in form ``whole`` need at once on ``sms`` SMs."""
        occupancy = self.occupancy
        return max(
            -(-min(launch.task_blocks, sms * launch.occupancy) * occupancy // launch.occupancy)
            for launch in self.submission.launches
            if not launch.resizable
        )

    def note_change(self, slices: int, now_ns: int, because: Because, job: JobId | None) -> None:
        """Record that its share is about to become ``slices``."""
        changes = self.changes
        # On the path of every decision: a call of the class takes three times as long.
        values = (now_ns, self.slices, slices, because, job, not changes, self.occupancy)
        changes.append(tuple.__new__(ShareChange, values))
        if len(changes) > _MOST_CHANGES:
            del changes[1]  # its start stays

    def begin(self, slices: int) -> None:
        """Set the initial slices of a job that starts."""
        self.slices = self.sent_slices = self.reported = self.held = slices
        self.grants.append((0, slices))

    def reset(self) -> None:
        """Clear all that a start has set: the device was lost before it received the job."""
        self.prepared_generation = None
        self.slices = self.sent_slices = self.reported = self.held = self.epoch = 0
        self.exhausted = False
        self.booked = self.idle_epoch = 0
        self.growths.clear()
        self.grants.clear()
        self.started_ns = None

    def set_slices(self, slices: int) -> None:
        """Change the size of a started job; the command for the device has the next epoch.

        Growing launches new blocks: blocks already being released are not retained.
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

    def note_taken(self, slices: int) -> None:
        """Take notice that its device has taken slices from it by a plan."""
        self.sent_slices = max(0, self.sent_slices - slices)
        self.booked += slices

    def mark_ending(self) -> None:
        """Recompute `held` after the job's state has become `JobState.ENDING`."""
        self._count_held()

    def blocks_left(self, epoch: int, held: int, *, exhausted: bool) -> bool:
        """Apply a `BlocksLeft` report; return whether `held` or `exhausted` changed."""
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
        """Recompute `held`, valid however many of the sent commands the device has executed.

        That it is never too little rests on what `gpud.core.commands.ResizeJob` says of growth.
        """
        if self.exhausted:
            self.held = self.reported  # no task block is left for more slices to run
            return
        held = self.reported
        # The last confirmed size may yet be filled: by a sequence's next launch, if the present one
        # is too small for it, and by any launch when the next command is executed. `EndJob` has no
        # epoch that would show that it was executed.
        if self.state is not JobState.ENDING or self.is_sequence or len(self.grants) > 1:
            held = max(held, self.grants[0][1])
        self.held = held + sum(slices for _, slices in self.growths)
