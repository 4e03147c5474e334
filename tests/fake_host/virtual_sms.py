"""SMs in virtual time: jobs whose task blocks take exactly as long as the test sets.

Part of the fake host (`tests.fake_host.host`), which passes on the front's commands and reports
their events to the front.

Terms: as in `gpud.device.host.messages`; *room* is the free capacity in CapSM. A released block
leaves when its task block ends, others claim the next one. Blocks are interchangeable here, so they
are counted, not numbered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from gpud.device.host import messages as m
from gpud.errors import GpudError, KernelTrap


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a kernel.

    Attributes:
        block_ns: duration of each task block; None: it never ends, even if released.
        occupancy: the reply to `MeasureKernel`.
        late_ns: delay between the end of its task block and the leaving of a released block.
        trap_at: the number of a task block that traps at its end.
        output: the kernel's output.
        refusal: the error with which `MeasureKernel` is refused.
        poll_ns: delay after `KillJob` until the blocks of a killable entry leave; None: never.
    """

    block_ns: int | None = 1_000_000
    occupancy: int = 1
    late_ns: int = 0
    trap_at: int | None = None
    output: bytes = b""
    refusal: GpudError | None = None
    poll_ns: int | None = 0


class FakeLaunch(NamedTuple):
    """A launch of a `FakeJob`: a kernel, its task blocks, its M and its behaviour.

    ``killable``: its blocks have kill polls.
    """

    entry: str
    total: int
    occupancy: int
    behaviour: Behaviour
    killable: bool = False


