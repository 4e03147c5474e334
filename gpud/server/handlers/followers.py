"""The sessions that are sent every event that their user may see."""

from __future__ import annotations

from gpud.server.state.access import may_manage
from gpud.server.state.session import Session
from gpud.telemetry.records import EventRecord, Records
from gpud.wire import messages as wm

__all__ = ["Followers"]


class Followers:
    """The following sessions.

    Args:
        records: where the events come from.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._sessions: dict[int, Session] = {}

    def follow(self, session: Session, message: wm.Follow) -> None:
        """Handle `Follow`: answer, and send `Happened` for each event from now on."""
        if message.on:
            self._sessions[session.number] = session
            self._records.on_event = self._notify
        else:
            self.drop(session)
        session.send(wm.Answer(message.request))

    def drop(self, session: Session) -> None:
        """Send a session no more events."""
        self._sessions.pop(session.number, None)
        if not self._sessions:
            self._records.on_event = None

    def _notify(self, record: EventRecord) -> None:
        happened = wm.Happened(self._records.describe(record))
        for session in self._sessions.values():
            if may_manage(session.peer, record.uid):
                session.send(happened)
