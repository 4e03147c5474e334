"""Simulates the server beside the workload manager, and checks what it is told independently.

The simulation knows positions, turns and times only from the manager's commands and its own events;
what a manager of its own kind would compute is not used.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpud.core.memory.allocator import PAGE_BYTES
from gpud.core.workloads import messages as m
from gpud.core.workloads.manager import WorkloadManager
from gpud.core.workloads.turns import TurnSettings
from gpud.core.workloads.zones import Need, Region
from tests.property.workload_arrays import Arrays

SETTINGS = TurnSettings(slice_ns=100, linger_ns=10, overstay_ns=400)
SIZES = (100 * PAGE_BYTES, 60 * PAGE_BYTES)
HOST_BYTES = 110 * PAGE_BYTES


class WrongError(AssertionError):
    """The manager has broken a promise."""


def check(holds: object, what: str) -> None:
    """Raise `WrongError` unless ``holds``."""
    if not holds:
        raise WrongError(what)


class Workload:
    """What the simulated server and client know of a workload."""

    def __init__(self, opened: m.Opened) -> None:
        self.opened = opened
        self.device: int | None = None
        self.region: Region | None = None
        self.temporary = 0
        self.asks_since: int | None = None
        self.iterating = False
        self.reported = False
        self.standing = False
        self.granted_ns = 0
        self.turns_of_others: dict[int, int] = {}  # begun while it waits
        self.away = False
        self.version = 0
        self.written = 0  # bytes of the region that the last iteration wrote
        self.kept = Arrays(0)
        self.scratch = Arrays(0)
        self.rank = 0  # the lower, the longer ago its last turn ended

    def span(self) -> tuple[int, int] | None:
        """Where its region is in the device's memory."""
        return None if self.region is None or self.away else (self.region.start, self.region.end)


