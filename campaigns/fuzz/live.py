"""A live daemon under fuzzed connections, each answer accounted for.

Problem: a daemon that survives garbage may still have dropped somebody's request, or answered it
twice; that shows only if one knows what it should have answered.

Approach: what is sent goes through the same decoder in this process first (`Account`), which says
what must come back: one answer with this request's number and of the message's own class or
`Failed`, one `Finished` for a job, nothing, or the end of the connection with a `Goodbye`. Messages
are pipelined by the hundred, from a client that reads all the time; at the end of a connection the
client cancels its jobs, waits until everything is accounted for, and leaves in one of several ways,
in the middle of a frame for instance. Some connections leave at once.

Properties that are checked:
    answered: every message that asks for an answer gets exactly one, of a class that it may have;
    goodbye: the daemon ends a connection only after a broken frame or without a good `Hello`, and
        says `Goodbye` first.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from campaigns.fuzz.choices import Choices, Dice
from campaigns.fuzz.messages import Fuzzer
from campaigns.fuzz.oracle import Account, Unanswered, answers_to
from campaigns.fuzz.parser import Outcomes
from gpud.errors import FrameError, ProtocolError
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import CLIENT_PROTOCOL
from tests.support.receive import incoming

__all__ = ["KERNEL", "Account", "Talk", "Unanswered", "fuzz_connection"]

_PATIENCE_S = 60.0
_CHUNK_BYTES = 1 << 16

# It may be launched with anything for parameters.
KERNEL = """
.version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .const .align 4 .b8 table[64];
.visible .entry touch(.param .u64 p)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  mov.u64 %rd1, counter;
  mov.u32 %r1, 1;
  atom.global.add.u32 %r2, [%rd1], %r1;
  ret;
}
"""
_SOURCES = (
    KERNEL,
    KERNEL.replace("touch", "other"),
    KERNEL.replace("ret;", "bogus;"),
    'extern "C" __global__ void k(int* p) { if (threadIdx.x > 5000) *p = 1; }',
    "extern ",
)


class Talk:
    """One connection: sends what it is told, reads all the time, keeps the account.

    Args:
        sock: connected; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.account = Account()
        self.closed = False
        self._unsent = bytearray()
        self._deaf = False  # the daemon takes nothing more
        self._decoder = FrameDecoder(1 << 30)
        self.latest: dict[type[Any], Any] = {}
        self.finished: dict[int, Any] = {}
        self.descriptors: list[int] = []

    def send(self, data: bytes) -> None:
        """Have bytes sent; the daemon is read from meanwhile."""
        self.account.send(data)
        self._unsent += data
        while len(self._unsent) > _CHUNK_BYTES and not self.closed:
            self._turn(_PATIENCE_S)

    def message(self, message: Any) -> None:
        """`send` a message."""
        self.send(CLIENT_PROTOCOL.encode(message))

    def ask(self, message: Any) -> Any:
        """`send` a request, and wait for everything that is open; its answer.

        Raises:
            Unanswered: there is none.
        """
        self.latest.pop(wm.Failed, None)
        self.message(message)
        self.until(lambda: not self.account.open, str(message)[:100])
        classes: list[type[Any]] = [wm.Failed, *answers_to(type(message))]
        for cls in classes:
            answer = self.latest.get(cls)
            if answer is not None and answer.request == message.request:
                return answer
        raise Unanswered(f"the connection has ended before an answer to {str(message)[:100]}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Go on until ``condition`` holds or the connection has ended.

        Raises:
            Unanswered: nothing was heard for a long time.
        """
        last = time.monotonic()
        while not self.closed and not condition():
            if self._turn(1.0):
                last = time.monotonic()
            elif time.monotonic() - last > _PATIENCE_S:
                raise Unanswered(f"nothing came for {_PATIENCE_S:g} s; {what}: {self.account}")

    def settle(self) -> None:
        """Wait until everything is answered, or the daemon has ended the connection as it must.

        Raises:
            Unanswered: it did neither.
        """
        account = self.account
        self.until(lambda: not self._unsent and not account.open and not account.ended, "open")
        if self.closed:
            if account.goodbye is None:
                raise Unanswered("the connection has ended without Goodbye")
            if not account.ended:
                raise Unanswered(f"the daemon ended a good connection: {account.goodbye.error}")
        else:
            account.check_end()

    def _turn(self, timeout_s: float) -> bool:
        """Move some bytes; whether there were any."""
        write = bool(self._unsent) and not self._deaf
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | (select.POLLOUT if write else 0))
        moved = False
        for _, event in poll.poll(1000 * timeout_s):
            if event & select.POLLOUT and write:
                self._write()
                moved = True
            if event & ~select.POLLOUT:
                self._read()
                moved = True
        return moved

    def _write(self) -> None:
        try:
            sent = self.sock.send(memoryview(self._unsent)[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self._deaf = True
            self._unsent.clear()
            return
        del self._unsent[:sent]

    def _read(self) -> None:
        bodies = incoming(self.sock, self._decoder, self.descriptors)
        if bodies is None:
            self.closed = True
            return
        for body in bodies:
            message = CLIENT_PROTOCOL.decode(body, Sender.DAEMON)
            self.latest[type(message)] = message
            if type(message) is wm.Finished:
                self.finished[message.number] = message
            self.account.receive(message)
            if not self.account.ended and not self._deaf:
                self._close_what_opened(message)

    def _close_what_opened(self, message: Any) -> None:
        """End lanes and workloads, which would keep what others wait for."""
        closing: Any = None
        if type(message) is wm.LaneOpened:
            closing = wm.CloseLane(message.number)
        elif type(message) is wm.WorkloadOpened:
            closing = wm.CloseWorkload(0, message.workload)
        if closing is not None:
            data = CLIENT_PROTOCOL.encode(closing)
            self.account.send(data)
            self._unsent += data

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def fuzz_connection(
    sock: socket.socket, seed: str, count: int, outcomes: Outcomes, foreign: dict[str, list[Any]]
) -> int:
    """One connection's life; returns how many messages were sent.

    Args:
        sock: connected; owned from now on.
        seed: all decisions depend on it.
        count: messages, spoilt and not.
        outcomes: gets counts by kind and by how they were spoilt; the last part is "sent".
        foreign: names of others by field, which are tried too.

    Raises:
        Unanswered: the daemon did not do what it must.
    """
    dice = Dice(seed)
    talk = Talk(sock)
    try:
        return _live(talk, dice, count, outcomes, foreign)
    finally:
        talk.close()


def _live(
    talk: Talk, dice: Dice, count: int, outcomes: Outcomes, foreign: dict[str, list[Any]]
) -> int:
    account = talk.account
    world: dict[str, list[Any]] = {**_WORLD}
    fuzzer = Fuzzer(CLIENT_PROTOCOL, Sender.CLIENT, world, rare=(wm.Compile, wm.Measure))
    if not dice.below(12):  # not everybody begins with a good hello
        talk.send(fuzzer.piece(dice).sent)
    else:
        talk.message(wm.Hello(dice.below(1 << 32), 1, "fuzz"))
        _begin(talk, world, foreign)
    sent = 0
    # A broken frame ends the connection: most connections have none, some one at their end.
    broken_at = dice.below(4 * count)
    while sent < count and not talk.closed and not account.ended:
        world["number"] = [account.last + 1]
        piece = fuzzer.piece_without_frame(dice) if sent == broken_at else fuzzer.piece(dice)
        if _breaks(piece.data) and sent < broken_at:
            continue
        talk.send(piece.sent)
        outcomes[piece.kind, piece.how, "sent"] += 1
        sent += 1
    # In the middle of a frame nothing can be cancelled, and lanes do not end by themselves.
    if dice.below(4) and not account.in_a_frame:
        _cancel_all(talk)
        talk.settle()
    _leave(talk, dice)
    return sent


def _begin(talk: Talk, world: dict[str, list[Any]], foreign: dict[str, list[Any]]) -> None:
    """A module, a measured shape and two arrays, which the messages then name."""
    module = _given(talk, wm.Compile(1, 0, KERNEL, ()), wm.Compiled).module
    talk.message(wm.Measure(2, module, 0, (32, 1, 1), 0))
    arrays = [
        _given(talk, wm.Allocate(request, 0, 10_000), wm.Allocated).address for request in (3, 4)
    ]
    session = talk.account.session
    world["module"] = [module, module, *foreign.get("module", ())]
    world["array"] = [*arrays, *foreign.get("array", ())]
    own = [[session, number] for number in (1, 2, 3, 10)]
    world["job"] = own + foreign.get("job", [])
    world["jobs"] = world["after"] = [own[:1], own, world["job"]]


def _given(talk: Talk, message: Any, cls: type[Any]) -> Any:
    """The answer to a request that can be met, if not at once: others may have all memory yet.

    Raises:
        Unanswered: it was refused for a long time.
    """
    end = time.monotonic() + _PATIENCE_S
    while type(answer := talk.ask(message)) is not cls:
        short = answer.error["code"] == "out-of-memory"
        if not short or time.monotonic() > end:
            raise Unanswered(f"{message!s:.100} is refused: {answer.error}")
        time.sleep(0.001)
    return answer


def _cancel_all(talk: Talk) -> None:
    """Cancel the session's jobs, so that those end that would run for ever."""
    account = talk.account
    talk.until(lambda: bool(account.session) or account.ended, "welcome")
    if account.session:
        for number in range(1, account.last + 1):
            talk.message(wm.Cancel(1 << 31, (account.session, number)))


def _leave(talk: Talk, choices: Choices) -> None:
    with suppress(OSError):
        way = choices.below(4)
        if way == 0:
            talk.sock.send(b"\x40\0\0\0\x97\x07")  # in the middle of a frame
        elif way == 1:
            talk.sock.shutdown(socket.SHUT_WR)
        elif way == 2:
            talk.sock.send(CLIENT_PROTOCOL.encode(wm.Query(1, "status")))  # reads no answer


def _breaks(body: bytes) -> bool:
    """Whether the connection ends with this body."""
    try:
        CLIENT_PROTOCOL.decode(body, Sender.CLIENT)
    except FrameError:
        return True
    except ProtocolError:
        pass
    return False


_WORLD: dict[str, list[Any]] = {
    "device": [0],
    "source": list(_SOURCES),
    "names": [[]],
    "options": [[], [], ["-DN=4"], ["--bogus"]],
    "form": [None],
    "kernel": [0],
    "grid": [[1, 1, 1], [3, 2, 1], [100, 1, 1], [2**31 - 1, 1, 1]],
    "block": [[32, 1, 1], [32, 1, 1], [32, 1, 1], [1, 1, 1]],
    "shared": [0],
    "parameters": [bytes(8), b"\xff" * 8],
    "size": [1, 4, 64, 4096, 1 << 20],
    "name": ["counter", "table"],
    "offset": [0, 4],
    "data": [b"", b"1234"],
    "reservation": [None, None, [1, 2], [1, 1]],
    "quota": [None, None, [1, 2], [3, 1]],
    "stream": [0, 0, 1, 2],
    "timeout_ns": [None, None, 10**6],
    "limit": [1, 10],
    "version": [1],
}
