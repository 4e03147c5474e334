"""Loads and stores of every width, qualifier and state space, in PTX.

Source: PTX ISA 9.0, sections 5.1 (state spaces), 5.4 (variables, initialisers) and 9.7.9 (data
movement).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


def _words(rng: Rng, count: int) -> np.ndarray[Any, Any]:
    return rng.integers(0, 2**32, count).astype(np.uint32)


# -- every width and vector length, global -----------------------------------------------------

# Instruction type, register width, elements: each thread copies 16 bytes with each of them.
_SHAPES = [
    ("b8", 16, 1), ("u8", 32, 2), ("u8", 16, 4), ("b16", 16, 1), ("u16", 16, 2), ("b16", 16, 4),
    ("b32", 32, 1), ("u32", 32, 2), ("f32", 32, 4), ("b64", 64, 1), ("u64", 64, 2),
    ("f64", 64, 2), ("f32", 32, 2), ("s8", 16, 1), ("s16", 32, 1), ("s32", 32, 4),
]  # fmt: skip


def _copies(space: str, base: str) -> str:
    """PTX that copies 16 bytes along a row of slots at ``base``, to each next slot in a new shape.

    A shape that does not write leaves its slot, and all after it, without the data.
    """
    lines = []
    for number, (t, bits, count) in enumerate(_SHAPES):
        size = int(t[1:]) // 8 * count
        vector = f".v{count}" if count > 1 else ""
        names = [f"r{number}_{k}" for k in range(count)]
        operand = names[0] if count == 1 else "{" + ", ".join(names) + "}"
        lines.append(f"    {{ .reg .b{bits} {', '.join(names)};")
        store = "b" + t[1:] if t[0] == "s" else t
        for offset in range(16 * number, 16 * number + 16, size):
            lines.append(f"    ld.{space}{vector}.{t} {operand}, [{base}+{offset}];")
            lines.append(f"    st.{space}{vector}.{store} [{base}+{offset + 16}], {operand};")
        lines.append("    }")
    return "\n".join(lines)


_SLOTS = len(_SHAPES) + 1
_WIDTHS_BODY = f"""
    .reg .b64 %base;
    mad.wide.u32 %base, %i, {16 * _SLOTS}, %slots;
{_copies("global", "%base")}
    ret;
"""


def _widths_make(rng: Rng) -> Args:
    slots = np.zeros((112, _SLOTS, 4), np.uint32)
    slots[:, 0] = _words(rng, 4 * 112).reshape(112, 4)
    return [slots]


@CASES.ptx(
    "memory_widths",
    "u64 slots",
    _WIDTHS_BODY,
    2,
    56,
    _widths_make,
    "ld.global st.global vector-access",
    long=True,
)
def _widths_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.repeat(args[0][:, :1], _SLOTS, axis=1)}


# -- the same through shared and local memory --------------------------------------------------

_SPACES_BODY = f"""
    .shared .align 16 .b8 %tile[{32 * 16 * _SLOTS}];
    .local .align 16 .b8 %mine[{16 * _SLOTS}];
    .reg .b64 %from, %to, %slot;
    .reg .b32 %a, %b, %c, %d;
    mad.wide.u32 %from, %i, 16, %first;
    mad.wide.u32 %to, %i, 16, %second;
    mov.u64 %slot, %tile;
    mad.wide.u32 %slot, %thread, {16 * _SLOTS}, %slot;
    ld.global.v4.b32 {{%a, %b, %c, %d}}, [%from];
    st.shared.v4.b32 [%slot], {{%a, %b, %c, %d}};
{_copies("shared", "%slot")}
    ld.shared.v4.b32 {{%a, %b, %c, %d}}, [%slot+{16 * _SLOTS - 16}];
    st.local.v4.b32 [%mine], {{%d, %c, %b, %a}};
{_copies("local", "%mine")}
    ld.local.v4.b32 {{%a, %b, %c, %d}}, [%mine+{16 * _SLOTS - 16}];
    st.global.v4.b32 [%to], {{%a, %b, %c, %d}};
    ret;
