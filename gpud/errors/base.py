"""The root of the error tree, who is to blame, and how an error becomes plain data and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

__all__ = [
    "Blame",
    "CallerError",
    "DaemonError",
    "DeviceError",
    "GpudError",
    "Plain",
    "error_classes",
    "from_wire",
    "shorten",
]

Plain = str | int | float | bool | None | tuple[Any, ...]
"""What a field may hold: it must survive msgpack unchanged, tuples written as arrays."""


class Blame(StrEnum):
    """Who has to act for the error to go away."""

    CALLER = "caller"
    DAEMON = "daemon"
    DEVICE = "device"


class GpudError(Exception):
    """The root of the tree: ``except GpudError`` catches everything that gpud reports."""

    code: ClassVar[str] = "gpud"
    blame: ClassVar[Blame | None] = None
    fields: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str = "", **fields: Plain) -> None:
        super().__init__(message)
        self.message = message
        for name in type(self).fields:
            setattr(self, name, fields.pop(name, None))
        if fields:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(fields))}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_wire, (self.to_wire(),))

    def to_wire(self) -> dict[str, Any]:
        """Returns the error as plain data: ``code``, ``message`` and ``fields`` by name."""
        return {
            "code": self.code,
            "message": self.message,
            "fields": {name: getattr(self, name) for name in type(self).fields},
        }

    @classmethod
    def _rebuild(cls, message: str, fields: Mapping[str, Plain]) -> Self:
        """Makes the error from its message and fields, past the constructor that words them."""
        # The built-in class that lays out the instance is the only one whose __new__ will do; with
        # several built-in bases it need not be the first one of the MRO.
        layout: Any = cls
        while layout.__module__ != "builtins":
            layout = layout.__base__
        error: Self = layout.__new__(cls, message)
        known = {name: _plain(fields.get(name)) for name in cls.fields}
        GpudError.__init__(error, message, **known)
        return error


def from_wire(data: Mapping[str, Any]) -> GpudError:
    """Returns the error that `GpudError.to_wire` wrote, of the same type.

    A code of a newer version becomes a plain `GpudError` whose message starts with that code.
    Fields that this version does not know are dropped, those that are absent are None.

    Raises:
        ValueError: ``data`` lacks ``code`` or ``message``, or they are no strings.
    """
    code, message = data.get("code"), data.get("message")
    fields = data.get("fields", {})
    if not isinstance(code, str) or not isinstance(message, str) or not isinstance(fields, Mapping):
        raise ValueError(f"not an error of gpud: {data!r}")
    for cls in error_classes():
        if cls.code == code:
            return cls._rebuild(message, fields)
    return GpudError(f"{code}: {message}")


def error_classes() -> Iterator[type[GpudError]]:
    """Yields `GpudError` and every class below it once, parents before children."""
    seen = [GpudError]
    for cls in seen:
        seen.extend(child for child in cls.__subclasses__() if child not in seen)
    yield from seen


def _plain(value: Any) -> Plain:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


# -- blame -------------------------------------------------------------------------------------


class CallerError(GpudError):
    """The request, the kernel or its arguments must change; trying again does not help."""

    code = "caller"
    blame = Blame.CALLER


class DaemonError(GpudError):
    """gpud or its installation is at fault; the same request may succeed once that is mended."""

    code = "daemon"
    blame = Blame.DAEMON


class DeviceError(GpudError):
    """The device or its driver failed; the daemon goes on with a fresh device host."""

    code = "device"
    blame = Blame.DEVICE


def shorten(text: str, length: int = 120) -> str:
    """Returns ``text`` on one line of at most ``length`` characters, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."
