"""The runtime functions, in PTX, that write ``printf`` calls to the output buffer.

Problem: ``vprintf`` gets a format, and the address of arguments whose number and sizes only the
format determines. Both may be invalid, and memory that the program may not read must not be read.

Approach: `gpud_print` parses the format (`gpud.compiler.passes.runtime.printf_format`) to find the
arguments and the strings among them. It does so twice: first to measure, then, with room reserved
in the run's buffer (`gpud.compiler.abi.print_buffer`), to copy.

Algorithm. After the first scan, one atomic addition reserves the entry; a call that does not fit
only sets the mark in the buffer's head. After the second scan and a memory fence, the entry is
marked complete.

Properties:
* ``bounded``: every loop ends after at most `TEXT_LIMIT_BYTES` steps per string; an entry is never
  longer than what was reserved for it, even if other threads change the strings in between;
* ``readable``: in a checked program only the arena, the program's variables and its heap are read,
  and shared and local memory, which bounds checks do not cover either;
* ``values``: no more bytes of the arguments are read than the caller says are there;
* a call returns the number of its conversions, -1 if the format cannot be read; it never waits for
  other threads.

Source: CUDA C++ Programming Guide 13.0, "Formatted Output".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi import print_buffer as out
from gpud.compiler.abi.reserved_names import ARENA, HEAP, OWN_VARIABLES, PRINT
from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.runtime.printf_format import COPY, LENGTH, SCAN, SCAN_TEXT
from gpud.compiler.ptx.model import Function, Variable
from gpud.compiler.ptx.parser import parse

__all__ = ["ROOM", "print_functions"]

ROOM = f"{PRINT}_room"

_HEAD = ".version 6.4\n.target sm_75\n.address_size 64\n"
_LARGE = 1 << 30


def print_functions(variables: Iterable[Variable]) -> list[Function]:
    """Return the functions of ``gpud_print``, each after those that it calls.

    Args:
        variables: the program's variables in ``.global`` and ``.const``, including those of its
            bounds checks. Without the latter, the program may read everything.
    """
    known = list(variables)
    declared = "".join(
        f".{one.space} .align 8 .b8 {one.name}[{max(1, size_and_align(one)[0])}];\n"
        for one in known
    )
    room = flatten_module(parse(_HEAD + declared + _room(known)))
    return [*room.functions(), *_fixed()]


def _room(variables: list[Variable]) -> str:
    """Build the function that tells how many bytes may be read from an address on; 0: none."""
    names = {one.name for one in variables}
    if ARENA not in names:
        return f"""
.func (.reg .b32 %room) {ROOM}(.reg .b64 %address)
{{
    mov.u32 %room, {_LARGE};
    ret;
}}
"""
    ranges = "".join(_within(f"ld.const.v2.u64 {{%base, %size}}, [{name}];")
                     for name in (ARENA, HEAP) if name in names)  # fmt: skip
    for one in variables:
        size = size_and_align(one)[0]
        if one.name not in OWN_VARIABLES and size:
            ranges += _within(
                f"mov.u64 %base, {one.name};\n    cvta.{one.space}.u64 %base, %base;\n"
                f"    mov.u64 %size, {size};"
            )
    return f"""
.func (.reg .b32 %room) {ROOM}(.reg .b64 %address)
{{
    .reg .b64 %base, %size, %off; .reg .pred %yes;
    mov.u32 %room, {_LARGE};
    isspacep.local %yes, %address;
    @%yes bra $end;
    isspacep.shared %yes, %address;
    @%yes bra $end;
{ranges}    mov.u32 %room, 0;
    bra $end;
$inside:
    sub.s64 %size, %size, %off;
    min.u64 %size, %size, {_LARGE};
    cvt.u32.u64 %room, %size;
$end:
    ret;
}}
"""


def _within(range_: str) -> str:
    return f"""    {range_}
    sub.s64 %off, %address, %base;
    setp.lt.u64 %yes, %off, %size;
    @%yes bra $inside;
