"""Clients that read slowly, write without end, send rubbish, or half of something."""

from __future__ import annotations

import asyncio
import random

import pytest

from gpud.server.handlers import connection
from gpud.server.ipc.stream import MESSAGES_PER_TURN
from gpud.wire import messages as wm
from tests.fake_host.host import FakeHost
from tests.integration.daemon_world import World, launch, until


@pytest.fixture
async def world(world: World) -> World:
    settings = {"max_connections": "4", "max_message_bytes": "1 MiB"}
    return await world.start(FakeHost(sms=4, auto=True), **settings)


async def test_a_fast_writer_does_not_starve_others(world: World) -> None:
    fast, other = await world.client(), await world.client()
    many = wm.CLIENT_PROTOCOL.encode(wm.Query(7, "status")) * 400
    fast.sock.setblocking(True)
    fast.raw(many)
    answer = await other.query("status")
    assert answer["clients"] == 2
    done = sum(1 for message in fast.received if type(message) is wm.Answer)
    assert done <= 2 * MESSAGES_PER_TURN
    await until(lambda: sum(1 for m in fast.received if type(m) is wm.Answer) == 400)


async def test_a_slow_reader_is_not_read_from_and_loses_nothing(world: World) -> None:
    slow, other = await world.client(), await world.client()
    slow.pause()
    # The submissions are refused, so each is answered, with more bytes than it has.
    question = wm.CLIENT_PROTOCOL.encode(wm.Submit(9, 0, b"")) * 1000
    sent = 0

    async def ask_on() -> None:
        nonlocal sent
        for _ in range(1000):
            await asyncio.get_running_loop().sock_sendall(slow.sock, question)
            sent += 1000

    asking = asyncio.ensure_future(ask_on())
    before = -1
    while before != sent:  # until our own sending is held up
        before = sent
        for _ in range(50):
            await other.query("status")
    assert sent < 100_000
    assert not slow.closed
    asking.cancel()
    await asyncio.wait([asking])
    # It reads again: all that it has asked in whole is answered.
    slow.read()
    await until(lambda: sum(1 for m in slow.received if type(m) is wm.Finished) >= sent)


async def test_a_client_that_never_reads_is_dropped(world: World) -> None:
    hog = await world.client()
    await hog.ask(wm.Follow, wm.Answer)
    hog.pause()
    daemon = world.daemon
    stream = daemon.state.sessions[hog.session].stream
    stream._limits = stream._limits._replace(hard=1 << 20)
    other = await world.client()
    while hog.session in daemon.state.sessions:
        daemon.state.records.add_event(0, "noise", None, ("text", "x" * 10_000))
        await asyncio.sleep(0)
    assert (await other.query("status"))["clients"] == 1


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_half_frames(world: World, size: int) -> None:
    client = world.connect()
    data = wm.CLIENT_PROTOCOL.encode(wm.Hello(1, 1, "in pieces"))
    for at in range(0, len(data), size):
        client.raw(data[at : at + size])
        await asyncio.sleep(0)
    assert (await client.expect(wm.Welcome)).session == 1
    client.raw(wm.CLIENT_PROTOCOL.encode(wm.Query(1, "status"))[:-1])
    client.close()
    await until(lambda: not world.daemon.connections)


async def test_rubbish(world: World) -> None:
    chance = random.Random(7)
    for count in range(1, 61):
        client = await world.client() if chance.random() < 0.5 else world.connect()
        data = bytearray(wm.CLIENT_PROTOCOL.encode(wm.Measure(1, 1, 0, (1, 1, 1), 0)) * 3)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client.raw(bytes(data))
        client.close()
        await until(lambda: world.accepted == count and not world.daemon.connections)  # noqa: B023
    assert (await (await world.client()).query("status"))["clients"] == 1


async def test_a_message_over_the_limit(world: World) -> None:
    client = await world.client()
    client.raw(((1 << 20) + 1).to_bytes(4, "little"))
    assert "over the limit" in (await client.expect(wm.Goodbye)).error["message"]
    await client.end()


async def test_more_connections_than_allowed(world: World) -> None:
    for _ in range(4):
        await world.client()
    extra = world.connect()
    assert (await extra.expect(wm.Goodbye)).error["code"] == "limit"
    await extra.end()
    world.clients[0].close()
    await until(lambda: len(world.daemon.connections) == 3)
    await world.client()


async def test_a_connection_that_says_nothing_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_HELLO_S", 0.01)
    client = world.connect()
    assert "Hello" in (await client.expect(wm.Goodbye)).error["message"]
    await client.end()


async def test_a_client_that_goes_without_reading(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    for number in range(1, 200):
        client.submit(number, module)
    client.close()
    other = await world.client()
    await until(lambda: len(world.daemon.state.sessions) == 1)
    assert (await other.query("status"))["jobs"] == {}


@pytest.mark.ci
async def test_many_submissions_at_once(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    launches = wm.CLIENT_PROTOCOL.encode_records([launch(module, 1)])
    data = b"".join(
        wm.CLIENT_PROTOCOL.encode(wm.Submit(number, 0, launches)) for number in range(1, 2001)
    )
    await asyncio.get_running_loop().sock_sendall(client.sock, data)
    for number in range(1, 2001):
        assert (await client.finished(number)).state == "done"
