"""The base classes of the error tree, and the conversion of errors to and from plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    "shorten_error",
]

Plain = str | int | float | bool | None | tuple[Any, ...]
"""The values that a field may hold: msgpack returns them unchanged, with tuples as arrays."""


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
        """Return the error as plain data: ``code``, ``message`` and ``fields`` by name."""
        return {
            "code": self.code,
            "message": self.message,
            "fields": {name: getattr(self, name) for name in type(self).fields},
        }

    @classmethod
    def _rebuild(cls, message: str, fields: Mapping[str, Plain]) -> Self:
        """Create the error from its message and fields, bypassing the subclass's constructor."""
        # Only the __new__ of the built-in class that determines the instance's memory layout is
        # accepted; with several built-in bases it need not be the first one in the MRO.
        layout: Any = cls
        while layout.__module__ != "builtins":
            layout = layout.__base__
        error: Self = layout.__new__(cls, message)
        known = {name: _plain(fields.get(name)) for name in cls.fields}
        GpudError.__init__(error, message, **known)
        return error


def from_wire(data: Mapping[str, Any]) -> GpudError:
    """Return the error that `GpudError.to_wire` encoded, with the same type.

    An unknown code, from a newer version, becomes a plain `GpudError` whose message starts with
    that code. Unknown fields are dropped, absent ones are None.

    Raises:
        ValueError: ``data`` lacks ``code`` or ``message``, or they are not strings.
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
    """Yield `GpudError` and each of its subclasses once, parents before children."""
    seen = [GpudError]
    for cls in seen:
        seen.extend(child for child in cls.__subclasses__() if child not in seen)
    yield from seen


def _plain(value: Any) -> Plain:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


# -- blame -------------------------------------------------------------------------------------


class CallerError(GpudError):
    """The request, the kernel or its arguments must change; retrying does not help."""

    code = "caller"
    blame = Blame.CALLER


class DaemonError(GpudError):
    """gpud or its installation is at fault; the same request may succeed once that is fixed."""

    code = "daemon"
    blame = Blame.DAEMON


class DeviceError(GpudError):
    """The device or its driver failed; the daemon continues with a new device host."""

    code = "device"
    blame = Blame.DEVICE


def shorten(text: str, length: int = 120) -> str:
    """Return ``text`` as one line of at most ``length`` characters, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def shorten_error(error: GpudError, length: int, most: int) -> GpudError:
    """Return the error for keeping: itself, unless one of its texts is longer than ``length``.

    Then each text is shortened to that, and each tuple to its first ``most`` items.
    """

    def short(value: Any) -> Any:
        if isinstance(value, str):
            return shorten(value, length)
        return tuple(map(short, value[:most])) if isinstance(value, tuple) else value

    wire = error.to_wire()
    fields = wire["fields"]
    if all(len(text) <= length for text in _texts([error.message, *fields.values()])):
        return error
    cut = {name: short(value) for name, value in fields.items()}
    return from_wire({**wire, "message": short(error.message), "fields": cut})


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from _texts(value)
