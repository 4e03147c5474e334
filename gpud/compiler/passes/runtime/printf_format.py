"""The format parser of ``gpud_print``, in PTX: finds the arguments of a call and their strings.

Approach: one function parses the format as the host will (`gpud.device.printf`).

Algorithm. After a ``%`` come flags, width, precision, length and letter; if that is no conversion,
parsing continues after the ``%``. Each argument is aligned to its size. A string is read up to its
NUL or its precision.

Source: C17, section 7.21.6.1.
"""

from __future__ import annotations

from gpud.compiler.abi import print_buffer as out
from gpud.compiler.abi.reserved_names import PRINT

__all__ = ["COPY", "LENGTH", "SCAN", "SCAN_TEXT"]

LENGTH, COPY = f"{PRINT}_length", f"{PRINT}_copy"
"""Functions that it calls; see `gpud.compiler.passes.runtime.printf_functions`."""

SCAN = f"{PRINT}_scan"
_WIDEST = 1024  # a precision in the format is limited to this, as on the host


def _one_of(letters: str) -> str:
    """Return PTX that sets ``%yes`` if ``%c`` is among ``letters``, codes at most 64 apart."""
    first = min(map(ord, letters))
    mask = sum(1 << ord(letter) - first for letter in letters)
    return f"""sub.u32 %n, %c, {first};
    mov.u64 %wide, {mask};
    shr.u64 %wide, %wide, %n;
    and.b64 %wide, %wide, 1;
    setp.ne.u64 %yes, %wide, 0;"""


_NEXT = """cvt.u64.u32 %wide, %at;
    add.s64 %wide, %wide, %format;
    setp.lt.u32 %yes, %at, %length;
    mov.u32 %c, 0;
    @%yes ld.u8 %c, [%wide];
    add.u32 %at, %at, 1;"""
"""PTX that reads the next byte of the format into ``%c``, 0 after its end."""

_IS_FLAG, _IS_LONG = _one_of("-+ #0"), _one_of("jzt")
_IS_LETTER, _IS_WIDE = _one_of("diouxXcfFeEgGaAsp"), _one_of("fFeEgGaAsp")

