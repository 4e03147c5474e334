"""What the daemon keeps of clients that have gone: nothing, but for its rings and caches."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gpud.device.host import messages as hm
from gpud.errors import KernelTrap
from gpud.server.daemon import Daemon
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import PTX, Client, World, until

# Rings and caches, each with a bound and a test of its own; and times that have become pointless.
BOUNDED = ("records", "_records", "_by_id", "_cached", "_heap", "counts", "_schemas")


class SlowHost(FakeHost):
    """Measures when the test says so, and names kernels in full when they fail."""

    def __init__(self) -> None:
        super().__init__(sms=4, auto=True)
        self.late: list[hm.MeasureKernel] = []
        self.slow = False

    def handle(self, command: Any) -> None:
        if self.slow and isinstance(command, hm.MeasureKernel):
            self.late.append(command)
        else:
            super().handle(command)

    def _send(self, event: Any) -> None:
        if isinstance(event, hm.RunEnded) and event.error is not None:
            event = event._replace(error=KernelTrap("trap", kernel="k" * 4000).to_wire())
        super()._send(event)

    def measure_now(self) -> None:
        """Answer what was asked, though the module may have been unloaded meanwhile."""
        while self.late:
            self._send(hm.Replied(self.late.pop(0).ticket, 1))


@pytest.fixture
async def world(world: World) -> World:
    return await world.start(SlowHost(), compile_processes="1")


def sizes(daemon: Daemon) -> dict[str, int]:
    """The size of every table of the daemon, by its name."""
    found: dict[str, int] = {}
    seen: set[int] = set()

    def look(name: str, thing: Any) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, dict | list | set | deque):
            found[name] = len(thing)
            values = thing.values() if isinstance(thing, dict) else thing
            for index, value in enumerate(values):
                if type(value).__module__.startswith("gpud."):
                    look(f"{name}.{index}", value)
        if type(thing).__module__.startswith("gpud."):
            for attribute, value in getattr(thing, "__dict__", {}).items():
                if attribute not in BOUNDED:
                    look(f"{name}.{attribute}", value)

    look("daemon.state", daemon.state)
    look("daemon", daemon)
    return found


async def come_and_go(world: World, stage: int) -> None:
    """A client that goes when it has come so far."""
    client: Client = await world.client(uid=1000 + stage)
    host = world.host
    assert isinstance(host, SlowHost)
    client.send(wm.Follow(1, True))
    client.send(wm.Compile(2, 0, PTX.format(name="k"), ()))
    if stage > 0:
        module = (await client.expect(wm.Compiled)).module
        host.slow = stage == 1
        client.send(wm.Measure(3, module, 0, (32, 1, 1), 0))
        if stage == 1:
            await until(lambda: host.late)
        else:
            await client.expect(wm.Measured)
            await submit(client, module)
        if stage == 3:
            await client.expect(wm.Answer, lambda message: message.request == 4)
    client.close()
    await until(lambda: not world.daemon.state.sessions)
    host.measure_now()


async def submit(client: Client, module: int) -> None:
    await client.allocate(1 << 16)
    for number in range(1, 5):
        after = ((client.session, number - 1),) if number > 2 else ()
        client.submit(number, module, 4000, stream=number % 2, after=after)
    client.send(wm.Query(4, "jobs"))
    client.send(wm.Resize(5, (client.session, 1), quota=(1, 1)))
    client.send(wm.ReadSymbol(6, module, "none", 0, 4))


async def test_nothing_is_kept_of_clients_that_have_gone(world: World) -> None:
    for stage in range(4):
        await come_and_go(world, stage)
    await until(lambda: world.daemon.compiler.describe().endswith(", 0 waiting"))
    warm = sizes(world.daemon)
    assert len(warm) > 50
    assert "daemon.state.sessions" in warm
    for stage in range(24):
        await come_and_go(world, stage % 4)

    def grown() -> dict[str, int]:
        return {name: n for name, n in sizes(world.daemon).items() if n > warm.get(name, 0)}

    try:
        await until(lambda: not grown())
    except TimeoutError:
        raise AssertionError(grown()) from None


async def test_what_is_kept_of_a_job_is_small_however_long_its_kernels_name(world: World) -> None:
    name = "k" * 4000
    world.host.kernels[name] = Behaviour(trap_at=0)
    client = await world.client()
    client.submit(1, await client.kernel(name))
    finished = await client.finished(1)
    assert len(finished.error["message"]) > 4000  # its owner hears all
    for topic in ("events", "trace"):
        assert len(str(await client.query(topic))) < 7000, topic  # an error of twice 2 KiB
    history = await client.ask(wm.AskHistory, wm.Answer)
    assert len(history.value["rows"]) == 1
    assert len(str(history.value)) < 7000
