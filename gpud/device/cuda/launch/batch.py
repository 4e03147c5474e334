"""Launches of a sequence that are prepared together and queued by one call.

Problem: each launch of a sequence costs ten microseconds of Python: a launch record is taken and
written, parameters are set, the driver is called for it and for the gate in front of it. A request
of many short kernels would take longer to queue than to run.

Approach: a *batch* has all that is needed for up to `WINDOW` launches in persistent form, the gates
between them and what follows the last: launch records, parameters, an event, and the driver calls
as commands (`gpud.device.cuda.driver.native_calls`). It belongs to one set of armed records, for
one number of slices, and is prepared again (*armed*) when their run is over, so that a run only
makes the calls, and does its accounts afterwards. Where that is allowed, the calls are one CUDA
graph instead (`gpud.device.cuda.launch.graphs`).

What runs is the same whatever way it is queued: the same kernels with the same gates on one stream,
each with as many blocks as its share. So blocks are released by the same words, a gate stays closed
behind a launch that is not done, was stopped or has a helper; and a run that grows in the middle
adds helpers to the launch that runs, and queues what gates have left closed anew. A batch is used
only where it is what would be queued one by one: see `Batches.why_not`.

Terms: batches begin at multiples of `WINDOW`.

Properties:
* what is queued is booked, and nothing else, whichever call fails;
* a batch is used once in a run, and armed again only when that is over;
* a sequence that runs once prepares none.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import takewhile
from typing import Any, Final, NamedTuple

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.native_calls import COPY, CommandTable, NativeCalls, native_calls
from gpud.device.cuda.launch.active_launch import ActiveLaunch
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.gate import GateParameters
from gpud.device.cuda.launch.graphs import Graphs
from gpud.device.cuda.launch.sequence import COPIES_AT, WINDOW, CUDASequence
from gpud.device.cuda.memory.pool import DeviceBlock, MappedBlock
from gpud.errors import DeviceLost, GpudError

__all__ = ["BatchMaker", "Batches", "Queued", "batch_maker"]

_MOST: Final = 32
"""Batches of one set of records: of the longest sequences, and for more than one share."""

_SINGLY: Final = "one by one: "

_USES: Final = 16
"""How often a batch is used at least before it is made anew for other claims: any are valid, and
the block times that are measured vary."""

_SECOND: Final = 2
"""A batch is made when the same launches were queued this often."""

_LEAST_OF_GRAPH: Final = 2
"""Launches; fewer are as many calls without a graph."""


class Queued(NamedTuple):
    """What became of a batch.

    Attributes:
        launches: that are on the device now, in order.
        error: of the call that failed; None: none did.
        copied: whether job records are copied to host memory behind the last.
    """

    launches: list[ActiveLaunch]
    error: Exception | None
    copied: bool


class BatchMaker:
    """What batches are made with. Under the device's lock.

    Args:
        graphs: None: batches are queued without.

    Attributes:
        counts: how often a batch was queued as a graph, or by native calls; and why launches were
            queued one by one.
    """

    def __init__(self, launches: ActiveLaunches, calls: NativeCalls, graphs: Graphs | None) -> None:
        self.launches = launches
        self.calls = calls
        self.graphs = graphs
        self.counts: Counter[str] = Counter()

    def count(self, way: str, run: Counter[str]) -> None:
        """Count how launches of a run were queued, for the device and for the run."""
        self.counts[way] += 1
        run[way] += 1


def batch_maker(
    context: Context, launches: ActiveLaunches, undo: ExitStack, *, with_graphs: bool
) -> BatchMaker | None:
    """Return what prepares batches; None: there is no native code here.

    ``undo`` is given what returns the graphs.
    """
    calls = native_calls(context.driver)
    if calls is None:
        return None
    graphs = Graphs(context, calls, launches.streams) if with_graphs else None
    if graphs is not None:
        undo.callback(graphs.close)
    return BatchMaker(launches, calls, graphs)


class Batches:
    """The batches of one set of records.

    Args:
        maker: None: launches are queued one by one.
    """

    def __init__(self, maker: BatchMaker | None, page: MappedBlock, block: DeviceBlock) -> None:
        self._maker = maker
        self._page = page
        self._block = block
        self._made: dict[tuple[int, int], _Batch] = {}
        self._queued: Counter[tuple[int, int]] = Counter()

    def queue(
        self, sequence: CUDASequence, first: int, slices: int, stream: Any, why_not: str,
        ways: Counter[str],
    ) -> Queued | None:  # fmt: skip
        """Queue the launches from ``first`` on; None: they have to be queued one by one.

        Args:
            sequence: of the records.
            first: number of the first launch, a multiple of `WINDOW`.
            slices: of the job.
            stream: of the run.
            why_not: why it cannot be a batch, for the counts; empty: it can.
            ways: counts of the run.
        """
        if self._maker is None:
            ways[f"{_SINGLY}no native code"] += 1
            return None
        key = first, slices
        batch = self._made.get(key)
        if not why_not and (batch is None or batch.used):
            why_not = "not prepared"
            self._queued[key] += batch is None
        if why_not or batch is None:
            self._maker.count(_SINGLY + why_not, ways)
            return None
        return batch.queue(stream, ways)

    def arm(self, sequence: CUDASequence) -> None:
        """Arm what was used, and make what was queued a second time; the run is over.

        Raises:
            DeviceLost: the context is dead.
        """
        if self._maker is None:
            return
        for key, batch in tuple(self._made.items()):
            if batch.tunings != sequence.tunings and batch.uses >= _USES:
                self._made.pop(key).close()
                self._queued[key] = _SECOND
            elif batch.used:
                batch.arm()
        for key, count in tuple(self._queued.items()):
            if count < _SECOND:
                continue
            del self._queued[key]
            while len(self._made) >= _MOST:
                self._made.pop(next(iter(self._made))).close()
            try:
                self._made[key] = _Batch(self._maker, sequence, self._page, self._block, *key)
            except (GpudError, DriverError) as error:
                if isinstance(error, DeviceLost):
                    raise
                return  # there is no memory or event: it goes without
        if len(self._queued) > _MOST:
            self._queued.clear()

    def close(self) -> None:
        """Return what the batches hold; nothing of them is on the device."""
        while self._made:
            self._made.popitem()[1].close()
        self._queued.clear()


class _Batch:
    """Launches that are queued together.

    Attributes:
        used: whether it has been queued since it was armed.
        uses: how often it was queued.
        tunings: those of the sequence when it was made.
    """

    def __init__(
        self,
        maker: BatchMaker,
        sequence: CUDASequence,
        page: MappedBlock,
        block: DeviceBlock,
        first: int,
        slices: int,
    ) -> None:
        self._maker = maker
        self._launches = launches = maker.launches
        self.used, self.uses = False, 0
        self.tunings = sequence.tunings
        self._numbers = numbers = [*takewhile(sequence.is_persistent, range(first, first + WINDOW))]
        self._counts = [sequence.blocks(number, slices) for number in numbers]
        self._jobs = [block.address + cw.JOB_BYTES * number for number in numbers]
        self._slots: list[Any] = []
        self._events: dict[int, Any] = {}  # by index
        self._graph: Any = None
        try:
            for count in self._counts:
                self._slots.append(launches.records.take(count))
            self.arm()
            self._parameters = sequence.parameter_table.bound(numbers, self._slots, self._jobs)
            self._gates = [GateParameters() for _ in numbers]
            self._lay_out(sequence, page, block, slices)
        except BaseException:
            self.close()
            raise

    def _lay_out(
        self, sequence: CUDASequence, page: MappedBlock, block: DeviceBlock, slices: int
    ) -> None:
        """Write the commands, and have a graph made of them."""
        launches, numbers = self._launches, self._numbers
        table = self._table = CommandTable()
        self._queued_after: list[int] = []  # by number of commands made: launches that are queued
        self._recorded: dict[int, int] = {}  # by index of the command: that of the launch
        for index, number in enumerate(numbers):
            what = sequence.prepared[number]
            if number:
                job = self._jobs[index]
                gate = self._gates[index].set(job, job - cw.JOB_BYTES, page.address, number)
                table.kernel(launches.gate_kernel, (1, 1, 1), (1, 1, 1), 0, gate)
            self._note(index)
            table.kernel(what.kernel.handle, (self._counts[index], 1, 1), what.block, what.shared,
                         self._parameters.addresses[index])  # fmt: skip
            self._note(index + 1)
            if index + 1 < len(numbers) and sequence.outlasts(number, slices):
                self._end(index)
                table.notify(*launches.wake)
                self._note(index + 1)
        body, plain = len(table), not self._recorded
        last = len(numbers) - 1
        ends = not sequence.is_persistent(numbers[-1] + 1)
        if ends:
            size = cw.JOB_BYTES * len(sequence.prepared)
            table.copy(page.address + COPIES_AT, block.address, size)
            self._note(last + 1)
            body += 1
        self._copies = ends
        self._end(last)
        if ends:
            table.notify(*launches.wake)
            self._note(last + 1)
        fixed = not sequence.in_lane  # a graph has the parameters by value
        if self._maker.graphs is not None and plain and fixed and len(numbers) >= _LEAST_OF_GRAPH:
            self._graph = self._maker.graphs.make(table, body)
        self._short = CommandTable()  # with the graph instead of what is in it
        if self._graph is not None:
            self._short.graph(self._graph)
            self._short.record(self._events[last])
            if ends:
                self._short.notify(*launches.wake)

    def _end(self, index: int) -> None:
        """Record an event behind a launch."""
        self._events[index] = event = self._launches.streams.take_event()
        self._recorded[len(self._table)] = index
        self._table.record(event)
        self._note(index + 1)

    def _note(self, launched: int) -> None:
        """Note how many launches are queued when all commands so far are made."""
        missing = len(self._table) + 1 - len(self._queued_after)
        self._queued_after += [launched] * missing

    def arm(self) -> None:
        """Initialise the launch records; nothing of the batch is on the device."""
        for slot, job in zip(self._slots, self._jobs, strict=True):
            slot.write(job, 0, 0)
        self.used = False

    def close(self) -> None:
        """Return everything; nothing of the batch is on the device."""
        while self._slots:
            self._launches.records.give(self._slots.pop())
        while self._events:
            self._launches.streams.give_event(self._events.popitem()[1])
        if self._graph is not None and self._maker.graphs is not None:
            self._maker.graphs.destroy(self._graph)
            self._graph = None

    def queue(self, stream: Any, ways: Counter[str]) -> Queued:
        """Queue the launches on a stream, and book those that are."""
        self.used = True
        self.uses += 1
        calls, count = self._maker.calls, self._maker.count
        self._launches.enter()
        if self._graph is not None:
            made = calls.make(self._short, stream)
            if made.done:
                count("graph", ways)
                recorded = {len(self._numbers) - 1} if made.done > 1 else set[int]()
                return self._booked(len(self._numbers), recorded, made.error, copied=self._copies)
            if isinstance(made.error, DeviceLost):
                return Queued([], made.error, copied=False)
            count("native: the driver launches no graph", ways)
        else:
            count("native", ways)
        made, copied = calls.make(self._table, stream), self._copies
        if made.error is not None and self._table.kind(made.done) == COPY:
            copied = False  # they are copied when the run is over
            if not isinstance(made.error, DeviceLost):
                made = calls.make(self._table, stream, made.done + 1)
        recorded = {of for at, of in self._recorded.items() if at < made.done}
        return self._booked(self._queued_after[made.done], recorded, made.error, copied=copied)

    def _booked(
        self, count: int, recorded: set[int], error: Exception | None, *, copied: bool
    ) -> Queued:
        launches = self._launches.book(
            [
                (self._numbers[index], self._counts[index], self._slots[index],
                 self._events[index] if index in recorded else None)
                for index in range(count)
            ]
        )  # fmt: skip
        if error is not None and count == len(self._numbers) and isinstance(error, DriverError):
            error = DeviceLost(f"launches run and cannot be followed: {error}")
        return Queued(launches, error, copied and error is None)
