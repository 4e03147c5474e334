"""Writes the scheduler's event log to a file, for ``gpud replay``: see `gpud.core.replay`.

Lines are buffered and reach the file within a second, or at once when the scheduler fails. A write
error ends the log, never the daemon. The previous daemon's log is kept beside it, with ``.old``
appended to its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from gpud.core.commands import Command
from gpud.core.events import Event
from gpud.core.replay import write_header, write_line
from gpud.core.settings import Settings
from gpud.errors import InvalidArgument

__all__ = ["EventLog"]

_LOG = logging.getLogger(__name__)
_FLUSH_S = 1.0


class EventLog:
    """An open event log.

    Raises:
        InvalidArgument: the file cannot be created.
    """

    def __init__(self, path: Path, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        try:
            with suppress(FileNotFoundError):
                path.replace(path.with_name(path.name + ".old"))
            # It holds users' kernel names and times, which are private.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidArgument(f"the event log {path} cannot be written: {error}") from error
        self._file: TextIO | None = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1 << 16)
        self._line(write_header(settings))

    def write(self, event: Event, commands: Iterable[Command]) -> None:
        """Append an event and the commands that it caused."""
        if self._file is not None:
            self._line(write_line(event, commands))

    def flush(self) -> None:
        """Write the buffered lines to the file now."""
        self._timer = None
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Flush and close the file. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, line: str) -> None:
        assert self._file is not None
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)
            return
        if self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def _give_up(self, error: OSError) -> None:
        _LOG.error("the event log %s ends here: %s", self.path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