class FakeJob:
    """A job on `VirtualSMs`. Tests may read everything.

    Attributes:
        launch: index of the current launch.
        next: its task blocks claimed; ``done``: its task blocks done.
        queued: blocks that wait for room; ``idle``: resident, waiting for the next launch.
        running: running task blocks; ``releasing``: how many of their blocks leave afterwards.
    """

    def __init__(self, start: m.StartRun, launches: list[FakeLaunch], now_ns: int) -> None:
        self.number = start.job
        self.session = start.session
        self.launches = launches
        self.occupancy = start.occupancy
        self.slices = start.slices
        self.epoch = start.epoch
        self.online = start.online
        self.started_ns = now_ns
        self.first_block_ns: int | None = None
        self.launch = 0
        self.next = 0
        self.done = 0
        self.done_before = 0
        self.queued = 0
        self.idle = 0
        self.running = 0
        self.releasing = 0
        self.ending = False
        self.error: GpudError | None = None
        self.told_ns = now_ns
        self.release_ns = 0

    @property
    def now(self) -> FakeLaunch:
        """The current launch."""
        return self.launches[self.launch]

    @property
    def total(self) -> int:
        """Task blocks of all launches."""
        return sum(launch.total for launch in self.launches)

    @property
    def exhausted(self) -> bool:
        """Whether every task block of the last launch is claimed."""
        return self.launch == len(self.launches) - 1 and self.next >= self.now.total

    @property
    def complete(self) -> bool:
        """Whether every task block has run."""
        return self.done_before + self.done == self.total

    @property
    def blocks(self) -> int:
        """Blocks that are resident or wait for room."""
        return self.queued + self.idle + self.running

    @property
    def held(self) -> int:
        """These blocks in slices, rounded up."""
        return -(-self.blocks * self.occupancy // self.now.occupancy)

    @property
    def wanted(self) -> int:
        """How many blocks the current launch should have."""
        return 0 if self.ending else self.slices * self.now.occupancy // self.occupancy

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self.blocks and (self.ending or self.complete)


class VirtualSMs:
    """The SMs and their clock, which only `advance` and `run` move.

    Args:
        sms: number of SMs.

    Attributes:
        now_ns: virtual time.
        jobs: those that have not ended, by number, in order of their start.
    """

    def __init__(self, sms: int) -> None:
        self.sms = sms
        self.now_ns = 0
        self.jobs: dict[int, FakeJob] = {}
        self._room = Fraction(sms)
        self._ends: list[tuple[int, int, FakeJob, Callable[[FakeJob, int], None], int]] = []
        self._order = 0
        self._left: dict[int, FakeJob] = {}

    def on_left(self, job: FakeJob) -> None:
        """Called when blocks of a job have left, or it was resized. For a subclass."""

    def on_ended(self, job: FakeJob) -> None:
        """Called when a job has ended and is removed from `jobs`. For a subclass."""

    # -- commands

    def start(self, job: FakeJob) -> None:
        """Let a job run."""
        self.jobs[job.number] = job
        self._grow(job)
        self.settle()

    def resize(self, job: FakeJob, slices: int) -> None:
        """Set a job's number of slices; reported in any case."""
        job.slices = slices
        self._shrink(job)
        self._grow(job)
        self._left[job.number] = job
        self.settle()

    def end(self, job: FakeJob) -> None:
        """Release all blocks of a job and start no more."""
        if not job.ending:
            self._end(job)
            if job.over:
                self._left[job.number] = job
            self.settle()

    def kill(self, job: FakeJob) -> None:
        """End a job; its blocks leave at their next kill poll."""
        self.end(job)
        poll_ns = job.now.behaviour.poll_ns
        if self.jobs.get(job.number) is job and job.now.killable and poll_ns is not None:
            self._after(poll_ns, job, self._killed)
            self.advance(0)

    def clear(self) -> None:
        """Forget all jobs. Time goes on."""
        self.jobs.clear()
        self._left.clear()
        self._ends.clear()
        self._room = Fraction(self.sms)

    def settle(self) -> None:
        """Start the blocks for which there is room, and report."""
        self._place()
        left, self._left = self._left, {}
        for job in left.values():
            if job.over:
                del self.jobs[job.number]
                self.on_ended(job)
            else:
                self.on_left(job)

    # -- time

    def advance(self, duration_ns: int) -> None:
        """Advance virtual time by this much, and report what happens."""
        until_ns = self.now_ns + duration_ns
        while self._ends and self._ends[0][0] <= until_ns:
            self._step()
        self.now_ns = until_ns

    def run(self, limit: int = 1_000_000) -> None:
        """Advance time until nothing more can happen; at most ``limit`` steps."""
        for _ in range(limit):
            if not self._ends:
                return
            self._step()
        raise AssertionError(f"still busy after {limit} happenings")

    def _step(self) -> None:
        """Process all events of the next point in time that has any."""
        self.now_ns = self._ends[0][0]
        while self._ends and self._ends[0][0] == self.now_ns:
            _, _, job, what, argument = heapq.heappop(self._ends)
            if self.jobs.get(job.number) is job:
                what(job, argument)
        self.settle()

    def _after(
        self, delay_ns: int, job: FakeJob, what: Callable[[FakeJob, int], None], argument: int = 0
    ) -> None:
        self._order += 1
        heapq.heappush(self._ends, (self.now_ns + delay_ns, self._order, job, what, argument))

    # -- blocks

    def _place(self) -> None:
        """Start the blocks for which there is room; none overtakes a waiting one."""
        for job in sorted(self.jobs.values(), key=lambda job: not job.online):
            while job.queued:
                slice_ = Fraction(1, job.now.occupancy)
                if slice_ > self._room:
                    return
                self._room -= slice_
                job.queued -= 1
                if job.first_block_ns is None:
                    job.first_block_ns = self.now_ns - job.started_ns
                self._claim(job)

    def _claim(self, job: FakeJob) -> None:
        """Give an idle resident block a task block, or let it wait or leave."""
        if job.next < job.now.total:
            job.running += 1
            job.next += 1
            if job.exhausted:
                job.queued = 0  # there is nothing left to start them for
            if job.now.behaviour.block_ns is not None:
                self._after(job.now.behaviour.block_ns, job, self._task_ended, job.next - 1)
        elif job.exhausted:
            self._leave(job)
        else:
            job.idle += 1

    def _killed(self, job: FakeJob, _: int) -> None:
        job.release_ns = max(job.release_ns, self.now_ns - job.told_ns)
        for _ in range(job.running):
            self._leave(job)
        job.running = job.releasing = 0

    def _task_ended(self, job: FakeJob, task_block: int) -> None:
        if not job.running:
            return  # it was killed at this very moment
        job.done += 1
        behaviour = job.now.behaviour
        if task_block == behaviour.trap_at and job.error is None:
            place = (task_block, 0, 0)
            job.error = KernelTrap("trap", kernel=job.now.entry, task_block=place)
            job.done -= 1
            self._end(job)
        if job.releasing:
            job.releasing -= 1
            self._after(behaviour.late_ns, job, self._released)
            return
        job.running -= 1
        self._claim(job)
        if job.done == job.now.total and job.running == 0 and not job.exhausted:
            self._next_launch(job)

    def _released(self, job: FakeJob, _: int) -> None:
        if not job.running:
            return  # likewise
        job.running -= 1
        job.release_ns = max(job.release_ns, self.now_ns - job.told_ns)
        self._leave(job)
        if job.done == job.now.total and job.running == 0 and not (job.exhausted or job.ending):
            self._next_launch(job)

    def _leave(self, job: FakeJob) -> None:
        self._room += Fraction(1, job.now.occupancy)
        self._left[job.number] = job

    def _next_launch(self, job: FakeJob) -> None:
        self._room += Fraction(job.idle, job.now.occupancy)
        job.idle = job.queued = 0
        job.done_before += job.done
        job.launch += 1
        job.next = job.done = 0
        self._grow(job)

    def _grow(self, job: FakeJob) -> None:
        present = job.blocks - job.releasing
        job.queued += max(0, min(job.wanted - present, job.now.total - job.next))

    def _shrink(self, job: FakeJob) -> None:
        job.told_ns = self.now_ns
        over = job.blocks - job.releasing - job.wanted
        waiting = max(0, min(over, job.queued))
        job.queued -= waiting
        idle = max(0, min(over - waiting, job.idle))
        job.idle -= idle
        for _ in range(idle):
            self._leave(job)
        job.releasing += max(0, over - waiting - idle)

    def _end(self, job: FakeJob) -> None:
        job.ending = True
        self._shrink(job)
