"""Framing: streams cut anywhere, and broken streams."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.errors import ProtocolError
from gpud.wire.framing import HEADER_BYTES, FrameDecoder, FrameError, frame

BODIES = [b"\x90", b"a" * 300, b"\x00", b"b" * 70_000]


def test_a_frame_is_a_length_and_a_body() -> None:
    assert frame(b"abc") == b"\x03\x00\x00\x00abc"
    assert frame(b"x" * 0x1234)[:HEADER_BYTES] == b"\x34\x12\x00\x00"


def test_byte_at_a_time() -> None:
    decoder = FrameDecoder()
    found: list[bytes] = []
    for byte in b"".join(map(frame, BODIES)):
        decoder.feed(bytes([byte]))
        found += decoder.frames()
    assert found == BODIES
    assert decoder.pending_bytes == 0


def test_all_at_once_from_a_buffer_that_is_used_again() -> None:
    buffer = bytearray(b"".join(map(frame, BODIES)))
    decoder = FrameDecoder()
    decoder.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert list(decoder.frames()) == BODIES


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder(50)
    found: list[bytes] = []
    for start, end in pairwise(places):
        decoder.feed(stream[start:end])
        found += decoder.frames()
    assert found == bodies


def test_an_iterator_may_be_left_and_gone_on_with() -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(b"1") + frame(b"2") + frame(b"3")[:4])
    first = decoder.frames()
    assert next(first) == b"1"
    decoder.feed(b"3" + frame(b"4"))
    assert next(first) == b"2"
    assert list(decoder.frames()) == [b"3", b"4"]
    assert list(first) == []


def test_what_is_not_whole_is_kept() -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(b"abc")[:-1])
    assert list(decoder.frames()) == []
    assert decoder.pending_bytes == HEADER_BYTES + 2


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        pytest.param(frame(b"x" * 101), "101 bytes is over the limit of 100", id="over-limit"),
        pytest.param(b"\xff\xff\xff\xff", "4294967295 bytes is over", id="huge"),
        pytest.param(b"GET / HTTP/1.1\r\n", "over the limit", id="http"),
        pytest.param(b"\x00\x00\x00\x00", "no body", id="empty"),
    ],
)
def test_broken_stays_broken(stream: bytes, message: str) -> None:
    decoder = FrameDecoder(100)
    decoder.feed(frame(b"good") + stream)
    found = decoder.frames()
    assert next(found) == b"good"
    with pytest.raises(FrameError, match=message):
        next(found)
    with pytest.raises(FrameError, match=message):
        decoder.feed(frame(b"good"))
    with pytest.raises(FrameError, match=message):
        list(decoder.frames())
    assert decoder.pending_bytes == 0


def test_over_the_limit_is_refused_before_its_body_comes() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(frame(b"x" * 101)[:HEADER_BYTES])
    with pytest.raises(FrameError):
        list(decoder.frames())


def test_the_limit_itself_is_allowed() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(frame(b"x" * 100))
    assert list(decoder.frames()) == [b"x" * 100]


def test_nothing_is_kept_of_what_was_given_out() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    decoder.feed(frame(bytes(1 << 24)))
    for body in decoder.frames():
        assert len(body) == 1 << 24
    del body
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 16


def test_no_frame_without_a_body() -> None:
    with pytest.raises(FrameError, match="not 0"):
        frame(b"")


def test_a_broken_frame_is_a_protocol_error() -> None:
    assert issubclass(FrameError, ProtocolError)
