"""Warp collectives: shuffles, votes, matches, reductions, and warps that lack lanes.

Source: PTX ISA 9.0, sections 9.7.9.6 (``shfl.sync``), 9.7.13.9 to 9.7.13.14 (``vote.sync``,
``match.sync``, ``activemask``, ``redux.sync``, ``elect.sync``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Args, Array, Rng, Within
from .cases import Cases

CASES = Cases()


def _words(rng: Rng, shape: Any) -> Array:
    words: Array = rng.integers(0, 2**32, shape).astype(np.uint32)
    return words


# -- every mode of shfl.sync, with segments and clamps -----------------------------------------

# (mode, lane operand or None for the data's low bits, width)
_SHUFFLES: list[tuple[str, int | None, int]] = [
    ("up", 1, 32), ("up", 3, 8), ("up", 31, 32), ("down", 1, 32), ("down", 5, 16),
    ("bfly", 16, 32), ("bfly", 3, 4), ("idx", 7, 32), ("idx", 2, 8), ("idx", None, 32),
    ("idx", None, 4), ("bfly", None, 16), ("down", None, 32), ("up", None, 32),
]  # fmt: skip


def _shuffle_body() -> str:
    lines = [
        "    .reg .b32 %v, %lane, %got, %flag, %low; .reg .b64 %p, %q; .reg .pred %in_range;",
        "    mad.wide.u32 %p, %i, 4, %in; ld.global.u32 %v, [%p];",
        "    and.b32 %low, %v, 31;",
        f"    mad.wide.u32 %q, %i, {8 * len(_SHUFFLES)}, %out;",
    ]
    for k, (mode, lane, width) in enumerate(_SHUFFLES):
        operand = "%low" if lane is None else str(lane)
        clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
        lines += [
            f"    shfl.sync.{mode}.b32 %got|%in_range, %v, {operand}, {clamp:#x}, 0xffffffff;",
            "    selp.u32 %flag, 1, 0, %in_range;",
            f"    st.global.v2.u32 [%q+{8 * k}], {{%got, %flag}};",
        ]
    lines.append("    ret;")
    return "\n".join(lines)


def _source_lane(mode: str, lane: int, operand: int, width: int) -> tuple[int, bool]:
    """The lane read and whether it was in range (its segment has ``width`` lanes)."""
    first = lane & ~(width - 1)
    last = first + width - 1
    operand &= 31
    if mode == "up":
        source = lane - operand
        inside = source >= first
    elif mode == "down":
        source = lane + operand
        inside = source <= last
    elif mode == "bfly":
        source = lane ^ operand
        inside = source <= last
    else:
        source = first | operand & (width - 1)
        inside = source <= last
    return (source if inside else lane), inside


def _shuffle_make(rng: Rng) -> Args:
    values = _words(rng, (4, 96))
    return [values, np.zeros((4, 96, len(_SHUFFLES), 2), np.uint32)]


@CASES.ptx("shuffles", "u64 in, u64 out", _shuffle_body(), 4, 96, _shuffle_make, "shfl.sync")
def _shuffle_expect(args: Args) -> dict[int | str, Any]:
    values, out = args[0].reshape(-1, 32), np.zeros((12, 32, len(_SHUFFLES), 2), np.uint32)
    for warp in range(12):
        for lane in range(32):
            for k, (mode, fixed, width) in enumerate(_SHUFFLES):
                operand = int(values[warp, lane] & 31) if fixed is None else fixed
                source, inside = _source_lane(mode, lane, operand, width)
                out[warp, lane, k] = values[warp, source], inside
    return {1: out.reshape(args[1].shape)}


# -- votes, ballots, matches under divergence --------------------------------------------------

VOTES = r"""
extern "C" __global__ void votes(const unsigned* in, unsigned* out, unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], lane = threadIdx.x & 31;
    unsigned* mine = out + 8 * i;
    mine[0] = __ballot_sync(0xffffffffu, v & 1);
    mine[1] = __any_sync(0xffffffffu, v % 32 == 0) + 2 * __all_sync(0xffffffffu, v % 64 < 62);
    unsigned uniform, low = v % 3;
    asm("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.uni.pred q, p, 0xffffffff;"
        " selp.u32 %0, 1, 0, q; }" : "=r"(uniform) : "r"(in[i & ~31u] % 5 ? 7 : low));
    mine[2] = uniform;
    mine[3] = __ballot_sync(0xffffffffu, lane % 3 ? v & 4 : v & 2);
    mine[4] = __match_any_sync(0xffffffffu, v % 6);
    int same;
    mine[5] = __match_all_sync(0xffffffffu, in[i & ~31u] % 2 ? 5 : (int)(v % 2), &same) ^ same;
    mine[6] = __match_any_sync(0xffffffffu, (unsigned long long)(v % 4) << 40);
    // A group that elects its lowest lane to speak for it.
    unsigned group = __match_any_sync(0xffffffffu, v % 5), leader = __ffs(group) - 1;
    mine[7] = __shfl_sync(group, v, leader);
}
"""


def _votes_make(rng: Rng) -> Args:
    values = _words(rng, (5, 64))
    return [values, np.zeros((5, 64, 8), np.uint32)]


def _ballot(bits: Array) -> int:
    return sum(1 << int(k) for k in np.flatnonzero(bits))


@CASES.cuda(
    "votes", VOTES, 5, 64, _votes_make, "vote.sync match.sync shfl.sync mask.match mask.ballot"
)
def _votes_expect(args: Args) -> dict[int | str, Any]:
    warps = args[0].reshape(-1, 32)
    out = np.zeros((warps.shape[0], 32, 8), np.uint32)
    lane = np.arange(32)
    third = lane % 3 == 0
    for v, rows in zip(warps, out, strict=True):
        rows[:, 0] = _ballot((v & 1) != 0)
        rows[:, 1] = (v % 32 == 0).any() + 2 * (v % 64 < 62).all()
        nonzero = np.ones(32, bool) if v[0] % 5 else v % 3 != 0
        rows[:, 2] = nonzero.all() or not nonzero.any()
        rows[:, 3] = _ballot(np.where(third, v & 2, v & 4) != 0)
        rows[:, 4] = [_ballot(v % 6 == x) for x in v % 6]
        word = np.full(32, 5) if v[0] % 2 else v % 2
        rows[:, 5] = 0xFFFFFFFE if (word == word[0]).all() else 0
        rows[:, 6] = [_ballot(v % 4 == x) for x in v % 4]
        rows[:, 7] = [v[np.flatnonzero(v % 5 == x)[0]] for x in v % 5]
    return {1: out.reshape(args[1].shape)}


# -- integer reductions across a warp (sm_80) --------------------------------------------------

_REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "add.s32": lambda v: v.sum(dtype=np.uint32),
    "add.u32": lambda v: v.sum(dtype=np.uint32),
    "min.s32": lambda v: v.view(np.int32).min().view(np.uint32),
    "max.s32": lambda v: v.view(np.int32).max().view(np.uint32),
    "min.u32": lambda v: v.min(),
    "max.u32": lambda v: v.max(),
    "and.b32": np.bitwise_and.reduce,
    "or.b32": np.bitwise_or.reduce,
    "xor.b32": np.bitwise_xor.reduce,
}


def _redux_body(parted: bool) -> str:
    lines = [
        "    .reg .b32 %v, %d, %mask, %lane; .reg .b64 %p, %q; .reg .pred %odd;",
        "    mad.wide.u32 %p, %i, 4, %in; ld.global.u32 %v, [%p];",
        f"    mad.wide.u32 %q, %i, {8 * len(_REDUCTIONS)}, %out;",
        "    mov.u32 %lane, %laneid; and.b32 %mask, %lane, 1; setp.ne.u32 %odd, %mask, 0;",
        "    selp.b32 %mask, 0xAAAAAAAA, 0x55555555, %odd;",
    ]
    for k, t in enumerate(_REDUCTIONS):
        lines += [
            f"    redux.sync.{t} %d, %v, 0xffffffff; st.global.u32 [%q+{8 * k}], %d;",
        ]
        if parted:
            lines += [
                f"    @%odd redux.sync.{t} %d, %v, %mask;",
                f"    @!%odd redux.sync.{t} %d, %v, %mask; st.global.u32 [%q+{8 * k + 4}], %d;",
            ]
    lines.append("    ret;")
    return "\n".join(lines)


def _redux_make(rng: Rng) -> Args:
    return [_words(rng, (3, 64)), np.zeros((3, 64, len(_REDUCTIONS), 2), np.uint32)]


def _redux_expect(args: Args, parted: bool = False) -> dict[int | str, Any]:
    warps = args[0].reshape(-1, 32)
    out = np.zeros((6, 32, len(_REDUCTIONS), 2), np.uint32)
    for v, rows in zip(warps, out, strict=True):
        for k, fold in enumerate(_REDUCTIONS.values()):
            rows[:, k, 0] = fold(v)
            for parity in (0, 1) if parted else ():
                rows[parity::2, k, 1] = fold(np.ascontiguousarray(v[parity::2]))
    return {1: out.reshape(args[1].shape)}


# -- election (sm_90) --------------------------------------------------------------------------

_ELECT_BODY = """
    .reg .b32 %leader, %mask, %lane, %flag; .reg .b64 %q; .reg .pred %me, %low;
    mov.u32 %lane, %laneid;
    elect.sync %leader|%me, 0xffffffff;
    // Which lane is elected is the device's choice; all must be told the same one.
    selp.u32 %flag, 1, 0, %me;
    redux.sync.add.u32 %flag, %flag, 0xffffffff;
    setp.eq.u32 %low, %leader, %lane;
    @%low add.u32 %flag, %flag, 10;
    @%me add.u32 %flag, %flag, 10;
    @%me mov.b32 %flag, 1;
    mad.wide.u32 %q, %i, 4, %out;
    st.global.u32 [%q], %flag;
    ret;
