"""``printf`` and ``assert`` of running kernels: generated code calls these, on the SM's thread.

A call from a kernel passes the address of its block; `register` says whose block that is. Values
are formatted by the C library, conversion by conversion, so every flag means what C says.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

from gpud.device.cpu import jit

__all__ = ["format_printf", "install", "register"]

_CONVERSION = re.compile(
    rb"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXcfFeEgGaAsp%])"
)
_LONG = (b"l", b"ll", b"j", b"z", b"t")

_printers: dict[int, Callable[[bytes], None]] = {}
_asserters: dict[int, Callable[[int, str], None]] = {}


def register(
    block: int, on_print: Callable[[bytes], None], on_assert: Callable[[int, str], None]
) -> None:
    """Send what the block at address ``block`` prints, and its failed assertions, to these."""
    _printers[block] = on_print
    _asserters[block] = on_assert


def format_printf(text: bytes, values: int) -> bytes:
    """What ``printf`` writes for a format and the address of its packed arguments.

    The packing is that of CUDA's ``vprintf``: C's default promotions, each value aligned to its
    size (CUDA C++ Programming Guide 13.0, "Formatted Output").
    """
    library = _c_library()
    at = values

    def take(kind: type[ctypes._SimpleCData[int]] | type[ctypes.c_double]) -> int | float:
        nonlocal at
        size = ctypes.sizeof(kind)
        at = (at + size - 1) & -size
        value: int | float = kind.from_address(at).value
        at += size
        return value

    def convert(match: re.Match[bytes]) -> bytes:
        length, letter = match.group(1) or b"", match.group(2)
        if letter == b"%":
            return b"%"
        arguments: list[object] = [
            ctypes.c_int(int(take(ctypes.c_int))) for _ in range(match.group(0).count(b"*"))
        ]
        if letter in b"fFeEgGaA":
            arguments.append(ctypes.c_double(take(ctypes.c_double)))
        elif letter in b"sp" or length in _LONG:
            arguments.append(ctypes.c_int64(int(take(ctypes.c_int64))))
        else:
            arguments.append(ctypes.c_int(int(take(ctypes.c_int))))
        specification = match.group(0)
        needed = library.snprintf(None, ctypes.c_size_t(0), specification, *arguments)
        buffer = ctypes.create_string_buffer(needed + 1)
        library.snprintf(buffer, ctypes.c_size_t(needed + 1), specification, *arguments)
        return buffer.raw[:needed]

    return _CONVERSION.sub(convert, text)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


# -- what generated code calls -----------------------------------------------------------------

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_ASSERT = ctypes.CFUNCTYPE(
    None,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_uint64,
)


def _on_print(block: int, text: int, values: int) -> int:
    printer = _printers.get(block)
    if printer is None:
        return -1
    template = ctypes.string_at(text)
    printer(format_printf(template, values))
    return sum(letter != b"%" for _, letter in _CONVERSION.findall(template))


def _on_assert(block: int, thread: int, message: int, file: int, line: int, function: int) -> None:
    report = _asserters.get(block)
    if report is None:
        return
    said, where, name = (
        ctypes.string_at(a).decode(errors="replace") for a in (message, file, function)
    )
    report(thread, f"{where}:{line}: {name}: assertion `{said}' failed")


_callbacks = (_PRINT(_on_print), _ASSERT(_on_assert))


@cache
def install() -> None:
    """Let generated code call ``gpud_print`` and ``gpud_assert``."""
    jit.add_symbols(
        {
            "gpud_print": jit.callback_address(_callbacks[0]),
            "gpud_assert": jit.callback_address(_callbacks[1]),
        }
    )
