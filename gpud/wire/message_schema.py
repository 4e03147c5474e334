"""The schema of one message: its fields, their validation, and their size bounds.

Everything is derived from the message's class: a named tuple whose annotations carry a
`gpud.wire.field_types.FieldType` and a text. The checks of all fields are compiled into one
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from gpud.errors import ProtocolError
from gpud.wire.field_types import FieldType

__all__ = ["SPARE_ITEMS", "Field", "MessageSchema", "Sender"]

SPARE_ITEMS: Final = 4
"""Arrays of up to so many times the valid length are unpacked, for a more precise error."""


class Sender(Enum):
    """Which side sends a message: the one that connects or commands, or the one that serves."""

    CLIENT = "client"
    DAEMON = "daemon"

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash is slower


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        has_default: the field may be left out at the end of a message.
        default: its value if it is left out.
    """

    name: str
    type: FieldType
    meaning: str
    has_default: bool
    default: Any


class MessageSchema:
    """The schema of a message class, or of a record class for parts of messages.

    Attributes:
        code: the message's code; None for a record.
        sender: None for a record.
        count: number of fields.
        least: number of fields that may not be left out.
        defaults: the defaults of the other fields, in order.
        most_items: the longest array that is unpacked before the fields are checked.
        most_bytes: the most bytes that a valid message has; None if unbounded.
        checked_build: makes the message or record of valid values for all fields, and raises any
            error for others.
        numbered: what the first field numbers: ``request``, ``job`` or None.
    """

    __slots__ = (
        "checked_build", "cls", "code", "count", "defaults", "fields", "least", "most_bytes",
        "most_items", "numbered", "sender",
    )  # fmt: skip

    def __init__(self, cls: type[Any], code: int | None, sender: Sender | None) -> None:
        self.cls = cls
        self.code = code
        self.sender = sender
        self.fields = tuple(_fields(cls))
        self.defaults = tuple(field.default for field in self.fields if field.has_default)
        self.count = len(self.fields)
        self.least = self.count - len(self.defaults)
        self.checked_build = _compiled(cls, self.fields)
        sizes = [field.type.most_bytes() for field in self.fields]
        bounds = [size for size in sizes if size is not None]
        self.most_bytes = 16 + sum(bounds) if len(bounds) == len(sizes) else None
        longest = max((field.type.most_items() for field in self.fields), default=0)
        self.most_items = min(max(16, SPARE_ITEMS * longest), (1 << 32) - 1)
        first = self.fields[0].name if self.fields else ""
        named = {"request": "request", "ticket": "request", "number": "job", "job": "job"}
        self.numbered = named.get(first) if code is not None else None

    def build(self, values: Sequence[Any]) -> Any:
        """Validate the fields and return the message or record.

        Raises:
            ProtocolError: the number of fields or a field is wrong.
        """
        if len(values) != self.count:
            missing = self.count - len(values)
            if not 0 < missing <= len(self.defaults):
                self._refuse_count(len(values))
            values = [*values, *self.defaults[-missing:]]
        try:
            return self.checked_build(values)
        except ProtocolError:
            raise self._explained(values) from None

    def number(self, values: Sequence[Any]) -> dict[str, int]:
        """Return the request or job number of a message, as fields of an error about it."""
        if self.numbered is None or not values:
            return {}
        try:
            return {self.numbered: self.fields[0].type.check(values[0])}
        except ProtocolError:
            return {}

    def walk(self, unpacker: Any, body: bytes | memoryview, count: int) -> None:
        """Check the sizes of ``count`` packed fields, without unpacking them.

        Raises:
            ProtocolError: a field is larger than valid, or an array or map where none is valid.
        """
        if not self.least <= count <= len(self.fields):
            self._refuse_count(count)
        for field in self.fields[:count]:
            start = unpacker.tell()
            unpacker.skip()
            size, most = unpacker.tell() - start, field.type.most_bytes()
            misplaced = not field.type.most_items() and _is_container(body[start])
            if misplaced or (most is not None and size > most):
                what = "an array or a map" if misplaced else f"{size} bytes"
                raise ProtocolError(
                    f"field {field.name} of {self.cls.__name__}: {field.type.describe()} is "
                    f"expected, not {what}"
                )

    def _explained(self, values: Sequence[Any]) -> ProtocolError:
        """Return the error for the first invalid field."""
        for field, value in zip(self.fields, values, strict=True):
            try:
                field.type.check(value)
            except ProtocolError as error:
                return ProtocolError(f"field {field.name} of {self.cls.__name__}: {error}")
        raise AssertionError("a check refused a value that it accepts now")

    def _refuse_count(self, count: int) -> None:
        most = len(self.fields)
        allowed = str(most) if most == self.least else f"{self.least} to {most}"
        raise ProtocolError(
            f"{self.cls.__name__} has {allowed} fields, not {count}: "
            f"{', '.join(field.name for field in self.fields)}"
        )


def _compiled(cls: type[Any], fields: Sequence[Field]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that validates a value for each field and returns a ``cls`` of them."""
    names: dict[str, Any] = {"cls": cls, "new": tuple.__new__}
    variables = [f"field_{index}" for index in range(len(fields))]
    checked = [
        field.type.expression(name, names) for field, name in zip(fields, variables, strict=True)
    ]
    commas = "".join(f"{name}, " for name in variables)
    lines = "".join(f"        {one},\n" for one in checked)
    source = (
        f"def make(values):\n    {commas or '()'} = values\n    return new(cls, (\n{lines}    ))\n"
    )
    exec(source, names)  # noqa: S102  (generated from the declarations)
    made: Callable[[Sequence[Any]], Any] = names["make"]
    return made


def _is_container(first: int) -> bool:
    """Whether a msgpack value with this first byte is an array or a map."""
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF


def _fields(cls: type[Any]) -> Iterable[Field]:
    hints = get_type_hints(cls, include_extras=True)
    defaults: dict[str, Any] = cls._field_defaults
    for name in cls._fields:
        types = [one for one in get_args(hints[name])[1:] if isinstance(one, FieldType)]
        texts = [one for one in get_args(hints[name])[1:] if isinstance(one, str)]
        assert len(types) == len(texts) == 1, (
            f"{cls.__name__}.{name} needs a field type and a meaning"
        )
        has_default = name in defaults
        yield Field(name, types[0], texts[0], has_default, defaults.get(name))
