"""Formats and sets up the daemon's log on standard error: text lines, or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO

__all__ = ["JsonFormatter", "TextFormatter", "set_level", "set_up"]


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.000 warning server.hosts.device: device host 0 is gone``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record on one line; a traceback follows on its own.

        Names of programs come from clients: characters that a terminal might act on are replaced.
        """
        at = datetime.fromtimestamp(record.created).astimezone()
        name = record.name.removeprefix("gpud.")
        text = " ".join(record.getMessage().splitlines())
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        line = f"{at:%Y-%m-%d %H:%M:%S}.{record.msecs:03.0f} {record.levelname.lower()} {name}: "
        line += text
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON document on a line: ``at``, ``level``, ``logger``, ``message``, ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_level(level: str) -> None:
    """Log from this level on, such as ``info``."""
    logging.getLogger("gpud").setLevel(level.upper())


def set_up(level: str, form: str, stream: IO[str] | None = None) -> logging.Handler:
    """Send gpud's log records to ``stream``, standard error by default.

    Args:
        level: the least level that is logged, such as ``info``.
        form: ``text`` or ``json``.
        stream: the destination.

    Returns:
        The handler, so that the caller can remove it again.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger("gpud")
    logger.addHandler(handler)
    set_level(level)
    logger.propagate = False
    return handler