"""


@CASES.ptx(
    "election",
    "u64 out",
    _ELECT_BODY,
    4,
    32,
    lambda rng: [np.zeros(128, np.uint32)],
    "elect.sync",
    arch="compute_90",
)
def _elect_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.ones_like(args[0])}


# -- 64-bit and floating shuffles, Welford's variance ------------------------------------------

WELFORD = r"""
extern "C" __global__ void welford(const double* in, double* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    double mean = 0, m2 = 0;
    int count = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        double d = in[blockIdx.x * n + i] - mean;
        mean += d / ++count;
        m2 += d * (in[blockIdx.x * n + i] - mean);
    }
    for (int step = 16; step; step >>= 1) {
        double other = __shfl_xor_sync(0xffffffffu, mean, step);
        double other_m2 = __shfl_xor_sync(0xffffffffu, m2, step);
        int other_count = __shfl_xor_sync(0xffffffffu, count, step);
        int total = count + other_count;
        double d = other - mean;
        mean = (mean * count + other * other_count) / total;
        m2 += other_m2 + d * d * count * other_count / total;
        count = total;
    }
    if (threadIdx.x == 0) out[2 * blockIdx.x] = mean, out[2 * blockIdx.x + 1] = m2 / count;
}
"""


def _welford_make(rng: Rng) -> Args:
    return [rng.normal(5, 2, (14, 101)), np.zeros((14, 2)), np.int32(101)]


@CASES.cuda("welford", WELFORD, 14, 32, _welford_make, "shfl.sync float.f64", long=True)
def _welford_expect(args: Args) -> dict[int | str, Any]:
    x = args[0]
    return {1: Within(np.stack([x.mean(axis=1), x.var(axis=1)], axis=1), rtol=1e-12)}


CASES.ptx(
    "warp_reductions",
    "u64 in, u64 out",
    _redux_body(False),
    3,
    64,
    _redux_make,
    "redux.sync",
    arch="compute_90",
)(_redux_expect)
CASES.ptx(
    "reductions_parted",
    "u64 in, u64 out",
    _redux_body(True),
    3,
    64,
    _redux_make,
    "redux.sync",
    arch="compute_90",
    forms="unmodified sliced",
    expected_form="sliced",
    long=True,
)(lambda args: _redux_expect(args, parted=True))
