"""Reads frames from a socket, for tests that use gpud's protocols directly."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gpud.wire.framing import FrameDecoder


def incoming(
    sock: socket.socket, decoder: FrameDecoder, descriptors: list[int]
) -> Iterator[bytes] | None:
    """Read available data without waiting: the bodies of whole frames; None if the peer closed.

    Descriptors that came with the data are appended to ``descriptors``.
    """
    try:
        data, found, _, _ = socket.recv_fds(sock, 1 << 18, 16)
    except BlockingIOError:
        return iter(())
    except OSError:
        return None
    descriptors += found
    if not data:
        return None
    decoder.feed(data)
    return decoder.frames()