class Simulation:
    """One manager with its server.

    Attributes:
        now_ns: the time.
        workloads: those that are open, by number.
        clearing: those whose `Clear` is not carried out yet.
        leaving, returning: those whose `Evict` or `Restore` is not carried out yet.
        memory: what each page of each device holds of persistent memory, by position: the workload
            and how many iterations it had begun.
        host: what regions in host memory hold, page by page.
    """

    def __init__(self, manager: WorkloadManager | None = None) -> None:
        self.manager = manager or WorkloadManager(SIZES, SETTINGS, HOST_BYTES)
        self.now_ns = 0
        self.number = 0
        self.workloads: dict[int, Workload] = {}
        self.clearing: set[int] = set()
        self.leaving: set[int] = set()
        self.returning: set[int] = set()
        self.memory: list[dict[int, tuple[int, int]]] = [{}, {}]
        self.host: dict[int, list[tuple[int, int] | None]] = {}
        self.temporary: list[dict[int, int]] = [{}, {}]
        """By device: who has written each page of temporary memory, counted from its beginning."""
        self.ranks = 0
        self.paused = [False, False]
        self.dirty: dict[int, int | None] = {0: None, 1: None}
        """By device: the workload whose content the temporary memory holds."""
        self.zone = dict.fromkeys(self.dirty, 0)
        self.window = dict.fromkeys(self.dirty, 0)
        self.other = [0, 0]
        self.log: list[tuple[Any, list[Any]]] = []
        self.unseen: Counter[str] = Counter()
        """What happened that is no event for the manager."""

    # -- what can happen

    def open(
        self, need: Need | None, weight: int, device: int | None, *, movable: bool = False
    ) -> None:
        self.number += 1
        movable = movable and need is not None
        event = m.Opened(self.now_ns, self.number, need, weight, device, movable)
        self.workloads[self.number] = Workload(event)
        self.feed(event)

    def ask(self, number: int) -> None:
        one = self.workloads[number]
        one.asks_since = self.now_ns
        one.turns_of_others = {}
        self.feed(m.Asked(self.now_ns, number))

    def end(self, number: int, idle_ns: int = 0) -> None:
        self.workloads[number].iterating = self.workloads[number].standing = False
        self.feed(m.Ended(self.now_ns, number, idle_ns))

    def go_on(self, number: int) -> None:
        """Let a workload that has a lease end its iteration and begin the next, unseen."""
        self.unseen["iteration unseen"] += 1
        one = self.workloads[number]
        check(one.standing and one.iterating, "it is to ask")
        assert one.device is not None
        check(self.dirty[one.device] == number, "another one's temporary memory")
        check(number not in self.clearing, "its temporary memory is being cleared")
        self._check_there(one, number)
        self._write(one, number)
        one.scratch = Arrays(one.temporary)

    def allocate(self, number: int, size: int, *, temporary: bool) -> None:
        """Make an array, which must be within the memory of its kind, and nobody else's."""
        self.unseen["allocate"] += 1
        one = self.workloads[number]
        if not temporary:
            one.kept.allocate(size)
            return
        check(one.iterating, "temporary memory out of an iteration")
        at = one.scratch.allocate(size)
        if at is None:
            return
        assert one.device is not None
        pages = self.temporary[one.device]
        for page in range(at // PAGE_BYTES, -(-(at + size) // PAGE_BYTES)):
            check(pages.get(page) in (None, number), "what another one wrote can be read")
            pages[page] = number

    def free(self, number: int, index: int) -> None:
        """Free one of a workload's arrays, if there is any."""
        self.unseen["free"] += 1
        one = self.workloads[number]
        (one.kept if one.kept.alive else one.scratch).free(index)

    def lose_host(self, device: int) -> None:
        """Lose a device's host: moves under way fail, and what they would have moved is ended."""
        self.unseen["lose the host"] += 1
        for number in sorted(self.leaving | self.returning):
            if self.workloads[number].device == device:
                self.close(number)

    def idle(self, number: int) -> None:
        """Report, rightly or not, that a workload with a lease runs nothing."""
        one = self.workloads[number]
        here = [other for other in self.workloads.values() if other.device == one.device]
        waits = any(other.asks_since is not None for other in here)
        self.feed(m.Idled(self.now_ns, number))
        check(not (waits and one.standing), "nothing runs, others wait, and it is not asked back")

    def clear(self, number: int) -> None:
        self.clearing.discard(number)
        self._wiped(number)
        self._last(number)
        self.feed(m.Cleared(self.now_ns, number))

    def move(self, number: int) -> None:
        """Carry out a move, byte by byte."""
        one = self.workloads[number]
        assert one.device is not None
        assert one.region is not None
        memory = self.memory[one.device]
        pages = range(one.region.start // PAGE_BYTES, one.region.end // PAGE_BYTES)
        if number in self.leaving:
            self.leaving.discard(number)
            self.host[number] = [memory.pop(page, None) for page in pages]
            one.away = True
            self.feed(m.Evicted(self.now_ns, number))
        else:
            self.returning.discard(number)
            for page, content in zip(
                pages, self.host.pop(number, [None] * len(pages)), strict=True
            ):
                if content is not None:
                    memory[page] = content
            self.feed(m.Restored(self.now_ns, number))

    def close(self, number: int) -> None:
        self._wiped(number)
        one = self.workloads[number]
        if one.device is not None:
            memory = self.memory[one.device]
            for page in [page for page, (owner, _) in memory.items() if owner == number]:
                del memory[page]
        self.host.pop(number, None)
        for moving in (self.clearing, self.leaving, self.returning):
            moving.discard(number)
        del self.workloads[number]
        self.feed(m.Closed(self.now_ns, number))

    def grow(self, number: int, size: int) -> None:
        self.feed(m.GrowAsked(self.now_ns, number, size))

    def fit(self, number: int, parts: tuple[float, float, float]) -> None:
        """Let one that learns have found out that it needs such parts of what it has."""
        one = self.workloads[number]
        assert one.region is not None
        has = one.region.size + one.region.offset
        persistent = max(1, int(parts[0] * has))
        offset = int(parts[1] * max(0, has - -(-persistent // PAGE_BYTES) * PAGE_BYTES))
        offset = offset // PAGE_BYTES * PAGE_BYTES
        need = Need(persistent, int(parts[2] * one.temporary), offset)
        one.opened = one.opened._replace(need=need)
        self.feed(m.Fitted(self.now_ns, number, need))

    def change_memory(self, device: int, size: int) -> None:
        """Let ordinary arrays use ``size`` bytes, as far as the ledger would let them."""
        zones = self.zone[device] + sum(
            one.region.size + one.region.offset
            for one in self.workloads.values()
            if one.device == device and one.region is not None and not one.opened.movable
        )
        self.other[device] = min(size, SIZES[device] - zones)
        self.feed(m.MemoryChanged(self.now_ns, tuple(self.other)))

    def pause(self, device: int, *, on: bool) -> None:
        """Pause a device, or let it go on."""
        self.paused[device] = on
        self.feed(m.Paused(self.now_ns, device, on))

    def wait(self, time_ns: int) -> None:
        """Let time pass, timers included."""
        until = self.now_ns + time_ns
        while (due := self.manager.timer_ns()) is not None and due <= until:
            check(due > self.now_ns or due >= 0, "a timer in the past")
            self.now_ns = max(self.now_ns, due)
            before = self.manager.timer_ns()
            self.feed(m.Tick(self.now_ns))
            check(self.manager.timer_ns() != before, "a timer that stays due")
        self.now_ns = until

    def _last(self, number: int) -> None:
        """Put a workload at the end of the order of turns."""
        self.ranks += 1
        self.workloads[number].rank = self.ranks

    def _wiped(self, number: int) -> None:
        device = self.workloads[number].device
        if device is not None and self.dirty[device] == number:
            self.dirty[device] = None
            self.temporary[device].clear()

    # -- what the manager says

    def feed(self, event: Any) -> None:
        commands = self.manager.handle(event)
        self.log.append((event, commands))
        for command in commands:
            getattr(self, f"_on_{type(command).__name__.lower()}")(command)
        self.manager.validate()
        self.check()

    def _on_admit(self, command: m.Admit) -> None:
        one = self.workloads[command.workload]
        check(one.device is None, "admitted twice")
        check(one.opened.device in (None, command.device), "on another device than asked for")
        need = one.opened.need or Need(1, 1, 0)
        check(command.region.size >= need.persistent, "too little persistent memory")
        check(command.region.offset >= need.offset, "too little room to grow")
        check(command.temporary >= need.temporary, "too little temporary memory")
        here = [other for other in self.workloads.values() if other.device == command.device]
        check(not any(other.standing for other in here), "not alone, and not told")
        one.device, one.region, one.temporary = command.device, command.region, command.temporary
        one.away = command.away
        check(one.opened.movable or not one.away, "away although it never moves")
        one.kept = Arrays(command.region.size)
        self._check_fits(command.device)
        self._last(command.workload)

    def _on_evict(self, command: m.Evict) -> None:
        number = command.workload
        one = self.workloads[number]
        assert one.device is not None
        moving = number in self.leaving or number in self.returning
        check(one.opened.movable and not one.away and not moving, "it cannot be moved")
        check(not one.iterating, "moved away within an iteration")
        has_turn = self.dirty[one.device] == number and number not in self.clearing
        check(not has_turn, "moved away in its turn")
        here = {n: o for n, o in self.workloads.items() if o.device == one.device and n != number}
        waiting = {
            n: o for n, o in here.items() if o.asks_since is not None and n != self._holder(o)
        }
        missed = [o for o in waiting.values() if o.opened.movable and o.away]
        check(missed or self.manager.waiting, "moved although nobody needs the room")
        if not self.manager.waiting:
            following = min(waiting, key=lambda n: waiting[n].rank)
            check(following != number, "moved away although it is next")

            def farness(o: Workload) -> tuple[bool, bool, int]:
                return o.asks_since is None, o in last, o.rank

            last = [o for n, o in self.workloads.items() if n in self.clearing]
            farther = [
                n for n, o in here.items()
                if o.opened.movable and not o.away and n not in self.leaving | self.returning
                and n != self._holder(o) and farness(o) > farness(one)
            ]  # fmt: skip
            check(not farther, "a nearer turn's region makes room")
        self.leaving.add(number)
        away = [*self.host, *self.leaving]
        sizes = [self.workloads[n].region for n in dict.fromkeys(away)]
        check(sum(r.size + r.offset for r in sizes if r) <= HOST_BYTES, "too much in host memory")

    def _holder(self, one: Workload) -> int | None:
        """Return who has the turn on a workload's device."""
        assert one.device is not None
        holder = self.dirty[one.device]
        return None if holder in self.clearing else holder

    def _on_restore(self, command: m.Restore) -> None:
        number = command.workload
        one = self.workloads[number]
        assert one.region is not None
        check(one.away and number not in self.returning, "it is on the device")
        check(one.asks_since is not None, "back although nobody waits for it")
        check(command.region[1:] == one.region[1:], "another region comes back")
        one.region, one.away = command.region, False
        self.returning.add(number)

    def _on_refuse(self, command: m.Refuse) -> None:
        one = self.workloads.pop(command.workload)
        devices = SIZES if one.opened.device is None else (SIZES[one.opened.device],)
        assert one.opened.need is not None  # the devices are large enough to learn on
        check(sum(one.opened.need.whole) > max(devices), "refused although it could fit")

    def _on_zone(self, command: m.Zone) -> None:
        self.zone[command.device] = command.size
        self._check_fits(command.device)

    def _check_fits(self, device: int) -> None:
        """Check that memory is given back before others get it: there is an order of commands."""
        here = [o for o in self.workloads.values() if o.device == device and not o.opened.movable]
        used = sum(o.region.size + o.region.offset for o in here if o.region)
        check(
            used + self.zone[device] + self.other[device] <= SIZES[device],
            "given before it is there",
        )

    def _on_grant(self, command: m.Grant) -> None:
        one = self.workloads[command.workload]
        check(one.asks_since is not None, "an iteration that nobody wants")
        assert one.device is not None
        check(not self.paused[one.device], "an iteration begins on a paused device")
        for number, other in self.workloads.items():
            if other.device == one.device and other is not one:
                check(not other.iterating, "two iterations at a time")
                if command.begins_turn and other.asks_since is not None:
                    begun = other.turns_of_others.get(command.workload, 0) + 1
                    other.turns_of_others[command.workload] = begun
                    check(begun < 2, f"two turns of one workload while {number} waits")
        dirty = self.dirty[one.device]
        check(dirty in (None, command.workload), "the last turn's memory was not cleared")
        check(command.begins_turn == (dirty is None), "told wrongly whether a turn begins")
        self.dirty[one.device] = command.workload
        self._check_there(one, command.workload)
        self._write(one, command.workload)
        one.scratch = Arrays(one.temporary)
        one.asks_since, one.iterating, one.reported = None, True, False
        check(command.standing or self.manager.waiting, "it is to ask, for no reason")
        one.standing, one.granted_ns = command.standing, self.now_ns

    def _check_there(self, one: Workload, number: int) -> None:
        moves = number in self.leaving or number in self.returning
        check(not one.away and not moves, "its region is not there")

    def _write(self, one: Workload, number: int) -> None:
        """Check what the last iteration has written to all of the region, and write again."""
        assert one.device is not None
        assert one.region is not None
        memory, first = self.memory[one.device], one.region.start // PAGE_BYTES
        kept = [memory.get(first + page) for page in range(one.written // PAGE_BYTES)]
        check(all(page == (number, one.version) for page in kept), "what it kept is lost")
        one.version += 1
        one.written = one.region.size
        for page in range(one.written // PAGE_BYTES):
            memory[first + page] = number, one.version

    def _on_recall(self, command: m.Recall) -> None:
        one = self.workloads[command.workload]
        check(one.standing, "recalled in vain")
        one.standing = False

    def _on_clear(self, command: m.Clear) -> None:
        one = self.workloads[command.workload]
        check(not one.iterating, "cleared within an iteration")
        check(command.workload not in self.clearing, "cleared twice")
        self.clearing.add(command.workload)

    def _on_fit(self, command: m.Fit) -> None:
        one = self.workloads[command.workload]
        need = one.opened.need
        assert need is not None
        assert one.region is not None
        check(command.region.start == one.region.start, "a region has moved")
        check(command.region.size == need.whole.persistent, "not what it needs")
        check(command.region.offset == need.whole.offset, "not the offset that it needs")
        check(command.temporary == need.whole.temporary, "not the temporary memory it needs")
        one.region, one.temporary = command.region, command.temporary
        one.written = min(one.written, one.region.size)  # it does not need the rest
        one.kept, one.scratch = Arrays(one.region.size), Arrays(one.temporary)

    def _on_grow(self, command: m.Grow) -> None:
        one = self.workloads[command.workload]
        assert one.region is not None
        check(one.away or command.region.start == one.region.start, "a region has moved")
        same = sum(command.region[1:3]) == sum(one.region[1:3])
        check(same, "a region took what is not its own")
        one.kept.grow(command.region.size)
        one.region = command.region

    def _on_refusegrowth(self, command: m.RefuseGrowth) -> None:
        event = self.log[-1][0]
        region = self.workloads[command.workload].region
        assert region is not None
        check(event.size > region.size + region.offset, "growth refused although there is room")
        check(command.most_bytes == region.size + region.offset, "wrong numbers")

    def _on_overstay(self, command: m.Overstay) -> None:
        self.unseen["overstay"] += 1
        one = self.workloads[command.workload]
        check(one.iterating and not one.reported, "reported in vain")
        check(self.now_ns - command.began_ns >= SETTINGS.overstay_ns, "reported early")
        check(command.waiting > 0, "reported although nobody waits")
        assert one.device is not None
        check(not self.paused[one.device], "reported although its jobs are paused")
        one.reported = True

    # -- what always holds

    def check(self) -> None:
        for device, size in enumerate(SIZES):
            here = [one for one in self.workloads.values() if one.device == device]
            spans = sorted(span for one in here if (span := one.span()) is not None)
            at = 0
            for start, end in spans:
                check(start >= at, "two regions overlap")
                at = end
            zone = self.zone[device]
            temporary = max((one.temporary for one in here), default=0)
            movable = [one.region for one in here if one.opened.movable and one.region]
            window = zone - temporary
            whole = sum(r.size + r.offset for r in movable)
            check(0 <= window <= max(whole, self.window[device]), "the zone's size")
            self.window[device] = window
            check(at <= size - temporary, "the zones overlap")
            fixed = [one for one in here if not one.opened.movable]
            there = [one.span() for one in here if one.opened.movable]
            check(
                sum(end - start for start, end in filter(None, there)) <= window, "too many there"
            )
            used = sum(end - start for start, end in filter(None, (o.span() for o in fixed)))
            check(used + zone + self.other[device] <= size, "more memory than there is")
            self._check_leases(device, here)
            waits = any(one.asks_since is not None for one in here)
            idle = not any(one.iterating for one in here)
            numbers = [n for n, one in self.workloads.items() if one.device == device]
            busy = any(n in self.clearing | self.leaving | self.returning for n in numbers)
            if waits and idle and not busy and not self.paused[device]:
                due = self.manager.timer_ns()
                check(due is not None, "a workload waits, and nothing will happen")

    def _check_leases(self, device: int, here: list[Workload]) -> None:
        """Check that who goes on without asking may, and is asked back in time."""
        for one in (other for other in here if other.standing):
            check(one.iterating and not self.paused[device], "it goes on, and must not")
            waiting = [o for o in here if o.asks_since is not None]
            there = not any(o.opened.movable for o in here)  # else the turn may be longer
            length_ns = SETTINGS.slice_ns * one.opened.weight
            late = self.now_ns > one.granted_ns + length_ns
            check(not (waiting and there and late), "its time slice is over, and others wait")
