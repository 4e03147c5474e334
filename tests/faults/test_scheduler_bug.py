"""A scheduler that has failed decides nothing more: clients are told, and the daemon ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpud.core import events as ev
from gpud.core.scheduler import Scheduler
from gpud.errors import InternalError
from gpud.server import daemon
from gpud.wire import messages as wm
from tests.fake_host.host import FakeHost
from tests.integration.daemon_world import Client, World, until


def break_at(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[Any]:
    """The scheduler fails on the first event of this kind; the events that it was asked about."""
    right = Scheduler.handle
    asked: list[Any] = []

    def handle(self: Scheduler, event: Any) -> Any:
        asked.append(event)
        if isinstance(event, kind):
            raise InternalError("capacity: device 0 has 2 SMs, 3 of them are allocated")
        return right(self, event)

    monkeypatch.setattr(Scheduler, "handle", handle)
    return asked


async def test_clients_are_told_and_nothing_more_is_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.folder / "events"
    await world.start(FakeHost(sms=2), FakeHost(sms=2), event_log=str(log))
    clients = [await world.client(), await world.client()]
    module = await clients[0].kernel("k")
    clients[0].submit(1, module)
    await until(lambda: world.host.jobs)
    asked = break_at(monkeypatch, ev.JobEnded)
    world.host.advance(10**7)
    for client in clients:
        goodbye = await client.expect(wm.Goodbye)
        assert goodbye.error["code"] == "internal"
        assert "a bug in its scheduler" in goodbye.error["message"]
        await client.end()
    await asyncio.wait_for(world.daemon.wait(), 60)
    assert world.daemon.failed
    assert [type(event) for event in asked] == [ev.JobEnded], "and nothing after that"
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["event"]["type"] == "JobEnded"
    assert not (world.folder / "s").exists()


async def test_a_drain_that_meets_a_bug_ends_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(FakeHost(sms=2))
    client = await world.client()
    client.submit(1, await client.kernel("k"))
    await until(lambda: world.host.jobs)
    world.daemon.drain()
    break_at(monkeypatch, ev.JobEnded)
    world.host.advance(10**7)
    await asyncio.wait_for(world.daemon.wait(), 60)
    assert world.daemon.failed


async def test_the_exit_status_has_a_new_daemon_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_at(monkeypatch, ev.SessionOpened)
    ended = asyncio.ensure_future(daemon._serve(world.config(devices=["cpu:1"])))
    path = world.folder / "s"
    async with asyncio.timeout(60):
        while not path.exists() and not ended.done():  # noqa: ASYNC110 - a process starts
            await asyncio.sleep(0.01)
    client = await _connected(str(path))
    try:
        client.send(wm.Hello(1, wm.VERSION, "test"))
        assert await asyncio.wait_for(ended, 60) == 3
    finally:
        client.close()
    unit = Path(__file__).parents[2] / "contrib" / "systemd" / "system" / "gpud.service"
    assert "Restart=on-failure" in unit.read_text()


async def _connected(path: str) -> Client:
    async with asyncio.timeout(60):
        while True:
            try:
                return Client(path)
            except OSError:  # it exists a moment before it listens
                await asyncio.sleep(0.01)


async def test_a_command_that_cannot_be_carried_out_costs_nobody_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(FakeHost(sms=2))
    one, other = await world.client(), await world.client()
    one.submit(1, await one.kernel("k"), 1, quota=(1, 1))
    other.submit(1, await other.kernel("k"), 1, quota=(1, 1))
    await until(lambda: len(world.host.jobs) == 2)
    broken = world.daemon.state.sessions[one.session]

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broken, "job_finished", fails)
    world.host.die()  # one event, and a command for each job
    assert (await other.finished(1)).error["code"] == "device-lost"
    assert not world.daemon.runner.broken
