"""Control flow: predicated exits, several returns, labels, scopes, divergent loops.

Source: PTX ISA 9.0, sections 4.3 (statements, scopes), 8 (predicated execution) and 9.7.12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- predicated exits and returns, in the middle of loops --------------------------------------

_EXITS_BODY = """
    .reg .b32 %v, %round, %k; .reg .b64 %p; .reg .pred %go, %odd, %more;
    ld.param.u32 %k, [n];
    setp.hs.u32 %go, %i, %k;
    @%go exit;
    mad.wide.u32 %p, %i, 4, %data;
    ld.global.u32 %v, [%p];
    setp.eq.u32 %go, %v, 0;
    @!%go bra WORK;
    ret;
WORK:
    mov.b32 %round, 0;
LOOP:
    and.b32 %k, %v, 1;
    setp.ne.u32 %odd, %k, 0;
    @%odd mad.lo.u32 %v, %v, 5, 3;
    @!%odd shr.u32 %v, %v, 2;
    st.global.u32 [%p], %v;
    setp.lt.u32 %go, %v, 10;
    @%go ret;
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 9;
    @%more bra LOOP;
    xor.b32 %v, %v, 0xFFFF;
    st.global.u32 [%p], %v;
    setp.gt.u32 %go, %v, 100000;
    @%go exit;
    st.global.u32 [%p], 4242;
    ret;
    // Not reached, and well-formed all the same.
    add.u32 %v, %v, 1;
    ret;
"""


def _exits_make(rng: Rng) -> Args:
    values = rng.integers(0, 5000, 7 * 56 - 13).astype(np.uint32)
    values[::9] = 0
    return [values, np.uint32(values.size)]


@CASES.ptx(
    "predicated_exits",
    "u64 data, u32 n",
    _EXITS_BODY,
    7,
    56,
    _exits_make,
    "exit ret.predicated multiple-returns",
)
def _exits_expect(args: Args) -> dict[int | str, Any]:
    def walk(v: int) -> int:
        if v == 0:
            return 0
        for _ in range(9):
            v = 5 * v + 3 & 0xFFFFFFFF if v & 1 else v >> 2
            if v < 10:
                return v
        v ^= 0xFFFF
        return v if v > 100_000 else 4242

    return {0: np.array([walk(v) for v in args[0].tolist()], np.uint32)}


# -- names that repeat in nested scopes --------------------------------------------------------

_SCOPES_BODY = """
    .reg .b32 v, w; .reg .b64 p; .reg .pred q;
    mad.wide.u32 p, %i, 4, %data;
    ld.global.u32 v, [p];
    mov.u32 w, 1;
    {
        .reg .b32 v;            // hides the one outside
        .reg .pred q;
        mov.u32 v, 100;
        setp.gt.u32 q, %thread, 10;
        @q bra SAME;
        add.u32 w, w, v;
SAME:
        {
            .reg .b32 w, x<3>;
            .local .align 4 .b32 box[2];
            mov.u32 w, 5;
            mov.u32 x0, w;
            add.u32 x2, x0, 2;
            st.local.u32 [box+4], x2;
            ld.local.u32 v, [box+4];
        }
        add.u32 w, w, v;
    }
    setp.lt.u32 q, v, 500;
    {
        .reg .b32 x<3>;
        .local .align 4 .b32 box[2];
        mov.u32 x1, 1000;
        st.local.u32 [box], x1;
        ld.local.u32 x2, [box];
        @q bra SAME;
        add.u32 w, w, x2;
SAME:
        add.u32 w, w, 1;
    }
    add.u32 v, v, w;
    st.global.u32 [p], v;
    ret;
"""


def _scopes_make(rng: Rng) -> Args:
    return [rng.integers(0, 1000, 3 * 32).astype(np.uint32)]


@CASES.ptx("nested_scopes", "u64 data", _SCOPES_BODY, 3, 32, _scopes_make, "scopes local-array")
def _scopes_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    thread = np.arange(v.size) % 32
    w = 1 + np.where(thread > 10, 0, 100) + 7 + np.where(v < 500, 0, 1000) + 1
    return {0: (v + w).astype(np.uint32)}


# -- irreducible flow: two ways into one loop --------------------------------------------------

_IRREDUCIBLE_BODY = """
    .reg .b32 %v, %k; .reg .b64 %p; .reg .pred %q;
    mad.wide.u32 %p, %i, 4, %data;
    ld.global.u32 %v, [%p];
    mov.u32 %k, 0;
    and.b32 %k, %v, 1;
    setp.eq.u32 %q, %k, 0;
    mov.u32 %k, 0;
    @%q bra SECOND;
