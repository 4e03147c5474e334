"""What a lane on the CUDA device does: reads its ring, begins groups of launches, completes them.

Problem: launches come in a ring that a stranger writes, and have to run one after the other with
the lane's share, which changes; clients, the front, the watcher of runs and the thread that lends
all act on the lane at the same time.

Approach: launches are read from the ring, and those that wait are run as a group
(`gpud.device.cuda.lanes.launch_groups`) by a `CUDARun`, as any sequence is: its launches follow one
another on the GPU, its blocks are released and added, and its end is detected in the same way.
Whatever happens to the lane only says so and calls `LaneWork.act`, in which one thread at a time
does all that there is to do: others leave their part to it.

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
from typing import NamedTuple, Protocol

from gpud.device.cuda.execution.run import CUDARun
from gpud.device.cuda.lanes.launch_groups import LaunchGroups
from gpud.device.cuda.lanes.ring_reader import RingReader, RingRecord
from gpud.device.cuda.launch.sequence import WINDOW, CUDASequence
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch, LaneObserver
from gpud.errors import DeviceLost, GpudError, InternalError, JobTimeout
from gpud.wire import lane_ring as ring

__all__ = ["LaneResources", "LaneWork"]


class LaneResources(Protocol):
    """What a lane needs of its device."""

    sms: int

    def new_run(
        self, sequence: CUDASequence, on_left: Callable[[], None], on_over: Callable[[], None]
    ) -> CUDARun:
        """Return a run of a group of the lane's launches."""

    def check_site(self, spec: LaunchSpec) -> int:
        """Return M of a launch site's kernel, or raise what is wrong with the site."""

    def close(self) -> None:
        """Take back what the lane has had of its own."""


class Group(NamedTuple):
    """Launches that are on the device."""

    records: tuple[RingRecord, ...]
    run: CUDARun


