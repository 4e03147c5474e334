"""Quarantine: a compilation during which a host was lost is tried alone, cleared or refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from gpud.device.host import messages as hm
from gpud.errors import CompileError, GpudError, InvalidArgument
from gpud.processes.culprits import MOST_TRIES
from gpud.server.hosts.quarantine import Quarantine, QuarantineCase
from gpud.server.ipc.child_process import ChildProcess
from gpud.server.ipc.stream import Outbox
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import until

BAD = QuarantineCase("ptx", "bad", (32, 1, 1))


class World:
    """Quarantine whose trials run on fake hosts."""

    def __init__(self, *, dies_at: int | None = None, limit_s: float = 60.0) -> None:
        self.dies_at = dies_at
        self.hosts: list[FakeHost] = []
        self.verdicts: list[GpudError | None] = []
        self.refusal: GpudError | None = None
        self.problem: OSError | None = None
        self.before: Callable[[FakeHost], None] = lambda host: None
        outbox = Outbox(asyncio.get_running_loop())
        self.quarantine = Quarantine(outbox, "device 0", self.start, limit_s)

    async def start(self, child: ChildProcess) -> None:
        if self.problem is not None:
            raise self.problem
        host = FakeHost(dies_at=self.dies_at, behaviour=Behaviour(refusal=self.refusal))
        self.hosts.append(host)
        self.before(host)
        child.attach(host.connect())

    def ask(self, case: QuarantineCase = BAD) -> None:
        self.quarantine.ask(case, self.verdicts.append)

    async def judged(self, count: int = 1) -> None:
        await until(lambda: len(self.verdicts) >= count)
        await until(lambda: not self.quarantine._trials)

    async def close(self) -> None:
        await self.quarantine.close()
        for host in self.hosts:
            host.close()


async def test_what_nobody_suspects_is_not_tried() -> None:
    world = World()
    world.ask()
    world.quarantine.suspect(BAD, "crashed")
    world.ask(QuarantineCase("ptx"))
    world.ask(QuarantineCase("ptx", "bad", (64, 1, 1)))
    assert world.verdicts == [None] * 3
    assert not world.hosts


async def test_a_case_whose_trial_goes_well_is_cleared() -> None:
    world = World()
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    world.ask()
    await world.judged(2)
    assert world.verdicts == [None, None]
    assert len(world.hosts) == 1
    assert [type(command) for command in world.hosts[0].commands] == [
        hm.LoadModule,
        hm.MeasureKernel,
    ]
    world.ask()
    assert len(world.verdicts) == 3, "at once from now on"
    await world.close()


@pytest.mark.parametrize("command", [1, 2])
async def test_a_case_that_ends_its_trials_is_refused_from_then_on(command: int) -> None:
    world = World(dies_at=command)
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    await world.judged()
    assert isinstance(world.verdicts[0], CompileError)
    assert "compiling bad for blocks of 32 x 1 x 1 ends the device's host" in str(world.verdicts[0])
    assert len(world.hosts) == MOST_TRIES
    world.ask()
    assert world.verdicts[1] is world.verdicts[0]
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    assert len(world.hosts) == MOST_TRIES, "it is not tried again"
    await world.close()


async def test_loading_alone_is_a_case() -> None:
    world = World(dies_at=1)
    world.quarantine.suspect(QuarantineCase("ptx"), "crashed")
    world.ask(QuarantineCase("ptx"))
    await world.judged()
    assert "loading the program ends the device's host" in str(world.verdicts[0])
    await world.close()


async def test_a_kernel_that_is_refused_in_its_trial_has_not_ended_it() -> None:
    world = World()
    world.refusal = InvalidArgument("it fits nowhere")
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    await world.judged()
    assert world.verdicts == [None], "the real host says the same"
    await world.close()


async def test_a_trial_that_does_not_begin_says_nothing() -> None:
    world = World()
    world.problem = OSError("no more processes")
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    await world.judged()
    assert world.verdicts == [None]

    world.problem = None
    world.before = lambda host: setattr(host, "connect", _closed)
    world.quarantine.suspect(BAD, "crashed")
    world.ask()
    await world.judged(2)
    assert world.verdicts == [None, None]


def _closed() -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.setblocking(False)
    return ours


async def test_a_trial_that_takes_too_long_is_ended() -> None:
    world = World(limit_s=0.05)
    world.before = lambda host: setattr(host, "handle", lambda command: None)
    world.quarantine.suspect(BAD, "hung")
    world.ask()
    await world.judged()
    assert "took longer than 0.05 s" in str(world.verdicts[0])
    await world.close()


async def test_the_end_of_the_daemon_ends_trials_and_answers() -> None:
    world = World()
    world.before = lambda host: setattr(host, "handle", lambda command: None)
    world.quarantine.suspect(BAD, "hung")
    world.ask()
    await until(lambda: world.hosts)
    await world.quarantine.close()
    assert world.verdicts == [None]
    world.hosts[0].close()


async def test_there_may_be_no_trials() -> None:
    quarantine = Quarantine(Outbox(asyncio.get_running_loop()), "device 0", None, 1.0)
    quarantine.suspect(BAD, "crashed")
    verdicts: list[GpudError | None] = []
    quarantine.ask(BAD, verdicts.append)
    assert verdicts == [None]


async def test_no_more_than_so_many_are_remembered() -> None:
    world = World()
    for number in range(1000):
        world.quarantine.suspect(QuarantineCase("ptx", f"k{number}"), "crashed")
    assert len(world.quarantine._suspected) <= 256


async def test_small() -> None:
    world = World(dies_at=1)
    large = BAD._replace(ptx="x" * (1 << 20))
    world.quarantine.suspect(large, "crashed")
    assert [len(case.ptx) for case in world.quarantine._suspected] == [64]
    world.ask(large)
    await world.judged()
    assert isinstance(world.verdicts[0], CompileError)
    assert [len(case.ptx) for case in world.quarantine._culprits._refused] == [64]
    assert not world.quarantine._suspected
    await world.close()
