"""What is wrong with gpud itself: a bug, a missing library, a daemon that is not there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import ClassVar

from gpud.errors.base import DaemonError

__all__ = ["ConnectionLost", "InternalError", "MissingDependency", "pip_command"]


class ConnectionLost(DaemonError, ConnectionError):
    """The connection to the daemon was refused or has ended; what was in flight is unknown."""

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
    """gpud broke one of its own rules. Always a bug of gpud's, never of the request's."""

    code = "internal"
    fields: ClassVar[Mapping[str, str]] = {
        "stage": "where it happened, such as a compiler pass",
        "reproducer": "path of a file that reproduces it, if one was written",
    }
    stage: str | None
    reproducer: str | None


def pip_command(extra: str = "") -> str:
    """What adds an extra of gpud's to the environment that this process runs in.

    gpud is on no package index. The pip of its own environment finds it installed, and adds what
    the extra names; any other would look for it in vain, hence the interpreter's path.

    Args:
        extra: its name, or several with commas; empty: what gpud always needs.
    """
    wanted = f"'gpud[{extra}]'" if extra else "gpud"
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {wanted}"
