"""Types of settings: parsing and validation of values from TOML, flags and the environment.

A setting type parses a TOML value (a string, number, boolean or array), and the text of a flag or
an environment variable. Both raise a ValueError whose message completes "... must be". Those of
quantities with units are in `gpud.config.quantity_types`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpud.errors import InvalidArgument
from gpud.wire.socket_path import checked_socket_path

__all__ = [
    "SettingType",
    "choice",
    "integer",
    "listed",
    "location",
    "mode",
    "pattern",
    "socket_location",
    "switch",
    "word",
]


class SettingType:
    """The type of a setting: which values are allowed, and how they are written."""

    @property
    def metavar(self) -> str:
        """The placeholder for a value in help texts."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """Parse the text of a flag or variable; raise a ValueError that says what it must be."""
        raise NotImplementedError

    def from_toml(self, value: Any) -> Any:
        """Convert a value of a TOML file; raise a ValueError that says what it must be."""
        if type(value) is not str:
            raise ValueError(self.describe())
        return self.from_text(value)

    def toml_of(self, text: str) -> Any:
        """Convert the text of a flag or variable to what a TOML file has for it; raises as it."""
        self.from_text(text)
        return text

    def to_text(self, value: Any) -> str:
        """Write a value as `from_text` reads it."""
        return str(value)

    def describe(self) -> str:
        """Return the allowed values in words that complete "must be"."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Integer(SettingType):
    """An integer within bounds."""

    least: int
    most: int

    @property
    def metavar(self) -> str:
        return "N"

    def from_text(self, text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
            raise ValueError(self.describe())
        return self.from_toml(int(text))

    def toml_of(self, text: str) -> int:
        return self.from_text(text)

    def from_toml(self, value: Any) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(self.describe())
        return value

    def describe(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class _Choice(SettingType):
    """One of a fixed set of words."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:
        listed = "|".join(self.words)
        return listed if len(listed) < 12 else "WORD"

    def from_text(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(self.describe())
        return text

    def describe(self) -> str:
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True)
class _Switch(SettingType):
    """A boolean, written on or off."""

    @property
    def metavar(self) -> str:
        return "on|off"

    def from_text(self, text: str) -> bool:
        word = text.strip().lower()  # Python writes True, and TOML true
        if word not in ("on", "off", "true", "false"):
            raise ValueError(self.describe())
        return word in ("on", "true")

    def toml_of(self, text: str) -> bool:
        return self.from_text(text)

    def to_text(self, value: Any) -> str:
        return "on" if value else "off"

    def from_toml(self, value: Any) -> bool:
        return value if type(value) is bool else super().from_toml(value)

    def describe(self) -> str:
        return "on or off"


@dataclass(frozen=True)
class _Word(SettingType):
    """A name that is resolved elsewhere."""

    what: str

    @property
    def metavar(self) -> str:
        return "NAME"

    def from_text(self, text: str) -> str:
        if not re.fullmatch(r"[a-zA-Z0-9_.:@-]{1,64}", text, re.ASCII):
            raise ValueError(self.describe())
        return text

    def describe(self) -> str:
        return self.what


@dataclass(frozen=True)
class _Pattern(SettingType):
    """A name, or a pattern for names."""

    what: str

    @property
    def metavar(self) -> str:
        return "NAME"

    def from_text(self, text: str) -> str:
        if not re.fullmatch(r"[a-zA-Z0-9_$.*?]{1,256}", text, re.ASCII):
            raise ValueError(self.describe())
        return text

    def describe(self) -> str:
        return f"{self.what}, with * for any characters and ? for one"


@dataclass(frozen=True)
class _Listed(SettingType):
    """One or more values: an array in TOML, separated by commas in text."""

    item: SettingType

    @property
    def metavar(self) -> str:
        return self.item.metavar

    def from_text(self, text: str) -> tuple[Any, ...]:
        return self.from_toml([part.strip() for part in text.split(",")])

    def toml_of(self, text: str) -> list[Any]:
        self.from_text(text)
        return [self.item.toml_of(part.strip()) for part in text.split(",")]

    def to_text(self, value: Any) -> str:
        return ",".join(map(self.item.to_text, value))

    def from_toml(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or not value:
            raise ValueError(self.describe())
        try:
            return tuple(self.item.from_toml(one) for one in value)
        except ValueError:
            raise ValueError(self.describe()) from None

    def describe(self) -> str:
        return f"one or more, in TOML in an array, each {self.item.describe()}"


@dataclass(frozen=True)
class _Mode(SettingType):
    """File permissions. Always text: ``socket_mode = 600`` in TOML would be decimal."""

    @property
    def metavar(self) -> str:
        return "MODE"

    def from_text(self, text: str) -> int:
        if not re.fullmatch(r"0?[0-7]{3}", text, re.ASCII) or int(text, 8) & 0o700 != 0o600:
            raise ValueError(self.describe())
        return int(text, 8)

    def to_text(self, value: Any) -> str:
        return f"{value:04o}"

    def describe(self) -> str:
        return (
            "file rights in octal, with read and write for the owner, such as '0600' or '0660'; in "
            "TOML in quotes"
        )


@dataclass(frozen=True)
class _Location(SettingType):
    """A path; ``~`` is the user's home directory."""

    @property
    def metavar(self) -> str:
        return "PATH"

    def from_text(self, text: str) -> Path:
        if not text.strip() or "\0" in text:
            raise ValueError(self.describe())
        return Path(text).expanduser()

    def describe(self) -> str:
        return "a path"


@dataclass(frozen=True)
class _SocketPath(_Location):
    """A path that is valid for a Unix socket."""

    def from_text(self, text: str) -> Path:
        try:
            return checked_socket_path(Path(super().from_text(text)))
        except InvalidArgument as error:
            raise ValueError(f"{self.describe()}, {len(text.encode())} are too many") from error

    def describe(self) -> str:
        return "a path of at most 107 bytes"


def integer(least: int, most: int) -> SettingType:
    """Return the type of integers from ``least`` to ``most``."""
    return _Integer(least, most)


def choice(*words: str) -> SettingType:
    """Return the type whose values are ``words``."""
    return _Choice(words)


def switch() -> SettingType:
    """Return the type of booleans."""
    return _Switch()


def word(what: str) -> SettingType:
    """Return the type of names that are resolved elsewhere; ``what`` completes "must be"."""
    return _Word(what)


def pattern(what: str) -> SettingType:
    """Return the type of patterns for names; ``what`` completes "must be"."""
    return _Pattern(what)


def listed(item: SettingType) -> SettingType:
    """Return the type of tuples of one or more values of type ``item``."""
    return _Listed(item)


def mode() -> SettingType:
    """Return the type of file permissions."""
    return _Mode()


def location() -> SettingType:
    """Return the type of paths."""
    return _Location()


def socket_location() -> SettingType:
    """Return the type of paths that are valid for a Unix socket."""
    return _SocketPath()