"""


def _spaces_make(rng: Rng) -> Args:
    return [_words(rng, 4 * 64), np.zeros(4 * 64, np.uint32)]


@CASES.ptx(
    "memory_spaces",
    "u64 first, u64 second",
    _SPACES_BODY,
    2,
    32,
    _spaces_make,
    "ld.shared ld.local vector-access",
)
def _spaces_expect(args: Args) -> dict[int | str, Any]:
    return {1: args[0].reshape(-1, 4)[:, ::-1].ravel().copy()}


# -- qualifiers: cache operators, volatile, scopes, non-coherent -------------------------------

_LOADS = [
    "ld.global", "ld.global.ca", "ld.global.cg", "ld.global.cs", "ld.global.lu", "ld.global.cv",
    "ld.global.nc", "ld.volatile.global", "ld.weak.global", "ld.relaxed.cta.global",
    "ld.relaxed.gpu.global", "ld.relaxed.sys.global", "ld.acquire.cta.global",
    "ld.acquire.gpu.global", "ld.acquire.sys.global", "ld.global.L1::evict_last",
    "ld.global.L1::no_allocate.L2::128B",
    "ld.global.nc.L1::evict_first", "ldu.global",
]  # fmt: skip
_STORES = [
    "st.global", "st.global.wb", "st.global.cg", "st.global.cs", "st.global.wt",
    "st.volatile.global", "st.weak.global", "st.relaxed.gpu.global", "st.release.cta.global",
    "st.release.gpu.global", "st.release.sys.global", "st.global.L1::evict_first",
]  # fmt: skip
_FENCES = [
    "membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.cta", "fence.acq_rel.gpu",
    "fence.sc.gpu", "fence.sc.sys", "fence.sc.cta",
]  # fmt: skip


def _qualifier_body() -> str:
    lines = [
        "    .reg .b64 %from, %to; .reg .b32 %v, %sum;",
        "    mad.wide.u32 %from, %i, 4, %first;",
        f"    mad.wide.u32 %to, %i, {4 * len(_STORES)}, %second;",
        "    mov.b32 %sum, 0;",
        "    prefetch.global.L1 [%from]; prefetch.global.L2 [%to]; prefetchu.L1 [%from];",
    ]
    for number, load in enumerate(_LOADS):
        lines.append(f"    {load}.u32 %v, [%from];")
        lines.append(f"    mad.lo.u32 %sum, %v, {2 * number + 1}, %sum;")
    for number, store in enumerate(_STORES):
        lines.append(f"    add.u32 %sum, %sum, {number};")
        lines.append(f"    {store}.u32 [%to+{4 * number}], %sum;")
        lines.append(f"    {_FENCES[number % len(_FENCES)]};")
    lines.append("    ret;")
    return "\n".join(lines)


def _qualifiers_make(rng: Rng) -> Args:
    return [_words(rng, 96), np.zeros((96, len(_STORES)), np.uint32)]


@CASES.ptx(
    "memory_qualifiers",
    "u64 first, u64 second",
    _qualifier_body(),
    3,
    32,
    _qualifiers_make,
    "ld.volatile ld.acquire st.release membar fence ld.nc",
)
def _qualifiers_expect(args: Args) -> dict[int | str, Any]:
    weights = sum(2 * k + 1 for k in range(len(_LOADS)))
    base = args[0] * np.uint32(weights)
    added = np.cumsum(np.arange(len(_STORES), dtype=np.uint32))
    return {1: (base[:, None] + added).astype(np.uint32)}


# -- generic addresses: cvta, isspacep, loads and stores without a state space -----------------

_GENERIC_DECLARATIONS = """
.global .align 4 .u32 table[4] = {10, 20, 30, 40};
.const .align 4 .u32 fixed[4] = {1, 2, 3, 4};
"""
_GENERIC_BODY = """
    .shared .align 4 .u32 %tile[64];
    .local .align 4 .u32 %mine[4];
    .reg .b64 %g, %s, %l, %c, %p, %to, %back;
    .reg .b32 %v, %sum, %flags, %which;
    .reg .pred %is, %odd;
    mov.u64 %g, table;         cvta.global.u64 %g, %g;
    cvta.const.u64 %c, fixed;
    mov.u64 %s, %tile;         mad.wide.u32 %s, %thread, 4, %s;  cvta.shared.u64 %s, %s;
    cvta.local.u64 %l, %mine;
    st.u32 [%s], %i;
    add.u32 %v, %i, 1000;
    st.u32 [%l], %v;
    st.u32 [%l+8], 7;

    // One instruction reaches all four spaces, by the thread's number.
    and.b32 %which, %thread, 3;
    mov.u64 %p, %g;
    setp.eq.u32 %is, %which, 1;  @%is mov.u64 %p, %s;
    setp.eq.u32 %is, %which, 2;  @%is mov.u64 %p, %l;
    setp.eq.u32 %is, %which, 3;  @%is mov.u64 %p, %c;
    ld.u32 %sum, [%p];

    mov.b32 %flags, 0;
    isspacep.global %is, %p;  @%is or.b32 %flags, %flags, 1;
    isspacep.shared %is, %p;  @%is or.b32 %flags, %flags, 2;
    isspacep.local %is, %p;   @%is or.b32 %flags, %flags, 4;
    isspacep.const %is, %p;   @%is or.b32 %flags, %flags, 8;

    // And back to the state spaces.
    cvta.to.shared.u64 %back, %s;  ld.shared.u32 %v, [%back];    add.u32 %sum, %sum, %v;
    cvta.to.local.u64 %back, %l;   ld.local.u32 %v, [%back+8];   add.u32 %sum, %sum, %v;
    cvta.to.global.u64 %back, %g;  ld.global.u32 %v, [%back+12]; add.u32 %sum, %sum, %v;
    cvta.to.const.u64 %back, %c;   ld.const.u32 %v, [%back+4];   add.u32 %sum, %sum, %v;
    // Atomics on generic addresses of two spaces.
    atom.add.u32 %v, [%s], 5;      add.u32 %sum, %sum, %v;
    ld.u32 %v, [%s];               add.u32 %sum, %sum, %v;
    cvta.global.u64 %back, %total; red.add.u32 [%back], %i;

    mad.wide.u32 %to, %i, 8, %out;
    st.global.v2.u32 [%to], {%sum, %flags};
    ret;
