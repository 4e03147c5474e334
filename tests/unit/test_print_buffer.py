"""The decoder of kernels' output: where the entries of a buffer end."""

from __future__ import annotations

import struct

import pytest

from gpud.compiler.abi.print_buffer import BUFFER_HEAD_BYTES, UNREADABLE, PrintCall, calls

HEAD = bytes(BUFFER_HEAD_BYTES)
EMPTY = PrintCall(b"", b"", {})
HI = PrintCall(b"hi", b"", {})


def filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def entry(text: bytes, *, size: int | None = None, complete: int = 1) -> bytes:
    body = filled(text)
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


def test_values_and_texts_begin_at_multiples_of_eight_bytes() -> None:
    values, texts = bytes(range(12)), {0: b"first", 8: None, 4: b"second one"}
    rows = [
        struct.pack("<2I", at, UNREADABLE if text is None else len(text)) + filled(text or b"")
        for at, text in texts.items()
    ]
    body = filled(b"%s%s%s") + filled(values) + b"".join(rows)
    buffer = HEAD + struct.pack("<4I", 16 + len(body), 1, 6, len(values)) + body
    assert list(calls(buffer, buffer)) == [PrintCall(b"%s%s%s", values, texts)]