class LaneWork:
    """The launches of one lane.

    Args:
        device: runs them.
        groups: has its launch sites.
        descriptor: of the ring's file; it may be closed afterwards.
        observer: is told.

    Attributes:
        slices: how many it has.
        error: why it has ended, if it was not ended.
        ways: how its launches were queued, see `gpud.device.interface.Run`.
    """

    def __init__(
        self,
        device: LaneResources,
        groups: LaunchGroups,
        descriptor: int,
        observer: LaneObserver,
    ) -> None:
        self._device = device
        self._groups = groups
        self._observer = observer
        self.ring = RingReader(descriptor)
        self._lock = threading.Lock()
        self.slices = 0
        self.error: GpudError | None = None
        self.ways: Counter[str] = Counter()
        # Said by any thread, with the lock.
        self._acting = self._again = False
        self._ending = self._over = self._lent = self._left = False
        self._refused: GpudError | None = None
        self._skips: set[int] = set()  # launches that are not to begin, or not to go on
        self._overdue: int | None = None
        self._replacing: list[tuple[int, LaunchSpec, Callable[[int], None]]] = []
        # Of the thread that acts.
        self._waiting: deque[RingRecord] = deque()
        self._group: Group | None = None
        self._at = 0  # launches of the group that are complete
        self._began_ns = 0  # of the one after these
        self._applied = 0  # slices of the group
        self._job_ns = 0  # when the present job began
        self._broken = False  # launches of the present job do not begin
        self._failures = 0  # of launches that have failed by themselves, and the latest of these
        self._failed: int | None = None
        self._killed: int | None = None  # the launch for which the group was ended
        self._wrong: GpudError | None = None  # with the ring

    def act(self) -> None:
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
        trace = "".join(traceback.format_exception(error)).strip()
        if not isinstance(error, GpudError):
            error = InternalError(trace, stage="device host, lane")
        if self._group is not None and not isinstance(error, DeviceLost):
            if self.error is None:
                self.error = error
                with self._lock:
                    self._ending = self._again = True
                return
            error = DeviceLost(f"a lane's launches cannot be followed any more: {trace}")
        self.error = error
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
        self._replace()
        if self._lent:
            return False
        self._read()
        if not self._waiting:
            if self._wrong is not None:
                self.error = self._wrong
                return True
            self.ring.listen(listening=True)
            return self.ring.has_records
        self.ring.listen(listening=False)
        return self._skip_first() or self._begin()

    def _replace(self) -> None:
        """Replace the launch sites of which no launch is under way; there is no group."""
        used = {record.site for record in self._waiting}
        with self._lock:
            ready = [one for one in self._replacing if one[0] not in used]
            self._replacing = [one for one in self._replacing if one[0] in used]
            for number, spec, _ in ready:
                self._groups.put(number, spec)
        for number, _, added in ready:
            added(number)

    def _read(self) -> None:
        """Read the launches that have come, as many as a group may have."""
        while len(self._waiting) < WINDOW and self._wrong is None:
            try:
                record = self.ring.read(self._groups.sizes)
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
        return self._waiting[0].number if self._waiting else self.ring.number

    def _skip_first(self) -> bool:
        """Report the first launch that waits if it is not to begin; returns whether it is so."""
        record = self._waiting[0]
        if not record.goes_on:
            self._broken = record.seen not in (ring.EVERY, self._failures % ring.EVERY)
        with self._lock:
            skipped = record.number in self._skips
            self._skips.discard(record.number)
        if not (skipped or self._broken):
            return False
        self._waiting.popleft()
        x, y, z = record.grid
        self._broken = True
        state, behind = "cancelled", None
        if not (skipped or record.goes_on):
            state, behind = "failed", self._failed
        times = time.monotonic_ns(), 0
        self._report(record, state, None, b"", (0, x * y * z), times, behind)
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
            run = self._device.new_run(sequence, self._blocks_left, self.act)
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
            self._group = Group(tuple(records), run)
        self._note_begun(records[0])
        run.resize(wanted)
        return True

    def _usable(self, sequence: CUDASequence) -> int:
        """Return the slices that a group may use now: none if they are too few for a block."""
        slices = 0 if self._lent else self.slices
        return slices if slices >= sequence.least_slices else 0

    def _note_begun(self, record: RingRecord) -> None:
        self._began_ns = now_ns = time.monotonic_ns()
        if not record.goes_on:
            self._job_ns = now_ns
        self.ring.begin(record.number, now_ns)

    def _blocks_left(self) -> None:
        """Take notice that blocks have left; from the run."""
        self.act()
        if self._left:
            self._tell_left()

    def _tell_left(self) -> None:
        """Tell the front that fewer slices are held than before."""
        group = self._group
        self._left = group is not None and group.run.held > self.slices
        self._observer.on_left()

    # -- a group on the device

    def _tend(self, group: Group) -> bool:
        """Complete launches that are done, and have the run as it is to be.

        Returns whether it is over.
        """
        run, over = group.run, group.run.over
        now = run.launches_done if over else run.current
        if self._at < min(now, len(group.records)):
            self._complete(group, min(now, len(group.records)))
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

    def _stop_unwanted(self, group: Group) -> None:
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

    def _complete(self, group: Group, end: int) -> None:
        """Write the completions of the launches before ``end``, which are done.

        When each of several was done is not known: they share the time since the last look.
        """
        run, records, sequence = group.run, group.records, group.run.sequence
        first_ns = 0 if self._at else run.first_block_ns
        began_ns, now_ns = self._began_ns, time.monotonic_ns()
        each_ns = max(0, now_ns - began_ns) // (end - self._at)
        for record in records[self._at : end]:
            times = began_ns, began_ns + min(first_ns, each_ns)
            if not record.goes_on:
                self._job_ns = began_ns
            began_ns += each_ns
            if sequence.output and (output := run.output):
                total = sequence.total  # a launch that prints is alone
                self._report(record, "done", None, output, (total, total), times)
            else:
                self.ring.complete(record.number, ring.DONE, self.slices, *times, began_ns)
            first_ns = 0
        self.ring.wake()
        with self._lock:
            if self._skips:  # too late
                self._skips.difference_update(one.number for one in records[self._at : end])
            self._at = end
        if end < len(records):
            self._note_begun(records[end])

    def _close(self, group: Group) -> None:
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

    def _report_ended(self, record: RingRecord, run: CUDARun, progress: tuple[int, int]) -> None:
        error, state = run.error, "cancelled" if run.error is None else "failed"
        if error is None and self._overdue == record.number == self._killed:
            state, error = "failed", JobTimeout(record.limit_ms * 1_000_000)
        self._broken = True
        began_ns = self._began_ns + (run.first_block_ns if self._at == 0 else 0)
        self._report(record, state, error, run.output, progress, (self._began_ns, began_ns))

    def _report(
        self,
        record: RingRecord,
        state: str,
        error: GpudError | None,
        output: bytes,
        progress: tuple[int, int],
        times: tuple[int, int],
        behind: int | None = None,
    ) -> None:
        """Report a launch with a message, and then in the ring."""
        with self._lock:
            self._skips.discard(record.number)
        if state == "failed" and behind is None:
            self._failures, self._failed = self._failures + 1, record.number
        self._observer.launch_ended(
            EndedLaunch(record.number, record.site, state, error, output, progress, behind)
        )
        self.ring.complete(
            record.number, ring.SEE_MESSAGE, self.slices, *times, time.monotonic_ns()
        )
        self.ring.wake()

    def _finish(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._device.close()
        self.ring.end()
        self._ended()
        self._observer.on_over()

    def _ended(self) -> None:
        """Let threads of the lane go: it has ended."""
