"""``printf`` of running kernels: generated code calls this, on the SM's thread.

Problem: a kernel chooses the format, the values and the pointers among them, so any of them may be
wrong or hostile; what comes of it must be text, and bounded.

Approach: a call from a kernel passes the address of its block; `register` says who hears of that
block. Pointers are read through that block's `gpud.device.reach.Reach`. Values are formatted by the
C library, conversion by conversion, so every flag means what C says; the conversions that it gets
are written anew from what was understood of the kernel's.

Properties:
* nothing is read that the block could not read itself; what is unreadable is said to be;
* no value is taken for a pointer by the C library, and no field is wider than `MOST_WIDTH`;
* a call prints `MOST_BYTES` at most.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Protocol

from gpud.device.cpu import jit
from gpud.device.reach import EVERYTHING, TEXT_LIMIT_BYTES, UNREADABLE, Reach

__all__ = [
    "MOST_BYTES",
    "MOST_WIDTH",
    "Listener",
    "format_printf",
    "install",
    "register",
    "unregister",
]

_CONVERSION = re.compile(
    rb"%([-+ #0]*)(\*|\d+)?(?:(\.)(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXcfFeEgGaAsp%])"
)
_LONG = (b"l", b"ll", b"j", b"z", b"t")
_FLOATING = b"fFeEgGaA"

MOST_WIDTH = 1024
"""Widths and precisions are cut to this: memory is taken for each character of a field."""

MOST_BYTES = 1 << 20
"""What one call prints at most. CUDA's buffer for the output of all threads is as large."""


class Listener(Protocol):
    """Who hears what a block prints: `gpud.device.cpu.seat.Seat`."""

    @property
    def hears(self) -> bool:
        """Whether what is printed now is kept."""

    def reach(self) -> Reach:
        """What the block may read now, for the thread that asks."""

    def print(self, text: bytes) -> None:
        """The block has printed this."""


_listeners: dict[int, Listener] = {}


def register(block: int, listener: Listener) -> None:
    """Tell ``listener`` what the block at address ``block`` prints."""
    _listeners[block] = listener


def unregister(block: int) -> None:
    """Nobody hears of that block any more: its memory goes."""
    _listeners.pop(block, None)


def format_printf(text: bytes, values: int, reach: Reach | None = None) -> bytes:
    """What ``printf`` writes for a format and the address of its packed arguments.

    The packing is that of CUDA's ``vprintf``: C's default promotions, each value aligned to its
    size (CUDA C++ Programming Guide 13.0, "Formatted Output").
    """
    pieces = []
    at = size = 0
    arguments = _Arguments(values, reach or Reach((EVERYTHING,)))
    for match in _CONVERSION.finditer(text):
        for piece in (text[at : match.start()], arguments.convert(match)):
            pieces.append(piece)
            size += len(piece)
        at = match.end()
        if size > MOST_BYTES:
            break
    else:
        pieces.append(text[at:])
    return b"".join(pieces)[:MOST_BYTES]


class _Arguments:
    """The packed arguments of one call, taken one after the other."""

    def __init__(self, address: int, reach: Reach) -> None:
        self._at = address
        self._reach = reach

    def convert(self, match: re.Match[bytes]) -> bytes:
        """What a conversion writes; it takes its arguments."""
        flags, width, dot, precision, length, letter = match.groups()
        if letter == b"%":
            return b"%"
        wide = self._extent(width)
        fine = None if dot is None else self._extent(precision) if precision else 0
        kind = ctypes.c_int64 if letter in b"sp" or length in _LONG else ctypes.c_int
        data = self._take(8 if letter in _FLOATING else ctypes.sizeof(kind))
        if (width and wide is None) or (precision and fine is None) or data is None:
            return UNREADABLE
        specification = b"%" + flags
        if wide is not None:
            if wide < 0:
                specification += b"-"
            specification += str(min(abs(wide), MOST_WIDTH)).encode()
        number = int.from_bytes(data, "little", signed=True)
        if letter == b"s":
            return self._string(number & (1 << 64) - 1, specification, fine)
        if fine is not None and fine >= 0 and letter != b"p":  # C: a negative one is none
            specification += b".%d" % min(fine, MOST_WIDTH)
        if letter in _FLOATING:
            return _written(specification + letter, ctypes.c_double.from_buffer_copy(data))
        if letter in b"cp":
            return _written(specification + letter, kind(number))
        narrow = length if length in (b"h", b"hh") else b"ll" if kind is ctypes.c_int64 else b""
        return _written(specification + narrow + letter, kind(number))

    def _string(self, address: int, specification: bytes, most: int | None) -> bytes:
        if not address:
            text: bytes | None = b"(null)"
        elif most is None or most < 0:
            text = self._reach.text_at(address)
        else:
            text = self._reach.start_at(address, min(most, TEXT_LIMIT_BYTES))
        if text is None:
            return UNREADABLE
        if most is not None and most >= 0:
            text = text[:most]
        return text if specification == b"%" else _written(specification + b"s", text)

    def _extent(self, given: bytes | None) -> int | None:
        """A width or precision: given, taken from the arguments, or None."""
        if given == b"*":
            data = self._take(4)
            return None if data is None else int.from_bytes(data, "little", signed=True)
        return None if given is None else min(int(given[:6]), MOST_WIDTH)

    def _take(self, size: int) -> bytes | None:
        self._at = (self._at + size - 1) & -size
        at = self._at
        self._at += size
        return self._reach.bytes_at(at, size)


def _written(specification: bytes, value: object) -> bytes:
    """What C writes for one conversion, which has no ``*`` left."""
    library = _c_library()
    needed = library.snprintf(None, ctypes.c_size_t(0), specification, value)
    buffer = ctypes.create_string_buffer(needed + 1)
    library.snprintf(buffer, ctypes.c_size_t(needed + 1), specification, value)
    return buffer.raw[:needed]


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


# -- what generated code calls -----------------------------------------------------------------

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def _on_print(block: int, text: int, values: int) -> int:
    listener = _listeners.get(block)
    if listener is None:
        return -1
    reach = listener.reach()
    template = reach.text_at(text)
    if template is None:
        return -1
    if listener.hears:
        listener.print(format_printf(template, values, reach))
    return sum(match[-1] != b"%" for match in _CONVERSION.findall(template))


_callback = _PRINT(_on_print)


@cache
def install() -> None:
    """Let generated code call ``gpud_print``."""
    jit.add_symbols({"gpud_print": jit.callback_address(_callback)})
