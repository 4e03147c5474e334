"""A lane on the CUDA device: its ring, its launch sites, and the run of its present launches.

Problem: launches come in a ring that a stranger writes, and have to run one after the other with
the lane's share, which changes; clients, the front, the watcher of runs and the thread that lends
all act on the lane at the same time.

Approach: launches are read from the ring, and those that wait are run as a group
(`gpud.device.cuda.lanes.launch_groups`) by a `CUDARun`, as any sequence is: its launches follow one
another on the GPU, its blocks are released and added, and its end is detected in the same way.
Whatever happens to the lane only says so and calls `_act`, in which one thread at a time does all
that there is to do: others leave their part to it. A thread of the lane sleeps on the ring while
the lane is idle; under way, the thread that sees the end of a run begins the next.

Terms: a *group* is the launches of a run; launches *wait* that were read and are in no group.

Properties:
* each launch that was read has one completion, in order; a message comes before a completion that
  refers to it;
* a launch that is cancelled, or overdue, takes none with it but those of its own job;
* after the end of the lane nothing is read from its ring, and ``on_over`` is called once;
* no lock of the lane is held while the device is called: its callbacks may come from there.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gpud.device.cuda.execution.run import CUDARun
from gpud.device.cuda.lanes.launch_groups import LaunchGroups
from gpud.device.cuda.lanes.ring_reader import Record, RingReader
from gpud.device.cuda.launch.sequence import WINDOW, CUDASequence
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch, LaneObserver
from gpud.device.record_wait import RecordWait
from gpud.errors import (
    AdmissionError,
    DeviceLost,
    GpudError,
    InternalError,
    InvalidArgument,
    JobTimeout,
    LimitExceeded,
)
from gpud.wire import lane_ring as ring

__all__ = ["CUDALane", "LaneDevice"]

_LOOK_S: Final = 0.0002  # much less than a hold
_MASK: Final = 0xFFFFFFFF


class LaneDevice(Protocol):
    """What a lane needs of its device."""

    sms: int

    def lane_run(
        self, sequence: CUDASequence, on_left: Callable[[], None], on_over: Callable[[], None]
    ) -> CUDARun:
        """Return a run of a group of the lane's launches."""

    def check_site(self, spec: LaunchSpec) -> int:
        """Return M of a launch site's kernel, or raise what is wrong with the site."""

    def close_lane(self) -> None:
        """Take back what the lane has had of its own."""


class _Group(NamedTuple):
    """Launches that are on the device."""

    records: tuple[Record, ...]
    run: CUDARun


