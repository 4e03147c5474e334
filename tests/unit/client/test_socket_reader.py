"""The socket reader at the end of a session, which client or daemon may close first."""

from __future__ import annotations

import socket

from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.connection.socket_reader import SocketReader


class Unending:
    _settled = False


def test_a_session_that_is_closed_is_not_lost_even_if_the_daemon_was_quicker() -> None:
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    core = ProtocolState()
    reader = SocketReader(mine, core, "there", lambda: None)
    mine.send(b"something that is never read")
    theirs.close()  # to read now is an error, not an end
    reader.hang_up()
    assert not reader.wait(Unending)
    assert "the session is closed" in str(core.lost)
    reader.release()
