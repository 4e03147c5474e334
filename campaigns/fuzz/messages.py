"""Messages to fuzz a protocol with: valid ones by their kinds, then spoilt.

Problem: bytes at random are refused at the first byte, and never see the code behind the checks; a
list of nasty messages written by hand is out of date with the next message.

Approach: what a field may hold is declared once, as its `gpud.wire.field_types.FieldType`. From the
kind comes a generator of valid values that loves boundaries; from the table come the messages. A
valid message is then spoilt where one likes to be wrong: a field missing, doubled, swapped with
another, of another type, one over its bound; the code of another message; bytes flipped, cut out,
put in, repeated; frames with wrong lengths, merged, cut in two, cut short.

What a name means in a session (which module is there, which job runs) the caller says in a `World`:
plausible values by the name of the field. A new message is fuzzed by itself, well if its fields are
called what they are called elsewhere.

Properties:
    valid_is_valid: what `Fuzzer.valid` makes, the table accepts;
    repeatable: equal decisions give equal messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from campaigns.fuzz.choices import Choices
from gpud.wire import field_types as ft
from gpud.wire.framing import frame
from gpud.wire.message_table import MessageTable, Sender

Make = Callable[[Choices], Any]
World = Mapping[str, Sequence[Any]]
"""Plausible values by the name of the field."""

_LARGE_ONE_IN = 400  # of texts and blobs is over the size at which a message is walked, 64 KiB
_LARGE = 70_000

_TEXTS = (
    "",
    "k",
    "a" * 17,
    "\0",
    "é漢\U0001f600",
    "%s{0}'\"\\\n",
    ".version 8.0\n",
    "_Z1kPf",
    "x" * 300,
)
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -128, 127, 255, 256, 65535, 65536, -(2**31), 2**31 - 1, 2**32 - 1,
    2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, 1.5, -1e308, float("inf"),
    float("nan"), "", "k", "0", "x" * 41, "\0", b"", b"\0", b"x" * 41, [], [0], [[]], [None] * 3,
    [1, 1, 1], [1, 1, 1, 1], [2**32, 1, 1], list(range(40)), [[[[[[[[]]]]]]]], {}, {"a": 1},
    {"a": {"b": [1]}}, {1: 2}, msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1, 2),
)  # fmt: skip
_BYTES = (
    b"\xc1", b"\xc0", b"\x90", b"\x9f", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x80", b"\x8f",
    b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xd9\xff", b"\xdb\xff\xff\xff\xff", b"\xc4\xff",
    b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd4\x01\x00", b"\xc7\x08\xff",
    b"\xcb\x7f\xf0\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xa1\xff",
    b"\xa3\xed\xa0\x80", b"\x91" * 40, b"\x91" * 1100, b"\xdd\0\1\0\0", b"\0",
)  # fmt: skip


class Piece(NamedTuple):
    """Some bytes of a stream.

    Attributes:
        kind: the message that it began as.
        how: in what way it was spoilt, "valid" if it was not.
        data: a frame's body, or for a frame that is none the bytes as they go out.
        framed: whether ``data`` is a body.
    """

    kind: str
    how: str
    data: bytes
    framed: bool = True

    @property
    def sent(self) -> bytes:
        """The bytes as they go out."""
        return frame(self.data) if self.framed and self.data else self.data


class Fuzzer:
    """The messages of one side of a protocol.

    Args:
        table: of the protocol.
        sender: which side.
        world: see `World`; it may change between messages.
        rare: messages that are not made by `any_valid` but one time in ten of the others', as they
            cost the receiver much.
    """

    def __init__(
        self,
        table: MessageTable,
        sender: Sender,
        world: World | None = None,
        rare: Sequence[type[Any]] = (),
    ) -> None:
        self.table = table
        self.sender = sender
        self.world: World = {} if world is None else world
        self.classes = [cls for cls in table.codes if table.schema(cls).sender is sender]
        self._often = [cls for cls in self.classes if cls not in rare for _ in range(10)]
        self._often += rare
        self._makers = {cls: self._fields_of(cls) for cls in (*self.classes, *table.records)}
        self._spoil: tuple[Callable[[Choices, list[Any]], str], ...] = (
            _drop, _cut_short, _add, _swap, _odd, _odd, _odd, _odd_within, _double, _code, _beyond,
        )  # fmt: skip

    # -- valid

    def valid(self, choices: Choices, cls: type[Any]) -> Any:
        """A message of this class that the table accepts."""
        return cls._make([make(choices) for make in self._makers[cls]])

    def any_valid(self, choices: Choices) -> Any:
        """A message that the table accepts."""
        return self.valid(choices, choices.pick(self._often))

    # -- spoilt

    def piece(self, choices: Choices) -> Piece:
        """A message, valid one time in seven, spoilt in one way or two otherwise."""
        cls = choices.pick(self._often)
        values = [self.table.codes[cls], *[make(choices) for make in self._makers[cls]]]
        way = choices.below(28)
        if way < 4:
            return Piece(cls.__name__, "valid", _packed(values))
        if way < 19:
            how = choices.pick(self._spoil)(choices, values)
            if way < 7:  # and once more
                how = choices.pick(self._spoil)(choices, values)
            return Piece(cls.__name__, how, _packed(values))
        if way < 21:
            choices.pick(self._spoil)(choices, values)
        data, how = self._spoilt_bytes(choices, _packed(values))
        if way > 25:
            data, how = self._spoilt_bytes(choices, data)
        return Piece(cls.__name__, how, data)

    def piece_without_frame(self, choices: Choices) -> Piece:
        """A frame that is none, or one too many."""
        piece = self.piece(choices)
        body, name = piece.data, piece.kind
        way = choices.below(8)
        if way == 0:
            how, data = "cut short", piece.sent[: choices.below(len(body) + 4)]
        elif way == 1:
            size = choices.pick((0, 1, 2**16, 2**26, 2**26 + 1, 2**31, 2**32 - 1))
            how, data = "length", size.to_bytes(4, "little") + body
        elif way == 2:
            size = max(0, len(body) + choices.below(9) - 4)
            how, data = "length off", size.to_bytes(4, "little") + body
        elif way == 3:
            other = self.piece(choices).data
            how, data = "two in one frame", _framed(body + other)
        elif way == 4:
            at = choices.below(len(body) + 1)
            how, data = "one in two frames", _framed(body[:at]) + _framed(body[at:])
        elif way == 5:
            how, data = "garbage", choices.data(64)
        elif way == 6:
            how, data = "no frame", body
        else:
            how, data = "empty frame", bytes(4)
        return Piece(name, how, data, framed=False)

    def _spoilt_bytes(self, choices: Choices, data: bytes) -> tuple[bytes, str]:
        if not data:
            return b"\0", "bytes put in"
        at = choices.below(len(data))
        way = choices.below(8)
        if way == 0:
            changed = data[at] ^ 1 << choices.below(8)
            return data[:at] + bytes((changed,)) + data[at + 1 :], "bit flipped"
        if way == 1:
            return data[:at] + bytes((choices.below(256),)) + data[at + 1 :], "byte replaced"
        if way == 2:
            return data[:at] + choices.pick(_BYTES) + data[at + 1 :], "byte replaced"
        if way == 3:
            return data[:at] + choices.pick(_BYTES) + data[at:], "bytes put in"
        if way == 4:
            end = at + 1 + choices.below(8)
            return data[:at] + data[end:] or b"\0", "bytes cut out"
        if way == 5:
            return data[:at] or b"\0", "cut short"
        if way == 6:
            end = at + 1 + choices.below(32)
            return data[:end] + data[at:], "bytes repeated"
        return data + choices.data(16), "more behind"

    # -- from kinds to values

    def _fields_of(self, cls: type[Any]) -> list[Make]:
        makers = []
        for field in self.table.schema(cls).fields:
            make = self._make(field.type, field.name)
            for record in self.table.records:
                # The one thing that the kind does not say: what is packed in a binary field.
                if isinstance(field.type, ft._Blob) and f"`{record.__name__}`" in field.meaning:
                    make = self._packed_records(record, make)
            makers.append(make)
        return makers

    def _packed_records(self, record: type[Any], blob: Make) -> Make:
        def make(choices: Choices) -> Any:
            way = choices.below(8)
            if way == 0:
                return blob(choices)
            rows = [
                list(self.valid(choices, record)) for _ in range(choices.pick((1, 1, 1, 2, 5, 0)))
            ]
            if way == 1 and rows:
                choices.pick(self._spoil)(choices, rows[0])
            data = _packed(rows)
            return self._spoilt_bytes(choices, data)[0] if way == 2 else data

        return make

    def _make(self, kind: ft.FieldType, name: str = "") -> Make:
        """A generator of values of a kind, which come from the world more often than not."""
        make = self._of_kind(kind, name)
        if not name:
            return make

        def with_world(choices: Choices) -> Any:
            known = self.world.get(name)
            if known and choices.below(8):
                return choices.pick(known)
            return make(choices)

        return with_world

    def _of_kind(self, kind: ft.FieldType, name: str) -> Make:
        match kind:
            case ft._Uint(least, most):
                return _uint(least, most)
            case ft._Text(most):
                return _text(most)
            case ft._Blob(most):
                return _blob(most)
            case ft._Flag():
                return lambda choices: bool(choices.below(2))
            case ft._Choice(names):
                return lambda choices: choices.pick(names)
            case ft._Optional(inner):
                some = self._of_kind(inner, name)
                return lambda choices: some(choices) if choices.below(2) else None
            case ft._Listed(inner, least, most):
                return _listed(self._make(inner), least, most)
            case ft._Pair(first, second):
                one, two = self._make(first), self._make(second)
                return lambda choices: [one(choices), two(choices)]
            case ft._Plain():
                return lambda choices: choices.pick(_PLAIN)
        raise AssertionError(f"a kind that the fuzzer does not know: {kind}")


_PLAIN = tuple(
    one for one in _ODD if not isinstance(one, msgpack.ExtType | msgpack.Timestamp | dict)
)
_PLAIN = (*_PLAIN, {}, {"a": 1}, {"a": {"b": [1]}})


def _uint(least: int, most: int) -> Make:
    borders = {
        least,
        least + 1,
        most - 1,
        most,
        least + 2,
        least + 3,
        4,
        7,
        32,
        256,
        1024,
        most // 2,
    }
    borders |= {1 << bit for bit in (15, 16, 31, 32, 62, 63)}
    usual = tuple(sorted(value for value in borders if least <= value <= most))
    span = min(most - least + 1, 1 << 64)

    def make(choices: Choices) -> int:
        return choices.pick(usual) if choices.below(4) else least + choices.below(span)

    return make


def _text(most: int) -> Make:
    short = tuple(text for text in (*_TEXTS, "y" * min(most, 4096)) if len(text) <= most)
    large = "z" * min(most, _LARGE)
    return lambda choices: choices.pick(short) if choices.below(_LARGE_ONE_IN) else large


def _blob(most: int) -> Make:
    large = bytes(min(most, _LARGE))
    few = min(most, 48)
    return lambda choices: choices.data(few) if choices.below(_LARGE_ONE_IN) else large


def _listed(inner: Make, least: int, most: int) -> Make:
    spread = min(most - least, 3) + 1

    def make(choices: Choices) -> list[Any]:
        count = least + choices.below(spread)
        if not choices.below(_LARGE_ONE_IN):
            count = min(most, 5000)
        if count > 16:
            return [inner(choices)] * count
        return [inner(choices) for _ in range(count)]

    return make


# -- ways to spoil a message, whose first value is its code ---------------------------------------


def _drop(choices: Choices, values: list[Any]) -> str:
    if values:
        del values[choices.below(len(values))]
    return "field dropped"


def _cut_short(choices: Choices, values: list[Any]) -> str:
    if values:
        del values[choices.below(len(values)) :]
    return "fields cut off"


def _add(choices: Choices, values: list[Any]) -> str:
    values.insert(choices.below(len(values) + 1), choices.pick(_ODD))
    return "field added"


def _swap(choices: Choices, values: list[Any]) -> str:
    if values:
        one, two = choices.below(len(values)), choices.below(len(values))
        values[one], values[two] = values[two], values[one]
    return "fields swapped"


def _odd(choices: Choices, values: list[Any]) -> str:
    if values:
        values[choices.below(len(values))] = choices.pick(_ODD)
    return "odd value"


def _odd_within(choices: Choices, values: list[Any]) -> str:
    within = [at for at, value in enumerate(values) if isinstance(value, list) and value]
    if within:
        at = choices.pick(within)
        values[at] = list(values[at])
        values[at][choices.below(len(values[at]))] = choices.pick(_ODD)
    return "odd value within"


def _double(choices: Choices, values: list[Any]) -> str:
    if values:
        at = choices.below(len(values))
        values.insert(at, values[at])
    return "field doubled"


def _code(choices: Choices, values: list[Any]) -> str:
    if values:
        values[0] = choices.below(128)
    return "other code"


def _beyond(choices: Choices, values: list[Any]) -> str:
    """A number that is just outside of what some field may hold."""
    numbers = [at for at, value in enumerate(values) if type(value) is int]
    if numbers:
        beyond = choices.pick((-1, 1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1))
        values[choices.pick(numbers)] = beyond
    return "number beyond"


def _packed(values: Any) -> bytes:
    return bytes(msgpack.packb(values))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body
