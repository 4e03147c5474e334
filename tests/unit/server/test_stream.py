from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from gpud.server.ipc.event_loop import loop_factory
from gpud.server.ipc.stream import MESSAGES_PER_TURN, Limits, Outbox, Stream
from gpud.wire.framing import FrameDecoder, FrameError, frame
from tests.integration.daemon_world import until


class Peer:
    """A stream under test, and the other end of its socket."""

    def __init__(self, limits: Limits, outbox: Outbox) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.bodies: list[bytes] = []
        self.ends: list[str] = []
        self.broken: list[FrameError] = []
        self.on_body: Callable[[bytes], None] = lambda body: None
        self.stream = Stream(
            ours,
            outbox,
            limits,
            encode=bytes,
            on_body=self._on_body,
            on_end=self.ends.append,
            on_broken=self._on_broken,
        )
        self.stream.start()

    def _on_body(self, body: bytes) -> None:
        self.bodies.append(body)
        self.on_body(body)

    def _on_broken(self, error: FrameError) -> None:
        self.broken.append(error)
        self.stream.send(frame(b"bye"))
        self.stream.finish()

    def read(self) -> bytes:
        """All that has arrived."""
        found = b""
        while True:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += data

    def close(self) -> None:
        self.stream.abort()
        self.sock.close()


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Peer]]:
    outbox = Outbox(asyncio.get_running_loop())
    peers = []

    def one(**limits: int) -> Peer:
        peers.append(Peer(Limits(**limits), outbox))
        return peers[-1]

    yield one
    for peer in peers:
        peer.close()


async def test_frames_arrive_in_order_however_they_are_cut(make: Callable[..., Peer]) -> None:
    peer = make()
    data = b"".join(frame(bytes([i]) * (i + 1)) for i in range(20))
    for at in range(len(data)):
        peer.sock.send(data[at : at + 1])
        if at % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(peer.bodies) == 20)
    assert peer.bodies == [bytes([i]) * (i + 1) for i in range(20)]


async def test_answers_of_a_turn_are_one_write(make: Callable[..., Peer]) -> None:
    peer = make()
    peer.on_body = lambda body: peer.stream.send(frame(body))
    peer.sock.send(b"".join(frame(b"x%d" % i) for i in range(10)))
    await until(lambda: len(peer.bodies) == 10)
    # All ten are there as soon as the turn is over, without another trip through the loop.
    assert peer.read() == b"".join(frame(b"x%d" % i) for i in range(10))


async def test_fair(make: Callable[..., Peer]) -> None:
    fast, slow = make(), make()
    fast.sock.send(b"".join(frame(b"f") for _ in range(10 * MESSAGES_PER_TURN)))
    slow.sock.send(frame(b"s"))
    await until(lambda: slow.bodies)
    assert len(fast.bodies) <= 2 * MESSAGES_PER_TURN
    await until(lambda: len(fast.bodies) == 10 * MESSAGES_PER_TURN)


async def test_a_turn_that_ends_exactly_at_the_last_message_goes_on_reading(
    make: Callable[..., Peer],
) -> None:
    peer = make()
    for count in (1, 2, 3):
        peer.sock.send(frame(b"m") * MESSAGES_PER_TURN)
        await until(lambda: len(peer.bodies) == count * MESSAGES_PER_TURN)  # noqa: B023


