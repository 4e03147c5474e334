"""The socket reader at the end of a session, which client or daemon may close first."""

from __future__ import annotations

import socket
import threading

import pytest

from gpud_client.connection.channel import Channel
from gpud_client.connection.protocol_state import ProtocolState
from tests.unit.client.fake_daemon import TIMEOUT_S


def test_a_session_that_is_closed_is_not_lost_even_if_the_daemon_was_quicker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = socket.socketpair()
    core = ProtocolState()
    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        leave.wait(TIMEOUT_S)

    monkeypatch.setattr(core, "settle", busy)
    channel = Channel(mine, core, "there")
    theirs.send(b"\0\0\0")  # a part of a message
    assert entered.wait(TIMEOUT_S)
    mine.send(b"something that is never read")
    theirs.close()  # to read now is an error, not an end
    channel.abandon()
    leave.set()
    channel.close()
    assert "the session is closed" in str(core.lost)
