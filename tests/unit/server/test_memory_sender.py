"""Memory of a device on its way to a client."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from gpud.errors import InvalidArgument
from gpud.server.ipc.memory_sender import MemorySender


class Client:
    """Gets its end of each socket."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []

    def take(self, descriptor: int) -> None:
        self.ends.append(socket.socket(fileno=os.dup(descriptor)))


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    for end in one.ends:
        end.close()


def test_one_message_at_a_time_until_the_client_has_taken_it(client: Client) -> None:
    sender = MemorySender()
    sender.begin()
    with pytest.raises(InvalidArgument, match="on its way"):
        sender.begin()
    sender.failed()
    for _ in range(2):
        sender.begin()
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"memory"], [0])
        sender.sent((ours, theirs), client.take)
        end = client.ends[-1]
        end.send(b"what a client has no reason to send")
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="take it from its socket"):
                sender.begin()
        end.shutdown(socket.SHUT_WR)
        assert end.recv(100, socket.MSG_PEEK) == b"memory"
        with pytest.raises(InvalidArgument):
            sender.begin()
        assert end.recv(100) == b"memory"
        sender.begin()
        assert ours.fileno() == -1
        sender.failed()


def test_a_client_that_closes_its_end_without_taking_it_may_ask_again(client: Client) -> None:
    sender = MemorySender()
    sender.begin()
    ours, theirs = socket.socketpair()
    ours.send(b"memory")
    sender.sent((ours, theirs), client.take)
    client.ends[0].close()
    sender.begin()


def test_what_is_on_its_way_to_a_client_that_has_gone_is_dropped(client: Client) -> None:
    sender = MemorySender()
    sender.begin()
    before = socket.socketpair()
    sender.sent(before, client.take)
    sender.close()
    assert client.ends[0].recv(1) == b""
    late = socket.socketpair()
    sender.sent(late, client.take)
    assert client.ends[1].recv(1) == b""
    assert [one.fileno() for one in (*before, *late)] == [-1] * 4
