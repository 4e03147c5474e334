"""One client's connection: decodes messages, dispatches them to handlers, sends errors.

Messages are validated before any state changes: frame and fields by `gpud.wire`, names and amounts
by the handlers, which raise before they change anything.

Properties:
    answered: every request is answered once, with its result or with `Failed`;
    message_errors_isolated: an invalid message in a valid frame costs the client that message only;
    frame_errors_fatal: after an invalid frame the client gets `Goodbye` and is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from gpud.errors import FrameError, GpudError, ProtocolError
from gpud.server.handlers.submission import refuse
from gpud.server.ipc.event_loop import STALLS
from gpud.server.ipc.stream import Limits, Outbox, Stream
from gpud.server.ipc.user_turns import UserTurns
from gpud.server.state.access import Peer
from gpud.server.state.quota import User
from gpud.server.state.session import Session, internal_error
from gpud.wire import messages as wm
from gpud.wire.message_table import Sender

__all__ = ["Connection", "Handler", "Handlers"]

_LOG = logging.getLogger(__name__)
_CLIENT = Sender.CLIENT  # a global: looking it up in its class takes as long as to unpack a message
_HELLO_S = 5.0  # a connection without a Hello after that time is closed

Handler = Callable[[Session, Any], None]

Handlers = dict[type, Handler]
"""What to do for a message of each class, once there is a session."""


class Connection:
    """A client's connection.

    Args:
        sock: the connected socket.
        peer: the process at its other end.
        user: the peer's user.
        outbox: of the event loop.
        handlers: what to do for each message.
        most_bytes: the largest message.
        turns: those of the user, for all of its connections.
        on_hello: called with the connection's stream and a valid `Hello`; opens the session and
            returns it, with the message that answers.
        on_end: called once when the connection has ended, with the reason.

    Attributes:
        session: None until the client has sent `Hello`.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        user: User,
        outbox: Outbox,
        handlers: Handlers,
        *,
        most_bytes: int,
        turns: UserTurns,
        on_hello: Callable[[Peer, Stream, wm.Hello], tuple[Session, wm.Welcome]],
        on_end: Callable[[Connection, str], None],
    ) -> None:
        self.peer = peer
        self.session: Session | None = None
        self.user = user
        self._handlers = handlers
        self._on_hello = on_hello
        self._ended = on_end
        self._reported_bytes = 0
        self._decode = wm.CLIENT_PROTOCOL.decode
        self._stream = Stream(
            sock,
            outbox,
            Limits(message=most_bytes),
            encode=wm.CLIENT_PROTOCOL.encode,
            on_body=self._on_body,
            on_end=self._on_end,
            on_broken=self._on_broken,
            on_buffered=self._on_buffered,
            turns=turns,
        )
        self._hello_timer: asyncio.TimerHandle | None = outbox.loop.call_later(
            _HELLO_S, self._hello_timed_out
        )
        self._stream.start()

    def goodbye(self, error: GpudError) -> None:
        """Send the client ``error`` as the reason, and close the connection."""
        self._stream.send(wm.Goodbye(error.to_wire()))
        self._stream.finish()

    def abort(self) -> None:
        """Close the connection at once."""
        self._stream.abort("closed by the daemon")

    def notice_hang_up(self) -> None:
        """See `gpud.server.ipc.stream.Stream.notice_hang_up`."""
        self._stream.notice_hang_up()

    @property
    def fd(self) -> int:
        """The socket's descriptor; negative once it is closed."""
        return self._stream.sock.fileno()

    # -- messages

    def _on_body(self, body: bytes) -> None:
        message: Any = None
        session = self.session
        try:
            message = self._decode(body, _CLIENT)
            STALLS.handling = type(message)
            if session is None:
                self._hello(message)
                return
            handler = self._handlers.get(type(message))
            if handler is None:
                raise ProtocolError(
                    f"{type(message).__name__} is the first message of a connection only"
                )
            handler(session, message)
        except FrameError as error:
            self._on_broken(error)
        except ProtocolError as error:
            if session is None:
                self.goodbye(error)
            elif error.job is None or error.job in session.jobs:
                # `Finished`, which `refuse` sends, would say that an accepted job has ended.
                self._failed(error.request or _request(message), error)
            else:
                refuse(session, error.job, error)
        except GpudError as error:
            self._failed(_request(message), error)
        except Exception as error:  # noqa: BLE001 - one message must not stop the daemon
            _LOG.exception("a message of client %s was not handled", self._who)
            self._failed(_request(message), internal_error(error))

    def _failed(self, request: int, error: GpudError) -> None:
        self._stream.send(wm.Failed(request, error.to_wire()))

    def _hello(self, message: object) -> None:
        if not isinstance(message, wm.Hello):
            raise ProtocolError(f"the first message is Hello, not {type(message).__name__}")
        if message.version < 1:
            raise ProtocolError(f"protocol version {message.version} is none; versions begin at 1")
        self._stop_hello_timer()
        session, welcome = self._on_hello(self.peer, self._stream, message)
        self.session = session
        self.user.host_memory.uncharge(self._reported_bytes)
        session.host_memory.force_charge(self._reported_bytes)
        session.send(welcome)

    # -- the end

    def _on_broken(self, error: FrameError) -> None:
        _LOG.info("client %s is disconnected: %s", self._who, error)
        self.goodbye(error)

    def _on_buffered(self, change: int) -> None:
        """Charge the client for output that it has not read and messages not sent completely."""
        self._reported_bytes += change
        quota = self.user.host_memory if self.session is None else self.session.host_memory
        error = quota.force_charge(change)
        if error is not None and change > 0:
            _LOG.info("client %s is disconnected: %s", self._who, error)
            self.goodbye(error)

    def _hello_timed_out(self) -> None:
        self._hello_timer = None
        self.goodbye(ProtocolError(f"no Hello within {_HELLO_S:g} s"))

    def _stop_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def _on_end(self, reason: str) -> None:
        self._stop_hello_timer()
        self._ended(self, reason)

    @property
    def _who(self) -> str:
        number = "-" if self.session is None else str(self.session.number)
        return f"{number} (pid {self.peer.pid}, uid {self.peer.uid})"


def _request(message: Any) -> int:
    request = getattr(message, "request", 0)
    return request if isinstance(request, int) else 0