"""


@cache
def _fixed() -> tuple[Function, ...]:
    declared = f".func (.reg .b32 %room) {ROOM}(.reg .b64 %address);\n"
    module = flatten_module(parse(_HEAD + declared + _LENGTH + _COPY + SCAN_TEXT + _PRINT))
    return tuple(function for function in module.functions() if function.body is not None)


_LENGTH = f"""
.func (.reg .b32 %found) {LENGTH}(.reg .b64 %text, .reg .b32 %limit)
{{
    .reg .b32 %room, %byte; .reg .pred %yes;
    call (%room), {ROOM}, (%text);
    mov.u32 %found, 0;
$more:
    setp.ge.u32 %yes, %found, %limit;
    @%yes bra $end;
    setp.ge.u32 %yes, %found, %room;
    @%yes bra $none;
    ld.u8 %byte, [%text];
    setp.eq.u32 %yes, %byte, 0;
    @%yes bra $end;
    add.s64 %text, %text, 1;
    add.u32 %found, %found, 1;
    bra $more;
$none:
    mov.u32 %found, {out.UNREADABLE};
$end:
    ret;
}}
"""
"""Returns the length of a string: up to its NUL or to the limit."""

_COPY = f"""
.func {COPY}(.reg .b64 %to, .reg .b64 %from, .reg .b32 %count)
{{
    .reg .b64 %word, %byte; .reg .b32 %shift; .reg .pred %yes;
$word:
    mov.u64 %word, 0;
    mov.u32 %shift, 0;
$byte:
    setp.eq.u32 %yes, %count, 0;
    @%yes bra $rest;
    ld.u8 %byte, [%from];
    shl.b64 %byte, %byte, %shift;
    or.b64 %word, %word, %byte;
    add.s64 %from, %from, 1;
    sub.u32 %count, %count, 1;
    add.u32 %shift, %shift, 8;
    setp.lt.u32 %yes, %shift, 64;
    @%yes bra $byte;
    st.global.u64 [%to], %word;
    add.s64 %to, %to, 8;
    bra $word;
$rest:
    setp.eq.u32 %yes, %shift, 0;
    @%yes bra $end;
    st.global.u64 [%to], %word;
$end:
    ret;
}}
"""
"""Copies bytes from any alignment, storing whole words: the buffer may be across a bus."""


_PRINT = f"""
.func (.param .b32 {PRINT}_count) {PRINT}(
    .param .b64 {PRINT}_format, .param .b64 {PRINT}_values, .param .b32 {PRINT}_most)
{{
    .reg .b64 {JOB_REGISTER.name}, %format, %values, %record, %buffer, %limit, %start, %end;
    .reg .b64 %entry, %found, %size, %texts, %place, %wide;
    .reg .b32 %most, %length, %count, %packed, %n;
    .reg .pred %yes;
    ld.param.u64 %format, [{PRINT}_format];
    ld.param.u64 %values, [{PRINT}_values];
    ld.param.u32 %most, [{PRINT}_most];
    mov.u32 %count, -1;
    call (%length), {LENGTH}, (%format, {out.TEXT_LIMIT_BYTES + 1});
    setp.gt.u32 %yes, %length, {out.TEXT_LIMIT_BYTES};
    @%yes bra $done;
    call (%n), {ROOM}, (%values);
    min.u32 %most, %most, %n;
    cvt.u32.u64 %n, %values;
    and.b32 %n, %n, 7;
    setp.ne.u32 %yes, %n, 0;
    @%yes mov.u32 %most, 0;
    call (%found), {SCAN}, (%format, %length, %values, %most, 0, 0);
    shr.u64 %size, %found, 32;
    cvt.u32.u64 %count, %found;
    and.b32 %packed, %count, 65535;
    shr.u32 %count, %count, 16;
    ld.global.u64 %record, [{JOB_REGISTER.name}+{words.OUTPUT}];
    setp.eq.u64 %yes, %record, 0;
    @%yes bra $done;
    add.s64 %record, %record, {JOB_REGISTER.name};
    add.u32 %n, %length, 7;
    and.b32 %n, %n, -8;
    cvt.u64.u32 %place, %n;
    add.u32 %n, %packed, 7;
    and.b32 %n, %n, -8;
    cvt.u64.u32 %texts, %n;
    add.u64 %size, %size, {out.ENTRY_BYTES};
    add.u64 %size, %size, %place;
    add.u64 %size, %size, %texts;
    ld.global.u64 %buffer, [%record+{out.BUFFER}];
    ld.global.u64 %limit, [%record+{out.SIZE}];
    atom.global.add.u64 %start, [%record+{out.USED}], %size;
    add.u64 %end, %start, %size;
    setp.le.u64 %yes, %end, %limit;
    @%yes bra $fits;
    st.volatile.global.u32 [%buffer], 1;
    bra $done;
$fits:
    add.u64 %entry, %buffer, %start;
    add.u64 %end, %buffer, %end;
    cvt.u32.u64 %n, %size;
    st.global.u32 [%entry], %n;
    st.global.u32 [%entry+{out.FORMAT}], %length;
    st.global.u32 [%entry+{out.VALUES}], %packed;
    add.u64 %wide, %entry, {out.ENTRY_BYTES};
    call {COPY}, (%wide, %format, %length);
    add.u64 %wide, %wide, %place;
    call {COPY}, (%wide, %values, %packed);
    add.u64 %wide, %wide, %texts;
    call (%found), {SCAN}, (%format, %length, %values, %most, %wide, %end);
    membar.sys;
    st.volatile.global.u32 [%entry+{out.COMPLETE}], 1;
$done:
    st.param.b32 [{PRINT}_count], %count;
    ret;
}}
"""
