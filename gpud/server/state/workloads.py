"""The workloads of all sessions: carries out what the workload manager decides.

`gpud.core.workloads.manager` decides who is admitted and who has the turn; this module gives memory
in the sessions' arenas, answers clients, and sets timers.

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
from typing import Any

from gpud.core.workloads import messages as wk
from gpud.core.workloads.manager import WorkloadManager
from gpud.core.workloads.turns import Phase, TurnSettings
from gpud.core.workloads.zones import Need
from gpud.errors import GpudError, InvalidArgument, OutOfMemory, UnknownName
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.arenas import Arenas
from gpud.server.state.mapped_memory import MappedMemory, ZoneOwner
from gpud.server.state.session import Session
from gpud.server.state.workload import Workload, workload_name
from gpud.server.state.workload_memory import WorkloadMemory
from gpud.telemetry.records import Records
from gpud.units import Address
from gpud.wire import messages as wm

__all__ = ["Workloads"]

_LOG = logging.getLogger(__name__)
_NOBODY = "the workload has ended"


class Workloads:
    """All workloads of the daemon. Empty until `set_up`, when the devices' memory is known.

    Args:
        loop: the event loop.
        arenas: the memory of sessions' arrays.
        records: gets events.

    Attributes:
        all: the workloads by number.
        manager: decides.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, arenas: Arenas, records: Records) -> None:
        self._loop = loop
        self._arenas = arenas
        self._memory = WorkloadMemory(arenas)
        self._mapped = MappedMemory(arenas)
        self._records = records
        self.manager = WorkloadManager(())
        self.all: dict[int, Workload] = {}
        self._next = 1
        self._others: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._feeding = False
        self._events: list[wk.Event] = []
        self._copied: dict[int, str] = {}
        self._open_arena: Callable[[int, int], None]
        self._handlers: dict[type, Callable[[Any], None]] = {
            wk.Admit: self._admit,
            wk.Refuse: self._refuse,
            wk.Zone: lambda command: self._memory.set_zone(command.device, command.size),
            wk.Grant: self._grant,
            wk.Recall: self._recall,
            wk.Clear: self._clear,
            wk.Fit: self._fit,
            wk.Grow: lambda command: self._grown(command.workload, command.region.size),
            wk.RefuseGrowth: self._refuse_growth,
            wk.Overstay: self._overstay,
        }

    def set_up(
        self,
        sizes: list[int],
        settings: TurnSettings,
        copied: dict[int, str],
        open_arena: Callable[[int, int], None],
        zones: Mapping[int, ZoneOwner],
    ) -> None:
        """Prepare for the devices, before the first session.

        Args:
            sizes: of their memory for arrays, in bytes.
            settings: of the turns.
            copied: the names of those with memory of their own.
            open_arena: has a device, given by index, open the arena of a session.
            zones: the devices whose memory programs can map, by index.
        """
        self._open_arena = open_arena
        self._mapped.set_up(zones)
        self.manager = WorkloadManager(sizes, settings)
        self._others = (0,) * len(sizes)
        self._copied = copied

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
        else:
            self._refuse_copied(device)
        number = self._next
        self._next += 1
        workload = self.all[number] = Workload(number, session, message)
        now_ns = workload.opened_ns
        self._feed(wk.Opened(now_ns, number, workload.need, message.weight, device))

    def _refuse_copied(self, device: int | None) -> None:
        devices = self._copied if device is None else {device} & self._copied.keys()
        for index in devices:
            raise InvalidArgument(
                f"device {index} ({self._copied[index]}) has memory of its own, and its workloads "
                "cannot take turns yet: use arrays of the session there, or a CPU device"
            )

    def begin(self, session: Session, message: wm.BeginIteration) -> None:
        """Wait for a workload's turn; answered when an iteration begins.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: the workload is in an iteration, waits for one, or is ending.
        """
        workload = self._own(session, message.workload)
        if workload.ends_iteration:
            # The last iteration waits for its jobs: the request is handled when they have ended.
            session.when_idle(partial(self._begin_later, session, message))
            return
        if workload.request is not None or self._iterating(workload):
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
        workload = self._own(session, message.workload)
        waits = workload.ends_iteration or workload.request is not None
        if waits or not self._iterating(workload):
            raise InvalidArgument(
                f"workload {workload_name(workload.number)} is in no iteration: begin one"
            )
        workload.iterations += message.iterations - 1
        workload.standing = False
        workload.ends_iteration = True
        session.when_idle(partial(self._iteration_ended, workload))

    def _iteration_ended(self, workload: Workload) -> None:
        workload.ends_iteration = False
        if workload.number in self.all and self._iterating(workload):
            self._feed(wk.Ended(time.monotonic_ns(), workload.number))

    def grow(self, session: Session, message: wm.GrowWorkload) -> None:
        """Grow a workload's persistent memory; answered at once.

        Raises:
            UnknownName: the session has no such workload.
            InvalidArgument: another request of it is waiting.
        """
        workload = self._own(session, message.workload)
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
        workload = self._own(session, message.workload)
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
        self._close(workload)
        if request:
            session.reply(request, None, None)

    def session_closed(self, session: int) -> None:
        """Forget the workloads of a session, whose memory was freed."""
        for workload in [one for one in self.all.values() if one.owner.number == session]:
            self._close(workload, freed=True)

    def _close(self, workload: Workload, *, freed: bool = False) -> None:
        number = workload.number
        if self.all.pop(number, None) is None:
            return
        if workload.request is not None:
            error = UnknownName(workload.ending or _NOBODY)
            workload.owner.fail(workload.request, error)
        owner = workload.owner.number
        now_ns = time.monotonic_ns()
        if workload.device is not None:
            if workload.mapped:
                self._mapped.close_workload(workload, freed=freed)
            elif not freed:
                self._memory.close_workload(owner, workload.device, workload.address, workload.lent)
            self._event("workload-closed", workload, now_ns)
        self._feed(wk.Closed(now_ns, number))

    def poll(self) -> None:
        """Look whether memory for those that wait has become free. To be called periodically."""
        if self.manager.waiting:
            self._feed(None)

    # -- helpers

    def _own(self, session: Session, number: int) -> Workload:
        """Return a workload of the session that can be used.

        Raises:
            UnknownName: there is none of that number.
        """
        workload = self.all.get(number)
        if workload is None or workload.owner is not session:
            raise UnknownName(
                f"the session has no workload {workload_name(number)}; it was closed, or ended by "
                "somebody who manages the daemon"
            )
        if workload.ending is not None:
            raise UnknownName(workload.ending)
        return workload

    def _iterating(self, workload: Workload) -> bool:
        if workload.device is None:
            return False
        turns = self.manager.turns(workload.device)
        return turns.holder == workload.number and turns.phase is Phase.ITERATING

    def _event(self, what: str, workload: Workload, now_ns: int, *more: tuple[str, Any]) -> None:
        self._records.add_event(
            now_ns,
            what,
            workload.owner.uid,
            ("workload", workload_name(workload.number)),
            ("session", workload.owner.number),
            ("device", workload.device),
            *more,
        )

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
                    self._handlers[type(command)](command)
        finally:
            self._feeding = False
        self._set_timer()

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

    # -- commands

    def _admit(self, command: wk.Admit) -> None:
        workload = self.all[command.workload]
        owner, region = workload.owner, command.region
        request, workload.request = workload.request, None
        assert request is not None
        sizes = region.size + region.offset, command.temporary
        address, lent, arena = Address(0), None, None
        try:
            if workload.mapped:
                self._mapped.open_workload(workload, command.device, sizes[0])
                lent = Address(0) if command.temporary else None
            else:
                address, lent, arena = self._memory.open_workload(
                    owner.number, owner.uid, command.device, region.start, sizes
                )
        except GpudError as error:
            del self.all[command.workload]
            self._events.append(wk.Closed(time.monotonic_ns(), command.workload))
            owner.fail(request, error)
            return
        workload.device, workload.address, workload.reason = command.device, address, command.reason
        workload.lent = None if lent is None else (lent, command.temporary)
        if arena is not None:
            file = self._arenas.file(arena)
            owner.send_with(wm.Arena(command.device, arena.base, arena.size), file)
            self._open_arena(command.device, owner.number)
        owner.send(
            wm.WorkloadOpened(
                request,
                workload.number,
                command.device,
                address,
                region.size,
                0 if lent is None else lent,
                command.temporary,
                command.reason,
            )
        )
        self._event("workload-opened", workload, time.monotonic_ns(), ("reason", command.reason))

    def _refuse(self, command: wk.Refuse) -> None:
        workload = self.all.pop(command.workload)
        assert workload.request is not None
        error = OutOfMemory(command.needed_bytes, command.most_bytes, limit="zones")
        workload.owner.fail(workload.request, error)

    def _grant(self, command: wk.Grant) -> None:
        workload = self.all[command.workload]
        if workload.mapped:
            self._mapped.begin_turn(workload, partial(self._lent, workload, command))
        else:
            self._granted(workload, command)

    def _lent(self, workload: Workload, command: wk.Grant, error: GpudError | None) -> None:
        """Answer a program that maps its memory, as that is there, or has failed with ``error``."""
        if workload.number not in self.all:
            return  # its request was answered when it ended
        if error is None:
            self._granted(workload, command)
        else:
            request, workload.request = workload.request, None
            assert request is not None
            workload.owner.fail(request, error)
            self._feed(wk.Ended(time.monotonic_ns(), workload.number))

    def _granted(self, workload: Workload, command: wk.Grant) -> None:
        request, workload.request = workload.request, None
        assert request is not None
        assert workload.device is not None
        workload.iterations += 1
        workload.waited_ns += time.monotonic_ns() - workload.asked_ns
        if command.begins_turn:
            workload.turns += 1
            if workload.lent is not None and not workload.mapped:
                self._memory.begin_turn(workload.owner.number, workload.device, workload.lent)
        workload.standing = command.standing
        answer = {"new": command.begins_turn, "standing": command.standing}
        workload.owner.send(wm.Answer(request, answer))

    def _recall(self, command: wk.Recall) -> None:
        workload = self.all[command.workload]
        workload.standing = False
        workload.owner.send(wm.TurnRecalled(workload.number))

    def _clear(self, command: wk.Clear) -> None:
        workload = self.all[command.workload]
        assert workload.device is not None
        cleared = partial(self._cleared, workload)
        if workload.mapped:
            self._mapped.clear_temporary(workload, cleared)
        elif workload.lent is None:
            cleared()
        else:
            owner = workload.owner.number
            self._memory.clear_temporary(owner, workload.device, workload.lent, cleared)

    def _cleared(self, workload: Workload) -> None:
        if workload.number in self.all:
            self._feed(wk.Cleared(time.monotonic_ns(), workload.number))

    def _fit(self, command: wk.Fit) -> None:
        workload = self.all[command.workload]
        assert workload.device is not None
        region = command.region
        if workload.mapped:
            self._mapped.shrink_workload(workload, region.size + region.offset)
            workload.lent = (0, command.temporary) if command.temporary else None
            return
        workload.lent = self._memory.shrink_workload(
            workload.owner.number,
            workload.device,
            workload.address,
            workload.lent,
            (region.size + region.offset, command.temporary),
        )

    def _grown(self, number: int, size: int) -> None:
        workload = self.all[number]
        request, workload.request = workload.request, None
        assert request is not None
        workload.owner.reply(request, size, None)

    def _refuse_growth(self, command: wk.RefuseGrowth) -> None:
        workload = self.all[command.workload]
        request, workload.request = workload.request, None
        assert request is not None
        error = OutOfMemory(command.asked_bytes, command.most_bytes, limit="offset")
        workload.owner.fail(request, error)

    def _overstay(self, command: wk.Overstay) -> None:
        workload = self.all[command.workload]
        now_ns = time.monotonic_ns()
        for_s = (now_ns - command.began_ns) / 1e9
        _LOG.warning(
            "workload %s (%s, user %s) has been in an iteration for %.1f s while %d wait",
            workload_name(workload.number), workload.owner.program,
            user_name(workload.owner.uid), for_s, command.waiting,
        )  # fmt: skip
        self._event(
            "workload-overstays", workload, now_ns, ("for_s", for_s), ("waiting", command.waiting)
        )
