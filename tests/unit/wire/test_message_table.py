"""Encoding and decoding of messages, and the errors for invalid ones."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgpack
import pytest

from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import FrameError, ProtocolError
from gpud.wire import messages as wm
from gpud.wire.field_types import uint
from gpud.wire.framing import HEADER_BYTES
from gpud.wire.message_table import MessageTable, Sender
from gpud.wire.messages import CLIENT_PROTOCOL

CLIENT, DAEMON = Sender.CLIENT, Sender.DAEMON
LAUNCH = wm.LaunchRecord(1, 0, (1024, 1, 1), (256, 1, 1), 0, b"x" * 40)
SUBMIT = wm.Submit(7, 0, CLIENT_PROTOCOL.encode_records([LAUNCH]), (1, 2), None, 0, ((1, 2),))

DEFAULTS = tuple(wm.Submit._field_defaults.values())


def body(values: Any) -> bytes:
    return bytes(msgpack.packb(values))


def refusal(data: bytes, sender: Sender = CLIENT) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        CLIENT_PROTOCOL.decode(data, sender)
    return caught.value


# -- declarations --------------------------------------------------------------------------------


def declared() -> Iterator[Any]:
    for table in (CLIENT_PROTOCOL, HOST_PROTOCOL):
        yield from (pytest.param(table, cls, id=cls.__name__) for cls in table.codes)


@pytest.mark.parametrize(("table", "cls"), list(declared()))
def test_every_message_is_registered_and_described(table: MessageTable, cls: type[Any]) -> None:
    schema = table.schema(cls)
    assert table.by_code[table.codes[cls]] is cls
    assert schema.code == table.codes[cls]
    assert cls.__doc__
    assert [field.name for field in schema.fields] == list(cls._fields)
    for field in schema.fields:
        assert field.type.describe()
        assert field.meaning


def test_a_code_cannot_be_used_twice() -> None:
    table = MessageTable("t", 1)

    class One(NamedTuple):
        number: Annotated[int, uint(8), "a number"]

    table.message(CLIENT)(1)(One)
    with pytest.raises(AssertionError, match="Two"):

        @table.message(DAEMON)(1)
        class Two(NamedTuple):
            number: Annotated[int, uint(8), "a number"]


def test_a_field_needs_a_field_type() -> None:
    table = MessageTable("t", 1)

    @table.message(CLIENT)(1)
    class One(NamedTuple):
        number: int

    with pytest.raises(AssertionError, match="number needs a field type"):
        table.schema(One)


def test_a_message_without_fields() -> None:
    table = MessageTable("t", 1)

    @table.message(CLIENT)(3)
    class Ping(NamedTuple):
        pass

    assert table.decode(table.encode(Ping())[HEADER_BYTES:], CLIENT) == Ping()


# -- there and back ------------------------------------------------------------------------------


def test_round_trip() -> None:
    data = CLIENT_PROTOCOL.encode(SUBMIT)
    assert int.from_bytes(data[:HEADER_BYTES], "little") == len(data) - HEADER_BYTES
    for form in (bytes, memoryview):
        found = CLIENT_PROTOCOL.decode(form(data[HEADER_BYTES:]), CLIENT)
        assert found == SUBMIT
        assert type(found) is wm.Submit
    assert CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, SUBMIT.launches, least=1) == (LAUNCH,)


def test_arrays_come_out_as_tuples() -> None:
    found = CLIENT_PROTOCOL.decode(CLIENT_PROTOCOL.encode(SUBMIT)[HEADER_BYTES:], CLIENT)
    hash(found)


def test_trailing_fields_with_defaults_may_be_left_out() -> None:
    whole = [7, *SUBMIT]
    for count in range(4, len(whole) + 1):
        found = CLIENT_PROTOCOL.decode(body(whole[:count]), CLIENT)
        assert found == wm.Submit._make((*SUBMIT[: count - 1], *DEFAULTS[count - 4 :]))


def test_a_wide_header_is_read_as_well() -> None:
    """Other msgpack encoders may use longer encodings than necessary."""
    narrow = body([1, 7, 1, "p"])
    wide = b"\xdc\x00\x04\xcc\x01" + narrow[2:]
    assert CLIENT_PROTOCOL.decode(wide, CLIENT) == wm.Hello(7, 1, "p")
    described = wm.Describe(7, ((1, 2),) * 4096)
    wide = b"\xdc\x00\x03" + CLIENT_PROTOCOL.encode(described)[HEADER_BYTES + 1 :]
    assert len(wide) < 1 << 16
    assert CLIENT_PROTOCOL.decode(wide, CLIENT) == described


def test_a_message_is_checked_without_being_sent() -> None:
    assert CLIENT_PROTOCOL.check(SUBMIT) == SUBMIT
    with pytest.raises(ProtocolError, match="field weight of Submit"):
        CLIENT_PROTOCOL.check(SUBMIT._replace(weight=0))


# -- messages that are refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message", "request_number"),
    [
        (5, "an array that begins with its code, not 5", None),
        ({}, "not a map of 0", None),
        ([], "not an array of 0", None),
        ([None], "no message nil", None),
        ([True, 7], "no message true", 7),
        ([1.0, 7], "no message 1.0", 7),
        (["1", 7], "no message the text '1'", 7),
        ([[1], 7], "no message an array of 1", 7),
        ([99, 7], "no message 99 in the client protocol, version 2", 7),
        ([99, -7], "no message 99", None),
        ([-1], "no message -1", None),
        ([2**64 - 1, 2**64 - 1], "no message 18446744073709551615", None),
        ([64, 7, 1, 1, [], {}, {}], "Welcome is sent by the other side", 7),
        ([1], "Hello has 3 fields, not 0: request, version, program", None),
        ([1, 7], "Hello has 3 fields, not 1", 7),
        ([1, 7, 1, "p", None], "Hello has 3 fields, not 4", 7),
        ([8, 7], "Resize has 2 to 4 fields, not 1", 7),
        ([1, 7, 1, 5], "field program of Hello: text of at most 256 characters is expected", 7),
        ([1, 7, None, "p"], "field version of Hello: .* not nil", 7),
        ([1, "7", 1, "p"], "field request of Hello: .* not the text '7'", None),
        ([1, 2**32, 1, "p"], "field request of Hello", None),
        ([1, float("nan"), 1, "p"], "field request of Hello: .* not nan", None),
        ([9, 7, [3]], "field job of Cancel: array of two", 7),
        ([5, 7, 0, 0], "field size of Allocate", 7),
        ([13, 7, "secrets"], "field topic of Query: one of", 7),
        ([14, 7, 1], "field on of Follow: true or false is expected, not 1", 7),
        ([10, 7, [[1, 1]] * 4097], "field jobs of Describe: .* not an array of 4097", 7),
    ],
)  # fmt: skip
def test_named(values: Any, message: str, request_number: int | None) -> None:
    with pytest.raises(ProtocolError, match=message) as caught:
        CLIENT_PROTOCOL.decode(body(values), CLIENT)
    assert type(caught.value) is ProtocolError
    assert (caught.value.request, caught.value.job) == (request_number, None)


def test_a_bad_submission_names_its_job() -> None:
    error = refusal(body([7, *SUBMIT._replace(stream=-1)]))
    assert (error.request, error.job) == (None, 7)
    assert "field stream of Submit" in str(error)
    error = refusal(body([7, 7, 0]))
    assert (error.request, error.job) == (None, 7)
    error = refusal(body([7, *SUBMIT._replace(number=0)]))
    assert (error.request, error.job) == (None, None)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="never-used-byte"),
        pytest.param(b"\x94\x01", id="truncated"),
        pytest.param(body([1, 7, 1, "p"]) + b"\x00", id="extra-bytes"),
        pytest.param(b"\x94\x01\x07\x01\xa2\xff\xfe", id="no-utf-8"),
        pytest.param(b"\x94\x01\x07\x01\xa3\xed\xa0\x80", id="surrogate"),
        pytest.param(b"\x91" * 5000 + b"\x01", id="deep"),
        pytest.param(b"\x81" * 5000 + b"\x01", id="deep-maps"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="huge-array"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="huge-map"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="huge-text"),
        pytest.param(b"\x94\x01\x07\x01\xc6\xff\xff\xff\xffabc", id="huge-blob"),
        pytest.param(body([1, 7, 1, msgpack.ExtType(5, b"x")]), id="extension"),
        pytest.param(body([1, 7, 1, msgpack.ExtType(5, b"")]), id="empty-extension"),
        pytest.param(body([1, 7, 1, msgpack.Timestamp(5)]), id="timestamp"),
        pytest.param(body({1: 2}), id="number-as-key"),
        pytest.param(b"\x81\x90\x01", id="array-as-key"),
        pytest.param(body([2, 7, 0, "", ["a"] * 20_000]), id="array-beyond-all"),
    ],
)
def test_what_is_no_msgpack_is_a_broken_frame(data: bytes) -> None:
    assert type(refusal(data)) is FrameError
    assert type(refusal(data, DAEMON)) is FrameError or data == body({1: 2}) or len(data) > 10_000


# -- large messages ------------------------------------------------------------------------------


def test_large_and_honest() -> None:
    source = "ä" * (1 << 20)
    sent = wm.Compile(7, 0, source, ("x" * 4096,) * 256)
    assert CLIENT_PROTOCOL.decode(CLIENT_PROTOCOL.encode(sent)[HEADER_BYTES:], CLIENT) == sent
    described = wm.Describe(7, ((2**32 - 1, 2**32 - 1),) * 4096)
    found = CLIENT_PROTOCOL.decode(CLIENT_PROTOCOL.encode(described)[HEADER_BYTES:], CLIENT)
    assert found == described


def test_large_and_from_the_daemon() -> None:
    rows = [{"id": str(n)} for n in range(50_000)]
    sent = wm.Answer(7, rows)
    assert CLIENT_PROTOCOL.decode(CLIENT_PROTOCOL.encode(sent)[HEADER_BYTES:], DAEMON) == sent


PILE: list[Any] = [[[]] * 1000] * 1000
"""A million arrays on the wire, and three here: it lives as long as the tests do."""


@pytest.mark.parametrize(
    ("values", "message", "request_number"),
    [
        ([1, 7, 1, "x" * 99_999], "field program of Hello: text of at most 256", 7),
        ([2, 7, 0, PILE, []], "field source of Compile: text of .* not an array or a map", 7),
        ([2, PILE, 0, "", []], "field request of Compile", None),
        ([11, 2**31, 1, "x", 0, PILE], "field size of ReadSymbol: .* not an array", 2**31),
        ([11, 200, 1, "x", 0, PILE], "field size of ReadSymbol: .* not an array", 200),
        ([10, 7, [PILE] * 5], "field jobs of Describe: array of 1 to 4096 .* not 5015016 bytes", 7),
        ([5, 7, 0, 1, None, PILE], "Allocate has 3 to 4 fields, not 5", 7),
        ([1, 7, PILE, "p"], "field version of Hello", 7),
        ([99, 7, PILE], "1003006 bytes that are no message", None),
        ([64, 7, PILE], "bytes that are no message of the client protocol", None),
        (PILE, "bytes that are no message", None),
    ],
    ids=["text", "pile-in-text", "pile-in-request", "pile-in-size",
         "pile-in-size-2", "pile-in-list", "pile-beyond", "pile-in-number", "unknown",
         "other-side", "no-message"],
)  # fmt: skip
def test_large_and_wrong(values: Any, message: str, request_number: int | None) -> None:
    data = body(values)
    tracemalloc.start()
    with pytest.raises(ProtocolError, match=message) as caught:
        CLIENT_PROTOCOL.decode(data, CLIENT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.request == request_number
    assert peak < 10 * len(data)  # unpacked, it would take some sixty times its size


@pytest.mark.parametrize("cut", [1, 50_000, 199_999])
def test_large_and_truncated(cut: int) -> None:
    data = body([2, 7, 0, "x" * 200_000, []])[:-cut]
    assert type(refusal(data)) is FrameError


# -- sending -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(wm.Allocate(1, 0, 2**64), id="integer"),
        pytest.param(wm.Hello(1, 1, "\ud800"), id="surrogate"),
        pytest.param(wm.Answer(1, object()), id="object"),
        pytest.param(wm.Answer(1, {"a": 10**400}), id="nested-integer"),
    ],
)
def test_what_msgpack_cannot_write(message: Any) -> None:
    with pytest.raises(ProtocolError, match=f"{type(message).__name__} cannot be sent"):
        CLIENT_PROTOCOL.encode(message)
    data = CLIENT_PROTOCOL.encode(SUBMIT)
    assert CLIENT_PROTOCOL.decode(data[HEADER_BYTES:], CLIENT) == SUBMIT


def test_what_is_no_message_of_the_table() -> None:
    with pytest.raises(KeyError):
        CLIENT_PROTOCOL.encode((1, 2))
    with pytest.raises(KeyError):
        CLIENT_PROTOCOL.schema(tuple)


# -- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no array of LaunchRecord: the frame holds no msgpack"),
        (b"\xc1", "no array of LaunchRecord"),
        (body(5), "an array of 1 to 3 LaunchRecord is expected, not 5"),
        (body([]), "not an array of 0"),
        (body([LAUNCH] * 4), "not an array of 4"),
        (body([LAUNCH] * 1000), "no array of LaunchRecord"),
        (body([LAUNCH._replace(parameters=b"x" * 70_000)]), "field parameters of .* not 70005 b"),
        (body([LAUNCH, PILE]), "LaunchRecord has 6 fields, not 1000"),
        (body([PILE] * 2), "LaunchRecord has 6 fields, not 1000"),
        (
            body([LAUNCH, [1, 2, 3, 4, 5, PILE]]),
            "field parameters of LaunchRecord: .* not an array",
        ),
        (body([LAUNCH] * 2000)[:-1], "no array of LaunchRecord"),
        (body([5]), "a LaunchRecord is an array, not 5"),
        (body([None, LAUNCH]), "a LaunchRecord is an array, not nil"),
        (body([[1, 2]]), "LaunchRecord has 6 fields, not 2"),
        (body([[*LAUNCH, 1]]), "LaunchRecord has 6 fields, not 7"),
        (body([LAUNCH._replace(grid=(1, 1, 0))]), "field grid of LaunchRecord: .* not 0"),
        (body([[*LAUNCH[:5], "x"]]), "field parameters of LaunchRecord"),
    ],
)
def test_bad_records(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message) as caught:
        CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, data, least=1, most=3)
    assert type(caught.value) is ProtocolError


def test_many_records() -> None:
    records = (LAUNCH,) * 2000
    packed = CLIENT_PROTOCOL.encode_records(records)
    assert len(packed) > 1 << 16
    assert CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, packed) == records


def test_one_record() -> None:
    assert CLIENT_PROTOCOL.decode_record(wm.LaunchRecord, list(LAUNCH)) == LAUNCH
    assert CLIENT_PROTOCOL.decode_record(wm.LaunchRecord, LAUNCH) == LAUNCH


# -- what it costs to import ---------------------------------------------------------------------


def test_loads_nothing_heavy() -> None:
    program = (
        "import gpud.wire.messages, gpud.device.host.messages, gpud.wire.socket_path, sys;"
        "heavy = {'numpy', 'asyncio', 'llvmlite', 'cuda', 'uvloop', 'typer', 'rich',"
        "         'gpud.core.scheduler',"
        "         'gpud.compiler', 'gpud.server', 'gpud.config', 'gpud.device.cpu'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
