"""The decoder of kernels' output: where the entries of a buffer end."""

from __future__ import annotations

import struct

import pytest

from gpud.compiler.abi.print_buffer import BUFFER_HEAD_BYTES, PrintCall, calls

HEAD = bytes(BUFFER_HEAD_BYTES)
EMPTY = PrintCall(b"", b"", {})
HI = PrintCall(b"hi", b"", {})


def entry(text: bytes, *, size: int | None = None, complete: int = 1) -> bytes:
    body = text + bytes(-len(text) % 8)
    return struct.pack("<4I", size or 16 + len(body), complete, len(text), 0) + body


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (b"", []),
        # The last entry may end where the buffer does, and be a head alone.
        (entry(b"hi"), [HI]),
        (entry(b"hi") + entry(b""), [HI, EMPTY]),
        (entry(b"hi") + entry(b"")[:-1], [HI]),
        (entry(b"") + entry(b"hi", size=32), [EMPTY]),
        (entry(b"hi", size=32) + bytes(8), [HI._replace(texts={0: b""})]),
        (entry(b"hi", size=8) + entry(b"hi"), []),
        (entry(b"hi", size=20) + entry(b"hi"), []),
        (entry(b"hi", complete=0) + entry(b"hi"), []),
        (entry(b"hi", complete=2), []),
    ],
)
def test_entries_end_with_the_buffer(entries: bytes, found: list[PrintCall]) -> None:
    buffer = HEAD + entries
    assert list(calls(buffer, buffer)) == found


def test_only_what_was_complete_before_is_decoded() -> None:
    before = HEAD + entry(b"hi") + entry(b"hi", complete=0)
    now = HEAD + entry(b"hi") * 2
    assert list(calls(now, before)) == [HI]
    assert list(calls(now, now)) == [HI, HI]
