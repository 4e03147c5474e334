"""Handles `AskHistory`: jobs that have ended, by user and time, and sums over them."""

from __future__ import annotations

import asyncio
import logging
import pwd
from functools import partial
from typing import Any

from gpud.errors import InvalidArgument
from gpud.server.handlers.answers import Answers, Packed, Steps, rows
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.job_history import JobHistory
from gpud.server.state.session import Session, internal_error
from gpud.telemetry.job_archive import JobArchive, Selection
from gpud.wire import messages as wm

__all__ = ["HistoryRequests"]

_LOG = logging.getLogger(__name__)
_MOST_ROWS = 100_000


class HistoryRequests:
    """Handles questions about jobs that have ended.

    Args:
        history: the jobs.
        answers: builds large answers in slices.
    """

    def __init__(self, history: JobHistory, answers: Answers) -> None:
        self._history = history
        self._answers = answers

    def ask(self, session: Session, message: wm.AskHistory) -> None:
        """Handle `AskHistory`: answer when the history's thread has."""
        selection = Selection(
            _uid(session, message.user),
            message.since_s,
            message.until_s,
            message.state,
            message.limit or _MOST_ROWS,
        )
        if message.by is None:
            question = partial(JobArchive.select, selection=selection)
        else:
            question = partial(JobArchive.report, selection=selection, by=message.by)
        # One question of a session at a time: they take the history's thread.
        session.stream.pause()
        self._history.ask(question).add_done_callback(
            partial(self._answer, session, message.request)
        )

    def _answer(
        self, session: Session, request: int, done: asyncio.Future[list[dict[str, Any]]]
    ) -> None:
        if session.gone:
            return
        session.stream.resume()
        try:
            rows_of_jobs = done.result()
        except Exception as error:  # noqa: BLE001 - a damaged file must not end the daemon
            _LOG.error("the history cannot be read: %s", error)
            session.fail(request, internal_error(error))
            return
        self._answers.answer(session, request, _answer(rows_of_jobs))


def _answer(rows_of_jobs: list[dict[str, Any]]) -> Steps[dict[str, Packed]]:
    return {"rows": (yield from rows(rows_of_jobs, _with_user))}


def _with_user(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "user": user_name(row["uid"])} if "uid" in row else row


def _uid(session: Session, user: str | None) -> int | None:
    """Return whose jobs are meant; None: everybody's.

    Raises:
        InvalidArgument: there is no such user, or this client may not see that user's jobs.
    """
    peer = session.peer
    if user is None:
        return None if may_manage(peer, -1) else peer.uid
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise InvalidArgument(f"no user is named {user!r}; give a name or a number") from None
    if not may_manage(peer, uid):
        raise InvalidArgument(
            f"jobs of user {user} are shown to that user, root and the daemon's user; leave the "
            "user out for your own"
        )
    return uid