SCAN_TEXT = f"""
.func (.reg .b64 %found) {SCAN}(.reg .b64 %format, .reg .b32 %length, .reg .b64 %values,
    .reg .b32 %most, .reg .b64 %to, .reg .b64 %end)
{{
    .reg .b64 %wide, %pointer, %size;
    .reg .b32 %count, %used, %at, %start, %c, %n;
    .reg .b32 %width, %precision, %given, %long, %place, %text;
    .reg .pred %yes, %no, %over;
    mov.u64 %size, 0;
    mov.u32 %at, 0;
    mov.u32 %used, 0;
    mov.u32 %count, 0;
$scan:
    setp.ge.u32 %over, %at, %length;
    @%over bra $scanned;
    {_NEXT}
    setp.ne.u32 %yes, %c, {ord("%")};
    @%yes bra $scan;
    mov.u32 %start, %at;
    mov.u32 %width, 0;
    mov.u32 %precision, -1;
    mov.u32 %given, 0;
    mov.u32 %long, 0;
$flags:
    {_NEXT}
    {_IS_FLAG}
    @%yes bra $flags;
    setp.ne.u32 %yes, %c, {ord("*")};
    @%yes bra $digits;
    mov.u32 %width, 4;
    {_NEXT}
    bra $point;
$digits:
    sub.u32 %n, %c, {ord("0")};
    setp.gt.u32 %yes, %n, 9;
    @%yes bra $point;
    {_NEXT}
    bra $digits;
$point:
    setp.ne.u32 %yes, %c, {ord(".")};
    @%yes bra $modifier;
    mov.u32 %precision, 0;
    {_NEXT}
    setp.ne.u32 %yes, %c, {ord("*")};
    @%yes bra $places;
    mov.u32 %given, 1;
    {_NEXT}
    bra $modifier;
$places:
    sub.u32 %n, %c, {ord("0")};
    setp.gt.u32 %yes, %n, 9;
    @%yes bra $modifier;
    mad.lo.u32 %precision, %precision, 10, %n;
    min.u32 %precision, %precision, {_WIDEST};
    {_NEXT}
    bra $places;
$modifier:
    setp.eq.u32 %yes, %c, {ord("L")};
    @%yes bra $more;
    {_IS_LONG}
    @%yes bra $long;
    setp.eq.u32 %yes, %c, {ord("l")};
    @%yes mov.u32 %long, 1;
    setp.eq.u32 %no, %c, {ord("h")};
    or.pred %yes, %yes, %no;
    @!%yes bra $letter;
    mov.u32 %text, %c;
    {_NEXT}
    setp.ne.u32 %yes, %c, %text;
    @%yes bra $letter;
    bra $more;
$long:
    mov.u32 %long, 1;
$more:
    {_NEXT}
$letter:
    setp.eq.u32 %yes, %c, {ord("%")};
    @%yes bra $scan;
    {_IS_LETTER}
    @%yes bra $conversion;
    mov.u32 %at, %start;
    bra $scan;
$conversion:
    add.u32 %count, %count, 1;
    add.u32 %used, %used, %width;
    setp.eq.u32 %yes, %given, 0;
    @%yes bra $value;
    cvt.u64.u32 %wide, %used;
    add.s64 %wide, %wide, %values;
    add.u32 %used, %used, 4;
    setp.le.u32 %yes, %used, %most;
    @%yes ld.u32 %precision, [%wide];
$value:
    {_IS_WIDE}
    setp.ne.u32 %no, %long, 0;
    or.pred %yes, %yes, %no;
    @%yes bra $eight;
    add.u32 %used, %used, 4;
    bra $scan;
$eight:
    add.u32 %used, %used, 7;
    and.b32 %used, %used, -8;
    mov.u32 %place, %used;
    add.u32 %used, %used, 8;
    setp.ne.u32 %yes, %c, {ord("s")};
    @%yes bra $scan;
    setp.gt.u32 %yes, %used, %most;
    @%yes bra $scan;
    cvt.u64.u32 %wide, %place;
    add.s64 %wide, %wide, %values;
    ld.u64 %pointer, [%wide];
    setp.lt.s32 %no, %precision, 0;
    min.u32 %n, %precision, {out.TEXT_LIMIT_BYTES};
    @%no mov.u32 %n, {out.TEXT_LIMIT_BYTES + 1};
    call (%text), {LENGTH}, (%pointer, %n);
    setp.gt.u32 %yes, %text, {out.TEXT_LIMIT_BYTES};
    @%yes mov.u32 %text, {out.UNREADABLE};
    selp.u32 %n, 0, %text, %yes;
    add.u32 %width, %n, 15;
    and.b32 %width, %width, -8;
    cvt.u64.u32 %wide, %width;
    add.u64 %size, %size, %wide;
    add.u64 %wide, %wide, %to;
    setp.gt.u64 %yes, %wide, %end;
    @%yes bra $scan;
    st.global.u32 [%to], %place;
    st.global.u32 [%to+4], %text;
    add.u64 %to, %to, 8;
    call {COPY}, (%to, %pointer, %n);
    mov.u64 %to, %wide;
    bra $scan;
$scanned:
    min.u32 %used, %used, %most;
    shl.b32 %count, %count, 16;
    or.b32 %count, %count, %used;
    cvt.u64.u32 %found, %count;
    shl.b64 %size, %size, 32;
    or.b64 %found, %found, %size;
    ret;
}}
"""
"""Parses a format, and copies the strings of its ``%s`` conversions to ``to``, up to ``end``.

Returns the bytes of the arguments that are present (bits 0 to 15), the number of conversions (bits
16 to 31; it is at most half of `TEXT_LIMIT_BYTES`), and the bytes that all strings need (bits 32 to
63).
"""
