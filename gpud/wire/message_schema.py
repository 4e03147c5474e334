"""What is known of one message: its fields, how they are checked, and how large they can be.

Everything is derived from the class: a named tuple whose annotations carry a
`gpud.wire.field_types.FieldType` and a text. The checks of all fields are compiled into one
function, as named tuples are themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from gpud.errors import ProtocolError
from gpud.wire.field_types import FieldType

__all__ = ["SPARE_ITEMS", "Field", "MessageSchema", "Sender"]

SPARE_ITEMS: Final = 4
"""Arrays up to so many times too long are read, for a better error than "broken"."""


class Sender(Enum):
    """Who sends a message: the side that connects or commands, or the side that serves."""

    CLIENT = "client"
    DAEMON = "daemon"

    __hash__ = object.__hash__  # members are compared by identity; Enum's own is Python


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        has_default: it may be left out at the end of a message.
        default: then it is this.
    """

    name: str
    kind: FieldType
    meaning: str
    has_default: bool
    default: Any


class MessageSchema:
    """What a table knows of a class: a message, or a record within one.

    Attributes:
        code: None for a record.
        sender: None for a record.
        count: how many fields it has.
        least: of them those that must be there.
        defaults: of those that need not, in order.
        most_items: how long an array in a message may be for its fields to be looked at.
        most_bytes: the most that a valid message has, None if there is no bound.
        numbered: what the first field numbers: ``request``, ``job`` or nothing.
    """

    __slots__ = (
        "_quickly", "cls", "code", "count", "defaults", "fields", "least", "most_bytes",
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
        self._quickly = _compiled(cls, self.fields)
        sizes = [field.kind.most_bytes() for field in self.fields]
        bounds = [size for size in sizes if size is not None]
        self.most_bytes = 16 + sum(bounds) if len(bounds) == len(sizes) else None
        longest = max((field.kind.most_items() for field in self.fields), default=0)
        self.most_items = min(max(16, SPARE_ITEMS * longest), (1 << 32) - 1)
        first = self.fields[0].name if self.fields else ""
        named = {"request": "request", "ticket": "request", "number": "job", "job": "job"}
        self.numbered = named.get(first) if code is not None else None

    def build(self, values: Sequence[Any]) -> Any:
        """Returns the message or record with these fields, checked.

        Raises:
            ProtocolError: the number of fields or one of them is wrong.
        """
        if len(values) != self.count:
            missing = self.count - len(values)
            if not 0 < missing <= len(self.defaults):
                self._refuse_count(len(values))
            values = [*values, *self.defaults[-missing:]]
        try:
            return self._quickly(values)
        except ProtocolError:
            raise self._explained(values) from None

    def number(self, values: Sequence[Any]) -> dict[str, int]:
        """Returns what an error about a message with these fields carries."""
        if self.numbered is None or not values:
            return {}
        try:
            return {self.numbered: self.fields[0].kind.check(values[0])}
        except ProtocolError:
            return {}

    def walk(self, unpacker: Any, body: bytes | memoryview, count: int) -> None:
        """Steps over ``count`` packed fields, without building them.

        Raises:
            ProtocolError: one is larger than it can be, or an array or map where that cannot be.
        """
        if not self.least <= count <= len(self.fields):
            self._refuse_count(count)
        for field in self.fields[:count]:
            start = unpacker.tell()
            unpacker.skip()
            size, most = unpacker.tell() - start, field.kind.most_bytes()
            misplaced = not field.kind.most_items() and _is_container(body[start])
            if misplaced or (most is not None and size > most):
                what = "an array or a map" if misplaced else f"{size} bytes"
                raise ProtocolError(
                    f"field {field.name} of {self.cls.__name__}: {field.kind.describe()} is "
                    f"expected, not {what}"
                )

    def _explained(self, values: Sequence[Any]) -> ProtocolError:
        """The error for the first field that is wrong."""
        for field, value in zip(self.fields, values, strict=True):
            try:
                field.kind.check(value)
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
    """Returns a function that checks as many values as there are fields, and makes a ``cls``."""
    names: dict[str, Any] = {"cls": cls, "new": tuple.__new__}
    variables = [f"field_{index}" for index in range(len(fields))]
    checked = [
        field.kind.inlined(name, names) for field, name in zip(fields, variables, strict=True)
    ]
    commas = "".join(f"{name}, " for name in variables)
    lines = "".join(f"        {one},\n" for one in checked)
    source = (
        f"def make(values):\n    {commas or '()'} = values\n    return new(cls, (\n{lines}    ))\n"
    )
    exec(source, names)  # noqa: S102  (made of the declarations, as named tuples are)
    made: Callable[[Sequence[Any]], Any] = names["make"]
    return made


def _is_container(first: int) -> bool:
    """Whether a msgpack value that begins with this byte is an array or a map."""
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF


def _fields(cls: type[Any]) -> Iterable[Field]:
    hints = get_type_hints(cls, include_extras=True)
    defaults: dict[str, Any] = cls._field_defaults
    for name in cls._fields:
        found = [one for one in get_args(hints[name])[1:] if isinstance(one, FieldType)]
        texts = [one for one in get_args(hints[name])[1:] if isinstance(one, str)]
        assert len(found) == len(texts) == 1, f"{cls.__name__}.{name} needs a kind and a meaning"
        has_default = name in defaults
        yield Field(name, found[0], texts[0], has_default, defaults.get(name))
