"""The table of sessions."""

from __future__ import annotations

import os

from gpud.server.ipc.stream import Stream
from gpud.server.state.access import Peer
from gpud.server.state.arenas import Arenas
from gpud.server.state.job_history import JobHistory
from gpud.server.state.numbers import number_after
from gpud.server.state.quota import Users
from gpud.server.state.session import Session
from gpud.units import SessionId

__all__ = ["ORPHANED_S", "Sessions"]

ORPHANED_S = 60.0
"""A session is orphaned when the process that opened it has been gone for this long."""


class Sessions(dict[int, Session]):
    """The sessions by number; one whose client has gone stays until its jobs have ended.

    Args:
        users: the users, whose sessions are counted.
        arenas: the memory of sessions' arrays.
        history: gets the jobs that have ended.

    Attributes:
        orphans: those whose process has ended `ORPHANED_S` ago, or earlier, and whose connection is
            open: another process has inherited it, or its end was not noticed.
    """

    def __init__(self, users: Users, arenas: Arenas, history: JobHistory) -> None:
        super().__init__()
        self._users = users
        self._arenas = arenas
        self._history = history
        self._next = 1
        self._ended_s: dict[int, float] = {}
        self.orphans: tuple[Session, ...] = ()

    def look_for_orphans(self, now_s: float) -> None:
        """Find the `orphans`; to be called now and then, at a monotonic time."""
        ended = {
            number: self._ended_s.get(number, now_s)
            for number, session in self.items()
            # Of a process in another namespace the kernel tells no number.
            if session.peer.pid > 0 and not session.gone and not _runs(session.peer.pid)
        }
        self._ended_s = ended
        self.orphans = tuple(
            self[number] for number, since_s in ended.items() if now_s - since_s >= ORPHANED_S
        )

    def open(self, peer: Peer, program: str, stream: Stream) -> Session:
        """Add a session for a client that has sent `Hello`."""
        number = self._next
        self._next = number_after(number, self)
        user = self._users.user(peer.uid)
        session = Session(
            SessionId(number),
            peer,
            user,
            program,
            stream,
            arenas=self._arenas,
            history=self._history,
        )
        user.sessions += 1
        self[number] = session
        return session

    def close(self, number: int) -> Session | None:
        """Remove a session, if it is there: nothing of it is on any device any more."""
        session = self.pop(number, None)
        if session is not None:
            session.host_memory.close()
            session.user.sessions -= 1
            self._users.forget_unused(session.user)
        return session

    def uid_of(self, number: int) -> int | None:
        """Return the user of a session; None if the session is gone."""
        session = self.get(number)
        return None if session is None else session.uid


def _runs(pid: int) -> bool:
    """Whether a process is there, as far as this one may know."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True
