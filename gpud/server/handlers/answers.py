"""Builds large answers in time slices, so that one client's query does not delay other clients.

Problem: an answer about thousands of jobs, or about the whole allocation history, takes a tenth of
a second to build. No other client is served meanwhile, a killed client is not noticed, and the
hundred thousand small objects of such an answer fragment the process's memory.

Approach: an answer is built by a generator that yields after every row. Its first slice runs at
once, and completes most answers. The rest runs in later turns of the event loop, one slice in each,
round robin over the sessions. Rows are packed a few at a time. While its answer is being built, a
session is not read from.

Terms:
    steps: a generator that yields None every few tens of microseconds, and returns its result.
    slice [s]: how long steps are run before the event loop goes on.

Properties:
    one_slice_a_turn: however many answers are being built, each turn runs one slice of them;
    in_order: the answers of a session are sent in the order in which they were begun;
    bounded: a session's next query is not read before its answer is built, and an answer has the
        latest rows, up to about `MOST_BYTES`;
    abandoned_dropped: an answer is dropped at the first slice after its client has disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgpack

from gpud.server.state.session import Session, internal_error
from gpud.wire import messages as wm

__all__ = ["MOST_BYTES", "Answers", "Packed", "Steps", "items", "latest", "rows"]

_LOG = logging.getLogger(__name__)
_SLICE_S = 0.002
_ROWS_AT_ONCE = 64  # packed together: some 10 KiB
_LOOKS_AT_ONCE = 32

MOST_BYTES = 32 << 20
"""The limit on the rows of one answer; a client reads twice as much."""

_T = TypeVar("_T")
Steps = Generator[None, None, _T]


class Packed(NamedTuple):
    """The elements of a msgpack array, without its header."""

    parts: list[bytes]
    length: int


class _Work(NamedTuple):
    """An answer that is being built."""

    request: int
    steps: Steps[Any]
    then: Callable[[Any], None]


class Answers:
    """The answers that are being built, of all sessions.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Session, deque[_Work]] = {}
        self._order: OrderedDict[int, OrderedDict[Session, None]] = OrderedDict()  # by account

    def __len__(self) -> int:
        """How many sessions wait for an answer."""
        return len(self._waiting)

    def answer(self, session: Session, request: int, steps: Steps[Any]) -> None:
        """Send the result of ``steps`` as `gpud.wire.messages.Answer`."""

        def send(value: Any) -> None:
            # May be several MiB, so the pieces are not joined.
            for piece in wm.CLIENT_PROTOCOL.encode_with(
                wm.Answer(request), "value", _packed(value)
            ):
                session.stream.send_frame(piece)

        self.make(session, request, steps, send)

    def make(
        self, session: Session, request: int, steps: Steps[_T], then: Callable[[_T], None]
    ) -> None:
        """Run ``steps`` and call ``then`` with their result, maybe before this returns.

        It is not called if the client disconnects; if ``steps`` raise, ``request`` fails.
        """
        work = _Work(request, steps, then)
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.append(work)
        elif not self._advance(session, work):
            self._waiting[session] = deque([work])
            self._order.setdefault(session.account, OrderedDict())[session] = None
            session.stream.pause()
            if len(self._waiting) == 1:
                self._loop.call_soon(self._next_slice)

    def _next_slice(self) -> None:
        """Run one slice of the next answer: users take turns, and each user's sessions."""
        account, sessions = next(iter(self._order.items()))
        session = next(iter(sessions))
        waiting = self._waiting[session]
        if not session.gone and session.stream.hung_up():
            session.stream.abort("closed by the peer")
        if session.gone:
            waiting.clear()
        elif self._advance(session, waiting[0]):
            waiting.popleft()
        if waiting:
            sessions.move_to_end(session)
        else:
            del self._waiting[session], sessions[session]
            session.stream.resume()
        if sessions:
            self._order.move_to_end(account)
        else:
            del self._order[account]
        if self._waiting:
            self._loop.call_soon(self._next_slice)

    def _advance(self, session: Session, work: _Work) -> bool:
        """Run one slice; returns whether the answer is complete."""
        until = time.monotonic() + _SLICE_S
        try:
            try:
                while True:
                    next(work.steps)
                    if time.monotonic() > until:
                        return False
            except StopIteration as end:
                work.then(end.value)
                return True
        except Exception as error:  # noqa: BLE001 - one answer must not stop the daemon
            _LOG.exception("an answer for session %d was not made", session.number)
            session.fail(work.request, internal_error(error))
            return True


# -- parts of answers ------------------------------------------------------------------------------


def latest(elements: Sequence[_T], limit: int, fits: Callable[[_T], bool]) -> Steps[list[_T]]:
    """Return the last ``limit`` elements for which ``fits`` is true, in their order; 0: all."""
    chosen: list[_T] = []
    for index, one in enumerate(reversed(elements)):
        if not index % _LOOKS_AT_ONCE:
            yield
        if fits(one):
            chosen.append(one)
            if len(chosen) == limit:
                break
    chosen.reverse()
    return chosen


def rows(elements: Sequence[_T], row: Callable[[_T], Any]) -> Steps[Packed]:
    """Return an array of ``row(one)`` for each element; the last if all exceed `MOST_BYTES`."""
    packer = msgpack.Packer(autoreset=False)
    parts: list[bytes] = []
    size = 0
    first = end = len(elements)
    while first and size < MOST_BYTES:
        start, first = first, max(0, first - _ROWS_AT_ONCE)
        for one in elements[first:start]:
            packer.pack(row(one))
            yield
        parts.append(packer.bytes())
        packer.reset()
        size += len(parts[-1])
    parts.reverse()
    return Packed(parts, end - first)


def items(elements: Iterable[Any]) -> Steps[Packed]:
    """Return an array of an iterable's elements."""
    packer = msgpack.Packer(autoreset=False)
    parts: list[bytes] = []
    count = 0
    left = iter(elements)
    while True:
        before = count
        for one in islice(left, _ROWS_AT_ONCE):
            packer.pack(one)
            count += 1
            yield
        if count == before:
            return Packed(parts, count)
        parts.append(packer.bytes())
        packer.reset()


def _packed(value: Any) -> list[bytes]:
    """Return a value as msgpack; it, or a map's values, may be `Packed`."""
    packer = msgpack.Packer()
    if isinstance(value, Packed):
        return [packer.pack_array_header(value.length), *value.parts]
    if isinstance(value, dict):
        parts = [packer.pack_map_header(len(value))]
        for name, one in value.items():
            parts.append(packer.pack(name))
            parts += _packed(one)
        return parts
    return [packer.pack(value)]
