"""The codec of a protocol, derived from its messages, which are declared once as named tuples.

Problem: a message must be declared, encoded, decoded, validated and documented, and these must
never disagree. Decoding is on the path of every launch.

Approach: a message is a named tuple; each annotation carries a `gpud.wire.field_types.FieldType`
and a text. The first use of a class computes its `gpud.wire.message_schema.MessageSchema`: which
fields may be left out, the size of the largest valid message, and one compiled function that
validates all fields. Decoding is then one call of msgpack and one of that function.

A large message is walked field by field before it is unpacked: small values take up to 60 times
their size as Python objects, while the largest valid messages are one long text or blob. Messages
with a `plain` field are not walked; only trusted peers send them.

Properties:
    round_trip: ``decode(encode(message)[4:], sender) == message``;
    total: `MessageTable.decode` returns a valid message or raises `ProtocolError`, for any bytes;
    named: the error names the message, the field and what was expected, and carries the number
        of the request, or of the job, if it could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgpack

from gpud.errors import FrameError, ProtocolError
from gpud.wire.field_types import shown
from gpud.wire.framing import HEADER_BYTES, header
from gpud.wire.message_schema import SPARE_ITEMS, Field, MessageSchema, Sender

__all__ = ["Field", "MessageSchema", "MessageTable", "Sender"]

_T = TypeVar("_T")

_unpackb = msgpack.unpackb
_Packer = msgpack.Packer  # a new one for each message: it keeps a buffer as large as the largest

_LARGE_BYTES: Final = 1 << 16
"""A larger message is walked before it is unpacked."""


class MessageTable:
    """The messages of one protocol.

    Args:
        name: of the protocol, for error messages.
        version: of the protocol.
    """

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.by_code: dict[int, type[Any]] = {}
        self.codes: dict[type[Any], int] = {}
        self.records: list[type[Any]] = []
        self._senders: dict[type[Any], Sender] = {}
        # Computed at first use: a short-lived client program uses only few of them.
        self._schemas: dict[type[Any], MessageSchema] = {}
        self._read: dict[Sender, dict[int, MessageSchema]] = {sender: {} for sender in Sender}
        self._most_items: dict[Sender, int] = {}

    # -- declaring

    def message(self, sender: Sender) -> Callable[[int], Callable[[type[_T]], type[_T]]]:
        """Return a decorator factory: ``@client(7)`` declares the message with code 7.

        Codes are 0 to 127 and unique among all messages of the table.
        """

        def with_code(code: int) -> Callable[[type[_T]], type[_T]]:
            def declare(cls: type[_T]) -> type[_T]:
                assert 0 <= code < 128, f"{cls.__name__}: the code must fit msgpack's one byte"
                assert code not in self.by_code, f"{cls.__name__}: {self.by_code[code]} has {code}"
                self.by_code[code], self.codes[cls] = cls, code
                self._senders[cls] = sender
                return cls

            return declare

        return with_code

    def record(self) -> Callable[[type[_T]], type[_T]]:
        """Return a decorator that declares a record, a part of messages."""

        def declare(cls: type[_T]) -> type[_T]:
            self.records.append(cls)
            return cls

        return declare

    def schema(self, cls: type[Any]) -> MessageSchema:
        """Return the schema of a message or record class.

        Raises:
            KeyError: the table has no such class.
        """
        schema = self._schemas.get(cls)
        if schema is None:
            if cls not in self.codes and cls not in self.records:
                raise KeyError(cls)
            schema = MessageSchema(cls, self.codes.get(cls), self._senders.get(cls))
            self._schemas[cls] = schema
        return schema

    # -- encoding

    def encode(self, message: Any) -> bytes:
        """Return the frame of a message, without validating its fields: see `check`.

        Raises:
            ProtocolError: a field has a value that msgpack cannot encode.
            KeyError: the table has no such message.
        """
        code = self.codes[type(message)]
        try:
            body: bytes = _Packer().pack((code, *message))
            return len(body).to_bytes(HEADER_BYTES, "little") + body
        except (TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"{type(message).__name__} cannot be sent: {error}") from error

    def encode_with(self, message: Any, field: str, parts: Sequence[bytes]) -> list[bytes]:
        """Encode a message of which a field is already packed.

        Args:
            message: the message, with None as that field.
            field: its name.
            parts: the packed field, in pieces.

        Returns:
            The frame in pieces, ``parts`` among them.
        """
        at = message._fields.index(field)
        assert message[at] is None
        packer = _Packer()
        head = packer.pack_array_header(1 + len(message))
        head += b"".join(map(packer.pack, (self.codes[type(message)], *message[:at])))
        rest = b"".join(map(packer.pack, message[at + 1 :]))
        return [header(len(head) + sum(map(len, parts)) + len(rest)) + head, *parts, rest]

    def check(self, message: _T) -> _T:
        """Validate a message before it is sent; return it as its receiver will decode it.

        Raises:
            ProtocolError: the receiver would refuse it.
        """
        checked: _T = self.schema(type(message)).build(message)  # type: ignore[arg-type]
        return checked

    def encode_records(self, records: Iterable[Any]) -> bytes:
        """Return an array of records as msgpack, for a binary field."""
        try:
            return bytes(msgpack.packb([tuple(record) for record in records]))
        except (TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"the records cannot be sent: {error}") from error

    # -- decoding

    def decode(self, body: bytes | memoryview, sender: Sender) -> Any:
        """Decode and validate the body of a frame; return the message as its named tuple.

        Args:
            body: of one frame.
            sender: the side that sent it; messages of the other side are refused.

        Raises:
            FrameError: the body is not msgpack: the connection cannot be used any further.
            ProtocolError: it is not a valid message; the error carries ``request`` or ``job`` if
                it could be read.
        """
        # The usual message in few steps: an array header of one byte, then the code in one byte.
        try:
            if 0x90 <= body[0] <= 0x9F and len(body) <= _LARGE_BYTES:
                schema = self._read[sender][body[1]]
                values = _unpackb(
                    body,
                    max_array_len=schema.most_items,
                    max_ext_len=0,
                    ext_hook=_refuse_extension,
                )
                del values[0]
                return schema.checked_build(values)
        except Exception:  # noqa: BLE001  (what is wrong is found out below)
            return self._decode_carefully(body, sender)
        return self._decode_carefully(body, sender)

    def _decode_carefully(self, body: bytes | memoryview, sender: Sender) -> Any:
        """Do `decode` for the first message of its kind, a large one, or one that is refused."""
        at = _code_at(body)
        code: Any = body[at] if 0 < at < len(body) else -1
        schema = self._read[sender].get(code) or self._find(sender, code)
        if len(body) > _LARGE_BYTES:
            self._walk(body, schema)
        values = _unpack(body, schema.most_items if schema else self._limit(sender))
        if type(values) is not list or not values:
            raise ProtocolError(
                f"a message is an array that begins with its code, not {shown(values)}"
            )
        if schema is None:
            code = values[0]
            schema = self._find(sender, code) if type(code) is int else None
            if schema is None:
                raise self._unknown(code, values)
        del values[0]
        try:
            return schema.build(values)
        except ProtocolError as error:
            raise ProtocolError(error.message, **schema.number(values)) from None

    def decode_record(self, cls: type[_T], fields: Any) -> _T:
        """Validate the array of a record's fields and return the record.

        Raises:
            ProtocolError: ``fields`` is not a valid record.
        """
        if not isinstance(fields, list | tuple):
            raise ProtocolError(f"a {cls.__name__} is an array, not {shown(fields)}")
        record: _T = self.schema(cls).build(fields)
        return record

    def decode_records(
        self, cls: type[_T], data: bytes | memoryview, *, least: int = 0, most: int = 1 << 16
    ) -> tuple[_T, ...]:
        """Return the records that `encode_records` wrote.

        Raises:
            ProtocolError: ``data`` is no array of ``least`` to ``most`` valid records.
        """
        schema = self.schema(cls)
        try:
            if len(data) > _LARGE_BYTES:
                self._walk_records(data, schema, most)
            rows = _unpack(data, SPARE_ITEMS * max(most, len(schema.fields)))
        except FrameError as error:
            raise ProtocolError(f"no array of {cls.__name__}: {error}") from error
        if type(rows) is not list or not least <= len(rows) <= most:
            raise ProtocolError(
                f"an array of {least} to {most} {cls.__name__} is expected, not {shown(rows)}"
            )
        build = schema.build
        return tuple(
            [build(one) if type(one) is list else self.decode_record(cls, one) for one in rows]
        )

    def _unknown(self, code: Any, values: Sequence[Any]) -> ProtocolError:
        known = self.by_code.get(code) if type(code) is int else None
        problem = (
            f"there is no message {shown(code)} in the {self.name} protocol, version {self.version}"
            if known is None
            else f"{known.__name__} is sent by the other side"
        )
        # Requests of a newer version will have their number in the same place.
        number = values[1] if len(values) > 1 else None
        readable = type(number) is int and 0 <= number < 1 << 32
        return ProtocolError(problem, request=number if readable else None)

    def _find(self, sender: Sender, code: int) -> MessageSchema | None:
        cls = self.by_code.get(code)
        if cls is None or self._senders[cls] is not sender:
            return None
        schema = self._read[sender][code] = self.schema(cls)
        return schema

    def _limit(self, sender: Sender) -> int:
        """Return the longest array to unpack in a message whose code is not known yet."""
        if sender not in self._most_items:
            counts = [
                self.schema(cls).most_items for cls, by in self._senders.items() if by is sender
            ]
            self._most_items[sender] = max(counts, default=SPARE_ITEMS)
        return self._most_items[sender]

    def _walk(self, body: bytes | memoryview, schema: MessageSchema | None) -> None:
        """Refuses a large message in which a field is larger than any valid value of it."""
        if schema is None:
            raise ProtocolError(
                f"{len(body)} bytes that are no message of the {self.name} protocol; its header "
                "has one byte, or three for 16 items and more, and its code one"
            )
        if schema.most_bytes is None:
            return
        unpacker = _feeding(body)
        numbered: dict[str, int] = {}
        try:
            count = unpacker.read_array_header() - 1
            unpacker.skip()
            at = _code_at(body) + 1
            if 0xCF >= body[at] >= 0xCC or body[at] < 0x80:  # a number
                numbered = schema.number([_unpack(body[at : at + _number_bytes(body[at])], 0)])
            schema.walk(unpacker, body, count)
        except ProtocolError as error:
            raise type(error)(error.message, **numbered) from None
        except (ValueError, msgpack.UnpackException) as error:
            raise _no_msgpack(error) from error

    def _walk_records(self, data: bytes | memoryview, schema: MessageSchema, most: int) -> None:
        """Do the same for an array of records."""
        unpacker = _feeding(data)
        try:
            for _ in range(min(unpacker.read_array_header(), most + 1)):
                schema.walk(unpacker, data, unpacker.read_array_header())
        except (ValueError, msgpack.UnpackException) as error:
            if isinstance(error, ProtocolError):
                raise
            raise _no_msgpack(error) from error


def _unpack(body: bytes | memoryview, most_items: int) -> Any:
    """Unpacks the one value in ``body``; extension types and keys other than text are refused."""
    try:
        return msgpack.unpackb(
            body, max_array_len=most_items, max_ext_len=0, ext_hook=_refuse_extension
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise _no_msgpack(error) from error


def _no_msgpack(error: Exception) -> FrameError:
    problem = str(error) or type(error).__name__
    return FrameError(f"the frame holds no msgpack that gpud reads: {problem}")


def _feeding(data: bytes | memoryview) -> Any:
    unpacker = msgpack.Unpacker(None, max_buffer_size=len(data))
    unpacker.feed(data)
    return unpacker


def _code_at(body: bytes | memoryview) -> int:
    """Return where a message's code begins, after the header of its array; 0 if that is none."""
    first = body[0] if len(body) else 0
    return 1 if 0x90 <= first <= 0x9F else 3 if first == 0xDC else 0


def _number_bytes(first: int) -> int:
    """Return the packed size of an unsigned integer with this first byte."""
    return 1 if first < 0x80 else 1 + (1 << first - 0xCC)


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")