"""


def _generic_make(rng: Rng) -> Args:
    return [np.zeros((3 * 56, 2), np.uint32), np.zeros(1, np.uint32)]


@CASES.ptx(
    "generic_addressing",
    "u64 out, u64 total",
    _GENERIC_BODY,
    3,
    56,
    _generic_make,
    "cvta isspacep generic",
    declarations=_GENERIC_DECLARATIONS,
)
def _generic_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(3 * 56, dtype=np.uint32)
    which = i % 56 % 4
    first = np.where(which == 0, 10, np.where(which == 1, i, np.where(which == 2, i + 1000, 1)))
    total = first + i + 7 + 40 + 2 + i + (i + 5)
    flags = 1 << which
    out = np.stack([total, flags], axis=1).astype(np.uint32)
    return {0: out, 1: np.array([i.sum()], np.uint32)}


# -- module variables with initialisers of every kind ------------------------------------------

_VARIABLES = """
.global .align 1 .b8 text[6] = {104, 101, 108, 108, 111, 0};
.global .align 8 .b8 mixed[24] = {1, 0, 0, 0, 0xFF, 0xEE, 0, 0, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F};
.global .align 4 .f32 reals[3] = {0f3FC00000, -2.5, 1e3};
.global .align 8 .f64 doubles[2] = {0d4009000000000000, 0.1};
.global .align 4 .u32 numbers[2][3] = {{1, 2}, {4, 5, 6}};
.global .align 8 .u64 place = numbers+8;
.global .align 8 .u64 places[3] = {generic(numbers)+4, generic(text), 0};
.const .align 8 .u64 constant_place = generic(numbers)+20;
.const .align 2 .u16 shorts[4] = {1, 0xFFFF, 3};
.global .align 4 .s32 lowest = -2147483648;
.visible .global .align 4 .u32 exposed = 77;
.weak .global .align 4 .u32 feeble = 5;
.common .global .align 4 .u32 shared_by_all;
.global .align 4 .u32 zeros[5];
.visible .global .align 4 .f32 flipped = 0fBF800000;
"""
_VARIABLES_BODY = """
    .reg .b64 %to, %p; .reg .b32 %v, %w; .reg .f32 %f; .reg .f64 %d; .reg .b16 %h;
    mad.wide.u32 %to, %i, 64, %out;
    ld.global.u8 %v, [text+4];                             st.global.u32 [%to], %v;
    ld.global.u16 %v, [mixed+4];                           st.global.u32 [%to+4], %v;
    ld.global.f64 %d, [mixed+8];  cvt.rn.f32.f64 %f, %d;   st.global.f32 [%to+8], %f;
    ld.global.f32 %f, [reals+4];                           st.global.f32 [%to+12], %f;
    ld.global.f64 %d, [doubles];  cvt.rn.f32.f64 %f, %d;   st.global.f32 [%to+16], %f;
    ld.global.u64 %p, [place];    ld.global.u32 %v, [%p];  st.global.u32 [%to+20], %v;
    ld.global.u64 %p, [places];   ld.u32 %v, [%p];         st.global.u32 [%to+24], %v;
    ld.global.u64 %p, [places+8]; ld.u8 %v, [%p+1];        st.global.u32 [%to+28], %v;
    ld.const.u64 %p, [constant_place]; ld.u32 %v, [%p];    st.global.u32 [%to+32], %v;
    ld.const.u16 %h, [shorts+2];  cvt.u32.u16 %v, %h;      st.global.u32 [%to+36], %v;
    ld.global.s32 %v, [lowest];                            st.global.u32 [%to+40], %v;
    ld.global.u32 %v, [exposed]; ld.global.u32 %w, [feeble]; add.u32 %v, %v, %w;
                                                           st.global.u32 [%to+44], %v;
    ld.global.u32 %v, [shared_by_all]; ld.global.u32 %w, [zeros+16]; add.u32 %v, %v, %w;
                                                           st.global.u32 [%to+48], %v;
    mov.u64 %p, numbers+12;       ld.global.u32 %v, [%p];  st.global.u32 [%to+52], %v;
    ld.global.u32 %v, [numbers+8];                         st.global.u32 [%to+56], %v;
    ld.global.f32 %f, [flipped];                           st.global.f32 [%to+60], %f;
    ret;
