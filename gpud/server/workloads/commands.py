"""Carries out what the workload manager decides: gives memory, moves it, and answers clients."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gpud.core.workloads import messages as wk
from gpud.errors import GpudError, OutOfMemory, UnknownName
from gpud.server.state.access import user_name
from gpud.server.state.arenas import Arenas
from gpud.server.workloads.mapped_memory import MappedMemory
from gpud.server.workloads.memory import WorkloadMemory
from gpud.server.workloads.program_moves import ProgramMoves
from gpud.server.workloads.region_mover import Placed, RegionMover
from gpud.server.workloads.workload import Workload, workload_name
from gpud.telemetry.records import Records
from gpud.units import Address
from gpud.wire import messages as wm

__all__ = ["WorkloadCommands"]

_LOG = logging.getLogger(__name__)

_LARGEST = (1 << 64) - 1
"""The largest number in a message."""


class WorkloadCommands:
    """Carries out commands.

    Args:
        workloads: all of them, by number.
        arenas: the memory of sessions' arrays.
        memory: of the workloads.
        mapped: of those whose programs map it themselves.
        mover: moves regions.
        programs: has programs move them.
        records: gets events.
        feed: has the manager handle an event, after the commands of the one before.
        close: closes a workload.

    Attributes:
        open_arena: has a device, given by index, open the arena of a session.
    """

    def __init__(
        self,
        workloads: dict[int, Workload],
        arenas: Arenas,
        memory: WorkloadMemory,
        mapped: MappedMemory,
        mover: RegionMover,
        programs: ProgramMoves,
        records: Records,
        feed: Callable[[wk.Event], None],
        close: Callable[[Workload], None],
    ) -> None:
        self._all = workloads
        self._arenas = arenas
        self._memory, self._mapped = memory, mapped
        self._mover, self._programs = mover, programs
        self._records = records
        self._feed = feed
        self._close = close
        self.open_arena: Callable[[int, int], None]
        self._handlers: dict[type, Callable[[Any], None]] = {
            wk.Admit: self._admit,
            wk.Refuse: self._refuse,
            wk.Zone: lambda command: self._memory.set_zone(command.device, command.size),
            wk.Grant: self._grant,
            wk.Recall: self._recall,
            wk.Clear: self._clear,
            wk.Evict: self._evict,
            wk.Restore: self._restore,
            wk.Fit: self._fit,
            wk.Grow: lambda command: self._grown(command.workload, command.region.size),
            wk.RefuseGrowth: self._refuse_growth,
            wk.Overstay: self._overstay,
        }

    def carry_out(self, command: wk.Command) -> None:
        """Carry out a command."""
        self._handlers[type(command)](command)

    def record(self, what: str, workload: Workload, now_ns: int, *more: tuple[str, Any]) -> None:
        """Add an event about a workload to the records."""
        self._records.add_event(
            now_ns,
            what,
            workload.owner.uid,
            ("workload", workload_name(workload.number)),
            ("session", workload.owner.number),
            ("device", workload.device),
            *more,
        )

    def _admit(self, command: wk.Admit) -> None:
        workload = self._all.get(command.workload)
        if workload is None:
            return  # it is closed, which the manager is about to hear
        owner, region = workload.owner, command.region
        if owner.gone:  # and its memory, maybe: nothing would free what it gets now
            del self._all[command.workload]
            self._feed(wk.Closed(time.monotonic_ns(), command.workload))
            return
        request, workload.request = workload.request, None
        assert request is not None
        sizes = region.size + region.offset, command.temporary
        position = None if workload.movable else region.start
        address, lent, arena = Address(0), None, None
        try:
            if workload.mapped:
                self._mapped.open_workload(workload, command.device, sizes[0])
                lent = Address(0) if command.temporary else None
            else:
                address, lent, arena = self._memory.open_workload(
                    owner.number, owner.account, command.device, position, sizes
                )
        except GpudError as error:
            del self._all[command.workload]
            self._feed(wk.Closed(time.monotonic_ns(), command.workload))
            owner.fail(request, error)
            return
        workload.device, workload.address, workload.reason = command.device, address, command.reason
        workload.lent = None if lent is None else (lent, command.temporary)
        workload.region_bytes = sizes[0]
        if command.away and not workload.mapped:
            self._mover.note_away(workload.number, self._placed(workload))
        if arena is not None:
            file = self._arenas.file(arena)
            owner.send_with(wm.Arena(command.device, arena.base, arena.size), file)
            self.open_arena(command.device, owner.number)
        opened = wm.WorkloadOpened(
            request,
            workload.number,
            command.device,
            address,
            region.size,
            0 if lent is None else lent,
            command.temporary,
            command.reason,
        )
        if workload.mapped or command.away or not self._arenas.is_copied(command.device):
            self._opened(workload, opened, None)
        else:
            place = owner.number, command.device, (address, sizes[0])
            committed = partial(self._opened, workload, opened)
            self._arenas.commit(*place, committed, shrinks=workload.need is None)

    def _opened(
        self, workload: Workload, opened: wm.WorkloadOpened, error: GpudError | None
    ) -> None:
        """Answer that a workload has its memory, or has none because of an error."""
        if workload.number not in self._all:
            if not workload.owner.gone:
                ended = workload.ending or "the workload has ended"
                workload.owner.fail(opened.request, UnknownName(ended))
            return
        if error is not None:
            workload.owner.fail(opened.request, error)
            self._close(workload)
            return
        workload.owner.send(opened)
        self.record("workload-opened", workload, time.monotonic_ns(), ("reason", opened.reason))

    def _refuse(self, command: wk.Refuse) -> None:
        workload = self._all.pop(command.workload)
        assert workload.request is not None
        needed = min(command.needed_bytes, _LARGEST)  # three numbers that a message holds, in sum
        error = OutOfMemory(needed, command.most_bytes, limit="zones")
        workload.owner.fail(workload.request, error)

    def _grant(self, command: wk.Grant) -> None:
        workload = self._all[command.workload]
        given = partial(self._lent, workload, command)
        if workload.mapped:
            self._mapped.begin_turn(workload, given)
        elif command.begins_turn and workload.lent is not None:
            assert workload.device is not None
            place = workload.owner.number, workload.device, workload.lent
            self._memory.begin_turn(*place, given, learns=workload.need is None)
        else:
            given(None)

    def _lent(self, workload: Workload, command: wk.Grant, error: GpudError | None) -> None:
        """Answer that an iteration begins, as its memory is there, or has failed with ``error``."""
        if workload.number not in self._all:
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
        workload.standing = command.standing
        answer = {
            "new": command.begins_turn, "standing": command.standing, "alone": command.alone,
        }  # fmt: skip
        workload.owner.send(wm.Answer(request, answer))

    def _recall(self, command: wk.Recall) -> None:
        workload = self._all[command.workload]
        workload.standing = False
        workload.owner.send(wm.TurnRecalled(workload.number))

    def _clear(self, command: wk.Clear) -> None:
        workload = self._all[command.workload]
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
        if workload.number in self._all:
            self._feed(wk.Cleared(time.monotonic_ns(), workload.number))

    def _evict(self, command: wk.Evict) -> None:
        workload = self._all[command.workload]
        done = partial(self._moved, workload, wk.Evicted)
        if workload.mapped:
            self._programs.leave(workload, done)
        else:
            self._mover.leave(workload.number, self._placed(workload), done)

    def _restore(self, command: wk.Restore) -> None:
        workload = self._all[command.workload]
        done = partial(self._moved, workload, wk.Restored)
        if workload.mapped:
            self._programs.come_back(workload, done)
        else:
            self._mover.come_back(workload.number, self._placed(workload), done)

    def _placed(self, workload: Workload) -> Placed:
        assert workload.device is not None
        owner = workload.owner.number
        return Placed(owner, workload.device, workload.address, workload.region_bytes)

    def _moved(
        self,
        workload: Workload,
        event: type[wk.Evicted] | type[wk.Restored],
        error: GpudError | None,
    ) -> None:
        if workload.number not in self._all:
            return
        if error is None:
            self._feed(event(time.monotonic_ns(), workload.number))
            return
        name = workload_name(workload.number)
        _LOG.error("what workload %s keeps cannot be moved: %s; it is ended", name, error.message)
        workload.ending = (
            f"the workload was ended, as what it keeps could not be moved: {error.message}"
        )
        self._close(workload)  # between its turns: no job of it runs

    def name_late(self, workload: Workload, now_ns: int, for_ns: int) -> None:
        """Name a program that has not moved what it keeps for a long time."""
        for_s = for_ns / 1e9
        _LOG.warning(
            "workload %s (%s, user %s) was asked %.1f s ago to move what it keeps, and has not: "
            "others wait for that; gpuctl workloads --end ends it",
            workload_name(workload.number), workload.owner.program,
            user_name(workload.owner.uid), for_s,
        )  # fmt: skip
        self.record("workload-moves-late", workload, now_ns, ("for_s", for_s))

    def _fit(self, command: wk.Fit) -> None:
        workload = self._all[command.workload]
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
        workload = self._all[number]
        request, workload.request = workload.request, None
        assert request is not None
        workload.owner.reply(request, size, None)

    def _refuse_growth(self, command: wk.RefuseGrowth) -> None:
        workload = self._all[command.workload]
        request, workload.request = workload.request, None
        assert request is not None
        error = OutOfMemory(command.asked_bytes, command.most_bytes, limit="offset")
        workload.owner.fail(request, error)

    def _overstay(self, command: wk.Overstay) -> None:
        workload = self._all[command.workload]
        now_ns = time.monotonic_ns()
        for_s = (now_ns - command.began_ns) / 1e9
        _LOG.warning(
            "workload %s (%s, user %s) has been in an iteration for %.1f s while %d wait",
            workload_name(workload.number), workload.owner.program,
            user_name(workload.owner.uid), for_s, command.waiting,
        )  # fmt: skip
        self.record(
            "workload-overstays", workload, now_ns, ("for_s", for_s), ("waiting", command.waiting)
        )
