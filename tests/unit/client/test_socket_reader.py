"""The socket reader at the end of a session, which client or daemon may close first."""

from __future__ import annotations

import socket
import threading

from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.connection.socket_reader import SocketReader
from tests.unit.client.fake_daemon import TIMEOUT_S


def test_a_session_that_is_closed_is_not_lost_even_if_the_daemon_was_quicker() -> None:
    mine, theirs = socket.socketpair()
    core = ProtocolState()
    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        leave.wait(TIMEOUT_S)

    reader = SocketReader(mine, core, "there", busy, mine.close)
    theirs.send(b"\0\0\0")  # a part of a message
    assert entered.wait(TIMEOUT_S)
    mine.send(b"something that is never read")
    theirs.close()  # to read now is an error, not an end
    reader.hang_up()
    leave.set()
    reader.join(TIMEOUT_S)
    assert "the session is closed" in str(core.lost)
