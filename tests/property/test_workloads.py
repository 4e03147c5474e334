"""The workload manager over random histories, and planted faults that break its properties.

``GPUD_WORKLOAD_STEPS`` sets how long each of four histories is, 1,500 steps by default; about half
of them are events. `make stress` takes more than a million.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gpud.core.memory.allocator import PAGE_BYTES
from gpud.core.workloads import device as device_module
from gpud.core.workloads import manager as manager_module
from gpud.core.workloads import messages as m
from gpud.core.workloads import moves
from gpud.core.workloads.device import WorkloadDevice
from gpud.core.workloads.manager import WorkloadManager
from gpud.core.workloads.turns import Phase, Turns
from gpud.core.workloads.window import Place, Window
from gpud.core.workloads.zones import Need, Region, Zones
from gpud.errors import InternalError
from tests.property.workload_simulation import (
    HOST_BYTES,
    SETTINGS,
    SIZES,
    Simulation,
    WrongError,
)

STEPS = int(os.environ.get("GPUD_WORKLOAD_STEPS", "1500"))
PAGES = st.integers(1, 70).map(lambda pages: pages * PAGE_BYTES)
SMALL = st.integers(0, 15 * PAGE_BYTES)
FEW = st.integers(1, 15 * PAGE_BYTES)


class Workloads(RuleBasedStateMachine):
    """Clients that open, iterate, grow, overstay and die at any moment.

    Attributes:
        done: what has happened so far in all examples, by kind, for `campaigns.memory_turns`.
    """

    done: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation()

    def _choose(self, data: st.DataObject, of: list[int]) -> int:
        return data.draw(st.sampled_from(sorted(of)))

    @property
    def _admitted(self) -> list[int]:
        return [n for n, one in self.simulation.workloads.items() if one.device is not None]

    @property
    def _idle(self) -> list[int]:
        known = self.simulation.workloads
        return [n for n in self._admitted if known[n].asks_since is None and not known[n].iterating]

    @property
    def _iterating(self) -> list[int]:
        return [n for n, one in self.simulation.workloads.items() if one.iterating]

    @rule(
        need=st.none() | st.builds(Need, PAGES | FEW, SMALL, SMALL),
        weight=st.integers(1, 4),
        device=st.sampled_from([None, 0, 1]),
        movable=st.booleans(),
    )
    def open(self, need: Need | None, weight: int, device: int | None, movable: bool) -> None:
        if len(self.simulation.workloads) < 12:
            self.simulation.open(need, weight, device, movable=movable)

    @initialize(needs=st.lists(st.builds(Need, FEW, SMALL, SMALL), min_size=2, max_size=4))
    def begin(self, needs: list[Need]) -> None:
        for number, need in enumerate(needs):
            self.simulation.open(need, 1 + number % 2, number // 2 % 2, movable=number == 1)

    @precondition(lambda self: self._admitted)
    @rule(data=st.data())
    def next_step(self, data: st.DataObject) -> None:
        """Have a workload do what comes next in a loop, and the server what it waits for."""
        number = self._choose(data, self._admitted)
        one = self.simulation.workloads[number]
        if number in self.simulation.clearing:
            self.simulation.clear(number)
        elif number in self._moving:
            self.simulation.move(number)
        elif one.iterating:
            self.simulation.end(number)
        elif one.asks_since is None:
            self.simulation.ask(number)
        else:
            self.simulation.wait(SETTINGS.linger_ns)

    @precondition(lambda self: self._idle)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.simulation.ask(self._choose(data, self._idle))

    @precondition(lambda self: self._iterating)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.simulation.end(self._choose(data, self._iterating))

    @property
    def _leased(self) -> list[int]:
        return [n for n, one in self.simulation.workloads.items() if one.standing]

    @precondition(lambda self: self._admitted)
    @rule(data=st.data(), size=st.integers(1, 6 * PAGE_BYTES), temporary=st.booleans())
    def allocate(self, data: st.DataObject, size: int, temporary: bool) -> None:
        number = self._choose(data, (temporary and self._iterating) or self._admitted)
        self.simulation.allocate(
            number, size, temporary=temporary and self.simulation.workloads[number].iterating
        )

    @precondition(lambda self: self._admitted)
    @rule(data=st.data(), index=st.integers(0, 20))
    def free(self, data: st.DataObject, index: int) -> None:
        self.simulation.free(self._choose(data, self._admitted), index)

    @precondition(lambda self: self._moving or self._iterating)
    @rule(device=st.integers(0, 1))
    def lose_host(self, device: int) -> None:
        self.simulation.lose_host(device)

    @precondition(lambda self: self._leased)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.simulation.go_on(self._choose(data, self._leased))

    @precondition(lambda self: self._leased)
    @rule(data=st.data(), idle_ns=st.none() | st.integers(0, 40))
    def idle(self, data: st.DataObject, idle_ns: int | None) -> None:
        number = self._choose(data, self._leased)
        self.simulation.idle(number)
        if idle_ns is not None and not self.simulation.workloads[number].standing:
            self.simulation.end(number, idle_ns)

    @precondition(lambda self: self.simulation.clearing)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        self.simulation.clear(self._choose(data, list(self.simulation.clearing)))

    @property
    def _moving(self) -> list[int]:
        return [*self.simulation.leaving, *self.simulation.returning]

    @precondition(lambda self: self._moving)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        self.simulation.move(self._choose(data, self._moving))

    @precondition(lambda self: len(self.simulation.workloads) > 2)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.simulation.close(self._choose(data, list(self.simulation.workloads)))

    @precondition(lambda self: self._admitted)
    @rule(data=st.data(), size=st.integers(1, 40 * PAGE_BYTES))
    def grow(self, data: st.DataObject, size: int) -> None:
        self.simulation.grow(self._choose(data, self._admitted), size)

    @property
    def _learning(self) -> list[int]:
        known = self.simulation.workloads
        return [number for number in self._admitted if known[number].opened.need is None]

    @precondition(lambda self: self._learning)
    @rule(data=st.data(), parts=st.tuples(*3 * [st.floats(0, 1)]))
    def fit(self, data: st.DataObject, parts: tuple[float, float, float]) -> None:
        self.simulation.fit(self._choose(data, self._learning), parts)

    @precondition(lambda self: self._admitted)
    @rule(device=st.integers(0, 1), size=st.integers(0, 50 * PAGE_BYTES))
    def change_memory(self, device: int, size: int) -> None:
        self.simulation.change_memory(device, size)

    @precondition(lambda self: self._admitted)
    @rule(device=st.integers(0, 1), on=st.booleans())
    def pause(self, device: int, on: bool) -> None:
        self.simulation.pause(device, on=on)

    @rule(time_ns=st.integers(0, 300))
    def wait(self, time_ns: int) -> None:
        self.simulation.wait(time_ns)

    @invariant()
    def everything_can_end(self) -> None:
        self.simulation.check()

    def teardown(self) -> None:
        simulation = self.simulation
        self.done.update(type(event).__name__ for event, _ in simulation.log)
        self.done.update(simulation.unseen)
        for number in list(simulation.workloads):
            simulation.close(number)
        for device in range(len(SIZES)):
            assert simulation.manager.zones(device).used_bytes == 0, "a leak"
            assert simulation.manager.turns(device).phase is Phase.FREE
        assert not simulation.manager.waiting
        again = WorkloadManager(SIZES, SETTINGS, HOST_BYTES)
        assert [again.handle(event) for event, _ in simulation.log] == [
            commands for _, commands in simulation.log
        ]


TestWorkloads = Workloads.TestCase
TestWorkloads.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def random_step(simulation: Simulation, chance: random.Random) -> None:
    """Have something happen."""

    def size(most: int) -> int:
        return chance.randrange(most) * PAGE_BYTES

    workloads = simulation.workloads
    one = chance.choice(sorted(workloads) or [0])
    known = workloads.get(one)
    draw = chance.random()
    if known is None or (draw < 0.04 and len(workloads) < 8):
        need = Need(PAGE_BYTES + size(chance.choice((20, 34, 90))), size(22), size(12))
        learns = chance.random() < 0.1
        simulation.open(
            None if learns else need,
            chance.randint(1, 3),
            chance.choice((None, 0, 1)),
            movable=chance.random() < 0.7,
        )
    elif draw < 0.06:
        simulation.close(one)
    elif draw < 0.07 or (draw < 0.2 and any(simulation.paused)):
        device = chance.randrange(2)
        simulation.pause(device, on=not simulation.paused[device])
    elif draw < 0.09:
        simulation.change_memory(chance.randrange(2), size(30))
    elif simulation.clearing and draw < 0.5:
        simulation.clear(chance.choice(sorted(simulation.clearing)))
    elif draw > 0.7 and (moving := sorted(simulation.leaving | simulation.returning)):
        simulation.move(chance.choice(moving))
    elif known.device is None:
        simulation.wait(chance.randrange(40))
    elif draw < 0.13 and known.opened.need is None:
        simulation.fit(one, (chance.random(), chance.random(), chance.random()))
    elif draw < 0.11:
        simulation.grow(one, size(40))
    elif draw < 0.17:
        simulation.allocate(one, 1 + size(6), temporary=known.iterating and draw < 0.15)
    elif draw < 0.18:
        simulation.free(one, chance.randrange(20))
    elif draw < 0.182:
        simulation.lose_host(chance.randrange(2))
    elif known.standing and draw < 0.6:
        simulation.wait(chance.choice((1, 5, 30, 600)))
        if known.standing:
            simulation.go_on(one)
    elif known.standing and draw < 0.65:
        simulation.idle(one)
    elif known.iterating:
        simulation.wait(chance.choice((1, 5, 30, 600)))
        simulation.end(one, chance.choice((0, 0, 20)))
    elif known.asks_since is None:
        simulation.ask(one)
    else:
        simulation.wait(chance.randrange(40))


def history(seed: int, steps: int = STEPS) -> Simulation:
    """Run a random history in which workloads come, iterate, overstay, grow and die."""
    chance = random.Random(seed)
    simulation = Simulation()
    for _ in range(steps):
        random_step(simulation, chance)
    return simulation


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)


@pytest.mark.parametrize("seed", range(4))
def test_histories_keep_every_promise(seed: int) -> None:
    assert len(history(seed).log) > STEPS // 4


@pytest.mark.parametrize("seed", [1870, 3065])
def test_what_is_to_leave_for_one_that_waits_counts_as_host_memory(seed: int) -> None:
    chance = random.Random(seed)
    simulation = Simulation()
    for number in range(2):
        need = Need(1, chance.choice((0, 1, 5 * PAGE_BYTES)), 0)
        simulation.open(need, 1 + number % 2, number // 2 % 2, movable=number == 1)
    for _ in range(8):
        burst = random.Random(chance.randrange(2**32))
        for _ in range(30):
            random_step(simulation, burst)


def test_histories_have_every_command() -> None:
    logs = [history(seed, 1500).log for seed in range(4, 8)]
    commands = {type(command) for log in logs for _, given in log for command in given}
    assert commands == {
        m.Admit, m.Refuse, m.Zone, m.Grant, m.Recall, m.Clear, m.Fit, m.Grow, m.RefuseGrowth,
        m.Overstay, m.Evict, m.Restore,
    }  # fmt: skip


# -- planted faults -------------------------------------------------------------------------------


def _sum_of_needs(zones: Zones) -> int:
    return sum(zones.temporary.values())


def _least_need(zones: Zones) -> int:
    return min(zones.temporary.values(), default=0)


def _first_gap_of_any_size(zones: Zones, *terms: Any) -> int | None:
    position = _POSITION(zones, *terms)
    return 0 if position else position


def _without_others(zones: Zones, need: Need, other_bytes: int = 0, *more: Any) -> int | None:
    del other_bytes
    return _POSITION(zones, need, 0, *more)


def _beyond_the_offset(zones: Zones, workload: int, size: int) -> Region | None:
    region = zones.region(workload)
    assert region is not None
    if workload in zones.window:
        return _GROW(zones, workload, size)
    grown = region._replace(size=max(size, region.size))
    zones._regions[zones._regions.index(region)] = grown
    return grown


def _kept_in_the_zone(zones: Zones, workload: int) -> None:
    needed = zones._temporary[workload]
    _REMOVE(zones, workload)
    zones._temporary[workload] = needed


def _same_turn_again(turns: Turns, workload: int) -> None:
    turns._free()
    turns._weights = {workload: turns._weights.pop(workload), **turns._weights}


def _without_clearing(turns: Turns, now_ns: int) -> int | None:
    if _TICK(turns, now_ns) is not None:
        turns._free()
    return None


def _deaf(turns: Turns, now_ns: int) -> int | None:
    del turns, now_ns
    return None


def _within_an_iteration(turns: Turns, now_ns: int) -> int | None:
    if turns.phase is Phase.ITERATING and turns._is_to_end() and now_ns >= turns.slice_ends_ns():
        turns.phase = Phase.CLEARING
        return turns.holder
    return _TICK(turns, now_ns)


def _never_asked_back(turns: Turns, now_ns: int, *, idle: int | None = None) -> int | None:
    return None if idle is None else _ASK_BACK(turns, now_ns, idle=idle)


def _idle_or_not(turns: Turns, now_ns: int, *, idle: int | None = None) -> int | None:
    del idle
    return _ASK_BACK(turns, now_ns)


def _asked_back_twice(turns: Turns, now_ns: int, *, idle: int | None = None) -> int | None:
    found = _ASK_BACK(turns, now_ns, idle=idle)
    turns.leased = found is not None or turns.leased
    return found


def _still_leased(turns: Turns, workload: int, now_ns: int, idle_ns: int = 0) -> None:
    leased = turns.leased
    _END_ITERATION(turns, workload, now_ns, idle_ns)
    turns.leased = leased


def _every_time(turns: Turns, now_ns: int) -> int | None:
    found = _OVERSTAYS(turns, now_ns)
    turns._reported = False
    return found


def _no_queue(manager: Any, commands: list[m.Command]) -> None:
    del manager, commands


def _never_recalled(manager: Any, event: m.Opened, place: Any, commands: list[m.Command]) -> None:
    _ADMIT(manager, event, place, commands)
    commands[:] = [command for command in commands if not isinstance(command, m.Recall)]


def _any_device(manager: Any, event: m.Opened) -> range:
    del event
    return range(len(manager._devices))


def _nearest_first(window: Window, turns: Turns, limit: int) -> int | None:
    del limit
    here = window.at(Place.HERE)
    if not window.at(Place.AWAY):
        return None
    return next((n for n in turns.order if n in here and n != turns.holder), None)


def _also_in_its_turn(window: Window, turns: Turns, limit: int) -> moves.Plan:
    found = _PLAN(window, turns, limit)
    holder = turns.holder
    if found.leaves is None and holder in window.at(Place.HERE) and window.at(Place.AWAY):
        return found._replace(leaves=holder)
    return found


def _onto_others(window: Window, size: int, limit: int, **options: Any) -> int | None:
    del options
    return 0 if size <= limit else None


def _nothing_returns(window: Window, turns: Turns, limit: int) -> moves.Plan:
    return _PLAN(window, turns, limit)._replace(returns=None)


def _all_return(window: Window, turns: Turns, limit: int) -> moves.Plan:
    found = _PLAN(window, turns, limit)
    for one in window.at(Place.AWAY):
        start = window.find(window[one].total, limit)
        if found.returns is None and start is not None:
            return found._replace(returns=(one, start))
    return found


def _free_too_soon(window: Window, workload: int) -> None:
    _LEAVE(window, workload)
    window._movable[workload] = window._movable[workload]._replace(place=Place.AWAY, start=None)


def _not_for_the_next_one(device: WorkloadDevice, now_ns: int, commands: list[m.Command]) -> None:
    if device.turns.phase is Phase.ITERATING and device.turns.since_ns == now_ns:
        device.press()
    else:
        _MOVE(device, now_ns, commands)


def _always_ready(device: WorkloadDevice, workload: int) -> bool:
    del device, workload
    return True


def _zones_first(manager: WorkloadManager, commands: list[m.Command]) -> None:
    _ANNOUNCE_ZONES(manager, commands)
    commands.sort(key=lambda command: not isinstance(command, m.Zone))


def _never_paused(
    manager: Any, device: WorkloadDevice, on: bool, now_ns: int, commands: list[m.Command]
) -> None:
    del manager, device, on, now_ns, commands


def _no_limit(device: WorkloadDevice, more: int = 0, window: int | None = None) -> int:
    del device, more, window
    return 0


_PLAN = moves.plan
_LEAVE = Window.leave
_MOVE = WorkloadDevice.move
_POSITION = Zones.position
_GROW = Zones.grow
_ANNOUNCE_ZONES = WorkloadManager._announce_zones
_REMOVE = Zones.remove
_TICK = Turns.tick
_ASK_BACK = Turns.ask_back
_END_ITERATION = Turns.end_iteration
_OVERSTAYS = Turns.overstays
_ADMIT = WorkloadManager._admit


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Zones, "temporary_bytes", property(_sum_of_needs)),
        (Zones, "temporary_bytes", property(_least_need)),
        (Zones, "position", _first_gap_of_any_size),
        (Zones, "position", _without_others),
        (Zones, "grow", _beyond_the_offset),
        (Zones, "remove", _kept_in_the_zone),
        (Turns, "cleared", _same_turn_again),
        (Turns, "tick", _without_clearing),
        (Turns, "tick", _deaf),
        (Turns, "tick", _within_an_iteration),
        (Turns, "ask_back", _never_asked_back),
        (Turns, "ask_back", _idle_or_not),
        (Turns, "ask_back", _asked_back_twice),
        (Turns, "end_iteration", _still_leased),
        (Turns, "overstays", _every_time),
        (manager_module.WorkloadManager, "_admit_waiting", _no_queue),
        (manager_module.WorkloadManager, "_allowed", _any_device),
        (manager_module.WorkloadManager, "_announce_zones", _zones_first),
        (manager_module.WorkloadManager, "_admit", _never_recalled),
        (manager_module.WorkloadManager, "_pause", _never_paused),
        (moves, "_victim", _nearest_first),
        (device_module, "plan", _also_in_its_turn),
        (device_module, "plan", _nothing_returns),
        (device_module, "plan", _all_return),
        (Window, "find", _onto_others),
        (Window, "leave", _free_too_soon),
        (WorkloadDevice, "move", _not_for_the_next_one),
        (WorkloadDevice, "ready", _always_ready),
        (WorkloadDevice, "away_bytes", _no_limit),
    ],
)
def test_a_planted_fault_is_seen(
    owner: Any, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises((WrongError, InternalError)):
        histories(20)
