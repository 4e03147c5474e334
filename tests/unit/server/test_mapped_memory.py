"""What a device host is told about the zone that programs map, from turn to turn."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpud.errors import DeviceLost, GpudError, InvalidArgument
from gpud.server.ipc.child_process import OnReply
from gpud.server.ipc.file_descriptors import DescriptorBudget
from gpud.server.state.arenas import Arenas, MemoryLimits
from gpud.server.workloads.mapped_memory import MappedMemory
from gpud.server.workloads.workload import Workload
from gpud.wire import messages as wm

MIB = 1 << 20


class Zone:
    """A device that does at once what it is told, and writes it down."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.error: GpudError | None = None

    def lend_zone(self, size: int, descriptor: int, on_reply: OnReply) -> None:
        assert os.fstat(descriptor)
        self.told.append(f"lend {size // MIB}")
        on_reply(None, self.error)

    def clear_zone(self, on_reply: OnReply, *, free: bool) -> None:
        self.told.append("free" if free else "clear")
        on_reply(None, None)


class World:
    """The memory of workloads on one device."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.arenas = Arenas(self.loop, DescriptorBudget())
        self.arenas.set_up(MemoryLimits([100 * MIB], [100 * MIB], [100 * MIB]))
        self.memory, self.zone = MappedMemory(self.arenas), Zone()
        self.memory.set_up({0: self.zone})
        self.lent: list[int] = []
        self._last = 0

    def open(self, temporary: int, uid: int = 1) -> Workload:
        """A workload of a session of its own."""
        self._last += 1
        owner: Any = SimpleNamespace(
            number=self._last,
            uid=uid,
            account=uid,
            send_with=lambda message, _: self.lent.append(message[0]),
        )
        terms = wm.OpenWorkload(1, 0, MIB, temporary, 0, 1, mapped=True)
        workload = Workload(self._last, owner, terms)
        workload.device, workload.lent = 0, (0, temporary) if temporary else None
        self.memory.open_workload(workload, 0, 10 * MIB)
        return workload

    def turn(self, workload: Workload) -> list[str]:
        """What the device was told for a turn."""
        del self.zone.told[:]
        got: list[Any] = []
        self.memory.begin_turn(workload, got.append)
        assert got == [self.zone.error]
        self.memory.clear_temporary(workload, lambda: None)
        return self.zone.told


@pytest.fixture
def world() -> Any:
    one = World()
    yield one
    one.arenas.close()
    one.loop.close()


def test_the_zone_is_as_large_as_the_largest_need_and_cleared_after_each_turn(world: World) -> None:
    small, large, none = world.open(2 * MIB), world.open(5 * MIB), world.open(0)
    assert world.turn(small) == world.turn(large) == ["lend 5", "clear"]
    assert world.turn(none) == []
    assert world.lent == [small.number, large.number]
    world.memory.close_workload(large, freed=False)
    assert world.turn(small) == ["lend 2", "clear"]
    assert world.memory.counted_bytes(0) == world.arenas.ledger.used_bytes(0) == 20 * MIB
    world.memory.close_workload(none, freed=False)
    assert world.zone.told[-1] == "clear"
    world.memory.close_workload(small, freed=False)
    assert world.zone.told[-1] == "free"
    assert world.arenas.ledger.used_bytes(0) == 0


def test_what_one_that_ended_in_its_turn_may_have_yet_no_other_gets(world: World) -> None:
    dying, next_one = world.open(MIB), world.open(MIB)
    world.memory.begin_turn(dying, lambda _: None)
    world.memory.begin_turn(dying, lambda _: None)  # its next iteration
    assert world.zone.told == ["lend 1", "lend 1"]
    world.memory.close_workload(dying, freed=True)
    assert world.zone.told[2:] == ["free"]
    assert world.turn(next_one) == ["lend 1", "clear"]
    other = world.open(MIB)
    world.memory.close_workload(other, freed=True)
    assert world.zone.told == ["lend 1", "clear"], "it was not in its turn"


def test_programs_of_two_users_never_have_the_same_memory(world: World) -> None:
    mine, yours = world.open(MIB, uid=1), world.open(MIB, uid=2)
    assert world.turn(mine) == ["lend 1", "clear"]
    assert world.turn(yours) == ["free", "lend 1", "clear"]
    assert world.turn(yours) == ["lend 1", "clear"]


def test_a_host_that_is_lost_is_the_turns_error_and_other_devices_are_refused(world: World) -> None:
    workload = world.open(MIB)
    world.zone.error = DeviceLost("gone")
    assert world.turn(workload)[0] == "lend 1"
    assert world.lent == []
    with pytest.raises(InvalidArgument, match="says on which device"):
        world.memory.check(None)
    with pytest.raises(InvalidArgument, match="device 1 is no GPU"):
        world.memory.check(1)
