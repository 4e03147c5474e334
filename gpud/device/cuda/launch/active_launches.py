"""Launches on the device: what each occupies, from the call until it is over.

Problem: a launch needs a stream, a launch record and an event, and each driver call on the way may
fail; the record must not be used again before its last block has left.

Approach: an `ActiveLaunch` is one launch with what it holds. `ActiveLaunches` begins launches,
tells what is left of them, and takes back what they held. Streams and events are kept: making them
is slow, and whether it waits for kernels is not written down. So some are made when the device is
opened.

Terms: a launch is *over* when its event is: its blocks have left and what they wrote can be seen.
Whoever waits is woken by a semaphore that the driver posts when a stream gets so far (`notify`).

Properties:
* a launch that could not begin holds nothing;
* what was taken back is not written to, by no thread: it may be another launch's, or other words;
* if a kernel was launched and cannot be followed, the device is lost: nobody would know when its
  memory is free.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.gate import GateParameters
from gpud.device.cuda.launch.release_path import ReleasePath, Slot
from gpud.device.cuda.placement.partitioner import GreenContext
from gpud.device.cuda.placement.release_order import ReleaseOrder
from gpud.errors import DeviceLost, GpudError

__all__ = ["ActiveLaunch", "ActiveLaunches"]

_FIRST_STREAMS = 4
"""Of each priority: as many runs, or growths of some, before one has to be made."""

_FIRST_EVENTS = 16


@dataclass(slots=True, eq=False)
class ActiveLaunch:
    """One launch on the device.

    Attributes:
        stage: of the chain.
        count: blocks that were launched.
        limit: blocks that are not told to release; only falls.
        slot: its records, None if it has none.
        event: over when it is.
        order: persistent form: which of its blocks leave when, and count themselves out; None:
            its blocks are not told.
        place: where its blocks are; None: anywhere.
        stream: its own, given back with it; None if others are on the stream.
        cleared: of the blocks that are told, those for the SM that they are on.
        named: whether blocks of it may have left that are not told: they began on an SM that they
            were to leave, or all were halted.
    """

    stage: int
    count: int
    limit: int
    slot: Slot | None
    event: Any
    order: ReleaseOrder | None = None
    place: GreenContext | None = None
    stream: Any = None
    cleared: int = 0
    named: bool = False


class ActiveLaunches:
    """Everything that is launched on the device. Under the device's lock.

    Args:
        context: of the device.
        release: where launch records are.
        semaphore: posted when a stream gets to a `notify`.
        gate: the gate's kernel.
        cooperative: the most blocks of a kernel that can be launched together anywhere, as (blocks
            of all SMs) for an occupancy of 1; 0: the device cannot.
        by_sm: whether blocks that are released empty whole SMs.
    """

    def __init__(
        self,
        context: Context,
        release: ReleasePath,
        semaphore: Semaphore,
        gate: Any,
        cooperative: int,
        *,
        by_sm: bool = True,
    ) -> None:
        self._context = context
        self.release = release
        self._semaphore = semaphore
        self._gate = gate
        self._gate_parameters = GateParameters()
        self._cooperative = cooperative
        self._by_sm = by_sm
        api = context.driver.api
        self._stream_flags = int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._event_flags = int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING) | int(
            api.CUevent_flags.CU_EVENT_BLOCKING_SYNC
        )
        self._wake = api.CUhostFn(semaphore.post_function)
        self._streams: dict[tuple[GreenContext | None, bool], list[Any]] = {}
        self._events: list[Any] = []
        self._all_streams: list[Any] = []
        self._all_events: list[Any] = []
        self._active: dict[ActiveLaunch, None] = {}
        self._counting = threading.Lock()  # of what is there: nobody has it who calls the driver

    # -- streams and events

    def prepare(self) -> None:
        """Have some of both before anything runs."""
        for urgent in (True, False):
            for _ in range(_FIRST_STREAMS):
                self.give_stream(self._made_stream(urgent, None), urgent)
        for _ in range(_FIRST_EVENTS):
            self.give_event(self._made_event())

    def take_stream(self, urgent: bool, place: GreenContext | None = None) -> Any:
        """A stream on which nothing is.

        Args:
            urgent: its blocks get room first.
            place: the SMs that they run on; None: any.
        """
        free = self._streams.get((place, urgent))
        return free.pop() if free else self._made_stream(urgent, place)

    def give_stream(self, stream: Any, urgent: bool, place: GreenContext | None = None) -> None:
        """Take back a stream on which everything is over."""
        self._streams.setdefault((place, urgent), []).append(stream)

    def take_event(self) -> Any:
        """An event; as long as it was not recorded again it is what it was."""
        return self._events.pop() if self._events else self._made_event()

    def give_event(self, event: Any) -> None:
        """Take an event back."""
        self._events.append(event)

    # -- launches

    def gate(self, stream: Any, job: int, previous: int, run: int, stage: int) -> None:
        """Put a gate before ``stage``, see `gpud.device.cuda.launch.gate`."""
        pointers = self._gate_parameters.set(job, previous, run, stage)
        driver = self._context.enter()
        driver.call("cuLaunchKernel", self._gate, 1, 1, 1, 1, 1, 1, 0, stream, pointers, 0)

    def begin(
        self,
        chain: Chain,
        stage: int,
        count: int,
        stream: Any,
        *,
        job: int,
        place: GreenContext | None,
        base: int = 0,
        named: int = 0,
    ) -> ActiveLaunch:
        """Launch ``count`` blocks of a stage on ``stream``.

        Args:
            chain: it belongs to.
            stage: which.
            count: blocks; in form whole and unmodified all of the grid.
            stream: where.
            job: address of the stage's job record.
            place: of the stream.
            base: sliced form: the first task block.
            named: address of the bitmap that names SMs on which it is to have no blocks; 0: none.

        Raises:
            GpudError, DriverError: it could not begin; nothing is held.
            DeviceLost: it began, and cannot be followed.
        """
        what = chain.stages[stage]
        event = self.take_event()
        slot: Slot | None = None
        persistent = what.form == "persistent"
        try:
            if what.form != "unmodified":
                slot = self.release.take(count if persistent else 0)
                self.release.place(slot, job, base, named, stream)
            self._launch(chain, stage, count, stream, slot, place)
        except (GpudError, DriverError):
            self.give_event(event)
            if slot is not None:
                self.release.give(slot)
            raise
        try:
            self._context.driver.call("cuEventRecord", event, stream)
        except DriverError as error:
            raise DeviceLost(f"{what.kernel.name} runs and cannot be followed: {error}") from error
        order = (
            ReleaseOrder(slot.sms, by_sm=self._by_sm) if persistent and slot is not None else None
        )
        launch = ActiveLaunch(stage, count, count, slot, event, order, place, named=named != 0)
        with self._counting:
            self._active[launch] = None
        return launch

    def halt(self) -> None:
        """Have all blocks leave that can, at their next task block.

        Called on any thread, without the device's lock: who has it may be waiting in the driver.
        What is being begun meanwhile does not hear of it.
        """
        with self._counting:
            for launch in self._active:
                if launch.order is not None and launch.slot is not None:
                    launch.named = True
                    self.release.halt(launch.slot)

    def notify(self, stream: Any) -> None:
        """Have the semaphore posted when ``stream`` gets here."""
        try:
            self._context.enter().call(
                "cuLaunchHostFunc", stream, self._wake, self._semaphore.address
            )
        except DriverError as error:
            raise DeviceLost(f"the end of a launch cannot be waited for: {error}") from error

    def is_over(self, launch: ActiveLaunch) -> bool:
        """Whether it is over."""
        return self._context.enter().is_over(launch.event)

    def find(self, launches: Iterable[ActiveLaunch]) -> None:
        """See where their blocks are, so that a release does not have to."""
        for launch in launches:
            if launch.order is not None:
                launch.order.poll()

    def live(self, launch: ActiveLaunch) -> int:
        """How many of its blocks have not left, those included that have not begun."""
        if launch.order is None or launch.slot is None:
            return launch.count
        return launch.slot.live

    def has_begun(self, launch: ActiveLaunch) -> bool:
        """Whether its first block has begun; without a launch record not before it is over."""
        begun = launch.slot is not None and launch.slot.begun
        return begun or self.is_over(launch)

    def staying(self, launch: ActiveLaunch) -> int:
        """How many of its blocks may stay: those not told to release that are there."""
        return min(launch.limit, self.live(launch)) if launch.named else launch.limit

    def moving(self, launch: ActiveLaunch) -> int:
        """How many of its blocks are there that leave for the SM that they are on."""
        return min(launch.cleared, max(0, self.live(launch) - launch.limit))

    def name(self, launch: ActiveLaunch, named: int, sms: Collection[int]) -> None:
        """Release the blocks on these SMs, and those that begin there.

        Args:
            launch: whose.
            named: the address of a bitmap that names the SMs; 0: there are none.
            sms: by ``%smid``.
        """
        if launch.slot is None or launch.order is None:
            return
        if named:
            limit = launch.order.clear(sms)
            if limit < launch.limit:
                self.release.set_stays(launch.slot, launch.order.stays)
                launch.cleared += launch.limit - limit
                launch.limit = limit
            launch.named |= launch.order.coming > 0
        self.release.set_named(launch.slot, named)

    def set_limit(self, launch: ActiveLaunch, limit: int) -> None:
        """Release the blocks from ``limit`` on; a limit is never raised again."""
        assert launch.slot is not None
        assert launch.order is not None
        assert limit < launch.limit
        launch.order.lower(limit)
        self.release.set_stays(launch.slot, launch.order.stays)
        launch.limit = limit

    def forget(self, launch: ActiveLaunch, urgent: bool) -> None:
        """Take back what a launch held that is over."""
        with self._counting:
            self._active.pop(launch, None)
        self.give_event(launch.event)
        if launch.slot is not None:
            self.release.give(launch.slot)
        if launch.stream is not None:
            self.give_stream(launch.stream, urgent, launch.place)

    def close(self) -> None:
        """Give everything back; nothing is on the device."""
        driver = self._context.enter()
        for event in self._all_events:
            driver.call("cuEventDestroy", event)
        for stream in self._all_streams:
            driver.call("cuStreamDestroy", stream)
        self._all_events, self._all_streams = [], []

    def _made_stream(self, urgent: bool, place: GreenContext | None) -> Any:
        context = self._context
        priority = context.greatest_priority if urgent else context.least_priority
        driver = context.enter()
        with context.watchdog.blocking_call():
            if place is None:
                made = driver.call("cuStreamCreateWithPriority", self._stream_flags, priority)
            else:
                made = place.stream(self._stream_flags, priority)
        self._all_streams.append(made)
        return made

    def _made_event(self) -> Any:
        made = self._context.enter().call("cuEventCreate", self._event_flags)
        self._all_events.append(made)
        return made

    def _launch(
        self,
        chain: Chain,
        stage: int,
        count: int,
        stream: Any,
        slot: Slot | None,
        place: GreenContext | None,
    ) -> None:
        what = chain.stages[stage]
        control = 0 if slot is None else slot.address
        parameters = chain.parameters(stage, control)
        grid = (count, 1, 1) if what.form in ("persistent", "sliced") else what.grid
        shape = (what.kernel.handle, *grid, *what.block, what.shared, stream, parameters)
        driver = self._context.enter()
        sms = self._cooperative if place is None else min(place.sms, self._cooperative)
        # Blocks of a kernel in form whole may wait for each other: all of them or none.
        if what.form == "whole" and what.total <= sms * what.occupancy:
            driver.call("cuLaunchCooperativeKernel", *shape)
        else:
            driver.call("cuLaunchKernel", *shape, 0)