FIRST:
    mad.lo.u32 %v, %v, 3, 1;
    setp.gt.u32 %q, %k, 20;
    @%q bra DONE;
SECOND:
    add.u32 %k, %k, 1;
    shr.u32 %v, %v, 1;
    and.b32 %k, %k, 63;
    setp.gt.u32 %q, %v, 3;
    @%q bra FIRST;
    add.u32 %v, %v, %k;
DONE:
    st.global.u32 [%p], %v;
    ret;
"""


def _irreducible_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, 4 * 56).astype(np.uint32)]


@CASES.ptx("irreducible", "u64 data", _IRREDUCIBLE_BODY, 4, 56, _irreducible_make, "irreducible")
def _irreducible_expect(args: Args) -> dict[int | str, Any]:
    def walk(v: int) -> int:
        k, second = 0, v % 2 == 0
        while True:
            if not second:
                v = 3 * v + 1 & 0xFFFFFFFF
                if k > 20:
                    return v
            second = False
            k = k + 1 & 63
            v >>= 1
            if v <= 3:
                return v + k

    return {0: np.array([walk(v) for v in args[0].tolist()], np.uint32)}


# -- divergence that meets again before a barrier ----------------------------------------------

DIVERGENT = r"""
extern "C" __global__ void divergent(int* data, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[120];
    int t = threadIdx.x, v = data[blockIdx.x * 120 + t];
    switch (v & 7) {
        case 0: v = v * 3; break;
        case 1: for (int k = 0; k < t % 5; ++k) v += k; break;
        case 2: v = -v; [[fallthrough]];
        case 3: v ^= t; break;
        case 4: do v /= 2; while (v > 10 || v < -10); break;
        case 5: if (t & 1) { v = 1; break; } v = 2; break;
        default: v = v > 0 ? v - t : v + t;
    }
    s[t] = v;
    __syncthreads();
    int w = s[(t + 1) % 120];
    for (int k = 0; k < (w & 3); ++k) {
        if (v == k) continue;
        v += s[(t + k) % 120];
        if (v > 1000) break;
    }
    data[blockIdx.x * 120 + t] = v;
}
"""


def _divergent_make(rng: Rng) -> Args:
    return [rng.integers(-500, 500, (6, 120)).astype(np.int32)]


@CASES.cuda("divergent", DIVERGENT, 6, 120, _divergent_make, "divergence bar.sync", long=True)
def _divergent_expect(args: Args) -> dict[int | str, Any]:
    def branch(v: int, t: int) -> int:
        kind = v & 7
        if kind == 0:
            return v * 3
        if kind == 1:
            return v + sum(range(t % 5))
        if kind == 2:
            return -v ^ t
        if kind == 3:
            return v ^ t
        if kind == 4:
            v = int(v / 2)
            while v > 10 or v < -10:
                v = int(v / 2)
            return v
        if kind == 5:
            return 1 if t & 1 else 2
        return v - t if v > 0 else v + t

    out = args[0].copy()
    for row in out:
        s = [branch(v, t) for t, v in enumerate(row.tolist())]
        for t in range(120):
            v = s[t]
            for k in range(s[(t + 1) % 120] & 3):
                if v == k:
                    continue
                v += s[(t + k) % 120]
                if v > 1000:
                    break
            row[t] = v
    return {0: out}


# -- special registers, all of them ------------------------------------------------------------

_POSITIONS = ["tid", "ntid", "ctaid", "nctaid"]
_SPECIAL_BODY = (
    """
    .reg .b32 %v, %w, %x, %row, %nx, %ny; .reg .b64 %p, %t0, %t1; .reg .pred %q;
    // row = linear thread in the grid
    mov.u32 %v, %ctaid.z; mov.u32 %ny, %nctaid.y; mov.u32 %w, %ctaid.y;
    mad.lo.u32 %v, %v, %ny, %w;
    mov.u32 %nx, %nctaid.x; mov.u32 %w, %ctaid.x;
    mad.lo.u32 %v, %v, %nx, %w;
    mov.u32 %w, %ntid.z; mov.u32 %x, %tid.z; mad.lo.u32 %v, %v, %w, %x;
    mov.u32 %w, %ntid.y; mov.u32 %x, %tid.y; mad.lo.u32 %v, %v, %w, %x;
    mov.u32 %w, %ntid.x; mov.u32 %x, %tid.x; mad.lo.u32 %row, %v, %w, %x;
    mad.wide.u32 %p, %row, 80, %out;
