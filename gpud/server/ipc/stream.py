"""A framed Unix stream socket on the event loop, with batched I/O and descriptor passing.

Problem: asyncio's transports cannot send descriptors, read one buffer at a time, and give a fast
peer as many callbacks as it has messages. A daemon needs: many messages for one system call, in
both directions; fairness between peers; and a bound on the output kept for a peer that does not
read.

Approach: a non-blocking socket with ``add_reader`` and ``add_writer``. One read takes all that has
arrived, up to 256 KiB; its messages are handled in one turn, but no more than `MESSAGES_PER_TURN`
before other peers are served. Messages sent meanwhile, to any peer, are collected in the `Outbox`
and written once at the end of the turn.

Terms:
    turn: one callback of the event loop.
    unsent [bytes]: passed to `Stream.send`, encoded, and not yet accepted by the kernel.

Properties:
    order: bytes and descriptors arrive in the order of the calls, a descriptor with its frame;
    back_pressure: over ``high`` unsent bytes the peer is not read from until ``low`` are left;
    bounded: over ``hard`` unsent bytes the peer is dropped;
    counted: the owner is told how many bytes are kept for the peer, unsent output and incomplete
        input, to within `_REPORT_BYTES`;
    fair: each peer that writes without end delays another by one turn: `MESSAGES_PER_TURN`
        messages, `_TURN_S`, or as many answers as back pressure allows, whichever comes first;
    ended_once: ``on_end`` is called exactly once, and no other callback after it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpud.server.ipc.user_turns import UserTurns
from gpud.wire.framing import FrameDecoder, FrameError

__all__ = ["MESSAGES_PER_TURN", "Limits", "Outbox", "Stream"]

MESSAGES_PER_TURN = 64
"""Messages of one peer that are handled before other peers are served; some 2 ms of work."""

_READ_BYTES = 1 << 18
_JOINED_BYTES = 1 << 18  # small frames joined for one system call; about a socket buffer
_TURN_S = 0.005  # after that a turn handles no further message
_REPORT_BYTES = 1 << 18
_FINISH_S = 2.0  # how long a peer may take to read the last messages


class Limits(NamedTuple):
    """Limits of a stream, in bytes: ``message`` on a frame, the others on unsent output."""

    message: int = 64 << 20
    high: int = 1 << 20
    low: int = 1 << 18
    hard: int | None = 64 << 20


class Outbox:
    """The streams of an event loop with output to write; flushed once a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._dirty: list[Stream] = []
        self._later = False
        self._inside = False

    def add(self, stream: Stream) -> None:
        """Have ``stream`` flushed at the end of this turn."""
        self._dirty.append(stream)
        if not self._inside and not self._later:
            self._later = True
            self.loop.call_soon(self.flush)

    def enter(self) -> None:
        """Begin a turn that ends with `flush`, which then needs no callback of its own."""
        self._inside = True

    def flush(self) -> None:
        """Write the output of every stream that was added."""
        self._inside = self._later = False
        dirty, self._dirty = self._dirty, []
        for stream in dirty:
            stream.flush()


