"""One user's many connections take the event loop's time in turns with others'."""

from __future__ import annotations

import asyncio
import time

from gpud.server.ipc.stream import Limits, Outbox, Stream
from gpud.server.ipc.user_turns import TURN_S, UserTurns
from gpud.wire.framing import frame
from tests.integration.daemon_world import until
from tests.unit.server.test_stream import Peer

MANY = 40


def of_a_user(outbox: Outbox, turns: UserTurns) -> Peer:
    peer = Peer(Limits(), outbox)
    peer.stream._turns = turns
    turns.connections += 1
    return peer


async def test_by_user() -> None:
    """Each message of the first takes longer than a turn; the other's waits for few of them."""
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop)
    greedy, other = UserTurns(loop), UserTurns(loop)
    many = [of_a_user(outbox, greedy) for _ in range(MANY)]
    one = of_a_user(outbox, other)
    handled: list[str] = []

    def slow(_: bytes) -> None:
        handled.append("greedy")
        end = time.monotonic() + 1.5 * TURN_S
        while time.monotonic() < end:
            pass

    for peer in many:
        peer.on_body = slow
        for _ in range(2):
            peer.sock.send(frame(b"status"))
    one.on_body = lambda _: handled.append("other")
    await until(lambda: handled)
    one.sock.send(frame(b"launch"))
    before = len(handled)
    await until(lambda: "other" in handled)
    assert handled.index("other") - before <= 4
    await until(lambda: handled.count("greedy") == 2 * MANY)
    assert [len(peer.bodies) for peer in many] == [2] * MANY, "nobody is left in the line"
    for peer in (*many, one):
        peer.close()


async def test_who_leaves_while_it_waits() -> None:
    loop = asyncio.get_running_loop()
    turns = UserTurns(loop)
    peers = [of_a_user(Outbox(loop), turns) for _ in range(3)]
    turns._used_s = 1.0
    for peer in peers:
        turns.read(peer.stream, lambda: None)
    peers[0].stream.abort()
    peers[1].sock.send(frame(b"a"))
    peers[2].sock.close()
    turns._begin_round()
    await until(lambda: peers[1].bodies and peers[2].ends)
    for peer in peers:
        peer.close()


async def test_free() -> None:
    loop = asyncio.get_running_loop()
    turns = UserTurns(loop)
    turns.connections = 1
    calls: list[int] = []
    stream: Stream = None  # type: ignore[assignment]
    for number in range(3):
        turns.read(stream, lambda number=number: calls.append(number))  # type: ignore[misc]
        turns._used_s = 1.0
    assert calls == [0, 1, 2]
