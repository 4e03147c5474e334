"""Formats the output of a kernel's ``printf`` on the host, from the format and the arguments.

Problem: a kernel chooses the format, the values and the pointers among them, so any of them may be
wrong or hostile; the result must be text of bounded size.

Approach: the C library formats the values, one conversion at a time, so every flag has its C
meaning. It gets conversions that are rebuilt from the parsed ones, never the kernel's own text.
Each device reads arguments and strings in its own way: `PrintfArguments`.

Properties:
* the C library never dereferences a value of the kernel, and no field is wider than `MOST_WIDTH`;
* a call prints `MOST_BYTES` at most, and a run `gpud.device.interface.OUTPUT_LIMIT_BYTES`: the rest
  is dropped, and a line at the end of the output says so; a call counts as `CALL_BYTES` at least;
* a call takes time in proportion to its format's length, and formats `MOST_ARGUMENTS` arguments at
  most, as CUDA does: what follows is printed as it is.
"""

from __future__ import annotations

import ctypes
import re
import threading
from functools import cache
from itertools import islice
from typing import Protocol

from gpud.compiler.abi.print_buffer import TEXT_LIMIT_BYTES
from gpud.device.interface import OUTPUT_LIMIT_BYTES
from gpud.device.readable import UNREADABLE

__all__ = [
    "CALL_BYTES",
    "MOST_ARGUMENTS",
    "MOST_BYTES",
    "MOST_CONVERSIONS",
    "MOST_WIDTH",
    "PrintfArguments",
    "PrintfOutput",
    "conversions",
    "format_printf",
]

# Possessive: what cannot be a conversion is read once. No part but the first matches a "%".
_CONVERSION = re.compile(
    rb"%([-+ #0]*+)(\*|\d++)?+(?:(\.)(\*|\d++)?+)?+(hh|h|ll|l|j|z|t|L)?+([diouxXcfFeEgGaAsp%])"
)
_LONG = (b"l", b"ll", b"j", b"z", b"t")
_FLOATING = b"fFeEgGaA"
_TRUNCATED = b"\n... output truncated\n"

MOST_WIDTH = 1024
"""Widths and precisions are limited to this: each character of a field takes memory."""

MOST_BYTES = 1 << 20
"""Most that one call prints. CUDA's buffer for the output of all threads is as large."""


MOST_ARGUMENTS = 32
"""Most arguments of a call (CUDA C++ Programming Guide 13.0, "Formatted Output", "Limitations")."""

MOST_CONVERSIONS = 1024
"""Most conversions of a call, those without arguments (``%%``) included."""

CALL_BYTES = 64
"""The part of a run's output that a call takes at least: to make it costs time, too."""


class PrintfOutput:
    """The output of a run, `OUTPUT_LIMIT_BYTES` at most. Thread-safe."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._lock = threading.Lock()
        self._accepting = True
        self._charged_bytes = 0

    @property
    def accepting(self) -> bool:
        """Whether text added now is kept."""
        return self._accepting

    @property
    def text(self) -> bytes:
        """The output so far; a notice stands for what was dropped."""
        with self._lock:
            return bytes(self._text)

    def add(self, text: bytes) -> None:
        """Append text, up to the limit."""
        with self._lock:
            if self._accepting:
                room = OUTPUT_LIMIT_BYTES - len(_TRUNCATED) - self._charged_bytes
                self._text += text[:room]
                self._charged_bytes += max(len(text), CALL_BYTES)
                if max(len(text), CALL_BYTES) > room:
                    self._truncate()

    def truncate(self) -> None:
        """Drop all further output, and note that at the end of the text."""
        with self._lock:
            if self._accepting:
                self._truncate()

    def _truncate(self) -> None:
        self._text += _TRUNCATED
        self._accepting = False


class PrintfArguments(Protocol):
    """The packed arguments of one call, and the strings that pointers among them point to.

    The packing is that of CUDA's ``vprintf``: C's default promotions, each value aligned to its
    size (CUDA C++ Programming Guide 13.0, "Formatted Output").
    """

    def value(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes of the arguments; None: they cannot be read."""

    def text(self, offset: int, address: int, most: int | None) -> bytes | None:
        """Return the string that the pointer at ``offset`` points to, ``most`` bytes at most.

        None: it cannot be read, or readable memory ends before the string does.
        """