"""
    + "\n".join(
        f"    mov.u32 %v, %{name}.{axis}; st.global.u32 [%p+{4 * (3 * k + j)}], %v;"
        for k, name in enumerate(_POSITIONS)
        for j, axis in enumerate("xyz")
    )
    + """
    mov.u32 %v, %laneid;      st.global.u32 [%p+48], %v;
    mov.u32 %v, WARP_SZ;      st.global.u32 [%p+52], %v;
    // %warpid is below %nwarpid, %smid below %nsmid; clocks do not run backward.
    mov.u32 %v, %warpid; mov.u32 %w, %nwarpid; setp.lt.u32 %q, %v, %w; selp.u32 %x, 1, 0, %q;
    mov.u32 %v, %smid;   mov.u32 %w, %nsmid;   setp.lt.u32 %q, %v, %w; @%q or.b32 %x, %x, 2;
    mov.u64 %t0, %clock64; mov.u64 %t1, %clock64; setp.ge.u64 %q, %t1, %t0; @%q or.b32 %x, %x, 4;
    mov.u64 %t0, %globaltimer; nanosleep.u32 20; mov.u64 %t1, %globaltimer;
    setp.ge.u64 %q, %t1, %t0; @%q or.b32 %x, %x, 8;
    mov.u32 %v, %clock; mov.u32 %w, %clock_hi; mov.u32 %w, %globaltimer_lo;
    setp.ne.u64 %q, %t0, 0; @%q or.b32 %x, %x, 16;
    st.global.u32 [%p+56], %x;
    mov.u64 %t0, %gridid; mov.u32 %v, %dynamic_smem_size; st.global.u32 [%p+60], %v;
    mov.u32 %v, %total_smem_size; setp.ge.u32 %q, %v, 96; selp.u32 %x, 1, 0, %q;
    mov.b32 %v, %lanemask_eq; mov.u32 %w, %laneid; shr.b32 %v, %v, %w; add.u32 %x, %x, %v;
    st.global.u32 [%p+64], %x;
    mov.u16 %h, %tid.x; cvt.u32.u16 %v, %h; st.global.u32 [%p+68], %v;
    ret;
"""
)


def _special_make(rng: Rng) -> Args:
    return [np.zeros((2 * 3 * 5 * 2 * 3 * 7, 20), np.uint32)]


def _special_expect(args: Args) -> dict[int | str, Any]:
    grid, block = (5, 3, 2), (7, 3, 2)
    out = np.zeros_like(args[0])
    z, y, x, tz, ty, tx = (i.ravel() for i in np.indices((2, 3, 5, 2, 3, 7)))
    out[:, 0:3] = np.stack([tx, ty, tz], axis=1)
    out[:, 3:6] = block
    out[:, 6:9] = np.stack([x, y, z], axis=1)
    out[:, 9:12] = grid
    out[:, 12] = (tx + 7 * (ty + 3 * tz)) % 32
    out[:, 13] = 32
    out[:, 14] = 31
    out[:, 15] = 96
    out[:, 16] = 2
    out[:, 17] = tx
    return {0: out}


# -- special registers read as vectors, which no rewriter needs to support ---------------------

_VECTORS_BODY = """
    .reg .b32 %a, %b, %c, %d, %row; .reg .b64 %p;
    mov.v4.u32 {%a, %b, %c, %d}, %ctaid;
    mad.lo.u32 %row, %b, 4, %a;
    mov.v4.u32 {%a, %b, %c, %d}, %tid;
    mad.lo.u32 %row, %row, 8, %a;
    mad.wide.u32 %p, %row, 16, %out;
    mov.v4.u32 {%a, %b, %c, %d}, %ntid;
    st.global.v2.u32 [%p], {%a, %c};
    mov.v4.u32 {%a, %b, %c, %d}, %nctaid;
    st.global.v2.u32 [%p+8], {%a, %b};
    ret;
"""


@CASES.ptx(
    "special_vectors",
    "u64 out",
    _VECTORS_BODY,
    (4, 3),
    8,
    lambda rng: [np.zeros((96, 4), np.uint32)],
    "special-registers",
    forms="unmodified",
    expected_form="whole",
    dimensions=2,
)
def _vectors_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.tile(np.array([8, 1, 4, 3], np.uint32), (96, 1))}


_SPECIAL_BODY = _SPECIAL_BODY.replace("    .reg .b32 %v,", "    .reg .b16 %h; .reg .b32 %v,", 1)

CASES.ptx(
    "special_registers",
    "u64 out",
    _SPECIAL_BODY,
    (5, 3, 2),
    (7, 3, 2),
    _special_make,
    "special-registers clock globaltimer nanosleep grid.3d",
    shared=96,
    dimensions=3,
)(_special_expect)