async def test_back_pressure(make: Callable[..., Peer]) -> None:
    peer = make(high=1 << 16, low=1 << 12, hard=1 << 26)
    for _ in range(50):
        peer.stream.send(frame(bytes(1 << 16)))
    await until(lambda: peer.stream.unsent_bytes)
    peer.sock.send(frame(b"question"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert peer.bodies == []
    decoder = FrameDecoder()
    found = 0
    async with asyncio.timeout(10):
        while found < 50:
            decoder.feed(peer.read())
            found += sum(1 for _ in decoder.frames())
            await asyncio.sleep(0)
    await until(lambda: peer.bodies == [b"question"])


async def test_bounded(make: Callable[..., Peer]) -> None:
    peer = make(high=1 << 16, low=1 << 12, hard=1 << 20)
    for _ in range(100):
        peer.stream.send(frame(bytes(1 << 16)))
    await until(lambda: peer.ends)
    assert "unread" in peer.ends[0]
    assert peer.stream.sock.fileno() == -1


async def test_a_descriptor_arrives_with_its_frame(make: Callable[..., Peer]) -> None:
    peer = make()
    read, write = os.pipe()
    peer.stream.send(frame(b"one"))
    peer.stream.send_with(frame(b"two"), write)
    peer.stream.send(frame(b"three"))
    os.close(write)
    await asyncio.sleep(0)
    peer.sock.setblocking(True)
    peer.sock.settimeout(10)
    decoder = FrameDecoder()
    bodies: list[bytes] = []
    descriptors: list[int] = []
    while len(bodies) < 3:
        data, fds, _, _ = socket.recv_fds(peer.sock, 1 << 16, 4)
        descriptors += fds
        decoder.feed(data)
        bodies += list(decoder.frames())
    assert bodies == [b"one", b"two", b"three"]
    assert len(descriptors) == 1
    os.write(descriptors[0], b"through")
    assert os.read(read, 100) == b"through"
    os.close(read)
    os.close(descriptors[0])


async def test_a_descriptor_that_was_not_sent_is_closed(make: Callable[..., Peer]) -> None:
    peer = make()
    read, write = os.pipe()
    peer.stream.send_with(frame(b"x"), write)
    os.close(write)
    peer.stream.abort()
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)


@pytest.mark.parametrize("data", [b"", frame(b"whole") + b"\x05\x00", b"\x10"])
async def test_ended_once(make: Callable[..., Peer], data: bytes) -> None:
    peer = make()
    if data:
        peer.sock.send(data)
    peer.sock.close()
    await until(lambda: peer.ends)
    peer.stream.send(frame(b"to nobody"))
    peer.stream.finish()
    peer.stream.abort()
    await asyncio.sleep(0)
    assert len(peer.ends) == 1


async def test_a_broken_frame_gets_a_last_word_and_the_end(make: Callable[..., Peer]) -> None:
    peer = make(message=100)
    peer.sock.send(frame(b"good") + (1 << 30).to_bytes(4, "little") + b"rest")
    await until(lambda: peer.ends)
    assert peer.bodies == [b"good"]
    assert len(peer.broken) == 1
    assert peer.read() == frame(b"bye")
    assert peer.sock.recv(1) == b""


async def test_a_peer_that_resets_is_an_end(make: Callable[..., Peer]) -> None:
    peer = make()
    peer.stream.send(frame(b"unread"))
    await asyncio.sleep(0)
    peer.sock.close()
    await until(lambda: peer.ends)
    assert len(peer.ends) == 1


async def test_a_paused_peer_is_not_read_from(make: Callable[..., Peer]) -> None:
    peer = make()
    peer.on_body = lambda body: peer.stream.pause()
    peer.sock.send(frame(b"0") + frame(b"1"))
    await until(lambda: peer.bodies)
    peer.sock.send(frame(b"2"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert peer.bodies == [b"0"]  # neither what had arrived with it nor what came later
    for count in (2, 3):
        peer.stream.resume()
        await until(lambda: len(peer.bodies) == count)  # noqa: B023
    assert peer.bodies == [b"0", b"1", b"2"]


async def test_a_peer_that_two_have_paused_is_read_from_when_both_resume(
    make: Callable[..., Peer],
) -> None:
    peer = make()
    peer.stream.pause()
    peer.stream.pause()
    peer.sock.send(frame(b"0"))
    peer.stream.resume()
    for _ in range(20):
        await asyncio.sleep(0)
    assert peer.bodies == []
    peer.stream.resume()
    await until(lambda: peer.bodies)


async def test_that_a_paused_peer_has_gone_can_be_seen(make: Callable[..., Peer]) -> None:
    peer = make()
    peer.stream.pause()
    peer.sock.send(frame(b"unread"))
    assert not peer.stream.hung_up()
    peer.sock.shutdown(socket.SHUT_WR)
    assert not peer.stream.hung_up()  # it may be waiting for an answer
    peer.sock.close()
    assert peer.stream.hung_up()
    peer.stream.abort()
    assert peer.stream.hung_up()


async def test_many_small_frames_with_descriptors_between_arrive_in_order(
    make: Callable[..., Peer],
) -> None:
    """More than goes into one write, and more than the socket takes at once."""
    peer = make()
    sent = [frame(b"%d" % number + bytes(10_000)) for number in range(300)]
    for number, data in enumerate(sent):
        if number % 100 == 50:
            peer.stream.send_with(data, peer.sock.fileno())
        else:
            peer.stream.send(data)
    received = bytearray()

    def all_read() -> bool:
        received.extend(peer.read())
        return len(received) == sum(map(len, sent))

    await until(all_read)
    assert received == b"".join(sent)
    assert peer.stream.unsent_bytes == 0


def test_a_peer_that_leaves_without_reading_is_noticed_on_the_daemons_loop() -> None:
    """Its error ends libuv's interest in the socket before all is read, the end among it."""

    async def main() -> None:
        peer = Peer(Limits(), Outbox(asyncio.get_running_loop()))
        peer.stream.pause()
        peer.stream.send(frame(b"is never read"))
        await until(lambda: not peer.stream.unsent_bytes)
        peer.sock.send(frame(b"the last words"))
        peer.sock.close()
        peer.stream.notice_hang_up()
        assert not peer.bodies, "it is paused"
        peer.stream.resume()
        await until(lambda: peer.bodies)
        peer.stream.notice_hang_up()
        assert len(peer.ends) == 1
        assert peer.bodies == [b"the last words"]

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
