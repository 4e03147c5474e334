"""The host's end of its link: frames in pieces, descriptors, a front that closes its end."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from gpud.device.host import messages as m
from gpud.device.host.link import Link
from gpud.errors import FrameError, ProtocolError
from gpud.units import JobId
from gpud.wire.framing import frame

Ends = tuple[Link, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    front, host = socket.socketpair()
    link = Link(host)
    with front:
        yield link, front
    link.close()


def encoded(*commands: object) -> bytes:
    return b"".join(map(m.HOST_PROTOCOL.encode, commands))


def test_commands_come_in_order_however_they_are_cut(ends: Ends) -> None:
    link, front = ends
    commands = [
        m.EndJob(JobId(1), 0),
        m.ResizeJob(JobId(2), 0, 3, 4),
        m.LoadModule(1, 2, 3, "x" * 1000),
    ]
    data = encoded(*commands)
    received = link.receive()
    front.sendall(data[:3])
    front.sendall(data[3:20])
    front.sendall(data[20:])
    assert [next(received) for _ in commands] == commands
    front.close()
    assert list(received) == []


def test_an_undecodable_message_is_yielded_and_the_next_one_follows(ends: Ends) -> None:
    link, front = ends
    front.sendall(
        frame(b"\x91\x7f") + encoded(m.SlicesHeld(1, 0, 0, exhausted=True), m.EndJob(JobId(1), 0))
    )
    front.close()
    unknown, from_the_wrong_side, good = link.receive()
    assert (unknown.kind, from_the_wrong_side.kind) == (None, m.SlicesHeld)
    assert isinstance(unknown.error, ProtocolError)
    assert isinstance(from_the_wrong_side.error, ProtocolError)
    assert good == m.EndJob(JobId(1), 0)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\0", frame(b"\xc1")])
def test_broken_framing_is_the_end(ends: Ends, data: bytes) -> None:
    link, front = ends
    front.sendall(data)
    with pytest.raises(FrameError):
        list(link.receive())


def test_descriptors_come_in_the_order_of_their_commands(ends: Ends) -> None:
    link, front = ends
    received = link.receive()
    files = [os.memfd_create(str(number)) for number in range(3)]
    for number, descriptor in enumerate(files):
        os.ftruncate(descriptor, number + 1)
        socket.send_fds(front, [encoded(m.OpenArena(number, number, 0, 4096))], [descriptor])
        os.close(descriptor)
    for number in range(2):
        assert next(received).ticket == number
        taken = link.take_descriptor()
        assert taken is not None
        assert os.fstat(taken).st_size == number + 1
        os.close(taken)
    next(received)  # its descriptor is closed with the link


def test_a_message_may_come_without_a_descriptor(ends: Ends) -> None:
    link, front = ends
    front.sendmsg(
        [encoded(m.EndJob(JobId(1), 0))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i"))]
    )
    next(link.receive())
    assert link.take_descriptor() is None


def test_events_for_a_front_that_has_gone_are_dropped(ends: Ends) -> None:
    link, front = ends
    front.close()
    link.send(m.Replied(1))
    link.send(m.Replied(2))
    assert list(link.receive()) == []


def test_a_front_that_vanishes_with_commands_unread(ends: Ends) -> None:
    link, front = ends
    link.send(m.Replied(1))
    front.sendall(encoded(m.EndJob(JobId(1), 0)))
    front.close()  # unread data: the kernel resets the connection
    assert list(link.receive()) in ([], [m.EndJob(JobId(1), 0)])


def test_closing_ends_a_send_that_waits_and_drops_what_comes_after(ends: Ends) -> None:
    link, front = ends
    large = m.Replied(1, bytes(16 << 20))  # more than a socket takes at once
    sending = threading.Thread(target=link.send, args=(large,))
    sending.start()
    assert front.recv(1)  # the send has begun, and blocks: nothing more is read
    link.close()
    sending.join(60)
    assert not sending.is_alive()
    link.send(large)