class Stream:
    """The stream to one peer.

    Args:
        sock: a connected Unix stream socket; the stream owns it from now on.
        outbox: of the event loop.
        limits: see `Limits`.
        encode: returns the frame of a message.
        on_body: called with the body of each frame.
        on_end: called once, when the peer has disconnected or was dropped, with the reason as text.
            The socket is closed then.
        on_broken: called when the peer has sent an invalid frame. Nothing more is read; the owner
            may still `send` a last message and must call `finish`.
        turns: those of the peer's user; None: the peer is read from whenever it has sent something.
        on_buffered: called when the number of bytes kept for the peer has changed by at least
            `_REPORT_BYTES`, or to zero, with the change; the changes add up to zero before
            ``on_end``. It may end the stream.
    """

    def __init__(
        self,
        sock: socket.socket,
        outbox: Outbox,
        limits: Limits,
        *,
        encode: Callable[[Any], bytes],
        on_body: Callable[[bytes], None],
        on_end: Callable[[str], None],
        on_broken: Callable[[FrameError], None] | None = None,
        on_buffered: Callable[[int], None] | None = None,
        turns: UserTurns | None = None,
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._fd = sock.fileno()
        self._outbox = outbox
        self._loop = outbox.loop
        self._limits = limits
        self._decoder = FrameDecoder(limits.message)
        self._encode = encode
        self._on_body = on_body
        self._on_end = on_end
        self._on_broken = on_broken
        self._on_buffered = on_buffered
        self._turns = turns
        self._reported_bytes = 0
        self._frames: list[bytes] = []
        self._descriptors: list[tuple[int, int]] = []  # (index in _frames, descriptor)
        self._rest: bytes | memoryview = b""  # of the frames whose writing has begun
        self.unsent_bytes = 0
        self._queued = False  # in the outbox
        self._reading = False
        self._writing = False  # waits until the socket is writable
        self._throttled = False  # not reading, until unsent output has drained
        self._backlog: Iterator[bytes] | None = None
        self._pauses = 0  # not reading, by `pause`
        self._input_closed = False  # nothing is read any more
        self._finishing: asyncio.TimerHandle | None = None
        self.ended = False

    def start(self) -> None:
        """Begin to read."""
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)

    # -- writing

    def send(self, message: Any) -> None:
        """Queue a message; it is written at the end of the turn. Never blocks.

        After `finish` it is dropped.
        """
        if self.ended or self._finishing is not None:
            return
        frame = self._encode(message)
        self._frames.append(frame)
        self.unsent_bytes += len(frame)
        if not self._queued:
            self._queued = True
            self._outbox.add(self)

    def send_frame(self, frame: bytes) -> None:
        """`send` what is encoded already, or a piece of it."""
        if self.ended or self._finishing is not None:
            return
        self._frames.append(frame)
        self.unsent_bytes += len(frame)
        if not self._queued:
            self._queued = True
            self._outbox.add(self)

    def send_with(self, message: Any, descriptor: int) -> None:
        """`send` with a descriptor, which is duplicated: the caller may close its own."""
        if self.ended or self._finishing is not None:
            return
        self.send(message)
        self._descriptors.append((len(self._frames) - 1, os.dup(descriptor)))

    def flush(self) -> None:
        """Write what the kernel accepts now, and the rest when the socket is writable again."""
        self._queued = False
        if self.ended:
            return
        if self._writing:
            self._after_write()  # unsent output has grown
            return
        frames = self._frames
        try:
            if len(frames) == 1 and not self._rest and not self._descriptors:
                # The usual case, in few steps.
                self._rest, self._frames = frames[0], []
                sent = self.sock.send(self._rest)
                self.unsent_bytes -= sent
                self._rest = memoryview(self._rest)[sent:] if sent < len(self._rest) else b""
                if not self.unsent_bytes and self._finishing is None and not self._throttled:
                    if self._reported_bytes:
                        self._report_buffered()
                    return
            while self._rest or self._frames:
                if not self._rest:
                    self._rest = self._next_frames()
                if self._rest:
                    sent = self.sock.send(self._rest)
                    self.unsent_bytes -= sent
                    self._rest = memoryview(self._rest)[sent:] if sent < len(self._rest) else b""
        except (BlockingIOError, InterruptedError):
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        self._after_write()

    def _next_frames(self) -> bytes | memoryview:
        """Dequeue frames to be written next, up to the next one that carries a descriptor.

        A frame with a descriptor is written here, and the rest of it returned.
        """
        if not self._descriptors and self.unsent_bytes <= _JOINED_BYTES:
            frames, self._frames = self._frames, []
            return frames[0] if len(frames) == 1 else b"".join(frames)
        plain = self._descriptors[0][0] if self._descriptors else len(self._frames)
        if plain:
            count = size = 0
            while count < plain and size < _JOINED_BYTES:
                size += len(self._frames[count])
                count += 1
            frames, self._frames = self._frames[:count], self._frames[count:]
            self._descriptors = [(at - count, fd) for at, fd in self._descriptors]
            return b"".join(frames)
        _, descriptor = self._descriptors[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        sent = self.sock.sendmsg(
            [self._frames[0]], rights
        )  # it may raise: nothing has changed then
        self.unsent_bytes -= sent
        rest = memoryview(self._frames.pop(0))[sent:]
        del self._descriptors[0]
        self._descriptors = [(at - 1, fd) for at, fd in self._descriptors]
        os.close(descriptor)
        return rest

    def _writable(self) -> None:
        self._writing = False
        self._loop.remove_writer(self._fd)
        self.flush()

    def _after_write(self) -> None:
        limits = self._limits
        if not self.unsent_bytes:
            if self._finishing is not None:
                self._end("closed by the daemon")
                return
        elif limits.hard is not None and self.unsent_bytes > limits.hard:
            self._end(f"dropped: it left {self.unsent_bytes} bytes unread")
            return
        if self.unsent_bytes > limits.high:
            self._throttled = True
            self._update_reading()
        elif self._throttled and self.unsent_bytes <= limits.low:
            self._throttled = False
            self._update_reading()
        self._report_buffered()

    def _report_buffered(self) -> None:
        """Report the bytes kept for the peer to the owner if they have changed enough."""
        if self._on_buffered is None:
            return
        buffered_bytes = self.unsent_bytes + self._decoder.pending_bytes
        change = buffered_bytes - self._reported_bytes
        if change and (not buffered_bytes or abs(change) >= _REPORT_BYTES):
            self._reported_bytes = buffered_bytes
            self._on_buffered(change)

    # -- reading

    def pause(self) -> None:
        """Handle no more messages until `resume`, not even those that have arrived.

        Several may pause it at a time, each for a reason of its own: all of them have to resume.
        """
        self._pauses += 1
        self._update_reading()

    def resume(self) -> None:
        """Handle messages again after `pause`, unless somebody else has paused it."""
        assert self._pauses > 0
        self._pauses -= 1
        self._update_reading()

    def hung_up(self) -> bool:
        """Whether the peer has closed its end or died, which is not noticed while paused."""
        if self.ended:
            return True
        poll = select.poll()
        poll.register(self._fd, 0)
        return bool(poll.poll(0))

    def notice_hang_up(self) -> None:
        """Read what is left of a peer that has hung up, to the end; to be called now and then.

        A peer that closes its end before it has read everything puts an error on ours. libuv reads
        that as the end of the descriptor: uvloop calls the reader once more, then never again, and
        what that call left unread, the end among it, would never be noticed.
        """
        while self._reading and self.hung_up() and not self.ended:
            self._readable()

    def _update_reading(self) -> None:
        """Start or stop reading from the peer, as the state requires."""
        still = self._throttled or self._pauses or self._input_closed or self.ended
        want = not still and self._backlog is None
        if want and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
        elif not want and self._reading:
            self._loop.remove_reader(self._fd)
        self._reading = want
        if self._backlog is not None and not still:
            self._loop.call_soon(self._next_turn)

    def take_turn(self) -> None:
        """`resume`, and handle what has arrived at once: see `gpud.server.ipc.user_turns`."""
        assert self._pauses > 0
        self._pauses -= 1
        if self._backlog is not None:
            self._go_on()
        elif not (self._pauses or self._throttled or self._input_closed):
            self._read()
        if not self.ended:
            self._update_reading()

    def _readable(self) -> None:
        if self._turns is None:
            self._read()
        else:
            self._turns.read(self, self._read)

    def _read(self) -> None:
        try:
            size = self.sock.recv_into(self._outbox.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not size:
            self._end("closed by the peer")
            return
        data = self._outbox.buffer[:size]
        body = self._decoder.only_frame(data)
        if body is None:
            self._turn(self._decoder.feed_frames(data))
            return
        # The usual case, a turn of one message, in few steps.
        self._outbox.enter()
        try:
            self._on_body(body)
        finally:
            self._outbox.flush()
        if self.ended:
            return
        if not self._reading:
            self._update_reading()
        if self.unsent_bytes or self._reported_bytes:
            self._report_buffered()

    def _next_turn(self) -> None:
        if self._turns is None or self._backlog is None or self._throttled or self._pauses:
            self._go_on()
        else:
            self._turns.read(self, self._go_on)

    def _go_on(self) -> None:
        frames, self._backlog = self._backlog, None
        if frames is None or self.ended or self._input_closed:
            return
        if self._throttled or self._pauses:
            self._backlog = frames
            return
        self._turn(frames)

    def _turn(self, frames: Iterator[bytes]) -> None:
        """Handle the frames that have arrived, within the limits of a turn."""
        self._outbox.enter()
        budget = MESSAGES_PER_TURN
        high = self._limits.high
        until = time.monotonic() + _TURN_S
        try:
            for body in frames:
                self._on_body(body)
                if self.ended or self._input_closed:
                    return
                budget -= 1
                over = not budget or self.unsent_bytes > high or time.monotonic() > until
                if over or self._pauses:
                    # Whether more frames have arrived is checked in the next turn.
                    self._backlog = frames
                    break
        except FrameError as error:
            self._input_closed = True
            if self._on_broken is None:
                self._end(str(error))
            else:
                self._on_broken(error)
        finally:
            self._outbox.flush()
        if self.ended:
            return
        if self._backlog is not None or not self._reading:
            self._update_reading()
        if self.unsent_bytes or self._reported_bytes or self._decoder.pending_bytes:
            self._report_buffered()

    # -- the end

    def finish(self) -> None:
        """Send the queued frames, then close; nothing more is read. ``on_end`` is always called."""
        if self.ended or self._finishing is not None:
            return
        self._input_closed = True
        self._update_reading()
        self._finishing = self._loop.call_later(_FINISH_S, self._end, "closed by the daemon")
        self._outbox.add(self)

    def abort(self, reason: str = "closed by the daemon") -> None:
        """Close at once."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        if self._finishing is not None:
            self._finishing.cancel()
        for _, descriptor in self._descriptors:
            os.close(descriptor)
        self._reading = self._writing = False
        self._frames.clear()
        self._descriptors.clear()
        self._rest = b""
        self._backlog = None
        self._decoder = FrameDecoder(self._limits.message)  # frees its buffer
        self.unsent_bytes = 0
        self.sock.close()
        if self._on_buffered is not None and self._reported_bytes:
            self._on_buffered(-self._reported_bytes)
            self._reported_bytes = 0
        self._on_end(reason)
