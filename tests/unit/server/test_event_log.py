"""The file of the scheduler's events: whose it is, and what becomes of the last one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpud.core.replay import steps
from gpud.core.settings import Settings
from gpud.errors import InvalidArgument
from gpud.server.state.event_log import EventLog


async def test_the_log_of_the_daemon_before_stays_beside_the_new_one(tmp_path: Path) -> None:
    path, loop = tmp_path / "events", asyncio.get_running_loop()
    path.write_text("of the daemon before")
    log = EventLog(path, Settings(), loop)
    log.close()
    log.close()
    assert (tmp_path / "events.old").read_text() == "of the daemon before"
    assert path.stat().st_mode & 0o777 == 0o600, "it holds what users run, and when"
    with path.open() as lines:
        assert list(steps(lines)) == []
    assert path.read_text().count("\n") == 1


async def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"the event log .*/missing/events cannot be written"):
        EventLog(tmp_path / "missing" / "events", Settings(), asyncio.get_running_loop())
