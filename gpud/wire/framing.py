"""Framing: delimits messages in a byte stream.

Problem: a stream socket delivers bytes in pieces of any size. A peer may send garbage, or announce
an excessively long message.

Approach: a frame is the length of its body, 4 bytes, little-endian, then the body. The body is one
msgpack value, which is not examined here. Complete frames are extracted at once; the rest waits for
the next `FrameDecoder.feed`. A broken stream stays broken, since the start of the next frame is
unknown.

Properties:
    any_pieces: the bodies do not depend on how the stream was cut into pieces;
    bounded: a frame over the limit is refused by its length, before its body is buffered;
    broken_stays_broken: after a `FrameError` no more bodies are returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpud.errors import FrameError

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "FrameDecoder", "FrameError", "frame", "header"]

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 << 20
"""The default limit for the body of a frame."""

_SMALL_BYTES: Final = 1 << 12
"""Up to this size, copying a body twice is faster than making a memoryview of it."""


class FrameDecoder:
    """Splits a byte stream into the bodies of its frames.

    Args:
        limit_bytes: the largest body that is accepted.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._start = 0  # offset of the first frame in the buffer that was not yielded yet
        self._broken: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that were fed and not yielded yet, headers included."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append a piece of the stream; ``data`` is copied.

        Raises:
            FrameError: the stream is already known to be broken.
        """
        if self._broken is not None:
            self._check()
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def feed_frames(self, data: memoryview) -> Iterator[bytes]:
        """Append a piece of the stream, and yield the body of each frame that is complete now.

        Raises:
            FrameError: as from `feed` and `frames`.
        """
        body = self.only_frame(data)
        if body is not None:
            return iter((body,))
        self.feed(data)
        return self.frames()

    def only_frame(self, data: bytes | memoryview) -> bytes | None:
        """Return the body of a piece that is just a frame, as most are: it passes no buffer.

        None if it is not, or follows an incomplete one: then it must be given to `feed`.
        """
        size = len(data) - HEADER_BYTES
        if (
            size > 0
            and not self._buffer
            and self._broken is None
            and int.from_bytes(data[:HEADER_BYTES], "little") == size <= self._limit_bytes
        ):
            return bytes(data[HEADER_BYTES:])
        return None

    def frames(self) -> Iterator[bytes]:
        """Yield the body of each complete frame, once, in order.

        An iterator that was abandoned may be resumed, or replaced by a new one.

        Raises:
            FrameError: the next frame is empty or over the limit. `feed` and `frames` raise it from
                now on.
        """
        buffer = self._buffer
        while True:
            if self._broken is not None:
                self._check()
            start = self._start
            body = start + HEADER_BYTES
            if len(buffer) < body:
                if len(buffer) == start:
                    # All was yielded: free the memory that a large message has taken.
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
            # Through a view: a slice of the bytearray would be copied twice. The view must be
            # released before the yield, because a buffer with a view on it cannot grow.
            with memoryview(buffer) as view:
                frame = bytes(view[body:end])
            yield frame

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
    """Return the frame with the given body.

    Raises:
        FrameError: the body is empty, or its length does not fit 4 bytes.
    """
    return header(len(body)) + body


def header(size: int) -> bytes:
    """Return the frame header for a body of ``size`` bytes.

    Raises:
        FrameError: ``size`` is 0, negative, or does not fit 4 bytes.
    """
    if not 0 < size < 1 << 32:
        raise FrameError(f"a frame has 1 to 2^32 - 1 bytes, not {size}")
    return size.to_bytes(HEADER_BYTES, "little")
