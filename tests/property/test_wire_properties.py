"""Every message of every protocol round-trips, and arbitrary bytes are handled."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.process.messages import COMPILE_PROTOCOL
from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import FrameError, ProtocolError
from gpud.wire import field_types as ft
from gpud.wire.field_types import FieldType
from gpud.wire.framing import HEADER_BYTES, FrameDecoder
from gpud.wire.message_table import MessageTable, Sender
from gpud.wire.messages import CLIENT_PROTOCOL

TABLES = (CLIENT_PROTOCOL, HOST_PROTOCOL, COMPILE_PROTOCOL)
MESSAGES = [
    pytest.param(table, cls, id=f"{table.name}-{cls.__name__}")
    for table in TABLES
    for cls in table.codes
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False) | TEXT | st.binary()
)  # fmt: skip
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def values(kind: FieldType) -> st.SearchStrategy[Any]:
    """Valid values of a kind, from nothing but its declaration."""
    match kind:
        case ft._Uint(least, most):
            edges = st.sampled_from([least, most])
            return edges | st.integers(least, most)
        case ft._Text(most):
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=min(most, 40))
        case ft._Blob(most):
            return st.binary(max_size=min(most, 40))
        case ft._Flag():
            return st.booleans()
        case ft._Choice(names):
            return st.sampled_from(names)
        case ft._Optional(inner):
            return st.none() | values(inner)
        case ft._Listed(inner, least, most):
            size = min(most, least + 3)
            return st.lists(values(inner), min_size=least, max_size=size).map(tuple)
        case ft._Pair(first, second):
            return st.tuples(values(first), values(second))
    assert isinstance(kind, ft._Plain)
    return PLAIN


def messages(table: MessageTable, cls: type[Any]) -> st.SearchStrategy[Any]:
    fields = [values(field.type) for field in table.schema(cls).fields]
    return st.tuples(*fields).map(cls._make)


def outcome(table: MessageTable, body: bytes, sender: Sender) -> tuple[Any, ProtocolError | None]:
    """What `decode` returns, and the one kind of error that it may raise."""
    try:
        return table.decode(body, sender), None
    except ProtocolError as error:
        return None, error


@pytest.mark.parametrize(("table", "cls"), MESSAGES)
@settings(max_examples=50)
@given(data=st.data())
def test_round_trip(table: MessageTable, cls: type[Any], data: st.DataObject) -> None:
    sent = data.draw(messages(table, cls))
    sender = table.schema(cls).sender
    assert sender is not None
    frame = table.encode(sent)
    most = table.schema(cls).most_bytes
    assert most is None or len(frame) <= most
    found = table.decode(frame[HEADER_BYTES:], sender)
    assert found == sent
    assert type(found) is cls
    assert table.check(sent) == sent


@pytest.mark.parametrize(("table", "cls"), MESSAGES)
@settings(max_examples=50)
@given(data=st.data())
def test_one_field_that_is_anything(
    table: MessageTable, cls: type[Any], data: st.DataObject
) -> None:
    """A message with any value in any place is read, or refused with the name of that field."""
    sent = data.draw(messages(table, cls))
    schema = table.schema(cls)
    place = data.draw(st.integers(0, len(sent) - 1))
    wrong = list(sent)
    wrong[place] = data.draw(PLAIN)
    body = msgpack.packb([schema.code, *wrong])
    assert schema.sender is not None
    found, error = outcome(table, body, schema.sender)
    if error is None:
        assert type(found) is cls
    else:
        assert f"field {schema.fields[place].name} of {cls.__name__}" in str(error)
        if place and schema.numbered == "request":
            assert error.request == sent[0]
        if place and schema.numbered == "job":
            assert error.job == sent[0]


@given(body=st.binary(max_size=200) | PLAIN.map(msgpack.packb))
def test_total(body: bytes) -> None:
    """Never anything but a message or a ProtocolError, whatever comes."""
    for table in TABLES:
        for sender in Sender:
            found, error = outcome(table, body, sender)
            assert error is not None or type(found) in table.codes


@given(data=st.data())
def test_changed_bytes(data: st.DataObject) -> None:
    """A message with bytes changed, cut off or put in is a message or a ProtocolError."""
    cls = data.draw(st.sampled_from(list(CLIENT_PROTOCOL.codes)))
    sender = CLIENT_PROTOCOL.schema(cls).sender
    assert sender is not None
    body = bytearray(CLIENT_PROTOCOL.encode(data.draw(messages(CLIENT_PROTOCOL, cls)))[4:])
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, min(len(body), start + 4)))
    body[start:end] = data.draw(st.binary(max_size=6))
    found, error = outcome(CLIENT_PROTOCOL, bytes(body), sender)
    assert error is not None or type(found) in CLIENT_PROTOCOL.codes


@given(pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_a_decoder_is_fed_anything(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(64)
    fed = given_out = 0
    try:
        for piece in pieces:
            decoder.feed(piece)
            fed += len(piece)
            given_out += sum(len(body) + HEADER_BYTES for body in decoder.frames())
            assert given_out + decoder.pending_bytes == fed
            assert decoder.pending_bytes < 64 + HEADER_BYTES
    except FrameError:
        with pytest.raises(FrameError):
            decoder.feed(b"")
