"""Types of message fields: validation, description, and size bounds.

Problem: a peer can send any msgpack value. The code behind the wire relies on types, ranges and
sizes, and must never get a value that violates them.

Approach: a field type is a frozen object that checks a value, explains what is wrong with it,
describes itself for the reference page, and bounds the bytes of a valid value, so that an oversized
message is refused before it is unpacked. Field types nest.

Properties:
    exact: a check accepts only the exact Python type that msgpack returns: a bool is not an
        integer, a float is never an integer, bytes are not text;
    immutable: lists become tuples at every level, except in `plain`;
    total: a check returns or raises `ProtocolError`, for any value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpud.errors import ProtocolError

__all__ = [
    "FieldType",
    "amount",
    "blob",
    "choice",
    "flag",
    "listed",
    "optional",
    "pair",
    "plain",
    "shown",
    "text",
    "uint",
]

_HEAD_BYTES = 9  # the most that msgpack uses for a number, or as the header of any other value


class FieldType:
    """The type of a field: the values that it may hold."""

    __slots__ = ()

    def check(self, value: Any) -> Any:
        """Validate ``value`` and return it, with lists converted to tuples.

        Raises:
            ProtocolError: it is not of this type; the message says what was expected and received.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Return the type in words, for the reference page and for error messages."""
        raise NotImplementedError

    def most_bytes(self) -> int | None:
        """Return the most bytes that a valid value has in msgpack; None if unbounded."""
        raise NotImplementedError

    def most_items(self) -> int:
        """Return the most items that an array within a valid value has; 0 without arrays."""
        return 0

    def expression(self, value: str, names: dict[str, Any]) -> str:
        """Return a Python expression equivalent to `check` applied to the expression ``value``.

        It handles valid values inline and calls `check` for the rest.

        Args:
            value: an expression that is cheap and has no side effects: it is evaluated repeatedly.
            names: receives the objects that the expression refers to, by name.
        """
        return self._checked(value, names)

    def _checked(self, value: str, names: dict[str, Any]) -> str:
        name = f"check_{len(names)}"
        names[name] = self.check
        return f"{name}({value})"

    def _wrong(self, value: Any) -> ProtocolError:
        return ProtocolError(f"{self.describe()} is expected, not {shown(value)}")


@dataclass(frozen=True, slots=True)
class _Uint(FieldType):
    least: int
    most: int

    def check(self, value: Any) -> int:
        if type(value) is int and self.least <= value <= self.most:
            return value
        raise self._wrong(value)

    def describe(self) -> str:
        above = self.most + 1
        most = f"2^{above.bit_length() - 1} - 1" if above & self.most == 0 else str(self.most)
        most = str(self.most) if self.most < 1 << 16 else most
        return f"integer, {self.least} to {most}"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        usual = f"type({value}) is int and {self.least} <= {value} <= {self.most}"
        return f"({value} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int:
        return _HEAD_BYTES


@dataclass(frozen=True, slots=True)
class _Text(FieldType):
    most: int

    def check(self, value: Any) -> str:
        if type(value) is str and len(value) <= self.most:
            return value
        raise self._wrong(value)

    def describe(self) -> str:
        return f"text of at most {_count(self.most)} characters"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        usual = f"type({value}) is str and len({value}) <= {self.most}"
        return f"({value} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int:
        return _HEAD_BYTES + 4 * self.most


@dataclass(frozen=True, slots=True)
class _Blob(FieldType):
    most: int

    def check(self, value: Any) -> bytes:
        if type(value) is bytes and len(value) <= self.most:
            return value
        raise self._wrong(value)

    def describe(self) -> str:
        return f"at most {_count(self.most)} bytes (msgpack bin)"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        usual = f"type({value}) is bytes and len({value}) <= {self.most}"
        return f"({value} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int:
        return _HEAD_BYTES + self.most


@dataclass(frozen=True, slots=True)
class _Flag(FieldType):
    def check(self, value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise self._wrong(value)

    def describe(self) -> str:
        return "true or false"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        usual = f"{value} is True or {value} is False"
        return f"({value} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int:
        return _HEAD_BYTES


@dataclass(frozen=True, slots=True)
class _Choice(FieldType):
    names: tuple[str, ...]

    def check(self, value: Any) -> str:
        if type(value) is str and value in self.names:
            return value
        raise self._wrong(value)

    def describe(self) -> str:
        return "one of " + ", ".join(f'"{name}"' for name in self.names)

    def expression(self, value: str, names: dict[str, Any]) -> str:
        usual = f"type({value}) is str and {value} in {self.names!r}"
        return f"({value} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int:
        return _HEAD_BYTES + 4 * max(map(len, self.names))


@dataclass(frozen=True, slots=True)
class _Optional(FieldType):
    item: FieldType

    def check(self, value: Any) -> Any:
        return None if value is None else self.item.check(value)

    def describe(self) -> str:
        return f"{self.item.describe()}; or nil"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        return f"(None if {value} is None else {self.item.expression(value, names)})"

    def most_bytes(self) -> int | None:
        return self.item.most_bytes()

    def most_items(self) -> int:
        return self.item.most_items()


@dataclass(frozen=True, slots=True)
class _Listed(FieldType):
    item: FieldType
    least: int
    most: int

    def check(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, list | tuple) and self.least <= len(value) <= self.most:
            return tuple(map(self.item.check, value))
        raise self._wrong(value)

    def describe(self) -> str:
        many = str(self.most) if self.least == self.most else f"{self.least} to {_count(self.most)}"
        return f"array of {many} of: {self.item.describe()}"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        one = f"one_{len(names)}"
        names[one] = None  # reserves the name
        each = (
            f"(tuple([{self.item.expression(one, names)} for {one} in {value}]) if {value} else ())"
        )
        usual = f"type({value}) is list and {self.least} <= len({value}) <= {self.most}"
        return f"({each} if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int | None:
        one = self.item.most_bytes()
        return None if one is None else _HEAD_BYTES + self.most * one

    def most_items(self) -> int:
        return max(self.most, self.item.most_items())


@dataclass(frozen=True, slots=True)
class _Pair(FieldType):
    first: FieldType
    second: FieldType

    def check(self, value: Any) -> tuple[Any, Any]:
        if isinstance(value, list | tuple) and len(value) == 2:
            return self.first.check(value[0]), self.second.check(value[1])
        raise self._wrong(value)

    def describe(self) -> str:
        return f"array of two: {self.first.describe()}; {self.second.describe()}"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        first = self.first.expression(f"{value}[0]", names)
        second = self.second.expression(f"{value}[1]", names)
        usual = f"type({value}) is list and len({value}) == 2"
        return f"(({first}, {second}) if {usual} else {self._checked(value, names)})"

    def most_bytes(self) -> int | None:
        first, second = self.first.most_bytes(), self.second.most_bytes()
        return None if first is None or second is None else _HEAD_BYTES + first + second

    def most_items(self) -> int:
        return max(2, self.first.most_items(), self.second.most_items())


@dataclass(frozen=True, slots=True)
class _Amount(_Pair):
    def describe(self) -> str:
        return "array of two integers, numerator and denominator, each 1 to 2^63 - 1"


@dataclass(frozen=True, slots=True)
class _Plain(FieldType):
    def check(self, value: Any) -> Any:
        return value

    def describe(self) -> str:
        return "any"

    def expression(self, value: str, names: dict[str, Any]) -> str:
        return value

    def most_bytes(self) -> None:
        return None

    def most_items(self) -> int:
        return (1 << 32) - 1


def uint(bits: int, *, least: int = 0, most: int | None = None) -> FieldType:
    """Return the type of unsigned integers of ``bits`` bits, ``least`` to ``most`` where given."""
    return _Uint(least, (1 << bits) - 1 if most is None else most)


def text(most: int) -> FieldType:
    """Return the type of texts of at most ``most`` characters."""
    return _Text(most)


def blob(most: int) -> FieldType:
    """Return the type of at most ``most`` bytes, as msgpack bin."""
    return _Blob(most)


def flag() -> FieldType:
    """Return the type of booleans: true or false."""
    return _Flag()


def choice(*names: str) -> FieldType:
    """Return the type whose values are the texts ``names``."""
    return _Choice(names)


def optional(item: FieldType) -> FieldType:
    """Return the type of nil and the values of type ``item``."""
    return _Optional(item)


def listed(item: FieldType, least: int, most: int) -> FieldType:
    """Return the type of arrays of ``least`` to ``most`` ``item``; decoded as tuples."""
    return _Listed(item, least, most)


def pair(first: FieldType, second: FieldType) -> FieldType:
    """Return the type of pairs of values of the given types; decoded as tuples."""
    return _Pair(first, second)


def amount() -> FieldType:
    """Return the type of exact amounts over 0: numerator and denominator, in any terms."""
    positive = uint(63, least=1)
    return _Amount(positive, positive)


def plain() -> FieldType:
    """Return the type of all msgpack values but extensions; for fields of a trusted peer only."""
    return _Plain()


def shown(value: Any) -> str:
    """Return a short description of any value, for error messages."""
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value)} characters"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _count(number: int) -> str:
    """Return a number as text, a large power of two in the form 2^n."""
    large = number >= 1 << 16 and number & (number - 1) == 0
    return f"2^{number.bit_length() - 1}" if large else str(number)
