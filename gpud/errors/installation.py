"""Errors of gpud itself: a bug, a missing library, no connection to a daemon."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import ClassVar

from gpud.errors.base import DaemonError

__all__ = ["ConnectionLost", "InternalError", "MissingDependency", "pip_command"]


class ConnectionLost(DaemonError, ConnectionError):
    """The connection was refused or has ended; the outcome of requests in flight is unknown."""

    code = "connection-lost"


class MissingDependency(DaemonError, ImportError):
    """A library that this operation needs is not installed, or cannot be loaded."""

    code = "missing-dependency"
    fields: ClassVar[Mapping[str, str]] = {
        "dependency": "the library",
        "extra": "the extra of the gpud distribution that installs it",
    }
    dependency: str
    extra: str

    def __init__(self, dependency: str, *, extra: str, cause: str = "") -> None:
        detail = f" ({cause})" if cause else ""
        message = (
            f"{dependency} is not installed or cannot be loaded{detail}; install it with "
            f"{pip_command(extra)}"
        )
        super().__init__(message, dependency=dependency, extra=extra)


class InternalError(DaemonError):
    """gpud violated one of its own invariants. Always a bug in gpud, never in the request."""

    code = "internal"
    fields: ClassVar[Mapping[str, str]] = {
        "stage": "the part of gpud that failed, such as a compiler pass",
        "reproducer": "path of a file that reproduces it, if one was written",
    }
    stage: str | None
    reproducer: str | None


def pip_command(extra: str = "") -> str:
    """Return the command that installs an extra of gpud in this process's environment.

    gpud is on no package index. The pip of this environment finds it installed, and adds what the
    extra requires; any other pip would not find it, hence the interpreter's path.

    Args:
        extra: name of the extra, or several separated by commas; empty: the base requirements.
    """
    wanted = f"'gpud[{extra}]'" if extra else "gpud"
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {wanted}"
