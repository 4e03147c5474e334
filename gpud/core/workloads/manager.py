"""The workload manager: which workloads are on which device, and which of them has the turn.

Pure: `WorkloadManager.handle` takes an event and returns commands, without I/O, clock or chance.

Approach: a workload is placed on the device whose two zones leave most of its memory free. One
that fits nowhere now waits, in the order of arrival; a smaller one may not overtake it on a device
where both could be. One that no device can ever hold is refused. On each device the admitted ones
take turns (`gpud.core.workloads.turns`). Movable regions that are not all on the device move to
host memory and back (`gpud.core.workloads.device`).

Properties, beside those of `gpud.core.workloads.zones` and `gpud.core.workloads.turns`:
    in_order: a workload waits for memory only as long as it does not fit, or an older one waits
        that could be on the same device;
    there: an iteration begins only when its workload's region is on the device;
    bounded_away: what is in host memory is never more than its limit;
    replayable: equal events give equal commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from gpud.core.memory.allocator import PAGE_BYTES, require
from gpud.core.workloads.device import WorkloadDevice
from gpud.core.workloads.messages import (
    Admit,
    Asked,
    Clear,
    Cleared,
    Closed,
    Command,
    Ended,
    Event,
    Evicted,
    Fit,
    Fitted,
    Grant,
    Grow,
    GrowAsked,
    Idled,
    MemoryChanged,
    Opened,
    Overstay,
    Paused,
    Recall,
    Refuse,
    RefuseGrowth,
    Restored,
    Tick,
    Zone,
)
from gpud.core.workloads.turns import Phase, Turns, TurnSettings
from gpud.core.workloads.window import Place
from gpud.core.workloads.zones import Need, Region, Zones

__all__ = ["WorkloadManager"]

_GIB = 1 << 30
_LEAST_LEARNED = 4 * PAGE_BYTES
"""The least memory of either kind with which a workload can find out what it needs."""


class _Placed(NamedTuple):
    """A possible place: the best is one where nothing moves, with least of the memory used.

    Attributes:
        moves: whether movable regions do not all fit.
        used: the part of the device's memory that is used then.
        device: index.
        window: the size of its window then.
    """

    moves: bool
    used: Fraction
    device: int
    window: int


class WorkloadManager:
    """The workloads of one node.

    Args:
        sizes: of the memory of each device, in bytes.
        settings: of the turns; None: the usual ones.
        host_bytes: the most host memory for regions that are not on their device.

    Attributes:
        host_bytes: as given.
        waiting: workloads that wait to be admitted, the oldest first.
        device_of: the device of each admitted workload.
    """

    def __init__(
        self, sizes: Sequence[int], settings: TurnSettings | None = None, host_bytes: int = 0
    ) -> None:
        self.host_bytes = host_bytes
        turns = TurnSettings() if settings is None else settings
        self._devices = [WorkloadDevice(size, turns) for size in sizes]
        self.waiting: dict[int, Opened] = {}
        self.device_of: dict[int, int] = {}

    def change_turns(self, settings: TurnSettings) -> None:
        """Use other settings from now on, for turns that have begun as well."""
        for device in self._devices:
            device.turns.settings = settings

    # -- queries

    def zones(self, device: int) -> Zones:
        """Return a device's zones; not to be changed."""
        return self._devices[device].zones

    def turns(self, device: int) -> Turns:
        """Return a device's turns; not to be changed."""
        return self._devices[device].turns

    def region(self, workload: int) -> Region | None:
        """Return the region of an admitted workload; None if it is not admitted."""
        device = self.device_of.get(workload)
        return None if device is None else self._devices[device].zones.region(workload)

    def timer_ns(self) -> int | None:
        """Return when a `Tick` is due; None: not before another event."""
        times = [device.timer_ns() for device in self._devices]
        return min((time for time in times if time is not None), default=None)

    # -- events

    def handle(self, event: Event) -> list[Command]:
        """Handle an event; returns what is to be done, in order.

        Raises:
            InternalError: the event cannot happen in this state.
        """
        commands: list[Command] = []
        match event:
            case Opened():
                self._opened(event, commands)
            case Asked(now_ns, workload):
                self._device(workload).turns.ask(workload, now_ns)
            case Ended(now_ns, workload, idle_ns):
                self._device(workload).turns.end_iteration(workload, now_ns, idle_ns)
            case Idled(now_ns, workload):
                self._recall(self._device(workload).turns.ask_back(now_ns, idle=workload), commands)
            case Cleared(_, workload):
                self._device(workload).turns.cleared(workload)
            case Evicted(now_ns, workload):
                device = self._device(workload)
                device.zones.window.left(workload)
                device.moved(workload, Place.LEAVING, now_ns)
            case Restored(now_ns, workload):
                device = self._device(workload)
                device.zones.window.is_back(workload)
                device.moved(workload, Place.RETURNING, now_ns)
            case GrowAsked(_, workload, size):
                self._grow(workload, size, commands)
            case Fitted(_, workload, need):
                self._fit(workload, need, commands)
            case Closed(_, workload):
                self._closed(workload)
            case MemoryChanged(_, other_bytes):
                for device, size in zip(self._devices, other_bytes, strict=True):
                    device.other_bytes = size
            case Paused(now_ns, index, on):
                self._pause(self._devices[index], on, now_ns, commands)
            case Tick():
                pass  # below
        for device in self._devices:
            device.zones.fit_window(device.other_bytes, widen=False)
        if isinstance(event, Closed | Evicted | Restored | Fitted | MemoryChanged):
            self._admit_waiting(commands)
        for device in self._devices:
            device.zones.fit_window(device.other_bytes, widen=not self.waiting)
            self._go_on(device, event.now_ns, commands)
        self._announce_zones(commands)
        return commands

    def _go_on(self, device: WorkloadDevice, now_ns: int, commands: list[Command]) -> None:
        turns = device.turns
        device.press()
        over = None if device.paused else turns.tick(now_ns)
        if over is not None:
            commands.append(Clear(over))
        device.move(now_ns, commands)
        self._recall(turns.ask_back(now_ns), commands)
        if device.paused:
            return
        begins_turn = turns.phase is Phase.FREE
        workload = turns.next_iteration(now_ns, device.ready)
        if workload is not None:
            device.press()
            turns.leased = not turns.pressed
            alone = len(device.zones.temporary) == 1
            commands.append(Grant(workload, begins_turn, turns.leased, alone))
            device.move(now_ns, commands)  # for the next one: this turn may be without events
        overstaying = turns.overstays(now_ns)
        if overstaying is not None:
            commands.append(Overstay(overstaying, turns.since_ns, len(turns.waiting)))

    def _recall(self, workload: int | None, commands: list[Command]) -> None:
        if workload is not None:
            commands.append(Recall(workload))

    def _pause(
        self, device: WorkloadDevice, on: bool, now_ns: int, commands: list[Command]
    ) -> None:
        device.paused = on
        if on:
            self._recall(device.turns.revoke(now_ns), commands)

    # -- admission

    def _opened(self, event: Opened, commands: list[Command]) -> None:
        known = event.workload in self.device_of or event.workload in self.waiting
        require(not known, f"workload {event.workload} is open already")
        needed = _least(event)
        most = max((self._devices[one].zones.size for one in self._allowed(event)), default=0)
        if needed > most:
            commands.append(Refuse(event.workload, needed, most))
            return
        self.waiting[event.workload] = event
        self._admit_waiting(commands)

    def _admit_waiting(self, commands: list[Command]) -> None:
        taken: set[int] = set()  # devices for which an older one waits
        for device in self._devices:
            device.target = None
        for event in list(self.waiting.values()):
            allowed = [
                one
                for one in self._allowed(event)
                if self._devices[one].zones.size >= _least(event)
            ]
            places = [
                place
                for one in allowed
                if one not in taken and (place := self._place(one, event)) is not None
            ]
            if places:
                del self.waiting[event.workload]
                self._admit(event, min(places), commands)
            else:
                self._make_room([one for one in allowed if one not in taken], event, commands)
                taken.update(allowed)

    def _make_room(self, allowed: list[int], event: Opened, commands: list[Command]) -> None:
        """Have regions leave the end of a window, behind which a workload that waits would fit."""
        for one in allowed:
            room = self._room(one, event)
            if room is not None:
                device = self._devices[one]
                device.target = room
                return

    def _allowed(self, event: Opened) -> Sequence[int]:
        return range(len(self._devices)) if event.device is None else (event.device,)

    def _need(self, index: int, event: Opened) -> Need | None:
        """Return what a workload would get on a device, in whole pages; None: nothing useful."""
        device = self._devices[index]
        if event.need is not None:
            return event.need.whole
        need = device.zones.remaining(device.other_bytes)
        enough = min(need.persistent + need.offset, need.temporary) >= _LEAST_LEARNED
        return need if enough else None

    def _room(self, index: int, event: Opened) -> int | None:
        """Return the size of the device's window with which a workload fits; None: it does not."""
        device, need = self._devices[index], self._need(index, event)
        if need is None:
            return None
        window = device.zones.window_for(need, device.other_bytes, movable=event.movable)
        if window is None:
            return None
        more = need.persistent + need.offset if event.movable else 0
        away = sum(one.away_bytes() for one in self._devices if one is not device)
        fits = away + device.away_bytes(more, window) <= self.host_bytes
        return window if fits or not device.away_bytes(more, window) else None

    def _place(self, index: int, event: Opened) -> _Placed | None:
        device, window = self._devices[index], self._room(index, event)
        if window is None or window < device.zones.window.occupied_end:
            return None
        need = self._need(index, event)
        assert need is not None
        zones = device.zones
        used = zones.persistent_bytes - zones.window.size + window + device.other_bytes
        used += max(zones.temporary_bytes, need.temporary)
        if not event.movable:
            used += need.persistent + need.offset
        if event.need is None:  # all that is left: the more that is, the better
            used = zones.used_bytes + device.other_bytes
        away = device.away_bytes(need.persistent + need.offset if event.movable else 0, window)
        return _Placed(bool(away), Fraction(used, max(1, zones.size)), index, window)

    def _admit(self, event: Opened, place: _Placed, commands: list[Command]) -> None:
        device = self._devices[place.device]
        need = event.need or device.zones.remaining(device.other_bytes)
        if event.movable:
            device.zones.place_movable(event.workload, need, place.window)
            region = device.zones.region(event.workload)
        else:
            device.zones.window.size = place.window
            region = device.zones.place(event.workload, need, device.other_bytes)
        assert region is not None
        self.device_of[event.workload] = place.device
        device.turns.join(event.workload, event.weight)
        self._recall(device.turns.revoke(event.now_ns), commands)
        reason = self._reason(event, place)
        temporary = device.zones.temporary[event.workload]
        away = not device.ready(event.workload)
        commands.append(Admit(event.workload, place.device, region, temporary, reason, away))

    def _reason(self, event: Opened, place: _Placed) -> str:
        if event.device is not None:
            return f"device {place.device} was asked for"
        if len(self._devices) == 1:
            return f"device {place.device} is the only one"
        zones = self._devices[place.device].zones
        others = ", ".join(
            f"device {index} {device.zones.used_bytes / _GIB:.2f} of {device.zones.size / _GIB:.2f}"
            for index, device in enumerate(self._devices)
            if index != place.device
        )
        return (
            f"most of device {place.device} is free: its zones take "
            f"{zones.used_bytes / _GIB:.2f} of {zones.size / _GIB:.2f} GiB, {others}"
        )

    # -- what is admitted

    def _device(self, workload: int) -> WorkloadDevice:
        index = self.device_of.get(workload)
        require(index is not None, f"workload {workload} is on no device")
        assert index is not None
        return self._devices[index]

    def _grow(self, workload: int, size: int, commands: list[Command]) -> None:
        zones = self._device(workload).zones
        region = zones.grow(workload, size)
        if region is not None:
            commands.append(Grow(workload, region))
            return
        region = zones.region(workload)
        assert region is not None
        commands.append(RefuseGrowth(workload, size, region.size + region.offset))

    def _fit(self, workload: int, need: Need, commands: list[Command]) -> None:
        zones = self._device(workload).zones
        region = zones.shrink(workload, need)
        require(region is not None, f"workload {workload} needs more than it has")
        assert region is not None
        commands.append(Fit(workload, region, zones.temporary[workload]))

    def _closed(self, workload: int) -> None:
        if self.waiting.pop(workload, None) is None:
            device = self._device(workload)
            device.turns.leave(workload)
            device.zones.remove(workload)
            device.left(workload)
            del self.device_of[workload]

    def _announce_zones(self, commands: list[Command]) -> None:
        # Before what uses them: a zone grows before a workload is told that it is admitted. And
        # after what gives memory back, into which it may grow.
        at = sum(isinstance(command, Fit) for command in commands)
        for index, device in enumerate(self._devices):
            size = device.shared_bytes
            if size != device.zone_bytes:
                device.zone_bytes = size
                commands.insert(at, Zone(index, size))

    def validate(self) -> None:
        """Check every property that can be checked on one state.

        Raises:
            InternalError: one is violated.
        """
        placed: dict[int, int] = {}
        for index, device in enumerate(self._devices):
            device.zones.validate()
            device.turns.validate()
            own = {*(region.workload for region in device.zones.regions), *device.zones.window}
            stops = device.paused or device.turns.pressed
            require(not (stops and device.turns.leased), "one goes on that is to stop")
            require(own == set(device.turns.order), "who has memory and who has turns differ")
            placed |= dict.fromkeys(own, index)
            require(device.zone_bytes == device.shared_bytes, "a zone was not announced")
            device.validate_moves()
        away = sum(device.away_bytes() for device in self._devices)
        require(away <= self.host_bytes or not away, "more than the host memory that may be used")
        require(placed == self.device_of, "workloads are on other devices than they were told")
        require(not placed.keys() & self.waiting.keys(), "an admitted workload waits")
        taken: set[int] = set()
        for event in self.waiting.values():
            for one in self._allowed(event):
                fits = self._place(one, event) is not None
                require(not fits or one in taken, f"workload {event.workload} fits and waits")
            taken.update(
                one
                for one in self._allowed(event)
                if self._devices[one].zones.size >= _least(event)
            )


def _least(event: Opened) -> int:
    """Return the least memory for which a workload can be admitted, in bytes."""
    return 2 * _LEAST_LEARNED if event.need is None else sum(event.need.whole)