"""


def _variables_make(rng: Rng) -> Args:
    return [np.zeros((34, 16), np.uint32)]


@CASES.ptx(
    "module_variables",
    "u64 out",
    _VARIABLES_BODY,
    17,
    2,
    _variables_make,
    "initialisers module-symbol common weak block.2",
    symbols={
        "feeble": np.array([9], np.uint32),
        "shared_by_all": np.array([123], np.uint32),
        "flipped": np.array([2.0], np.float32),
    },
    declarations=_VARIABLES,
)
def _variables_expect(args: Args) -> dict[int | str, Any]:
    def real(x: float) -> int:
        return int(np.float32(x).view(np.uint32))

    row = [111, 0xEEFF, real(1.0), real(-2.5), real(3.125), 0, 2, 101, 6, 0xFFFF]
    # "place" is the third number of the first row, which the initialiser leaves at zero.
    row += [1 << 31, 77 + 9, 123, 4, 0, real(2.0)]
    table = np.tile(np.array(row, np.uint32), (34, 1))
    return {0: table, "exposed": np.array([77], np.uint32), "feeble": np.array([9], np.uint32)}


# -- addresses: negative offsets, absolute registers, 32-bit shared addresses ------------------

_OFFSETS_BODY = """
    .shared .align 4 .b32 %line[130];
    .reg .b64 %to, %from; .reg .b32 %s, %v, %w;
    mov.u32 %s, %line;
    shl.b32 %v, %thread, 2;
    add.u32 %s, %s, %v;
    mad.wide.u32 %from, %i, 4, %in;
    ld.global.u32 %v, [%from+-0];
    st.shared.u32 [%s+4], %v;
    bar.sync 0;
    mov.b32 %w, 0;
    ld.shared.u32 %v, [%s+4];
    add.u32 %w, %w, %v;
    .reg .pred %edge;
    setp.eq.u32 %edge, %thread, 0;
    add.u32 %s, %s, 8;
    @!%edge ld.shared.u32 %v, [%s+-8];
    @!%edge add.u32 %w, %w, %v;
    ld.shared.u32 %v, [%line+4];
    xor.b32 %w, %w, %v;
    mad.wide.u32 %to, %i, 4, %out;
    add.u64 %to, %to, 64;
    st.global.u32 [%to+-64], %w;
    ret;
"""


def _offsets_make(rng: Rng) -> Args:
    return [_words(rng, 3 * 120), np.zeros(3 * 120, np.uint32)]


@CASES.ptx(
    "memory_offsets",
    "u64 in, u64 out",
    _OFFSETS_BODY,
    3,
    120,
    _offsets_make,
    "bar.sync shared.address32",
)
def _offsets_expect(args: Args) -> dict[int | str, Any]:
    rows = args[0].reshape(3, 120)
    total = rows.copy()
    total[:, 1:] += rows[:, :-1]
    return {1: (total ^ rows[:, :1]).ravel()}
