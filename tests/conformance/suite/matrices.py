"""8x8 matrices moved by a warp: ``ldmatrix``, ``stmatrix``, ``movmatrix``.

Source: PTX ISA 9.0, chapter 9.7, "Warp Level Matrix Instructions": matrix j has its rows where
lanes 8 j to 8 j + 7 say; a lane has two neighbouring elements of row lane / 4.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .case import Args, Array, Rng
from .cases import Cases

CASES = Cases()


_BODY = """
    .shared .align 16 .b8 tile[2048];
    .reg .b32 %lane, %base, %at, %half, %r<12>; .reg .b64 %p, %wide;
    and.b32 %lane, %thread, 31;
    and.b32 %base, %thread, 32;
    shl.b32 %base, %base, 5;
    mov.u32 %at, tile;
    add.s32 %base, %base, %at;
    mad.wide.u32 %p, %i, 16, %in;
    ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%p];
    shl.b32 %at, %lane, 4;
    add.s32 %at, %at, %base;
    st.shared.v4.b32 [%at], {%r0, %r1, %r2, %r3};
    bar.warp.sync 0xffffffff;
    // Rows are taken in another order than they lie in.
    xor.b32 %at, %lane, 5;
    shl.b32 %at, %at, 4;
    add.s32 %at, %at, %base;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%at];
    // Two matrices: only half of the lanes name rows.
    xor.b32 %half, %lane, 5;
    and.b32 %half, %half, 15;
    shl.b32 %half, %half, 4;
    add.s32 %half, %half, %base;
    cvt.u64.u32 %wide, %half;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r4, %r5}, [%wide+256];
    ldmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 {%r6}, [%wide];
    movmatrix.sync.aligned.m8n8.trans.b16 %r7, %r0;
    xor.b32 %half, %lane, 3;
    shl.b32 %half, %half, 4;
    add.s32 %half, %half, %base;
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%half+512], {%r0, %r1, %r2, %r3};
    bar.warp.sync 0xffffffff;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%half+512], {%r4};
    bar.warp.sync 0xffffffff;
    shl.b32 %at, %lane, 4;
    add.s32 %at, %at, %base;
    ld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%at+512];
    mad.wide.u32 %p, %i, 48, %out;
    st.global.v4.b32 [%p], {%r0, %r1, %r2, %r3};
    st.global.v4.b32 [%p+16], {%r4, %r5, %r6, %r7};
    st.global.v4.b32 [%p+32], {%r8, %r9, %r10, %r11};
    ret;
"""


def _make(rng: Rng) -> Args:
    rows = rng.integers(0, 2**16, (3, 2, 32, 8)).astype(np.uint16)
    return [rows, np.zeros((3, 2, 32, 12), np.uint32)]


def _held(matrix: Array) -> Array:
    """What each lane has of a matrix, as one word."""
    return np.ascontiguousarray(matrix).view(np.uint32).reshape(32)


# The same through generic addresses, which is all that inline assembly with a pointer has.
_GENERIC = _BODY.replace(".reg .b32 %lane", ".reg .b64 %g; .reg .b32 %lane")
_GENERIC = re.sub(
    r"(\w+matrix\.\S+?)\.shared(?:::cta)?(\.b16 .*?)\[%(\w+)",
    lambda m: (
        (f"cvt.u64.u32 %g, %{m[3]};" if m[3] != "wide" else "mov.u64 %g, %wide;")
        + f" cvta.shared.u64 %g, %g; {m[1]}{m[2]}[%g"
    ),
    _GENERIC,
)


@CASES.ptx(
    "matrix_moves_generic",
    "u64 in, u64 out",
    _GENERIC,
    3,
    64,
    _make,
    "ldmatrix.generic stmatrix.generic",
    arch="compute_90",
    long=True,
)
@CASES.ptx(
    "matrix_moves",
    "u64 in, u64 out",
    _BODY,
    3,
    64,
    _make,
    "ldmatrix stmatrix movmatrix",
    arch="compute_90",
    long=True,
)
def _expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros_like(args[1])
    lanes = np.arange(32)
    for rows, result in zip(args[0].reshape(-1, 32, 8), out.reshape(-1, 32, 12), strict=True):
        four = rows[lanes ^ 5].reshape(4, 8, 8)
        for j in range(4):
            result[:, j] = _held(four[j])
        # Below 16, exchanging rows by ^ 5 stays among the first or the second 16.
        result[:, 4], result[:, 5] = _held(four[2].T), _held(four[3].T)
        result[:, 6] = result[:, 7] = _held(four[0].T)
        stored = np.zeros((32, 8), np.uint16)
        stored[lanes ^ 3] = four.transpose(0, 2, 1).reshape(32, 8)
        stored[lanes[:8] ^ 3] = four[2].T
        result[:, 8:] = stored.view(np.uint32)
    return {1: out}
