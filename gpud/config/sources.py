"""Loads a `Config` from flags, environment and file, in this order of precedence."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from gpud.config.settings import SETTINGS, Config, Sources
from gpud.errors import InvalidArgument
from gpud.errors.base import shorten
from gpud.wire.socket_path import default_socket_path

__all__ = ["config_file", "file_to_write", "load", "load_again"]

_SYSTEM_FILE = Path("/etc/gpud/gpud.toml")
_LARGEST_FILE = 1 << 20


def load(
    flags: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    file: str | os.PathLike[str] | None = None,
) -> Config:
    """Load the settings.

    Args:
        flags: texts by key (``"drain_timeout"``), or lists of texts where a flag may be repeated;
            None and an empty list stand for a flag that was not given.
        environ: variables such as ``GPUD_DRAIN_TIMEOUT``; an empty one counts as not set.
        file: the TOML file, which must exist; None: `config_file`, if there is one.

    Returns:
        The settings, with their origins: `Config.origin`.

    Raises:
        InvalidArgument: a setting is unknown or has a value that is not allowed, or the file
            cannot be read; the message names the setting, the place and what is allowed.
    """
    sources = Sources(flags, environ, None if file is None else Path(file).absolute())
    return _loaded(sources, _read(_path(sources), required=file is not None))


def load_again(sources: Sources, text: str | None = None) -> Config:
    """Load the settings from where they were loaded before.

    Args:
        sources: those places.
        text: stands for what the file has; None: what it has.

    Raises:
        InvalidArgument: as for `load`.
    """
    if text is None:
        text = _read(_path(sources), required=sources.file is not None)
    return _loaded(sources, text)


def file_to_write(sources: Sources) -> Path:
    """Return the file that is read, or, if there is none, the one that would be."""
    path = _path(sources)
    if path is not None:
        return path
    if os.geteuid() == 0:
        return _SYSTEM_FILE
    return _own_file(sources.environ)


def _path(sources: Sources) -> Path | None:
    return config_file(sources.environ) if sources.file is None else sources.file


def _loaded(sources: Sources, text: str) -> Config:
    flags, environ = sources.flags, sources.environ
    chosen: dict[str, tuple[Any, str]] = {}
    of_file = _from_text(text, file_to_write(sources))
    for source in (of_file, _from_environ(environ), _from_flags(flags)):
        chosen |= {name: (value, origin) for name, value, origin in source}
    if "socket" not in chosen:
        chosen["socket"] = (default_socket_path(environ), "the default")
    values = {name: value for name, (value, _) in chosen.items()}
    origins = MappingProxyType({name: origin for name, (_, origin) in chosen.items()})
    return Config(**values, origins=origins, sources=sources)


def config_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the configuration file that is read by default, None if there is none.

    It is ``$GPUD_CONFIG``, which must then exist; else ``$XDG_CONFIG_HOME/gpud/gpud.toml`` (by
    default in ``~/.config``); else ``/etc/gpud/gpud.toml``.
    """
    if named := environ.get("GPUD_CONFIG"):
        return Path(named)
    for path in (_own_file(environ), _SYSTEM_FILE):
        if os.access(path, os.F_OK):
            return path
    return None


def _own_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME", "")
    if not home.startswith("/"):
        home = os.path.join(environ.get("HOME", "/"), ".config")  # noqa: PTH118
    return Path(home, "gpud", "gpud.toml")


_BY_KEY = {setting.key: setting for setting in SETTINGS}
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


def _from_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for key, given in flags.items():
        if given is None or given in ([], ()):
            continue
        setting = _BY_KEY.get(key) or _unknown(key, list(_BY_KEY), "among the flags")
        try:
            if isinstance(given, str):
                value = setting.type.from_text(given)
            else:
                value = setting.type.from_toml(list(given) if setting.many else given)
        except ValueError as error:
            _refuse(setting.flag, given, error)
        yield setting.name, value, setting.flag


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable, setting in _BY_VARIABLE.items():
        text = environ.get(variable)
        if text:
            try:
                yield setting.name, setting.type.from_text(text), variable
            except ValueError as error:
                _refuse(f"the variable {variable}", text, error)
    for variable in environ:
        # Other programs may use variables with this prefix; only likely misspellings are refused.
        if variable.startswith("GPUD_") and variable not in _BY_VARIABLE:
            close = difflib.get_close_matches(variable, _BY_VARIABLE, 1, 0.85)
            if close:
                raise InvalidArgument(
                    f"the variable {variable} is unknown; did you mean {close[0]}?"
                )


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python reads no integer of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)) from error


def _read(path: Path | None, *, required: bool) -> str:
    """Return the text of the file; empty for None."""
    if path is None:
        return ""
    try:
        # Whoever opens a FIFO waits for who writes to it, maybe for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                raise InvalidArgument(f"{path} is no file of settings: it is a FIFO")
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise InvalidArgument(f"{path} is no file of settings: it is over 1 MiB")
        return data.decode()
    except OSError as error:
        hint = "; --config names the file" if required else ""
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is no valid TOML: {error}") from error


def _from_text(text: str, path: Path) -> Iterator[tuple[str, Any, str]]:
    try:
        table = _parsed(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no valid TOML: {error}") from error
    for key, given in table.items():
        place = f"{path}{_line(text, key)}"
        setting = _BY_KEY.get(key) or _unknown(key, list(_BY_KEY), f"in {place}")
        try:
            value = setting.type.from_toml(given)
        except ValueError as error:
            _refuse(f"{key} in {place}", given, error)
        yield setting.name, value, place


def _line(text: str, key: str) -> str:
    """Return the line of a key as ":7"; empty if it is written in an unusual way."""
    pattern = re.compile(rf"\s*\[?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return f":{number}"
    return ""


def _unknown(key: str, known: list[str], where: str) -> NoReturn:
    close = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise InvalidArgument(f"the setting {shorten(key)} {where} is unknown; {hint}")


def _refuse(name: str, given: Any, error: ValueError) -> NoReturn:
    raise InvalidArgument(f"{name} must be {error}; not {shorten(repr(given))}") from None
