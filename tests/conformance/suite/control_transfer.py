"""Control transfer written by hand: calls with register parameters and target lists, jump tables.

Source: PTX ISA 9.0, sections 7 (functions, parameter passing) and 9.7.12 (``call``, ``brx.idx``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases
from .ptx_text import kernel

CASES = Cases()


# -- hand-written calls: register parameters, .calltargets, several results --------------------

_CALL_DECLARATIONS = """
.func (.reg .b32 result) triple (.reg .b32 x)
{
    mul.lo.u32 result, x, 3;
    ret;
}
.func (.param .align 8 .b8 pair[16]) both (.param .b32 x, .param .b64 y)
{
    .reg .b32 %x; .reg .b64 %y, %z;
    ld.param.b32 %x, [x];
    ld.param.b64 %y, [y];
    cvt.u64.u32 %z, %x;
    add.u64 %z, %z, %y;
    st.param.b64 [pair], %z;
    sub.u64 %z, %y, %z;
    st.param.v2.b32 [pair+8], {%x, 77};
    ret;
}
.func (.param .b32 r) inc (.param .b32 x) { .reg .b32 %x; ld.param.b32 %x, [x];
    add.u32 %x, %x, 1; st.param.b32 [r], %x; ret; }
.func (.param .b32 r) dec (.param .b32 x) { .reg .b32 %x; ld.param.b32 %x, [x];
    .reg .pred %z; setp.eq.u32 %z, %x, 0; @%z bra ZERO;
    sub.u32 %x, %x, 1; st.param.b32 [r], %x; ret;
ZERO: st.param.b32 [r], 99; ret; }
.global .align 8 .u64 table[2] = {inc, dec};
.func later (.param .b64 to, .param .b32 x);
"""
_CALL_BODY = """
    .reg .b32 %v, %w, %k; .reg .b64 %p, %f, %y; .reg .pred %odd;
    mad.wide.u32 %p, %i, 4, %data;
    ld.global.u32 %v, [%p];
    call.uni (%w), triple, (%v);
    {
        .param .align 8 .b8 back[16];
        .param .b32 x;
        .param .b64 y;
        st.param.b32 [x], %w;
        cvt.u64.u32 %y, %v;
        st.param.b64 [y], %y;
        call (back), both, (x, y);
        ld.param.b32 %v, [back];
        ld.param.v2.b32 {%w, %k}, [back+8];
    }
    add.u32 %v, %v, %w;
    add.u32 %v, %v, %k;
    and.b32 %k, %thread, 1;
    setp.ne.u32 %odd, %k, 0;
    mov.u64 %f, table;
    mad.wide.u32 %f, %k, 8, %f;
    ld.global.u64 %f, [%f];
    {
        .param .b32 r;
        .param .b32 x;
        st.param.b32 [x], %v;
        choices: .calltargets inc, dec;
        call (r), %f, (x), choices;
        ld.param.b32 %v, [r];
    }
    {
        .param .b32 r;
        .param .b32 x;
        and.b32 %k, %v, 1;
        st.param.b32 [x], %k;
        shape: .callprototype (.param .b32 _) _ (.param .b32 _);
        @%odd call (r), %f, (x), shape;
        ld.param.b32 %w, [r];
        @%odd mov.b32 %k, %w;
    }
    add.u32 %v, %v, %k;
    {
        .param .b64 to;
        .param .b32 x;
        st.param.b64 [to], %p;
        st.param.b32 [x], %v;
        call.uni later, (to, x);
    }
    ret;
"""
_LATER = """
.func later (.param .b64 to, .param .b32 x)
{
    .reg .b64 %to; .reg .b32 %x;
    ld.param.u64 %to, [to];
    ld.param.u32 %x, [x];
    st.global.u32 [%to], %x;
}
"""


def _calls_make(rng: Rng) -> Args:
    return [rng.integers(0, 1000, 4 * 32).astype(np.uint32)]


def _calls_expect(args: Args) -> dict[int | str, Any]:
    out = []
    for i, word in enumerate(args[0].tolist()):
        w = 3 * word
        v = (w + word) + w + 77
        odd = i % 32 & 1
        v = v - 1 if odd else v + 1
        k = v & 1
        if odd:
            k = k - 1 if k else 99
        out.append(v + k)
    return {0: np.array(out, np.uint32)}


# -- brx.idx: a jump table ---------------------------------------------------------------------

_BRANCH_BODY = """
    .reg .b32 %v, %k, %round; .reg .b64 %p; .reg .pred %more;
    mad.wide.u32 %p, %i, 4, %data;
    ld.global.u32 %v, [%p];
    mov.b32 %round, 0;
AGAIN:
    rem.u32 %k, %v, 5;
    ways: .branchtargets A, B, C, A, D;
    brx.idx %k, ways;
A:  mad.lo.u32 %v, %v, 3, 1;
    bra NEXT;
B:  shr.u32 %v, %v, 1;
    bra NEXT;
C:  xor.b32 %v, %v, 0x5A5A5A5A;
NEXT:
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 12;
    @%more bra AGAIN;
D:  add.u32 %v, %v, %round;
    st.global.u32 [%p], %v;
    exit;
"""


def _branch_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, 5 * 56).astype(np.uint32)]


@CASES.ptx("branch_table", "u64 data", _BRANCH_BODY, 5, 56, _branch_make, "brx exit")
def _branch_expect(args: Args) -> dict[int | str, Any]:
    out = []
    for word in args[0].tolist():
        v, rounds = word, 0
        while rounds < 12 and v % 5 != 4:
            v = (3 * v + 1 & 0xFFFFFFFF, v >> 1, v ^ 0x5A5A5A5A, 3 * v + 1 & 0xFFFFFFFF)[v % 5]
            rounds += 1
        out.append(v + rounds & 0xFFFFFFFF)
    return {0: np.array(out, np.uint32)}


_CALLS_SOURCE = kernel(
    "hand_written_calls", ("u64 data",), _CALL_BODY, declarations=_CALL_DECLARATIONS
)

CASES.cuda(
    "hand_written_calls",
    _CALLS_SOURCE + _LATER,
    4,
    32,
    _calls_make,
    "call indirect-call calltargets callprototype",
)(_calls_expect)