class CUDALane:
    """A lane of a CUDA device; thread-safe.

    Args:
        device: runs its launches.
        groups: has its launch sites.
        descriptor: of the ring's file; it may be closed afterwards.
        occupancy: the lane's slices are 1/``occupancy`` of an SM.
        observer: is told.

    Attributes:
        slices: how many it has.
        error: why it has ended, if it was not ended.
        ways: how its launches were queued, see `gpud.device.interface.Run`.
    """

    exhausted = False
    output = b""
    complete = True
    release_ns = 0

    def __init__(
        self,
        device: LaneDevice,
        groups: LaunchGroups,
        descriptor: int,
        occupancy: int,
        observer: LaneObserver,
    ) -> None:
        self._device = device
        self._groups = groups
        self._occupancy = occupancy
        self._observer = observer
        self._ring = RingReader(descriptor)
        self._lock = threading.Lock()
        self.slices = 0
        self.error: GpudError | None = None
        self.ways: Counter[str] = Counter()
        # Said by any thread, with the lock.
        self._acting = self._again = False
        self._ending = self._over = self._lent = self._left = False
        self._refused: GpudError | None = None
        self._skips: set[int] = set()  # launches that are not to begin, or not to go on
        # Of the thread that acts.
        self._waiting: deque[Record] = deque()
        self._group: _Group | None = None
        self._at = 0  # launches of the group that are complete
        self._began_ns = 0  # of the one after these
        self._applied = 0  # slices of the group
        self._job_ns = 0  # when the present job began
        self._broken = False  # a launch of the present job was not done
        self._killed: int | None = None  # the launch for which the group was ended
        self._overdue: int | None = None
        self._wrong: GpudError | None = None  # with the ring
        # Of the thread that sleeps on the ring.
        self._attending, self._away = threading.Event(), threading.Event()
        self._attending.set()
        self._sleep, self._lending = RecordWait(), RecordWait()
        self._thread = threading.Thread(target=self._attend, name="lane ring", daemon=True)
        self._ring.listen(listening=True)
        self._thread.start()

    # -- as of a run

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        with self._lock:
            fewer = slices < self.slices
            self.slices = slices
            self._left |= fewer
            idle = self._group is None
        self._act()
        if fewer and idle:
            self._observer.on_left()

    @property
    def held(self) -> int:
        """Slices that it may use, or that its blocks still hold."""
        group = self._group
        return max(self.slices, 0 if group is None else group.run.held)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Of the present launch: 0, task blocks done, and their total; zeros without one."""
        group = self._group
        if self._over or group is None:
            return 0, 0, 0
        sequence, run = group.run.sequence, group.run
        done, now = run.progress[1], run.current
        total = sequence.prepared[now].total
        return 0, min(max(0, done - sequence.before[now]), total), total

    @property
    def first_block_ns(self) -> int:
        """Time from the present launch's start to its first task block; 0: not known."""
        group = self._group
        return 0 if group is None or self._at else group.run.first_block_ns

    def end(self) -> None:
        """End the lane: no further launch begins, and running blocks leave at their next kill poll.

        Who closes a lane in order has waited for its launches: nobody waits for what runs now.
        """
        with self._lock:
            self._ending = True
        self._act()

    kill = end

    # -- as of a run that waits for its partition

    @property
    def refused(self) -> GpudError | None:
        """Why it can have no SMs of its own."""
        return self._refused

    @refused.setter
    def refused(self, error: GpudError) -> None:
        self._refused = error
        threading.Thread(target=self._act, name="lane refused").start()

    def lose(self, error: GpudError) -> None:
        """End with this error: the device is lost."""
        self.refused = error

    def reconsider(self) -> None:
        """Do nothing: its run waits by itself until its partition is made."""

    # -- launches

    def add_site(self, spec: LaunchSpec, added: Callable[[int], None]) -> None:
        """Prepare launches of a kernel with a block shape; ``added`` gets the site's number.

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
        if len(self._groups.sizes) >= ring.MOST_SITES:
            raise LimitExceeded(
                f"the lane has {ring.MOST_SITES} launch sites, for as many kernels and block "
                "shapes; close it and open another",
                limit="launch sites",
                value=ring.MOST_SITES,
            )
        most = self._device.check_site(spec)
        if self.slices and self.slices * most < self._occupancy:
            raise AdmissionError(
                f"the lane's share holds no block of {spec.kernel.name}, of which {most} fit on "
                f"an SM; open a lane with 1/{most} SM or more",
                requested=self.slices,
                capacity=self._device.sms,
            )
        with self._lock:
            number = self._groups.add(spec)
        added(number)

    def cancel(self, number: int) -> None:
        """Cancel a launch that has not ended: it does not begin, or its blocks are ended."""
        with self._lock:
            # Not before the oldest that is not complete; those to come are `SLOTS` at most.
            oldest = self._oldest()
            if (number - oldest) & _MASK < ring.SLOTS:
                self._skips.add(number)
        self._act()

    def end_overdue(self) -> None:
        """End the present launch if its job has run longer than it may."""
        group = self._group
        if group is None or self._at >= len(group.records):
            return
        record = group.records[self._at]
        if record.limit_ms and self._began_ns:
            if time.monotonic_ns() - self._job_ns >= record.limit_ms * 1_000_000:
                with self._lock:
                    self._overdue = record.number
                self._act()

    # -- lending, as `gpud.device.host.lane_watch` needs it

    def activity(self) -> int | None:
        """Return the number of the next launch; None while one runs or is to run."""
        with self._lock:
            return None if self._ending or self._has_work() else self._ring.number

    def _has_work(self) -> bool:
        return self._group is not None or bool(self._waiting) or self._ring.has_records

    def lend(self) -> None:
        """Give up all blocks, and keep the slices; returns when no block is left."""
        with self._lock:
            self._lent = True
        self._attending.clear()
        self._sleep.interrupt()
        # Else the client's wake, which is for one thread, could be for that one.
        while not self._away.wait(_LOOK_S) and not self._over:
            pass
        self._act()
        while True:
            group = self._group
            if group is None or self._ending or not group.run.held:
                return
            time.sleep(_LOOK_S)

    def wait_for_record(self) -> None:
        """Sleep until a record is there, or `interrupt` was called; on a lane that lends."""
        self._ring.listen(listening=True)
        while not (self._lending.interrupted or self._ending or self._has_work()):
            self._lending.sleep(self._ring.address + ring.HEAD, self._ring.tail)
        self._ring.listen(listening=False)

    def take_up(self) -> None:
        """Have blocks again, as many as its slices are for."""
        with self._lock:
            self._lent = False
        self._act()
        self._sleep = RecordWait()
        self._away.clear()
        self._attending.set()

    def interrupt(self) -> None:
        """End `wait_for_record`, now or the next time; the lane has ended."""
        self._lending.interrupt()

    def _attend(self) -> None:
        """Sleep on the ring and act on what comes, while the lane does not lend."""
        while not self._over:
            if not self._attending.is_set():
                self._away.set()
                self._attending.wait()
                continue
            sleep, head = self._sleep, self._ring.head
            self._act()
            if self._attending.is_set():
                sleep.sleep(self._ring.address + ring.HEAD, head)

    # -- acting

    def _act(self) -> None:
        """Do all that there is to do, or leave it to the thread that does."""
        with self._lock:
            if self._acting or self._over:
                self._again = True
                return
            self._acting, self._again = True, False
        while True:
            try:
                while self._step():
                    pass
            except Exception as error:  # noqa: BLE001 - nobody would go on with the lane
                self._break(error)
            with self._lock:
                if not self._again or self._over:
                    self._acting = False
                    return
                self._again = False

    def _break(self, error: Exception) -> None:
        """End the lane because of a failure of the device or of gpud itself."""
        if not isinstance(error, GpudError):
            trace = "".join(traceback.format_exception(error)).strip()
            error = InternalError(trace, stage="device host, lane")
        self.error = error
        group = self._group
        if group is not None and not isinstance(error, DeviceLost):
            with self._lock:
                self._ending = self._again = True
            return
        self._finish()

    def _step(self) -> bool:
        """Do the next thing; returns whether there may be another."""
        if self._refused is not None and not self._ending:
            self.error = self._refused
            with self._lock:
                self._ending = True
        if self._group is not None:
            return self._tend(self._group)
        if self._ending or self.error is not None:
            self._finish()
            return False
        if self._lent:
            return False
        self._read()
        if not self._waiting:
            if self._wrong is not None:
                self.error = self._wrong
                return True
            self._ring.listen(listening=True)
            if not self._ring.has_records:
                return False
            self._ring.listen(listening=False)
            return True
        return self._skip_first() or self._begin()

    def _read(self) -> None:
        """Read the launches that have come, as many as a group may have."""
        while len(self._waiting) < WINDOW and self._wrong is None:
            try:
                record = self._ring.read(self._groups.sizes)
            except GpudError as error:
                self._wrong = error
                return
            if record is None:
                return
            self._waiting.append(record)

    def _oldest(self) -> int:
        """Return the number of the oldest launch that is not complete; with the lock."""
        group = self._group
        if group is not None and self._at < len(group.records):
            return group.records[self._at].number
        return self._waiting[0].number if self._waiting else self._ring.number

    def _skip_first(self) -> bool:
        """Report the first launch that waits if it is not to begin; returns whether it is so."""
        record = self._waiting[0]
        if not record.goes_on:
            self._broken = False
        with self._lock:
            skipped = record.number in self._skips
            self._skips.discard(record.number)
        if not (skipped or (self._broken and record.goes_on)):
            return False
        self._waiting.popleft()
        x, y, z = record.grid
        self._broken = True
        self._report(record, "cancelled", None, b"", (0, x * y * z), (time.monotonic_ns(), 0))
        return True

    def _begin(self) -> bool:
        """Begin a group of the launches that wait; returns whether it was begun, or refused."""
        waiting = list(self._waiting)
        with self._lock:
            skips = self._skips
            stop = next((at for at, one in enumerate(waiting) if one.number in skips), None)
        records = waiting[: self._groups.count(waiting[:stop])]
        try:
            sequence = self._groups.sequence(records)
            wanted = self._usable(sequence)
            if not wanted:
                return False  # until it is resized
            run = self._device.lane_run(sequence, self._blocks_left, self._act)
        except DeviceLost:
            raise
        except GpudError as error:
            self._waiting.popleft()
            x, y, z = records[0].grid
            self._broken = True
            now_ns = time.monotonic_ns()
            self._report(records[0], "failed", error, b"", (0, x * y * z), (now_ns, 0))
            return True
        for _ in records:
            self._waiting.popleft()
        self._at, self._applied = 0, wanted
        self._killed = self._overdue = None
        with self._lock:
            self._group = _Group(tuple(records), run)
        self._note_begun(records[0])
        run.resize(wanted)
        return True

    def _usable(self, sequence: CUDASequence) -> int:
        """Return the slices that a group may use now: none if they are too few for a block."""
        slices = 0 if self._lent else self.slices
        few = any(not sequence.blocks(n, slices) for n in range(len(sequence.prepared)))
        return 0 if few else slices

    def _note_begun(self, record: Record) -> None:
        self._began_ns = now_ns = time.monotonic_ns()
        if not record.goes_on:
            self._job_ns = now_ns
        self._ring.begin(record.number, now_ns)

    def _blocks_left(self) -> None:
        """Take notice that blocks have left; from the run."""
        self._act()
        if self._left:
            self._tell_left()

    def _tell_left(self) -> None:
        """Tell the front that fewer slices are held than before."""
        with self._lock:
            group = self._group
            self._left = group is not None
        self._observer.on_left()

    # -- a group on the device

    def _tend(self, group: _Group) -> bool:
        """Complete launches that are done, and have the run as it is to be.

        Returns whether it is over.
        """
        run, over = group.run, group.run.over
        now = run.launches_done if over else run.current
        while self._at < min(now, len(group.records)):
            self._complete(group)
        if over:
            self._close(group)
            return True
        wanted = self._usable(run.sequence)
        if wanted != self._applied:
            self._applied = wanted
            run.resize(wanted)
        if self._ending:
            if self._killed is None:
                self._killed = group.records[self._at].number
                run.kill()
        else:
            self._stop_unwanted(group)
        return run.over

    def _stop_unwanted(self, group: _Group) -> None:
        """End the present launch if it was cancelled or is overdue, and begin none that was."""
        rest = [record.number for record in group.records[self._at :]]
        with self._lock:
            unwanted = self._skips.intersection(rest)
            overdue = self._overdue == rest[0]
        if not (unwanted or overdue):
            return
        group.run.retire()  # no launch follows in this run, which might be ended in its place
        present = group.records[min(group.run.current, len(group.records) - 1)].number
        if self._killed is None and (present in unwanted or (overdue and present == rest[0])):
            self._killed = present
            group.run.kill()

    def _complete(self, group: _Group) -> None:
        """Write the completion of a launch that is done."""
        record, run = group.records[self._at], group.run
        output = run.output if run.sequence.output else b""
        first_ns = self._began_ns + (0 if self._at else run.first_block_ns)
        times = self._began_ns, first_ns
        if output:
            total = run.sequence.prepared[self._at].total
            self._report(record, "done", None, output, (total, total), times)
        else:
            self._ring.complete(record.number, ring.DONE, self.slices, *times, time.monotonic_ns())
            self._ring.wake()
        with self._lock:
            self._skips.discard(record.number)  # too late
        self._at += 1
        if self._at < len(group.records):
            self._note_begun(group.records[self._at])

    def _close(self, group: _Group) -> None:
        """Report the launch in which a run has ended early, and leave the rest for another."""
        run, at = group.run, self._at
        self.ways.update(run.ways)
        rest = list(group.records[at:])
        if isinstance(run.error, DeviceLost):
            raise run.error
        if rest:
            before, total = run.sequence.before[at], run.sequence.prepared[at].total
            done = min(max(0, run.progress[1] - before), total)
            claimed = min(max(0, run.progress[0] - before), total)
            record = rest[0]
            ended = run.error is not None or self._ending or record.number == self._killed
            # Of a launch that began just as the one before was ended, task blocks may be done.
            if ended or claimed:
                rest.pop(0)
                self._report_ended(record, run, (done, total))
        with self._lock:
            self._group = None
            self._waiting.extendleft(reversed(rest))
            left, self._left = self._left, False
        if left:
            self._observer.on_left()

    def _report_ended(self, record: Record, run: CUDARun, progress: tuple[int, int]) -> None:
        error, state = run.error, "cancelled" if run.error is None else "failed"
        if error is None and self._overdue == record.number == self._killed:
            state, error = "failed", JobTimeout(record.limit_ms * 1_000_000)
        self._broken = True
        began_ns = self._began_ns + (run.first_block_ns if self._at == 0 else 0)
        self._report(record, state, error, run.output, progress, (self._began_ns, began_ns))

    def _report(
        self,
        record: Record,
        state: str,
        error: GpudError | None,
        output: bytes,
        progress: tuple[int, int],
        times: tuple[int, int],
    ) -> None:
        """Report a launch with a message, and then in the ring."""
        with self._lock:
            self._skips.discard(record.number)
        self._observer.launch_ended(
            EndedLaunch(record.number, record.site, state, error, output, progress)
        )
        self._ring.complete(
            record.number, ring.SEE_MESSAGE, self.slices, *times, time.monotonic_ns()
        )
        self._ring.wake()

    def _finish(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._device.close_lane()
        self._ring.end()
        self._sleep.interrupt()
        self._attending.set()
        self._observer.on_over()
