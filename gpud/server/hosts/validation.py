"""Validation of the replies and errors of a device host.

Problem: a host runs clients' code, which may have corrupted its memory. Its messages have the right
types (`gpud.wire`); their values may still be impossible, and the front relies on them.

Approach: each reply is checked against its command, and each error is decoded once, before it is
passed on. A host that sends an invalid one is replaced, as one that is lost.

Properties:
    sound: a reply that passes is valid as `gpud.device.host.messages` defines it for its command.
"""

from __future__ import annotations

from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import ProtocolError, from_wire

__all__ = ["check_error", "check_reply"]

_MOST_OCCUPANCY = (1 << 16) - 1


def check_reply(command: Any, value: Any) -> None:
    """Check that ``value`` is a valid reply to ``command``.

    Raises:
        ProtocolError: it is not.
    """
    if isinstance(command, hm.MeasureKernel):
        fine = type(value) is int and 0 < value <= _MOST_OCCUPANCY
    elif isinstance(command, hm.ReadVariable):
        fine = type(value) is bytes and len(value) == command.size
    elif isinstance(command, hm.ReadProgress):
        fine = type(value) is list and all(_is_progress(one, command) for one in value)
    elif isinstance(command, hm.OpenArena):
        fine = type(value) is int and command.base in (0, value)
    elif isinstance(command, hm.AddLaunchSite):
        fine = type(value) is int and value >= 0
    else:
        fine = value is None
    if not fine:
        raise ProtocolError(f"{value!r:.100} is no reply to {type(command).__name__}")


def check_error(plain: dict[str, Any]) -> None:
    """Check that an error can be decoded.

    Raises:
        ProtocolError: it cannot be decoded.
    """
    try:
        from_wire(plain)
    except ValueError as error:
        raise ProtocolError(f"{error!s:.200}") from error


def _is_progress(row: Any, command: hm.ReadProgress) -> bool:
    """Whether ``row`` is a valid reply about one of the command's jobs."""
    if type(row) is not list or len(row) != 5 or any(type(one) is not int for one in row):
        return False
    job, done, total, first_block_ns, release_ns = row
    return job in command.jobs and 0 <= done <= total and min(first_block_ns, release_ns) >= 0
