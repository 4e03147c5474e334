"""A heap for device code's ``malloc`` and ``free`` in checked programs on the GPU.

Problem: the driver does not say where its heap is, so bounds checks cannot allow it, and all
sessions share it.

Approach: each such program gets a heap of its own, one range of device memory that its bounds
checks know (`gpud.compiler.abi.reserved_names.HEAP`), and functions in PTX that allocate from it
and free to it; calls of ``malloc`` and ``free`` become calls of these when the program is loaded.
It is the heap of `gpud.device.cpu.program.heap`, with one difference: a GPU has no atomic exchange
of bytes, so a granule has one word, which is a link while its block is free and its list's number
while it is allocated.

Terms: a *granule* is 16 bytes of the heap. A *list* is one word of 64 bits: the number of its first
granule plus one, 0 if it is empty, and above that a count of its changes. The *records* follow the
heap, where no bounds check lets a program: the end of the used part, the lists, the granules'
words.

Algorithm: a size is rounded to 1 to 8 times a power of two; a freed block is pushed on the list of
its size by compare-and-swap; a block comes from its list, or from the unused part. ``free`` has a
fence before the exchange, and ``malloc`` has one after its read of the list: so the link that is
read is the one that was written, and the last owner's accesses to the block are over.

Properties:
* ``lock-free``: a loop is repeated only if another thread has succeeded, so no thread waits for
  another, of its warp or of any;
* ``exact``: whatever is freed, and however often, only allocated blocks change;
* a request that does not fit returns a null pointer;
* the heap reads as zero when the program is loaded.

Source: R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986; PTX ISA
9.0, section 8. The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpud.compiler.abi.reserved_names import HEAP
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.passes.builder import fresh_stem, map_functions
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import Function, Instruction, Module, Statement, Symbol, Variable
from gpud.compiler.ptx.parser import parse

__all__ = ["BLOCK_BYTES", "HEAP_BYTES", "with_own_heap"]

BLOCK_BYTES: Final = 1 << 24
"""The heap with its records."""

HEAP_BYTES: Final = 12 << 20
"""The most that a program can have allocated; CUDA's own heap has 8 MiB by default."""

_UNUSED, _LISTS, _WORDS = 0, 64, 2048
_TAKEN = 1 << 31

assert HEAP_BYTES + _WORDS + HEAP_BYTES // 16 * 4 <= BLOCK_BYTES

_PLACES = f"""
    .reg .b64 %base, %size, %records, %list, %word, %new, %old, %at, %t, %u;
    .reg .b32 %granule, %which, %state, %n; .reg .pred %yes;
    ld.const.u64 %base, [{HEAP}];
    ld.const.u64 %size, [{HEAP}+8];
    add.u64 %records, %base, %size;
"""

_PUSHED = """
    shr.u64 %new, %word, 32;
    add.u64 %new, %new, 1;
    shl.b64 %new, %new, 32;
    cvt.u64.u32 %t, %n;
    or.b64 %new, %new, %t;
    atom.global.cas.b64 %old, [%list], %word, %new;
"""
"""Sets the list's first granule to ``%n``, if the list is still ``%word``."""


