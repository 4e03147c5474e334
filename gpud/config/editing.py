"""Changes one setting in the configuration file, and nothing else in it.

Comments, order and layout stay as their author wrote them, which tomlkit does. The new file takes
the old one's place in one step, so that a reader finds the one or the other.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.config.settings import Setting
from gpud.errors import InvalidArgument, MissingDependency
from gpud.errors.base import shorten

__all__ = ["edited", "replace_file"]

_TOMLKIT = "tomlkit"


def edited(text: str, setting: Setting, value: str) -> str:
    """Return the text of a file in which a setting has another value.

    Args:
        text: of the file; it is valid.
        setting: the setting.
        value: as a flag or a variable would have it.

    Raises:
        InvalidArgument: the value is not allowed.
        MissingDependency: tomlkit is not installed.
    """
    try:
        wanted: Any = setting.type.toml_of(value)
    except ValueError as error:
        problem = f"{setting.key} must be {error}; not {shorten(repr(value))}"
        raise InvalidArgument(problem) from None
    try:
        import tomlkit
    except ImportError:
        raise MissingDependency(_TOMLKIT, extra="daemon") from None
    document = tomlkit.parse(text)
    if setting.key in document:
        document[setting.key] = wanted
        return tomlkit.dumps(document)
    return _with_line(text, tomlkit.dumps({setting.key: wanted}))


def _with_line(text: str, line: str) -> str:
    """Put a line before the first table, and before the comments above that table."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    wanted = {**tomllib.loads(text), **tomllib.loads(line)}
    for at in range(len(lines)):
        if not lines[at].lstrip().startswith("["):
            continue  # also of an array, or of a text of several lines: hence what follows
        with suppress(tomllib.TOMLDecodeError):
            if tomllib.loads("".join([*lines[:at], line, *lines[at:]])) == wanted:
                while at and not lines[at - 1].partition("#")[0].strip():
                    at -= 1  # noqa: PLW2901 - the place, from here on
                return "".join([*lines[:at], line, "\n" * (at == 0), *lines[at:]])
    return "".join([*lines, line])


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step; its mode, and its owner where that may be, stay.

    Blocks.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    path = path.resolve()  # of a link, what it points to
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
            with suppress(FileNotFoundError):
                before = path.stat()
                os.fchmod(descriptor, before.st_mode & 0o777)
                with suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
