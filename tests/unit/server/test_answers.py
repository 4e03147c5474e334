from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgpack
import pytest

from gpud.errors import GpudError, InternalError, from_wire
from gpud.server.handlers import answers
from gpud.server.handlers.answers import Answers, Steps
from gpud.server.ipc.stream import Limits, Outbox, Stream
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder, frame
from gpud.wire.message_table import Sender
from tests.integration.daemon_world import until


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is one step."""
    monkeypatch.setattr(answers, "_SLICE_S", -1.0)


class Session:
    """As much of a session as answers need, and its client."""

    def __init__(self, number: int, outbox: Outbox) -> None:
        ours, self.client = socket.socketpair()
        self.client.setblocking(False)
        self.number = self.account = number
        self.gone = False
        self.bodies: list[bytes] = []
        self.on_body: Callable[[bytes], None] = lambda body: None
        self.stream = Stream(
            ours,
            outbox,
            Limits(),
            encode=wm.CLIENT_PROTOCOL.encode,
            on_body=self._on_body,
            on_end=self._on_end,
        )
        self.stream.start()
        self._decoder = FrameDecoder()
        self._received: list[Any] = []

    def _on_body(self, body: bytes) -> None:
        self.bodies.append(body)
        self.on_body(body)

    def _on_end(self, reason: str) -> None:
        self.gone = True

    def fail(self, request: int, error: GpudError) -> None:
        self.stream.send(wm.Failed(request, error.to_wire()))

    @property
    def received(self) -> list[Any]:
        """All that the client was sent until now."""
        with suppress(BlockingIOError):
            self._decoder.feed(self.client.recv(1 << 20))
        decode = wm.CLIENT_PROTOCOL.decode
        self._received += [decode(one, Sender.DAEMON) for one in self._decoder.frames()]
        return self._received


class World:
    def __init__(self) -> None:
        self.outbox = Outbox(asyncio.get_running_loop())
        self.answers = Answers(self.outbox.loop)
        self.sessions: list[Any] = []
        self.log: list[str] = []

    def session(self) -> Any:
        self.sessions.append(Session(len(self.sessions), self.outbox))
        return self.sessions[-1]

    def steps(self, name: str, count: int) -> Steps[str]:
        for _ in range(count):
            self.log.append(name)
            yield
        return name


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    yield one
    for session in one.sessions:
        session.stream.abort()
        session.client.close()


async def test_a_large_answer_gives_way_to_the_others(world: World) -> None:
    """After each step everybody else has a turn."""
    session = world.session()
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(world.log))
        if len(world.answers):
            world.outbox.loop.call_soon(turn)

    world.answers.answer(session, 7, world.steps("a", 50))
    turn()
    await until(lambda: not world.answers)
    assert set(range(1, 51)) <= set(turns)
    await until(lambda: session.received)
    assert session.received == [wm.Answer(7, "a")]


async def test_sessions_take_turns_and_a_sessions_answers_keep_their_order(world: World) -> None:
    one, two = world.session(), world.session()
    ended: list[str] = []
    for session, name in ((one, "a"), (one, "b"), (two, "c")):
        world.answers.make(session, 1, world.steps(name, 4), ended.append)
    await until(lambda: len(ended) == 3)
    assert "".join(world.log) == "acacacac" + "bbbb"
    assert ended == ["a", "c", "b"]


async def test_more_work_may_follow_from_an_answer(world: World) -> None:
    session = world.session()
    ended: list[str] = []

    def then(name: str) -> None:
        ended.append(name)
        world.answers.make(session, 1, world.steps("b", 3), ended.append)

    world.answers.make(session, 1, world.steps("a", 3), then)
    await until(lambda: len(ended) == 2)
    assert "".join(world.log) == "aaabbb"


async def test_a_session_is_not_read_from_while_its_answer_is_made(world: World) -> None:
    session = world.session()
    asked: list[bytes] = []

    def on_body(body: bytes) -> None:
        asked.append(body)
        assert len(world.answers) == 0  # the answer before was made
        world.answers.answer(session, len(asked), world.steps("a", 5))

    session.on_body = on_body
    session.client.sendall(b"".join(frame(b"%d" % number) for number in range(3)))
    await until(lambda: len(session.received) == 3)
    assert asked == [b"0", b"1", b"2"]
    assert [one.request for one in session.received] == [1, 2, 3]


async def test_nothing_goes_on_for_a_client_that_has_gone(world: World) -> None:
    session, other = world.session(), world.session()
    ended: list[str] = []
    world.answers.make(session, 1, world.steps("a", 1000), ended.append)
    world.answers.make(session, 2, world.steps("b", 1000), ended.append)
    world.answers.make(other, 1, world.steps("c", 3), ended.append)
    session.client.send(b"unread")
    session.client.close()
    await until(lambda: not world.answers)
    assert session.gone  # though what it has sent was not read
    assert ended == ["c"]
    assert world.log.count("a") <= 2
    assert world.log.count("b") == 0


async def test_an_answer_that_fails_is_told_and_costs_nobody_else_theirs(world: World) -> None:
    def failing() -> Steps[str]:
        yield
        raise ZeroDivisionError

    session, ended = world.session(), list[str]()
    world.answers.make(session, 5, failing(), ended.append)
    world.answers.make(session, 6, world.steps("b", 2), ended.append)
    await until(lambda: ended)
    await until(lambda: session.received)
    assert [one.request for one in session.received] == [5]
    assert isinstance(from_wire(session.received[0].error), InternalError)


# -- what answers are made of ----------------------------------------------------------------------


def run(steps: Steps[Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def unpacked(value: Any) -> Any:
    return msgpack.unpackb(b"".join(answers._packed(value)))


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
async def test_rows_are_an_array(count: int) -> None:
    expected = [{"n": 2 * number} for number in range(count)]
    assert unpacked(run(answers.rows(range(count), lambda n: {"n": 2 * n}))) == expected
    assert unpacked(run(answers.items({"n": 2 * n} for n in range(count)))) == expected
    nested = {"a": run(answers.items(range(count))), "b": {"c": 1}}
    assert unpacked(nested) == {"a": list(range(count)), "b": {"c": 1}}


async def test_an_answer_that_is_too_large_has_the_latest_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 100)
    found = unpacked(run(answers.rows(range(1000), lambda number: number)))
    assert 0 < len(found) < 200
    assert found == list(range(1000 - len(found), 1000))


async def test_the_latest_that_fit() -> None:
    def latest(limit: int) -> list[int]:
        chosen: list[int] = run(answers.latest(range(100), limit, lambda number: number % 2 == 0))
        return chosen

    assert latest(3) == [94, 96, 98]
    assert latest(0) == list(range(0, 100, 2))


async def test_an_answer_of_parts_is_the_same_message() -> None:
    value = {"jobs": [1, 2, 3], "devices": None}
    parts = answers._packed({"jobs": run(answers.items([1, 2, 3])), "devices": None})
    pieces = wm.CLIENT_PROTOCOL.encode_with(wm.Answer(9), "value", parts)
    assert b"".join(pieces) == wm.CLIENT_PROTOCOL.encode(wm.Answer(9, value))
