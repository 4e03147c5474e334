"""The workloads of all sessions: handles their requests, for which the workload manager decides.

`gpud.core.workloads.manager` decides who is admitted and who has the turn; this module tells it
what happens, and sets timers. `gpud.server.workloads.commands` carries out its commands.

Properties:
    answered: every request is answered once, also if its session or workload ends meanwhile;
    cleared: no turn begins on a device before the pages of the last one's temporary memory are
        freed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from gpud.core.workloads import messages as wk
from gpud.core.workloads.manager import WorkloadManager
from gpud.core.workloads.turns import Phase, TurnSettings
from gpud.core.workloads.zones import Need
from gpud.errors import GpudError, InvalidArgument, UnknownName
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.arenas import Arenas
from gpud.server.state.session import Session
from gpud.server.workloads.commands import WorkloadCommands
from gpud.server.workloads.idle_turns import IdleTurns
from gpud.server.workloads.mapped_memory import MappedMemory, ZoneOwner
from gpud.server.workloads.memory import WorkloadMemory
from gpud.server.workloads.program_moves import ProgramMoves
from gpud.server.workloads.region_mover import RegionMover
from gpud.server.workloads.workload import Workload, workload_name
from gpud.telemetry.records import Records
from gpud.wire import messages as wm

__all__ = ["Workloads"]

_LOG = logging.getLogger(__name__)
_NOBODY = "the workload has ended"
_MOST_ENDINGS = 1000
"""Of how many ended workloads it is known why."""


class Workloads:
    """All workloads of the daemon. Empty until `set_up`, when the devices' memory is known.

    Args:
        loop: the event loop.
        arenas: the memory of sessions' arrays.
        records: gets events.

    Attributes:
        all: the workloads by number.
        manager: decides.
        mover: moves regions to host memory and back.
        programs: has programs move those that they map themselves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, arenas: Arenas, records: Records) -> None:
        self._loop = loop
        self._arenas = arenas
        self.mover = RegionMover(arenas)
        self.programs = ProgramMoves()
        self._memory = WorkloadMemory(arenas)
        self._mapped = MappedMemory(arenas)
        self._records = records
        self.manager = WorkloadManager(())
        self.all: dict[int, Workload] = {}
        self._endings: dict[int, tuple[int, str]] = {}  # of ended ones: session, and why
        self._next = 1
        self._others: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._feeding = False
        self._events: list[wk.Event] = []
        self._idle_turns = IdleTurns(loop, self._linger_ns, self._idled)
        self._commands = WorkloadCommands(
            self.all,
            arenas,
            self._memory,
            self._mapped,
            self.mover,
            self.programs,
            records,
            self._feed,
            self._close,
        )

    def set_up(
        self,
        sizes: list[int],
        settings: TurnSettings,
        moved_bytes: int,
        open_arena: Callable[[int, int], None],
        zones: Mapping[int, ZoneOwner],
    ) -> None:
        """Prepare for the devices, before the first session.

        Args:
            sizes: of their memory for arrays, in bytes.
            settings: of the turns.
            moved_bytes: the most host memory for regions that are not on their device.
            open_arena: has a device, given by index, open the arena of a session.
            zones: the devices whose memory programs can map, by index.
        """
        self._commands.open_arena = open_arena
        self._mapped.set_up(zones)
        self.manager = WorkloadManager(sizes, settings, moved_bytes)
        self._others = (0,) * len(sizes)

    def change_turns(self, settings: TurnSettings) -> None:
        """Use other settings for turns from now on."""
        self.manager.change_turns(settings)
        self._set_timer()

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self._others)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- requests

    def open(self, session: Session, message: wm.OpenWorkload) -> None:
        """Ask for memory for a workload of a session; answered when there is room.

        Raises:
            InvalidArgument: the device cannot have workloads.
        """
        device = message.device
        if message.mapped:
            self._mapped.check(device)
        if message.movable and message.persistent is None:
            raise InvalidArgument(
                "a movable workload says what it needs: give persistent and temporary; "
                "gpuctl workloads shows what a run without sizes has learned"
            )
        number = self._next
        self._next += 1
        workload = self.all[number] = Workload(number, session, message)
        now_ns = workload.opened_ns
        self._feed(
            wk.Opened(now_ns, number, workload.need, message.weight, device, message.movable)
        )

    def begin(self, session: Session, message: wm.BeginIteration) -> None:
        """Wait for a workload's turn; answered when an iteration begins.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: the workload is in an iteration, waits for one, or is ending.
        """
        workload = self.own(session, message.workload)
        if workload.ends_iteration:
            # The last iteration waits for its jobs: the request is handled when they have ended.
            session.when_idle(partial(self._begin_later, session, message))
            return
        if workload.request is not None or self.iterating(workload):
            raise InvalidArgument(
                f"workload {workload_name(workload.number)} is in an iteration, or waits for one: "
                "iterations do not overlap; end the first, or open another workload"
            )
        workload.request = message.request
        workload.asked_ns = time.monotonic_ns()
        self._feed(wk.Asked(workload.asked_ns, workload.number))

    def _begin_later(self, session: Session, message: wm.BeginIteration) -> None:
        try:
            self.begin(session, message)
        except GpudError as error:
            session.fail(message.request, error)

    def end_iteration(self, session: Session, message: wm.EndIteration) -> None:
        """End an iteration once the jobs that were submitted before have ended.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: the workload is in no iteration.
        """
        workload = self.own(session, message.workload)
        waits = workload.ends_iteration or workload.request is not None
        if waits or not self.iterating(workload):
            raise InvalidArgument(
                f"workload {workload_name(workload.number)} is in no iteration: begin one"
            )
        workload.iterations += message.iterations - 1
        workload.standing = False
        workload.ends_iteration = True
        idle_ns = 0 if session.runs else message.idle_ns
        session.when_idle(partial(self._iteration_ended, workload, idle_ns))

    def _iteration_ended(self, workload: Workload, idle_ns: int) -> None:
        workload.ends_iteration = False
        if workload.number in self.all and self.iterating(workload):
            self._feed(wk.Ended(time.monotonic_ns(), workload.number, idle_ns))

    def grow(self, session: Session, message: wm.GrowWorkload) -> None:
        """Grow a workload's persistent memory; answered at once.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: another request of it is waiting.
        """
        workload = self.own(session, message.workload)
        if workload.request is not None:
            raise InvalidArgument("the workload waits for memory or its turn: grow it afterwards")
        workload.request = message.request
        self._feed(wk.GrowAsked(time.monotonic_ns(), workload.number, message.size))

    def fit(self, session: Session, message: wm.FitWorkload) -> None:
        """Keep of a workload's memory what it needs; not answered.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: it said what it needs when it was opened, or has less.
        """
        workload = self.own(session, message.workload)
        need = Need(message.persistent, message.temporary, message.offset)
        region = None if workload.device is None else self.manager.region(workload.number)
        if workload.need is not None or region is None:
            raise InvalidArgument("the workload has said what it needs already")
        whole, lent = need.whole, 0 if workload.lent is None else workload.lent[1]
        room = region.size + region.offset - whole.persistent
        need = whole._replace(offset=min(whole.offset, max(0, room)))
        if room < 0 or whole.temporary > lent:
            raise InvalidArgument("the workload has less memory than it says to need")
        workload.need = need
        self._feed(wk.Fitted(time.monotonic_ns(), workload.number, need))

    def region_moved(self, session: Session, message: wm.RegionMoved) -> None:
        """Note that a program has moved what a workload keeps; not answered.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: it was not asked to.
        """
        self.programs.moved(self.own(session, message.workload), message)

    def end(self, session: Session, message: wm.CloseWorkload) -> None:
        """End a workload once the jobs submitted so far have ended; answered when it is done.

        Raises:
            UnknownName: there is no such workload, or it is of another user.
        """
        workload = self.all.get(message.workload)
        if workload is None or not may_manage(session.peer, workload.owner.uid):
            raise UnknownName(
                f"there is no workload {workload_name(message.workload)}; gpuctl workloads lists "
                "those that there are"
            )
        if workload.ending is None:
            own = workload.owner is session
            workload.ending = (
                _NOBODY if own else f"the workload was ended by {user_name(session.uid)}"
            )
        done = partial(self._ended, workload, session, message.request)
        workload.owner.when_idle(done)

    def _ended(self, workload: Workload, session: Session, request: int) -> None:
        closed = partial(self._closed, workload, session, request)
        self.mover.when_still(workload.number, closed)

    def _closed(self, workload: Workload, session: Session, request: int) -> None:
        self._close(workload)
        if request:
            session.reply(request, None, None)

    def session_closed(self, session: int) -> None:
        """Forget the workloads of a session, whose memory was freed."""
        for workload in [one for one in self.all.values() if one.owner.number == session]:
            self._close(workload, freed=True)
        self._endings = {one: why for one, why in self._endings.items() if why[0] != session}

    def _close(self, workload: Workload, *, freed: bool = False) -> None:
        number = workload.number
        if self.all.pop(number, None) is None:
            return
        if workload.request is not None:
            error = UnknownName(workload.ending or _NOBODY)
            workload.owner.fail(workload.request, error)
        if workload.ending not in (None, _NOBODY):
            self._endings[number] = workload.owner.number, workload.ending
            if len(self._endings) > _MOST_ENDINGS:
                del self._endings[next(iter(self._endings))]
        owner = workload.owner.number
        now_ns = time.monotonic_ns()
        if workload.device is not None:
            if workload.mapped:
                self._mapped.close_workload(workload, freed=freed)
                self.programs.forget(number)
            elif not freed:
                self._memory.close_workload(
                    owner,
                    workload.device,
                    workload.address,
                    workload.lent,
                    movable=workload.movable,
                    away=self.mover.is_away(number),
                )
            self.mover.when_still(number, partial(self.mover.forget, number))
            self._commands.record("workload-closed", workload, now_ns)
        self._feed(wk.Closed(now_ns, number))

    def pause(self, device: int, *, on: bool) -> None:
        """Begin no iteration on a device from now on, or again."""
        self._feed(wk.Paused(time.monotonic_ns(), device, on))

    def poll(self) -> None:
        """Look at what no event tells. To be called periodically.

        Memory for workloads that wait may have become free, and a program may not have moved what
        it keeps.
        """
        if self.manager.waiting:
            self._feed(None)
        now_ns = time.monotonic_ns()
        for index in range(self.devices):
            limit_ns = self.manager.turns(index).settings.overstay_ns
            for workload, for_ns in self.programs.late(index, now_ns, limit_ns):
                self._commands.name_late(workload, now_ns, for_ns)

    # -- helpers

    def own(self, session: Session, number: int) -> Workload:
        """Return a workload of the session that can be used.

        Raises:
            UnknownName: there is none of that number.
        """
        workload = self.all.get(number)
        if workload is None or workload.owner is not session:
            of_session, why = self._endings.get(number, (None, ""))
            if of_session == session.number:
                raise UnknownName(why)
            raise UnknownName(
                f"the session has no workload {workload_name(number)}; it was closed, or ended by "
                "somebody who manages the daemon"
            )
        if workload.ending is not None:
            raise UnknownName(workload.ending)
        return workload

    def iterating(self, workload: Workload) -> bool:
        """Return whether a workload is in an iteration."""
        if workload.device is None:
            return False
        turns = self.manager.turns(workload.device)
        return turns.holder == workload.number and turns.phase is Phase.ITERATING

    def _feed(self, event: wk.Event | None) -> None:
        """Have the manager handle an event, and carry out its commands."""
        if event is not None:
            self._events.append(event)
        if self._feeding:
            return  # the loop below goes on
        self._feeding = True
        try:
            self._note_memory()
            while self._events:
                for command in self.manager.handle(self._events.pop(0)):
                    try:
                        self._commands.carry_out(command)
                    except Exception:  # noqa: BLE001 - of one workload: the others' must follow
                        _LOG.exception("%r could not be carried out; report this", command)
        finally:
            self._feeding = False
        for index in range(self.devices):
            turns = self.manager.turns(index)
            if turns.leased and turns.waiting and turns.holder is not None:
                holder = self.all[turns.holder]
                if not holder.mapped:  # its program's kernels are not seen from here
                    self._idle_turns.watch(holder)
        self._set_timer()

    def _linger_ns(self, workload: Workload) -> int | None:
        turns = None if workload.device is None else self.manager.turns(workload.device)
        if turns is None or not turns.leased or turns.holder != workload.number:
            return None
        return turns.settings.linger_ns if turns.waiting else None

    def _idled(self, workload: Workload) -> None:
        self._feed(wk.Idled(time.monotonic_ns(), workload.number))

    def _note_memory(self) -> None:
        """Tell the manager what ordinary arrays use now, before what it was told to handle."""
        others = tuple(
            self._memory.other_bytes(index) - self._mapped.counted_bytes(index)
            for index in range(len(self._others))
        )
        if others != self._others:
            self._others = others
            self._events.insert(0, wk.MemoryChanged(time.monotonic_ns(), others))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ns = self.manager.timer_ns()
        if at_ns is not None:
            delay_s = max(0.0, (at_ns - time.monotonic_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(wk.Tick(time.monotonic_ns()))
