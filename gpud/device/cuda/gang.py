"""A gang: one run of a chain on the GPU, with as many resident blocks as it is given.

Problem: the scheduler decides how many slices a job has; its blocks must follow while they run, no
task block may be lost or run twice, and what the job occupies must be known.

Approach: stages in persistent form are queued on the run's stream, `_WINDOW` of them at most, with
gates between (`gpud.device.cuda.gate`). To shrink, limits of launches are lowered. To grow, one
more launch on the same job record is begun on a stream of its own: a *helper*; where there are
many, it replaces the smallest. Limits are never raised, so nobody has to know whether a block that
was told to release has seen it yet. When everything that was launched is over, the job record says
what is left, and the rest is begun anew.

Some SMs may be *barred*: they were to be cleared, or are other jobs' alone. They are named in the
run's bitmap, and every launch that could be there is pointed to it. How many blocks of a launch are
on named SMs nobody knows; so as many of it count as staying as are there and not told to release,
which is too many until the others have left, and then right: helpers take their place then. What is
launched while there are partitions runs on the SMs of none. With SMs that were cleared besides, a
run does not grow: nothing would keep its new blocks from them.

Terms: a *flight* is a launch on the device; a stage is *begun* when it has been opened, that is, up
to ``CURRENT``; *due*: the stage that runs next when nothing is on the device.

Properties:
* a stage is begun after all of the stage before is done, and every block of it that could still
  write has left or is waited for by the stream;
* the limits of a stage's flights are never more than its share in all;
* the run is over when no flight is left and nothing is left to do, or it was ended or has failed;
* whatever call fails, the run ends with an error, or the device is lost.

The device's lock guards it all. Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpud.compiler import control_words as cw
from gpud.device.cuda.chain import Chain
from gpud.device.cuda.driver import DriverError
from gpud.device.cuda.failure import failure_of
from gpud.device.cuda.flights import Flight
from gpud.device.cuda.green import Place
from gpud.device.cuda.output import printed_text
from gpud.device.cuda.pace import Pace
from gpud.device.cuda.run import Run
from gpud.errors import GpudError, InternalError

if TYPE_CHECKING:
    from gpud.device.cuda.device import CUDADevice

__all__ = ["Gang"]

_WINDOW: Final = 16
"""Stages that are queued at most: those that follow a growth were launched before it."""

_TOP_UP: Final = _WINDOW // 2
_MOST_HELPERS: Final = 6
"""Helpers that claim, at most: each has a stream, and streams beyond the driver's connections (see
`gpud.device.cuda.driver.ENVIRONMENT`) wait for each other."""

_NEXT, _DONE, _TOTAL = cw.NEXT // 4, cw.DONE // 4, cw.TOTAL // 4


class Gang:
    """One run of a chain; see `gpud.device.interface.Gang`.

    Args:
        device: where.
        chain: what.
        priority: more than 0: its blocks get room before those of others.
        on_left: called after blocks have left, unless the gang is over.
        on_over: called once when it is over.
        partition: the SMs that are its own, and the only ones where it has blocks; None: it has
            none of its own.

    Both are called without any lock, on the watcher's thread or in `resize`, `end` and `kill`.
    """

    def __init__(
        self,
        device: CUDADevice,
        chain: Chain,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        partition: Place | None = None,
    ) -> None:
        self._device = device
        self._flights = device.flights
        self.chain = chain
        self._urgent = priority > 0
        self._on_left = on_left
        self._on_over = on_over
        self._partition = partition
        self._cleared: frozenset[int] = frozenset()
        self.slices = 0
        self.error: GpudError | None = None
        self.over = False
        self.first_block_ns = 0
        self.release_ns = 0
        self._ended = False
        self._main: deque[Flight] = deque()
        self._helpers: list[Flight] = []
        self._due = 0
        self._opened = True  # whether the due stage is: the image has the first one open
        self._next = 0  # the stage that is queued next
        self._stalled = False
        self._sliced = 0  # task blocks of the hosted stage that were launched
        self._sliced_done = 0
        self._claimed = -1  # the last stage of which everything is known to be claimed
        self._lives = 0
        self._releasing_ns = 0
        self._asked_ns = 0
        self._pace = Pace(chain)
        self._final = (0, 0, chain.total)
        self._printed = b""
        self._run: Run | None = None

    # -- for everybody

    def resize(self, slices: int) -> None:
        """Have ``slices`` slices from now on; returns at once.

        Raises:
            RuntimeError: the device is closed.
            DeviceLost: the context is dead.
        """
        with self._device.lock:
            if not self.over and not self._ended:
                self._device.check_open()
                self.slices = slices
                self._asked_ns = self._asked_ns or time.monotonic_ns()
                self._attempt(self._settle)
        self._device.hurry()

    def clear(self, sms: Collection[int]) -> None:
        """Have no blocks on these SMs from now on; and grow only when none is cleared any more.

        Raises:
            ValueError: an SM of such a number cannot be named.
        """
        cw.named_sms(sms)
        with self._device.lock:
            if not self.over and not self._ended:
                self._cleared = frozenset(sms)
                self._attempt(self._name)
        self._device.hurry()

    def end(self) -> None:
        """Release everything and run nothing more; it is over when the last block has left."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
        self._device.hurry()

    def kill(self) -> None:
        """`end`, and have blocks that poll leave in the middle of their task block."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
                self._attempt(self._kill)
        self._device.hurry()

    @property
    def output(self) -> bytes:
        """What its blocks printed so far; made anew at each call.

        Plain launches print to this process's standard output instead.
        """
        with self._device.lock:
            run = self._run
            printed = self._printed if self.over or run is None else run.printed
        return printed_text(printed)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        with self._device.lock:
            return self._final if self.over else self._progress()

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.chain.total

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, rounded up."""
        with self._device.lock:
            if self.over or not (self._main or self._helpers):
                return 0
            now = self._on_device.current
            blocks: dict[int, int] = {}
            for flight in (*self._main, *self._helpers):
                live = self._flights.live(flight)
                if flight.stage > now:
                    live = min(live, flight.limit)
                blocks[flight.stage] = blocks.get(flight.stage, 0) + live
            if any(flight.named for flight in (*self._main, *self._helpers)):
                # Helpers take the place of those that leave their SM.
                if not self._astray and not self._all_claimed(now):
                    again = self.chain.blocks(now, self.slices)
                    blocks[now] = max(blocks.get(now, 0), again)
            held = max(self.chain.slices_of(stage, live) for stage, live in blocks.items())
            return held if self._stopping else max(held, self.chain.later(now, self.slices))

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or it was ended."""
        with self._device.lock:
            if self.over or self._stopping:
                return True
            if self._run is None:
                return False
            now = self._run.current
            return now == len(self.chain.stages) - 1 and self._all_claimed(now)

    # -- for the device and the watcher, with the lock

    def make_way(self) -> None:
        """There is another partition, or one less."""
        if not self._stopping:
            self._attempt(self._name)

    def look(self) -> bool:
        """See which flights are over and which blocks have left; whether anything changed."""
        if self.over:
            self._device.watcher.remove(self)
            return False
        changed = self._attempt(self._look)
        return True if changed is None else bool(changed)

    def lose(self, error: GpudError) -> None:
        """The device is lost; whatever was on it is gone."""
        if not self.over:
            self.error = error
            self.over = True
            if self._run is not None:
                self._printed = self._run.printed
            self._device.later(self._on_over)

    # -- running

    @property
    def _stopping(self) -> bool:
        return self._ended or self.error is not None

    def _attempt(self, what: Callable[[], Any]) -> Any:
        """Do it; what fails, ends the run. None if it failed."""
        try:
            return what()
        except GpudError as error:
            if error.code == "device-lost":
                raise
            self._fail(error)
        except DriverError as error:
            self._fail(InternalError(str(error), stage="device host, CUDA"))
        return None

    def _fail(self, error: GpudError) -> None:
        if self.error is None:
            self.error = error
        self._stop()

    def _settle(self) -> None:
        """Have what runs follow ``slices``."""
        if self._main or self._helpers:
            self._adjust()
        elif self.slices and len(self._barred) < self._device.sms:
            self._begin()

    def _begin(self) -> None:
        """Nothing is on the device: begin with the due stage."""
        self._device.watcher.add(self)
        if self._run is None:
            self._run = Run(self._device, self.chain, self._urgent, self._place)
            self._run.name(self._barred)
        self._next = self._due
        began_ns = time.monotonic_ns()
        if self.chain.stages[self._due].form == "persistent":
            self._queue()
        else:
            self._launch_hosted()
        self._lives = self._count_lives()
        self._pace.begin(began_ns, self._due, sum(one.count for one in self._of(self._due)))

    def _queue(self) -> None:
        """Put stages in persistent form on the stream, as many as may be."""
        run, chain, queued = self._on_device, self.chain, 0
        run.move(self._place)
        try:
            while len(self._main) < _WINDOW and self._more:
                stage = self._next
                if stage != self._due or not self._opened:
                    run.gate(stage, always=stage == self._due)
                self._add_main(chain.blocks(stage, self.slices))
                self._next += 1
                queued += 1
        finally:
            # Only where nothing will follow: what is behind a host function waits for it, and the
            # watcher looks again sooner than the rest of the window can be over.
            if queued and not self._more:
                self._flights.notify(run.stream)

    @property
    def _more(self) -> bool:
        """Whether another stage is to be queued."""
        stages = self.chain.stages
        return self._next < len(stages) and stages[self._next].form == "persistent"

    def _launch_hosted(self) -> None:
        """Launch a stage, or the next sub-grid of one, that is not in persistent form."""
        run, stage = self._on_device, self.chain.stages[self._due]
        run.move(self._place)
        run.begin(self._due)
        count = stage.total
        if stage.form == "sliced":
            count = min(self.chain.blocks(self._due, self.slices), stage.total - self._sliced)
        self._add_main(count, base=self._sliced)
        self._sliced += count
        self._flights.notify(run.stream)

    def _add_main(self, count: int, *, base: int = 0) -> None:
        run, stage = self._on_device, self._next
        flight = self._flights.begin(
            self.chain, stage, count, run.stream,
            job=run.job(stage), place=run.place, base=base, named=self._named,
        )  # fmt: skip
        self._main.append(flight)
        run.loose = False

    def _adjust(self) -> None:
        """Lower limits, or add a helper."""
        now, chain = self._on_device.current, self.chain
        if chain.stages[now].form != "persistent":
            return  # the next sub-grid has another size
        rest: dict[int, int] = {}
        lowered = False
        for flight in (*self._main, *self._helpers):
            share = rest.setdefault(flight.stage, chain.blocks(flight.stage, self.slices))
            staying = self._flights.staying(flight)
            if share < staying:
                self._flights.set_limit(flight, share)
                lowered = True
            rest[flight.stage] = share - min(staying, share)
        if lowered:
            self._releasing_ns = self._releasing_ns or time.monotonic_ns()
        missing = 0 if self._astray else rest.get(now, 0)
        if missing and not self._all_claimed(now):
            self._help(now, missing + self._folded())

    def _folded(self) -> int:
        """Release the smallest of too many helpers: how many blocks the next is to make up for."""
        claiming = [flight for flight in self._helpers if flight.limit]
        if len(claiming) < _MOST_HELPERS:
            return 0
        least = min(claiming, key=self._flights.staying)
        count = self._flights.staying(least)
        self._flights.set_limit(least, 0)
        return count

    def _help(self, stage: int, count: int) -> None:
        """Add ``count`` blocks to a stage that runs."""
        run, place = self._on_device, self._place
        stream = self._flights.take_stream(self._urgent, place)
        # Before the launch: the gate behind the stage must see it.
        run.help(stage)
        try:
            run.wait_on(stream)  # the copy that sets up the records may be behind a long one
            flight = self._flights.begin(
                self.chain, stage, count, stream,
                job=run.job(stage), place=place, named=self._named,
            )  # fmt: skip
        except (GpudError, DriverError):
            self._flights.give_stream(stream, self._urgent, place)
            raise
        flight.stream = stream
        self._helpers.append(flight)
        self._lives += count
        self._flights.notify(stream)

    @property
    def _place(self) -> Place | None:
        """Where launches run from now on; None: anywhere."""
        return self._device.green.rest if self._partition is None else self._partition

    @property
    def _barred(self) -> frozenset[int]:
        """The SMs on which it is to have no blocks."""
        others = frozenset[int]() if self._partition else self._device.green.numbers
        return self._cleared | others

    @property
    def _astray(self) -> bool:
        """Whether blocks that are launched now could be on a barred SM."""
        return bool(self._cleared) or (self._place is None and bool(self._barred))

    @property
    def _named(self) -> int:
        """What a launch that is begun now is pointed to."""
        return self._on_device.named if self._astray else 0

    def _name(self) -> None:
        """Have blocks leave the SMs that are barred."""
        barred = self._barred
        if self._run is not None:
            self._run.name(barred)
            for flight in (*self._main, *self._helpers):
                self._flights.name(flight, self._run.named if barred else 0)
        if self.slices:
            self._settle()

    def _stop(self) -> None:
        """Open nothing more and release everything."""
        if self._run is not None:
            self._run.stop()
        for flight in (*self._main, *self._helpers):
            if flight.counts and flight.limit:
                self._flights.set_limit(flight, 0)
        if not (self._main or self._helpers):
            self._finish()

    def _kill(self) -> None:
        """Tell blocks that poll to leave."""
        if self._run is not None and not self.over:
            self._run.kill({flight.stage for flight in (*self._main, *self._helpers)})

    # -- what has happened

    def _look(self) -> bool:
        changed = False
        flights = self._flights
        if not self.first_block_ns and self._main and flights.has_begun(self._main[0]):
            self.first_block_ns = time.monotonic_ns() - self._asked_ns
        self._look_at_pace()
        while self._main and flights.is_over(self._main[0]):
            self._over_flight(self._main.popleft())
            changed = True
        for flight in [one for one in self._helpers if flights.is_over(one)]:
            self._helpers.remove(flight)
            self._over_flight(flight)
            changed = True
        if not (self._main or self._helpers):
            self._device.watcher.remove(self)
            self._drained()
        elif not self._stopping and self.slices:
            if len(self._main) <= _TOP_UP and not self._stalled and self._main:
                self._queue_more()
            self._adjust()
        lives = self._count_lives()
        changed |= lives < self._lives
        self._lives = lives
        self._see_release()
        if changed and not self.over:
            self._device.later(self._left)
        return changed

    def _look_at_pace(self) -> None:
        now = self._on_device.current
        here = self._of(now)
        lives, launched = sum(map(self._flights.live, here)), sum(one.count for one in here)
        self._pace.look(time.monotonic_ns(), now, lives, launched)

    def _of(self, stage: int) -> list[Flight]:
        """The flights of a stage."""
        return [one for one in (*self._main, *self._helpers) if one.stage == stage]

    def _queue_more(self) -> None:
        if self.chain.stages[self._main[-1].stage].form == "persistent":
            self._queue()

    def _over_flight(self, flight: Flight) -> None:
        if self.chain.stages[flight.stage].form != "persistent":
            self._sliced_done = self._sliced
        elif self._on_device.current < flight.stage:
            self._stalled = True  # its gate was closed, and so are all behind it
        elif flight.limit and not flight.named:
            self._claimed = max(self._claimed, flight.stage)  # it was over by itself
        self._flights.forget(flight, self._urgent)

    def _drained(self) -> None:
        """Nothing is on the device: what the job record says is final."""
        self._stalled = False
        run = self._on_device
        now, record = run.current, run.record(run.current)
        stage = self.chain.stages[now]
        if self.error is None:
            self.error = failure_of(record, self, now)
        if stage.form == "persistent":
            words = np.frombuffer(record, np.uint32)
            done = int(words[_DONE]) == stage.total
            if not done and not self._stopping and int(words[_NEXT]) >= stage.total:
                raise InternalError(
                    f"{int(words[_DONE])} of {stage.total} task blocks are done, and nobody runs "
                    "the rest",
                    stage="device host, CUDA",
                )
        else:
            done = self._sliced_done == stage.total
        self._pace.drained(time.monotonic_ns(), now, done=done)
        if done:
            self._due, self._opened = now + 1, False
            self._sliced = self._sliced_done = 0
        else:
            self._due, self._opened = now, True
        if self._stopping or self._due == len(self.chain.stages):
            self._finish()
        else:
            self._settle()

    def _finish(self) -> None:
        """Nothing is on the device and nothing will be."""
        if self.over:
            return
        try:
            self._final = self._progress()
            if not self._final[0]:
                self.first_block_ns = 0  # blocks that began were told to release at once
        except DriverError as error:
            self.error = self.error or InternalError(str(error), stage="device host, CUDA")
        self._releasing_ns = 0
        self._device.watcher.remove(self)
        if self._run is not None:
            run, self._run = self._run, None
            self._printed = run.printed
            run.close()
        self._be_over()

    def _be_over(self) -> None:
        self.over = True
        if self._partition is not None:
            self._device.give_partition(self._partition)
        self._device.later(self._on_over)

    def _progress(self) -> tuple[int, int, int]:
        chain = self.chain
        run = self._run
        if run is None:
            return 0, 0, chain.total
        if self._due == len(chain.stages):
            return chain.total, chain.total, chain.total
        now = run.current
        before, total = chain.before[now], chain.stages[now].total
        if now < self._due:  # all of it is done, and the next is not begun
            return before + total, before + total, chain.total
        if chain.stages[now].form != "persistent":
            return before + self._sliced, before + self._sliced_done, chain.total
        if not run.is_ready:
            return 0, 0, chain.total
        words = np.frombuffer(run.record(now, cw.FAULT), np.uint32)
        claimed = min(int(words[_NEXT]), total)
        return before + claimed, before + min(int(words[_DONE]), claimed), chain.total

    def _left(self) -> None:
        if not self.over:
            self._on_left()

    def _see_release(self) -> None:
        """Keep the longest time from a release to its last block gone."""
        if not self._releasing_ns:
            return
        now = self._on_device.current
        left = sum(
            max(0, self._flights.live(flight) - flight.limit)
            for flight in (*self._main, *self._helpers)
            if flight.stage <= now and flight.counts
        )
        if not left:
            took = time.monotonic_ns() - self._releasing_ns
            self.release_ns = max(self.release_ns, took)
            self._releasing_ns = 0

    def _all_claimed(self, stage: int) -> bool:
        """Whether blocks of a begun stage have left that were not told to; may be late to say so.

        A block leaves by itself only if it finds nothing to claim; or it was on an SM that was
        named, so that of such a launch only the job record tells.
        """
        if self.chain.stages[stage].form != "persistent":
            return self._sliced == self.chain.stages[stage].total
        if self._claimed < stage:
            left = [
                flight.named
                for flight in (*self._main, *self._helpers)
                if flight.stage == stage and self._flights.live(flight) < flight.limit
            ]
            if not left or (all(left) and not self._nothing_left(stage)):
                return False
            self._claimed = stage
        return True

    def _nothing_left(self, stage: int) -> bool:
        run = self._on_device
        words = np.frombuffer(run.record(stage, cw.FAULT), np.uint32)
        return run.is_ready and int(words[_NEXT]) >= self.chain.stages[stage].total

    def _count_lives(self) -> int:
        return sum(self._flights.live(flight) for flight in (*self._main, *self._helpers))

    @property
    def _on_device(self) -> Run:
        """The run's words and records, which are there as long as anything of it is."""
        assert self._run is not None
        return self._run
