"""Sessions whose process has ended while their connection is open."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from gpud.config import load
from gpud.server.state.access import Peer
from gpud.server.state.quota import Users
from gpud.server.state.sessions import ORPHANED_S, Sessions


def test_a_session_that_outlives_its_process_is_an_orphan() -> None:
    none: Any = None
    sessions = Sessions(Users(load({}, environ={"HOME": "/nowhere"})), none, none)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stream: Any = type("Stream", (), {"send": None, "send_with": None})()
    opened = [sessions.open(Peer(pid, 7, 7), "p", stream) for pid in (os.getpid(), gone.pid, 0)]
    sessions.look_for_orphans(1000.0)
    sessions.look_for_orphans(1000.0 + ORPHANED_S - 1)
    assert len(sessions.orphans) == 0
    sessions.look_for_orphans(1000.0 + ORPHANED_S)
    assert list(sessions.orphans) == [opened[1]]
    opened[1].gone = True
    sessions.look_for_orphans(1001.0 + ORPHANED_S)
    assert len(sessions.orphans) == 0
