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

    gpud is on no package index, where a stranger could take its name. So the command names the
    folder or the wheel that gpud was installed from, if that is still there; else the pip of this
    environment finds gpud installed, and adds what the extra requires.

    Args:
        extra: name of the extra, or several separated by commas; empty: the base requirements.
    """
    options, source = _source()
    wanted = shlex.quote(f"{source}[{extra}]" if extra else source)
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {options}{wanted}"


def _source() -> tuple[str, str]:
    """Return what gpud was installed from, with the options for it; see PEP 610."""
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        told = json.loads(metadata.distribution("gpud").read_text("direct_url.json") or "{}")
        url = urlsplit(str(told.get("url", "")))
        path = Path(unquote(url.path))
        if url.scheme == "file" and path.exists():
            return "-e " if told.get("dir_info", {}).get("editable") else "", str(path)
    except (metadata.PackageNotFoundError, OSError, ValueError):
        pass
    return "", "gpud"