def _functions(stem: str) -> str:
    return f"""
.version 6.4
.target sm_75
.address_size 64
.const .align 16 .b64 {HEAP}[2];
.func (.param .b64 {stem}_r) {stem}_take(.param .b64 {stem}_n)
{{{_PLACES}
    .reg .b64 %bytes, %taken, %result;
    .reg .b32 %step, %number;
    ld.param.u64 %bytes, [{stem}_n];
    mov.u64 %result, 0;
    sub.u64 %t, %bytes, 1;
    setp.ge.u64 %yes, %t, %size;
    @%yes bra $end;
    clz.b64 %n, %bytes;
    sub.s32 %step, 61, %n;
    max.s32 %step, %step, 4;
    mov.u64 %u, 1;
    shl.b64 %u, %u, %step;
    add.u64 %t, %t, %u;
    shr.u64 %t, %t, %step;
    cvt.u32.u64 %number, %t;
    shl.b64 %taken, %t, %step;
    sub.u32 %which, %step, 4;
    mad.lo.u32 %which, %which, 8, %number;
    setp.eq.u32 %yes, %number, 8;
    @%yes add.u32 %which, %which, 4;
    mul.wide.u32 %list, %which, 8;
    add.u64 %list, %list, %records;
    add.u64 %list, %list, {_LISTS - 8};
$again:
    ld.volatile.global.u64 %word, [%list];
    cvt.u32.u64 %granule, %word;
    setp.eq.u32 %yes, %granule, 0;
    @%yes bra $fresh;
    membar.gl;
    sub.u32 %granule, %granule, 1;
    mul.wide.u32 %at, %granule, 4;
    add.u64 %at, %at, %records;
    ld.volatile.global.u32 %n, [%at+{_WORDS}];
{_PUSHED}
    setp.ne.u64 %yes, %old, %word;
    @%yes bra $again;
    bra $got;
$fresh:
    ld.volatile.global.u64 %word, [%records+{_UNUSED}];
    add.u64 %new, %word, %taken;
    setp.gt.u64 %yes, %new, %size;
    @%yes bra $end;
    atom.global.cas.b64 %old, [%records+{_UNUSED}], %word, %new;
    setp.ne.u64 %yes, %old, %word;
    @%yes bra $again;
    shr.u64 %t, %word, 4;
    cvt.u32.u64 %granule, %t;
$got:
    mul.wide.u32 %at, %granule, 4;
    add.u64 %at, %at, %records;
    or.b32 %state, %which, {_TAKEN};
    st.volatile.global.u32 [%at+{_WORDS}], %state;
    mul.wide.u32 %t, %granule, 16;
    add.u64 %result, %base, %t;
$end:
    st.param.b64 [{stem}_r], %result;
    ret;
}}
.func {stem}_give(.param .b64 {stem}_p)
{{{_PLACES}
    ld.param.u64 %t, [{stem}_p];
    sub.u64 %t, %t, %base;
    setp.ge.u64 %yes, %t, %size;
    @%yes bra $end;
    and.b64 %u, %t, 15;
    setp.ne.u64 %yes, %u, 0;
    @%yes bra $end;
    shr.u64 %t, %t, 4;
    cvt.u32.u64 %granule, %t;
    mul.wide.u32 %at, %granule, 4;
    add.u64 %at, %at, %records;
    ld.volatile.global.u32 %state, [%at+{_WORDS}];
    setp.lt.u32 %yes, %state, {_TAKEN};
    @%yes bra $end;
    atom.global.cas.b32 %n, [%at+{_WORDS}], %state, 0;
    setp.ne.u32 %yes, %n, %state;
    @%yes bra $end;
    and.b32 %which, %state, {_TAKEN - 1};
    mul.wide.u32 %list, %which, 8;
    add.u64 %list, %list, %records;
    add.u64 %list, %list, {_LISTS - 8};
    add.u32 %n, %granule, 1;
$again:
    ld.volatile.global.u64 %word, [%list];
    cvt.u32.u64 %state, %word;
    st.volatile.global.u32 [%at+{_WORDS}], %state;
    membar.gl;
{_PUSHED}
    setp.ne.u64 %yes, %old, %word;
    @%yes bra $again;
$end:
    ret;
}}
"""


def with_own_heap(program: Module) -> Module:
    """Have ``program``, flat and with `HEAP`, use heap functions for ``malloc`` and ``free``."""
    graph = call_graph(program)
    stem = fresh_stem(graph, "gpud_heap_of")
    renamed = {"malloc": Symbol(f"{stem}_take"), "free": Symbol(f"{stem}_give")}

    def change(function: Function) -> Function:
        uses = graph.uses.get(function.name)
        if uses is None or not renamed.keys() & uses.calls.keys():
            return function
        return replace(function, body=[_renamed(one, renamed) for one in function.body or ()])

    changed = map_functions(program, change)
    if changed is program:
        return program
    at = next(
        n for n, one in enumerate(changed.items) if isinstance(one, Variable) and one.name == HEAP
    )
    added = flatten_module(parse(_functions(stem))).functions()
    return replace(changed, items=[*changed.items[: at + 1], *added, *changed.items[at + 1 :]])


def _renamed(statement: Statement, renamed: dict[str, Symbol]) -> Statement:
    if not isinstance(statement, Instruction) or not is_call(statement):
        return statement
    target = callee(statement)
    if not isinstance(target, Symbol) or target.name not in renamed:
        return statement
    operands = tuple(renamed[target.name] if one == target else one for one in statement.operands)
    return replace(statement, operands=operands)