def format_printf(text: bytes, arguments: PrintfArguments) -> bytes:
    """Return the text that ``printf`` writes for a format and its arguments."""
    pieces = []
    at = size = 0
    reader = _ArgumentReader(arguments)
    for match in islice(_CONVERSION.finditer(text), MOST_CONVERSIONS):
        if reader.done >= MOST_ARGUMENTS and match[6] != b"%":
            pieces.append(text[at:])
            break
        for piece in (text[at : match.start()], reader.convert(match)):
            pieces.append(piece)
            size += len(piece)
        at = match.end()
        if size > MOST_BYTES:
            break
    else:
        pieces.append(text[at:])
    return b"".join(pieces)[:MOST_BYTES]


def conversions(text: bytes) -> int:
    """Return the number of conversions that take arguments, which ``printf`` returns on a GPU."""
    found = islice(_CONVERSION.finditer(text), MOST_CONVERSIONS)
    return sum(match[6] != b"%" for match in found)


class _ArgumentReader:
    """Reads the arguments of one call, one after the other."""

    def __init__(self, arguments: PrintfArguments) -> None:
        self._at = 0
        self._arguments = arguments
        self.done = 0

    def convert(self, match: re.Match[bytes]) -> bytes:
        """Return the text of a conversion; reads its arguments."""
        flags, width, dot, precision, length, letter = match.groups()
        if letter == b"%":
            return b"%"
        wide = self._extent(width)
        fine = None if dot is None else self._extent(precision) if precision else 0
        kind = ctypes.c_int64 if letter in b"sp" or length in _LONG else ctypes.c_int
        data = self._take(8 if letter in _FLOATING else ctypes.sizeof(kind))
        if (width and wide is None) or (precision and fine is None) or data is None:
            return UNREADABLE
        specification = b"%" + bytes(dict.fromkeys(flags))  # to repeat one has no meaning
        if wide is not None:
            if wide < 0:
                specification += b"-"
            specification += str(min(abs(wide), MOST_WIDTH)).encode()
        number = int.from_bytes(data, "little", signed=True)
        if letter == b"s":
            return self._string(number & (1 << 64) - 1, specification, fine)
        if fine is not None and fine >= 0 and letter != b"p":  # in C a negative one means none
            specification += b".%d" % min(fine, MOST_WIDTH)
        if letter in _FLOATING:
            return _written(specification + letter, ctypes.c_double.from_buffer_copy(data))
        if letter in b"cp":
            return _written(specification + letter, kind(number))
        narrow = length if length in (b"h", b"hh") else b"ll" if kind is ctypes.c_int64 else b""
        return _written(specification + narrow + letter, kind(number))

    def _string(self, address: int, specification: bytes, most: int | None) -> bytes:
        limit = None if most is None or most < 0 else min(most, TEXT_LIMIT_BYTES)
        text: bytes | None = b"(null)"
        if address:
            text = self._arguments.text(self._at - 8, address, limit)
        if text is None:
            return UNREADABLE
        text = text[:limit]
        return text if specification == b"%" else _written(specification + b"s", text)

    def _extent(self, given: bytes | None) -> int | None:
        """Return a width or precision: from the format, from an argument, or None."""
        if given == b"*":
            data = self._take(4)
            return None if data is None else int.from_bytes(data, "little", signed=True)
        return None if given is None else min(int(given[:6]), MOST_WIDTH)

    def _take(self, size: int) -> bytes | None:
        at = (self._at + size - 1) & -size
        self._at = at + size
        self.done += 1
        return self._arguments.value(at, size)


def _written(specification: bytes, value: object) -> bytes:
    """Return the C library's text for one conversion without ``*``."""
    library = _c_library()
    needed = library.snprintf(None, ctypes.c_size_t(0), specification, value)
    buffer = ctypes.create_string_buffer(needed + 1)
    library.snprintf(buffer, ctypes.c_size_t(needed + 1), specification, value)
    return buffer.raw[:needed]


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
