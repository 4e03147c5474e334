"""Frames: how messages are told apart in a stream of bytes.

Problem: a stream socket gives bytes in pieces of any size. A peer may send rubbish, or announce a
message that never ends.

Approach: a frame is the length of its body, 4 bytes, little-endian, and the body. A body holds one
msgpack value, but that is not looked at here. What has arrived in whole is cut out at once; the
rest waits for the next `FrameDecoder.feed`. Once the stream is broken it stays broken, since
nobody can tell where the next frame would begin.

Properties:
    any_pieces: the bodies do not depend on how the stream was cut into pieces;
    bounded: a frame over the limit is refused by its length, before its body is kept;
    broken_stays_broken: after a `FrameError` nothing more comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpud.errors import FrameError

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "FrameDecoder", "FrameError", "frame", "header"]

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 << 20
"""The limit for the body of a frame where nothing else is agreed."""

_SMALL_BYTES: Final = 1 << 12
"""Of a body that is copied twice sooner than a view on it is made."""


class FrameDecoder:
    """Cuts a stream into the bodies of its frames.

    Args:
        limit_bytes: the largest body that is accepted.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._start = 0  # of the first frame in the buffer that was not given out
        self._broken: str | None = None

    @property
    def pending_bytes(self) -> int:
        """How many bytes were fed that no body given out has held, headers included."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take more of the stream; ``data`` is copied, and may be changed afterwards.

        Raises:
            FrameError: the stream was found to be broken before.
        """
        if self._broken is not None:
            self._check()
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def frames(self) -> Iterator[bytes]:
        """Yields the body of each frame that is there in whole, once, in order.

        An iterator that was left half-way may be gone on with, or another be made.

        Raises:
            FrameError: the next frame is over the limit. `feed` and `frames` raise it from now on.
        """
        buffer = self._buffer
        while True:
            if self._broken is not None:
                self._check()
            start = self._start
            body = start + HEADER_BYTES
            if len(buffer) < body:
                if len(buffer) == start:
                    # All is given out: an idle peer keeps nothing of a large message.
                    buffer.clear()
                    self._start = 0
                return
            size = int.from_bytes(buffer[start:body], "little")
            if size > self._limit_bytes or not size:
                self._break(size)
            end = body + size
            if len(buffer) < end:
                return
            self._start = end
            if size <= _SMALL_BYTES:
                yield bytes(buffer[body:end])
                continue
            # Through a view: a slice of the bytearray would be copied twice. The view must be gone
            # before the yield, for a buffer with a view on it cannot grow.
            with memoryview(buffer) as view:
                found = bytes(view[body:end])
            yield found

    def _check(self) -> None:
        if self._broken is not None:
            raise FrameError(self._broken)

    def _break(self, size: int) -> None:
        self._buffer.clear()
        self._start = 0
        self._broken = (
            f"a frame of {size} bytes is over the limit of {self._limit_bytes}; send less at once, "
            "or raise the daemon's max_message_bytes"
            if size
            else "a frame has no body; is the peer one of gpud's?"
        )
        raise FrameError(self._broken)


def frame(body: bytes) -> bytes:
    """Returns the frame with that body.

    Raises:
        FrameError: the body is empty, or its length does not fit 4 bytes.
    """
    return header(len(body)) + body


def header(size: int) -> bytes:
    """Returns what stands in front of a body of ``size`` bytes.

    Raises:
        FrameError: there is no such frame.
    """
    if not 0 < size < 1 << 32:
        raise FrameError(f"a frame has 1 to 2^32 - 1 bytes, not {size}")
    return size.to_bytes(HEADER_BYTES, "little")
