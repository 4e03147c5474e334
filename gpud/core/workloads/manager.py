"""The workload manager: which workloads are on which device, and which of them has the turn.

Pure: `WorkloadManager.handle` takes an event and returns commands, without I/O, clock or chance.

Approach: a workload is placed on the device whose two zones leave most of its memory free. One
that fits nowhere now waits, in the order of arrival; a smaller one may not overtake it on a device
where both could be. One that no device can ever hold is refused. On each device the admitted ones
take turns (`gpud.core.workloads.turns`).

Properties, beside those of `gpud.core.workloads.zones` and `gpud.core.workloads.turns`:
    in_order: a workload waits for memory only as long as it does not fit, or an older one waits
        that could be on the same device;
    replayable: equal events give equal commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from gpud.core.memory.allocator import PAGE_BYTES, require
from gpud.core.workloads.messages import (
    Admit,
    Asked,
    Clear,
    Cleared,
    Closed,
    Command,
    Ended,
    Event,
    Fit,
    Fitted,
    Grant,
    Grow,
    GrowAsked,
    MemoryChanged,
    Opened,
    Overstay,
    Recall,
    Refuse,
    RefuseGrowth,
    Tick,
    Zone,
)
from gpud.core.workloads.turns import Phase, Turns, TurnSettings
from gpud.core.workloads.zones import Need, Region, Zones

__all__ = ["WorkloadManager"]

_GIB = 1 << 30
_LEAST_LEARNED = 4 * PAGE_BYTES
"""The least memory of either kind with which a workload can find out what it needs."""


class _Device:
    """One device's zones and turns.

    Attributes:
        other_bytes: its memory that is in use outside of the zones.
        zone_bytes: the size of the temporary zone that was announced last.
        standing: the workload that goes on without asking; None: there is none.
    """

    def __init__(self, size: int, settings: TurnSettings) -> None:
        self.zones = Zones(size)
        self.turns = Turns(settings)
        self.other_bytes = 0
        self.zone_bytes = 0
        self.standing: int | None = None


class _Placed(NamedTuple):
    """A possible place: the less of the device's memory is used then, the better."""

    used: Fraction
    device: int


class WorkloadManager:
    """The workloads of one node.

    Args:
        sizes: of the memory of each device, in bytes.
        settings: of the turns; None: the usual ones.

    Attributes:
        waiting: workloads that wait to be admitted, the oldest first.
        device_of: the device of each admitted workload.
    """

    def __init__(self, sizes: Sequence[int], settings: TurnSettings | None = None) -> None:
        turns = TurnSettings() if settings is None else settings
        self._devices = [_Device(size, turns) for size in sizes]
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
        times = [device.turns.timer_ns() for device in self._devices]
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
                self._end_turn(self._device(workload).turns.ask(workload, now_ns), commands)
            case Ended(now_ns, workload):
                device = self._device(workload)
                if device.standing == workload:
                    device.standing = None
                self._end_turn(device.turns.end_iteration(workload, now_ns), commands)
            case Cleared(_, workload):
                self._device(workload).turns.cleared(workload)
            case GrowAsked(_, workload, size):
                self._grow(workload, size, commands)
            case Fitted(_, workload, need):
                self._fit(workload, need, commands)
            case Closed(_, workload):
                self._closed(workload)
            case MemoryChanged(_, other_bytes):
                for device, size in zip(self._devices, other_bytes, strict=True):
                    device.other_bytes = size
            case Tick(now_ns):
                for device in self._devices:
                    self._end_turn(device.turns.tick(now_ns), commands)
        if isinstance(event, Closed | Fitted | MemoryChanged):
            self._admit_waiting(commands)
        for device in self._devices:
            self._go_on(device, event.now_ns, commands)
        self._announce_zones(commands)
        return commands

    def _end_turn(self, workload: int | None, commands: list[Command]) -> None:
        if workload is not None:
            commands.append(Clear(workload))

    def _go_on(self, device: _Device, now_ns: int, commands: list[Command]) -> None:
        turns = device.turns
        begins_turn = turns.phase is Phase.FREE
        workload = turns.next_iteration(now_ns)
        if workload is not None:
            standing = len(turns.order) == 1
            if standing:
                device.standing = workload
            commands.append(Grant(workload, begins_turn, standing))
        overstaying = turns.overstays(now_ns)
        if overstaying is not None:
            commands.append(Overstay(overstaying, turns.since_ns, len(turns.waiting)))

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
                taken.update(allowed)

    def _allowed(self, event: Opened) -> Sequence[int]:
        return range(len(self._devices)) if event.device is None else (event.device,)

    def _place(self, index: int, event: Opened) -> _Placed | None:
        device = self._devices[index]
        zones = device.zones
        if event.need is None:
            need = zones.remaining(device.other_bytes)
            if need.persistent + need.offset < _LEAST_LEARNED or need.temporary < _LEAST_LEARNED:
                return None
        else:
            need = event.need.whole
        if zones.position(need, device.other_bytes) is None:
            return None
        used = zones.persistent_bytes + need.persistent + need.offset
        used += max(zones.temporary_bytes, need.temporary) + device.other_bytes
        if event.need is None:  # all that is left: the more that is, the better
            used = zones.used_bytes + device.other_bytes
        return _Placed(Fraction(used, max(1, zones.size)), index)

    def _admit(self, event: Opened, place: _Placed, commands: list[Command]) -> None:
        device = self._devices[place.device]
        need = event.need or device.zones.remaining(device.other_bytes)
        region = device.zones.place(event.workload, need, device.other_bytes)
        assert region is not None
        self.device_of[event.workload] = place.device
        device.turns.join(event.workload, event.weight)
        if device.standing is not None:
            commands.append(Recall(device.standing))
            device.standing = None
        reason = self._reason(event, place)
        temporary = device.zones.temporary[event.workload]
        commands.append(Admit(event.workload, place.device, region, temporary, reason))

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

    def _device(self, workload: int) -> _Device:
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
            if device.standing == workload:
                device.standing = None
            device.turns.leave(workload)
            device.zones.remove(workload)
            del self.device_of[workload]

    def _announce_zones(self, commands: list[Command]) -> None:
        # Before what uses them: a zone grows before a workload is told that it is admitted.
        for index, device in enumerate(self._devices):
            size = device.zones.temporary_bytes
            if size != device.zone_bytes:
                device.zone_bytes = size
                commands.insert(0, Zone(index, size))

    def validate(self) -> None:
        """Check every property that can be checked on one state.

        Raises:
            InternalError: one is violated.
        """
        placed: dict[int, int] = {}
        for index, device in enumerate(self._devices):
            device.zones.validate()
            device.turns.validate()
            own = {region.workload for region in device.zones.regions}
            standing = device.standing
            require(standing is None or own == {standing}, "one that is not alone goes on")
            require(standing in (None, device.turns.holder), "one without a turn goes on")
            require(own == set(device.turns.order), "who has memory and who has turns differ")
            placed |= dict.fromkeys(own, index)
            require(device.zone_bytes == device.zones.temporary_bytes, "a zone was not announced")
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
