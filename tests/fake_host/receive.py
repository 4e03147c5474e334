"""What comes in over a socket of gpud's, for tests that speak its protocols in the raw."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gpud.wire.framing import FrameDecoder

__all__ = ["incoming"]


def incoming(
    sock: socket.socket, decoder: FrameDecoder, descriptors: list[int]
) -> Iterator[bytes] | None:
    """Read what is there, without waiting: the bodies of whole frames; None if the peer has gone.

    Descriptors that came with it are appended to ``descriptors``.
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
