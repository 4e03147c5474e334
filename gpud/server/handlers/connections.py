"""All connections: accepts them within the limits, opens their sessions, and ends these.

Properties:
    limited: a connection over a limit is closed with the error that says which;
    portioned: however much a session has pending, its end takes others no more than some
        milliseconds at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from gpud import __version__
from gpud.core import events as ev
from gpud.errors import GpudError, LimitExceeded
from gpud.server.handlers.connection import Connection, Handler, Handlers
from gpud.server.handlers.device_rows import DeviceRows
from gpud.server.handlers.followers import Followers
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.ipc.stream import Outbox, Stream
from gpud.server.ipc.user_turns import UserTurns
from gpud.server.shared import SharedState
from gpud.server.state.access import Peer, may_manage, user_name
from gpud.server.state.arenas import MemoryExcess
from gpud.server.state.session import PendingCompilation, Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.wire import messages as wm

__all__ = ["Connections"]

_LOG = logging.getLogger(__name__)
_RESERVED = 8  # connections
_JOBS_PER_TURN = 48  # jobs of an ended session that are cancelled in one turn; some 4 ms

_USES = (wm.Compile, wm.Allocate, wm.OpenLane, wm.OpenWorkload)
"""With one of these each use of a device begins."""


class Connections:
    """The connections of all clients.

    Args:
        state: the daemon's data.
        outbox: of the event loop.
        handlers: what to do for each message.
        devices: by index.
        device_rows: describes the devices.
        runner: feeds the scheduler.
        followers: the sessions that follow events.

    Attributes:
        all_ended: set while there is no connection.
    """

    def __init__(
        self,
        state: SharedState,
        outbox: Outbox,
        handlers: Handlers,
        devices: Devices,
        device_rows: DeviceRows,
        runner: Runner,
        followers: Followers,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._handlers = handlers | {kind: self._announcing(handlers[kind]) for kind in _USES}
        self._devices = devices
        self._device_rows = device_rows
        self._runner = runner
        self._followers = followers
        self._open: dict[Connection, None] = {}
        self._turns: dict[int, UserTurns] = {}  # by user
        self.all_ended = asyncio.Event()
        self.all_ended.set()

    def __len__(self) -> int:
        return len(self._open)

    # -- the beginning

    def accept(self, sock: socket.socket, peer: Peer) -> None:
        """Take a new connection; it is closed with an error if it is over a limit."""
        user = self._state.users.user(peer.uid)
        turns = self._turns.setdefault(user.uid, UserTurns(self._outbox.loop))
        connection = Connection(
            sock,
            peer,
            user,
            self._outbox,
            self._handlers,
            most_bytes=self._state.config.max_message_bytes,
            turns=turns,
            on_hello=self._open_session,
            on_end=self._connection_ended,
        )
        self._open[connection] = None
        self._state.descriptors.connections += 1
        user.connections = turns.connections = user.connections + 1
        self.all_ended.clear()
        try:
            self._check_count(peer)
            user.check_connections()
        except LimitExceeded as error:
            connection.goodbye(error)

    def _check_count(self, peer: Peer) -> None:
        """Check the daemon's limits on connections, the latest included.

        The last ones are for root and the daemon's user, who may have to end others' sessions.

        Raises:
            LimitExceeded: there is one too many.
        """
        count, most = len(self._open), self._state.config.max_connections
        reserved = 0 if may_manage(peer, -1) else min(_RESERVED, most // 4)
        if count > most - reserved:
            raise LimitExceeded(
                f"the daemon serves {most} connections and has no room for another; close some, "
                "or raise max_connections in its configuration",
                limit="max_connections",
                value=most,
            )
        if self._state.descriptors.remaining < reserved:
            raise LimitExceeded(
                f"the daemon has no descriptors for more than {count - 1} connections; close some, "
                "or raise the daemon's LimitNOFILE",
                limit="LimitNOFILE",
                value=count - 1,
            )

    def _open_session(
        self, peer: Peer, stream: Stream, hello: wm.Hello
    ) -> tuple[Session, wm.Welcome]:
        """Open a session for a client that has sent ``hello``; return it and the reply."""
        state = self._state
        session = state.sessions.open(peer, hello.program, stream)
        self._runner.announce(session.user, session.opened_ns)
        self._runner.feed(ev.SessionOpened(session.opened_ns, session.number, session.account))
        config = state.config
        welcome = wm.Welcome(
            hello.request,
            min(hello.version, wm.VERSION),
            session.number,
            [self._device_rows.description(device) for device in self._devices],
            {
                "message_bytes": config.max_message_bytes,
                "jobs": session.user.most_jobs_of_session,
                "memory_bytes": state.arenas.session_limit_bytes,
            },
            {"version": __version__, "pid": os.getpid(), "policy": config.policy},
        )
        return session, welcome

    def look_for_hang_ups(self) -> None:
        """Notice clients that have hung up where the event loop did not, and orphaned sessions."""
        poll = select.poll()
        by_fd = {connection.fd: connection for connection in self._open}
        for fd in by_fd:
            poll.register(fd, 0)
        for fd, _ in poll.poll(0):
            by_fd[fd].notice_hang_up()
        self._state.sessions.look_for_orphans(time.monotonic())

    def _announcing(self, handle: Handler) -> Handler:
        """Return a handler before which the session is announced, once."""

        def announced(session: Session, message: Any) -> None:
            if not session.announced:
                self._announce(session)
            handle(session, message)

        return announced

    def _announce(self, session: Session) -> None:
        """Log a session that uses a device: those that only ask, as monitors do, are too many."""
        session.announced = True
        peer, user = session.peer, user_name(session.uid)
        self._state.records.add_event(
            time.monotonic_ns(),
            "session-opened",
            peer.uid,
            ("session", session.number),
            ("program", session.program),
            ("user", user),
            ("pid", peer.pid),
        )
        _LOG.info(
            "session %d: %s (%s, user %s)", session.number, session.program, peer.process, user
        )

    # -- the end

    def end_excessive(self, excesses: Iterable[MemoryExcess]) -> None:
        """End the sessions that hold memory outside of their arrays."""
        by_session = {excess.session: excess for excess in excesses}
        if not by_session:
            return
        for connection in list(self._open):
            session = connection.session
            excess = None if session is None else by_session.get(session.number)
            if excess is None:
                continue
            error = LimitExceeded(
                f"the session keeps {excess.held_bytes} bytes of memory on device {excess.device}, "
                f"where its arrays have {excess.arrays_bytes}; write to what you have allocated "
                "only, or allocate more",
                limit="session_memory",
                value=excess.arrays_bytes,
            )
            _LOG.warning("session %d is ended: %s", excess.session, error)
            connection.goodbye(error)

    def goodbye(self, error: GpudError) -> None:
        """Close every connection, with ``error`` as the reason."""
        for connection in list(self._open):
            connection.goodbye(error)

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in list(self._open):
            connection.abort()

    def _connection_ended(self, connection: Connection, reason: str) -> None:
        """End the session of a client that has disconnected or was dropped."""
        self._open.pop(connection, None)
        self._state.descriptors.connections = len(self._open)
        if not self._open:
            self.all_ended.set()
        user = connection.user
        user.connections -= 1
        self._turns[user.uid].connections = user.connections
        if not user.connections:
            del self._turns[user.uid]
        session = connection.session
        if session is None:
            self._state.users.forget_unused(connection.user)
            return
        session.gone = True
        session.memory.close()
        self._cancel_waiters(iter(list(session.waiters)))
        self._followers.drop(session)
        if session.announced:
            _LOG.info(
                "session %d ended: %s; %d jobs had failed, %d had not ended",
                session.number, reason, session.failed, len(session.jobs),
            )  # fmt: skip
            self._state.records.add_event(
                time.monotonic_ns(),
                "session-closed",
                session.uid,
                ("session", session.number),
                ("reason", reason),
            )
        jobs = session.jobs.values() if len(session.jobs) > _JOBS_PER_TURN else ()
        # The latest first, running jobs last, so that no waiting job starts meanwhile.
        waiting = [job for job in jobs if job.started_ns is None]
        self._end_jobs(session, iter(waiting[::-1]))

    def _cancel_waiters(self, waiters: Iterator[PendingCompilation]) -> None:
        """Cancel a session's pending compilations, in portions as `_end_jobs`."""
        portion = list(islice(waiters, _JOBS_PER_TURN))
        for waiter in portion:
            waiter.cancel()
        if portion:
            self._outbox.loop.call_soon(self._cancel_waiters, waiters)

    def _end_jobs(self, session: Session, jobs: Iterator[SubmittedJob]) -> None:
        """Cancel a session's jobs, then end it; in portions, so that others need not wait long."""
        portion = list(islice(jobs, _JOBS_PER_TURN))
        if not portion:
            self._runner.feed(ev.SessionClosed(time.monotonic_ns(), session.number))
            return
        for job in portion:
            if job.number in session.jobs:
                self._runner.cancel(job, by_owner=True)
        self._outbox.loop.call_soon(self._end_jobs, session, jobs)
