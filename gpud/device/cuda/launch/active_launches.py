"""Launches on the device and the resources of each: stream, event and launch record.

Problem: a launch needs a stream, a launch record and an event, and each driver call on the way may
fail; the record must not be used again before the launch's last block has left.

Approach: an `ActiveLaunch` is one launch with its resources. `ActiveLaunches` begins launches,
reports how many blocks are left, and reclaims resources. Streams and events are kept for reuse:
creating them is slow, and whether it waits for kernels is not documented. So some are created when
the device is opened.

Terms: a launch is *over* when its event has completed: its blocks have left and their writes are
visible. The driver posts a semaphore when a stream reaches a `notify`, which wakes the watcher.

Properties:
* a launch that could not begin holds no resources;
* a release makes no driver call;
* a reclaimed record is written by no thread: it may belong to another launch by then;
* if a kernel was launched and its end cannot be detected, the device is lost: it would not be known
  when the launch's memory is free.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.cuda.launch.active_launch import ActiveLaunch
from gpud.device.cuda.launch.gate import GateParameters
from gpud.device.cuda.launch.launch_records import LaunchRecords, Slot
from gpud.device.cuda.launch.sequence import CUDASequence, PreparedLaunch
from gpud.device.cuda.launch.stream_pool import StreamPool
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.placement.release_order import ReleaseOrder
from gpud.errors import DeviceLost, GpudError

__all__ = ["ActiveLaunches"]


_MOST_SIZES, _MOST_LIMITS = 16, 4
"""Releases are prepared for the last few limits of launches of the last few sizes."""


class ActiveLaunches:
    """Everything that is launched on the device. Under the device's lock.

    Args:
        semaphore: posted when a stream reaches a `notify`.
        cooperative: the largest cooperative launch, in blocks, for an occupancy of 1; 0: the device
            has none.
        by_sm: whether released blocks empty whole SMs.

    Attributes:
        streams: streams and events of all launches.
        wake: the function, and its argument, that a stream calls at a `notify`.
    """

    def __init__(
        self,
        context: Context,
        records: LaunchRecords,
        semaphore: Semaphore,
        gate: Any,
        cooperative: int,
        *,
        by_sm: bool = True,
    ) -> None:
        self._context = context
        self.records = records
        self._semaphore = semaphore
        self.gate_kernel = gate
        self._gate_parameters = GateParameters()
        self._cooperative = cooperative
        self._by_sm = by_sm
        self.wake = semaphore.post_function, semaphore.address
        self._wake = context.driver.api.CUhostFn(semaphore.post_function)
        self.streams = StreamPool(context)
        self._active: dict[ActiveLaunch, None] = {}
        self._counting = threading.Lock()  # of `_active`; never held during a driver call
        # Of orders, limits and `gone`: a release does not wait for the device's lock.
        self._releasing = threading.Lock()
        self._recent: dict[int, deque[int]] = {}

    # -- launches

    def gate(self, stream: Any, job: int, previous: int, run: int, number: int) -> None:
        """Queue a gate before launch ``number``, see `gpud.device.cuda.launch.gate`."""
        pointers = self._gate_parameters.set(job, previous, run, number)
        driver = self._context.enter()
        driver.call("cuLaunchKernel", self.gate_kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, 0)

    def begin(
        self,
        sequence: CUDASequence,
        number: int,
        count: int,
        stream: Any,
        *,
        job: int,
        place: GreenContext | None,
        base: int = 0,
        bitmap: int = 0,
        followed: bool = True,
    ) -> ActiveLaunch:
        """Begin ``count`` blocks of a launch on ``stream``.

        Args:
            sequence: of the launch.
            number: of the launch in its sequence.
            count: number of blocks; in forms whole and unmodified all of the grid.
            stream: to launch on.
            job: address of the launch's job record.
            place: of the stream.
            base: sliced form: the first task block.
            bitmap: address of the bitmap of barred SMs; 0: none.
            followed: whether an event is recorded behind it; else the caller follows a later one.

        Raises:
            GpudError, DriverError: it could not begin; no resources are held.
            DeviceLost: it began, and its end cannot be detected.
        """
        what = sequence.prepared[number]
        event = self.streams.take_event() if followed else None
        slot: Slot | None = None
        persistent = what.form == "persistent"
        try:
            if what.form != "unmodified":
                slot = self.records.take(count if persistent else 0)
                slot.write(job, base, bitmap)
            parameters = sequence.parameters(number, slot, job, base)
            self._launch(what, count, stream, parameters, place)
        except (GpudError, DriverError):
            if event is not None:
                self.streams.give_event(event)
            if slot is not None:
                self.records.give(slot)
            raise
        if event is not None:
            self._record(event, stream, what.kernel.name)
        order = (
            ReleaseOrder(slot.sms, by_sm=self._by_sm) if persistent and slot is not None else None
        )
        launch = ActiveLaunch(
            number, count, count, slot, event, order, place, untold_exits=bitmap != 0
        )
        with self._counting:
            self._active[launch] = None
        return launch

    def book(
        self, queued: Iterable[tuple[int, int, Slot, Any]], place: GreenContext | None = None
    ) -> list[ActiveLaunch]:
        """Book launches in persistent form that a batch has queued; it keeps what they have.

        Args:
            queued: number, blocks, records and event of each.
            place: of the stream.
        """
        launches = [
            ActiveLaunch(
                number, count, count, slot, event, ReleaseOrder(slot.sms, by_sm=self._by_sm), place,
                lent=True, lent_event=event,
            )
            for number, count, slot, event in queued
        ]  # fmt: skip
        with self._counting:
            self._active.update(dict.fromkeys(launches))
        return launches

    def enter(self) -> None:
        """Make the context current in this thread, for calls by native code."""
        self._context.enter()

    def follow(self, launch: ActiveLaunch, stream: Any) -> None:
        """Have the launch be over only when what is on ``stream`` now is over, too.

        Raises:
            DeviceLost: its end cannot be detected.
        """
        try:
            if launch.event is None:
                launch.event = self.streams.take_event()
        except DriverError as error:
            raise DeviceLost(f"a launch runs and cannot be followed: {error}") from error
        self._record(launch.event, stream, "a launch")

    def _record(self, event: Any, stream: Any, name: str) -> None:
        try:
            self._context.driver.call("cuEventRecord", event, stream)
        except DriverError as error:
            raise DeviceLost(f"{name} runs and cannot be followed: {error}") from error

    def halt(self) -> None:
        """Have all blocks in persistent form leave at their next task block.

        Called on any thread, without the device's lock: its holder may be blocked in the driver. A
        launch that is just being made is not reached.
        """
        with self._counting:
            for launch in self._active:
                if launch.order is not None and launch.slot is not None:
                    launch.untold_exits = True
                    launch.slot.halt()

    def notify(self, stream: Any) -> None:
        """Have the driver post the semaphore when ``stream`` gets here."""
        try:
            self._context.enter().call(
                "cuLaunchHostFunc", stream, self._wake, self._semaphore.address
            )
        except DriverError as error:
            raise DeviceLost(f"the end of a launch cannot be waited for: {error}") from error

    def is_over(self, launch: ActiveLaunch) -> bool:
        """Return whether the launch is over; False if it is not followed."""
        return launch.event is not None and self._context.enter().is_over(launch.event)

    def poll_placement(self, launches: Iterable[ActiveLaunch]) -> None:
        """Update on which SMs the blocks are, so that a release does not have to."""
        for launch in launches:
            if launch.order is not None and launch.slot is not None:
                with self._releasing:
                    launch.order.poll()
                    launch.order.prepare(self._recent.get(launch.count, ()))

    def live(self, launch: ActiveLaunch) -> int:
        """Return how many blocks have not left, including those that have not begun."""
        if launch.order is None or launch.slot is None:
            return launch.count
        return launch.slot.live

    def has_begun(self, launch: ActiveLaunch) -> bool:
        """Return whether its first block has begun; without a launch record, whether it is over."""
        begun = launch.slot is not None and launch.slot.begun
        return begun or self.is_over(launch)

    def staying(self, launch: ActiveLaunch) -> int:
        """Return how many of its blocks can stay: those that are not told to release."""
        return min(launch.limit, self.live(launch)) if launch.untold_exits else launch.limit

    def relocating(self, launch: ActiveLaunch) -> int:
        """Return how many of its blocks have still to leave because they are on a barred SM."""
        return min(launch.cleared, max(0, self.live(launch) - launch.limit))

    def bar(self, launch: ActiveLaunch, bitmap: int, sms: Collection[int]) -> None:
        """Release the blocks on these SMs, and those that begin there later.

        Args:
            launch: whose blocks.
            bitmap: address of the bitmap of these SMs; 0: there are none.
            sms: by ``%smid``.
        """
        if launch.slot is None or launch.order is None:
            return
        with self._releasing:
            if bitmap:
                limit = launch.order.clear(sms)
                if limit < launch.limit:
                    launch.slot.set_stays(launch.order.stays)
                    launch.cleared += launch.limit - limit
                    launch.limit = limit
                launch.untold_exits |= launch.order.coming > 0
            launch.slot.set_bitmap(bitmap)

    def set_limit(self, launch: ActiveLaunch, limit: int) -> bool:
        """Release blocks until ``limit`` are not told to release; whether there were any.

        A limit is never raised. Also without the device's lock; the launch may be over.
        """
        assert launch.slot is not None
        assert launch.order is not None
        with self._releasing:
            if launch.gone or limit >= launch.limit:
                return False
            launch.order.lower(limit)
            # First, as who does not hold this lock takes fewer blocks than the limit to mean that
            # some found nothing to claim.
            launch.limit = limit
            launch.slot.set_stays(launch.order.stays)
            recent = self._recent.get(launch.count)
            if recent is None:
                while len(self._recent) >= _MOST_SIZES:
                    self._recent.pop(next(iter(self._recent)))
                recent = self._recent[launch.count] = deque(maxlen=_MOST_LIMITS)
            if limit not in recent:
                recent.append(limit)
        return True

    def forget(self, launch: ActiveLaunch, urgent: bool) -> None:
        """Reclaim the resources of a launch that is over."""
        with self._counting:
            self._active.pop(launch, None)
        with self._releasing:
            launch.gone = True
        if launch.event is not None and launch.event is not launch.lent_event:
            self.streams.give_event(launch.event)
        if launch.slot is not None and not launch.lent:
            self.records.give(launch.slot)
        if launch.stream is not None:
            self.streams.give_stream(launch.stream, urgent, launch.place)

    def _launch(
        self,
        what: PreparedLaunch,
        count: int,
        stream: Any,
        parameters: int,
        place: GreenContext | None,
    ) -> None:
        grid = (count, 1, 1) if what.form in ("persistent", "sliced") else what.grid
        shape = (what.kernel.handle, *grid, *what.block, what.shared, stream, parameters)
        driver = self._context.enter()
        sms = self._cooperative if place is None else min(place.sms, self._cooperative)
        # Blocks of a kernel in form whole may wait for each other: all must be resident at once.
        if what.form == "whole" and what.total <= sms * what.occupancy:
            driver.call("cuLaunchCooperativeKernel", *shape)
        else:
            driver.call("cuLaunchKernel", *shape, 0)
