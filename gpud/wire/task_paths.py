"""Where a user's runner listens and keeps its files: one rule for runner and client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpud.wire.socket_path import checked_socket_path, default_socket_path

__all__ = ["runner_socket", "task_folder"]


def runner_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$GPUD_RUNNER``, else ``runner.sock`` beside the user's own daemon's socket.

    Raises:
        InvalidArgument: the path is not valid for a Unix socket.
    """
    named = environ.get("GPUD_RUNNER", "")
    return checked_socket_path(named or default_socket_path(environ).with_name("runner.sock"))


def task_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the database and the outputs.

    It is ``tasks`` in ``$STATE_DIRECTORY``, which systemd sets, else in ``$XDG_STATE_HOME/gpud``,
    else in ``~/.local/state/gpud``; of a runner at ``$GPUD_RUNNER`` a folder beside its socket.
    """
    if environ.get("GPUD_RUNNER"):
        return Path(environ["GPUD_RUNNER"] + ".tasks")
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given, "tasks")
    home = environ.get("XDG_STATE_HOME", "")
    state = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return state / "gpud" / "tasks"
