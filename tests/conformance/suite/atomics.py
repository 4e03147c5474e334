"""Atomic operations and reductions of every type, scope and state space.

Source: PTX ISA 9.0, sections 9.7.13.6 (``atom``) and 9.7.13.7 (``red``). Results that depend on the
order of the operations are either made order-free (integer-valued sums, tickets sorted afterwards)
or checked by property.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Array, Rng, Satisfies, Within
from .cases import Cases

CASES = Cases()


# -- every operation on shared memory and on global memory -------------------------------------

# (suffix, initial value, NumPy dtype, fold over the inputs); inputs are in the dtype's range.
_OPERATIONS: list[tuple[str, int, str, Any]] = [
    ("add.u32", 7, "u4", lambda v: np.add.reduce(v) + np.uint32(7)),
    ("add.s32", 7, "u4", lambda v: np.add.reduce(v) + np.uint32(7)),
    ("min.s32", 2**31 - 1, "u4", lambda v: np.min(v.view(np.int32)).view(np.uint32)),
    ("max.s32", 2**31, "u4", lambda v: np.max(v.view(np.int32)).view(np.uint32)),
    ("min.u32", 2**32 - 1, "u4", lambda v: v.min()),
    ("max.u32", 0, "u4", lambda v: v.max()),
    ("and.b32", 2**32 - 1, "u4", np.bitwise_and.reduce),
    ("or.b32", 0, "u4", np.bitwise_or.reduce),
    ("xor.b32", 5, "u4", lambda v: np.bitwise_xor.reduce(v) ^ np.uint32(5)),
]
_WIDE: list[tuple[str, int, str, Any]] = [
    ("add.u64", 9, "u8", lambda v: np.add.reduce(v) + np.uint64(9)),
    ("min.s64", 2**63 - 1, "u8", lambda v: np.min(v.view(np.int64)).view(np.uint64)),
    ("max.s64", 2**63, "u8", lambda v: np.max(v.view(np.int64)).view(np.uint64)),
    ("min.u64", 2**64 - 1, "u8", lambda v: v.min()),
    ("max.u64", 0, "u8", lambda v: v.max()),
    ("and.b64", 2**64 - 1, "u8", np.bitwise_and.reduce),
    ("or.b64", 0, "u8", np.bitwise_or.reduce),
    ("xor.b64", 0, "u8", np.bitwise_xor.reduce),
]
_SCOPES = ["", ".relaxed.gpu", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu", ".relaxed.cta",
           ".acq_rel.sys", ".relaxed.sys", ".release.cta"]  # fmt: skip


def _every_operation(table: list[tuple[str, int, str, Any]], bits: int) -> str:
    """Each thread applies each operation to one shared, one global and one reduced word."""
    size = bits // 8
    n = len(table)
    lines = [
        f"    .shared .align 8 .b{bits} %words[{n}];",
        f"    .reg .b{bits} %v, %old, %any; .reg .b64 %from, %s, %g; .reg .pred %lead;",
        f"    mad.wide.u32 %from, %i, {size}, %in;",
        f"    ld.global.b{bits} %v, [%from];",
        f"    mov.b{bits} %any, 0;",
        "    setp.eq.u32 %lead, %thread, 0;",
    ]
    for k, (_, initial, _, _) in enumerate(table):
        lines.append(f"    @%lead st.shared.b{bits} [%words+{size * k}], {initial};")
    lines.append("    bar.sync 0;")
    for k, (text, *_) in enumerate(table):
        scope = _SCOPES[k % len(_SCOPES)]
        operand = "%v"
        weaker = scope.replace("acquire", "relaxed").replace("acq_rel", "release")
        lines += [
            f"    atom{scope}.shared.{text} %old, [%words+{size * k}], {operand};",
            f"    xor.b{bits} %any, %any, %old;",
            f"    atom{scope}.global.{text} %old, [%totals+{size * k}], {operand};",
            f"    red{weaker}.global.{text} [%totals+{size * (n + k)}], {operand};",
            f"    red.shared.{text} [%words+{size * k}], {operand};"
            if text.startswith(("min", "max", "and", "or"))
            else "",
        ]
    lines.append("    bar.sync 0;")
    lines.append(f"    mad.wide.u32 %g, %block, {size * n}, %blocks;")
    for k in range(n):
        lines += [
            f"    @%lead ld.shared.b{bits} %old, [%words+{size * k}];",
            f"    @%lead st.global.b{bits} [%g+{size * k}], %old;",
        ]
    lines.append("    ret;")
    return "\n".join(lines)


def _every_make(table: list[tuple[str, int, str, Any]], blocks: int, threads: int) -> Any:
    def make(rng: Rng) -> Args:
        dtype = table[0][2]
        values = rng.integers(0, 2**63, blocks * threads).astype(np.uint64)
        values = values * np.uint64(2) + np.uint64(1)
        values |= np.uint64(0x10F0_0000_10F0)
        initial = np.array([row[1] for row in table] * 2, dtype)
        return [values.astype(dtype), initial, np.zeros((blocks, len(table)), dtype)]

    return make


def _every_expect(table: list[tuple[str, int, str, Any]]) -> Any:
    def expect(args: Args) -> dict[int | str, Any]:
        values, _, blocks = args
        rows = values.reshape(blocks.shape[0], -1)
        whole = np.array([fold(values) for *_, fold in table], values.dtype)
        each = np.array([[fold(row) for *_, fold in table] for row in rows], values.dtype)
        return {1: np.concatenate([whole, whole]), 2: each}

    return expect


# -- increments that wrap, exchanges, compare and swap -----------------------------------------

WRAPPING = r"""
extern "C" __global__ void atomic_wrapping(unsigned* counters, unsigned* tickets, unsigned n,
                                           unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    tickets[i] = atomicInc(&counters[0], 6);
    tickets[n + i] = atomicDec(&counters[1], 9);
    atomicInc(&counters[2], 0xffffffffu);
    atomicDec(&counters[3], 4);
    atomicSub(&counters[4], 3);
    atomicInc_system(&counters[5], 1000000);
    atomicDec_block(&counters[6 + blockIdx.x], 1000);
}
"""


def _wrapping_make(rng: Rng) -> Args:
    n = 7 * 10 * 5
    counters = np.array([0, 9, 5, 100, 2, 0] + [10**6] * 12, np.uint32)
    return [counters, np.zeros(2 * n, np.uint32), np.uint32(n)]


@CASES.cuda(
    "atomic_wrapping", WRAPPING, 12, 32, _wrapping_make, "atom.inc atom.dec", deterministic=False
)
def _wrapping_expect(args: Args) -> dict[int | str, Any]:
    n = int(args[2])

    def fair(actual: Array) -> bool:
        up, down = np.bincount(actual[:n], minlength=7), np.bincount(actual[n:], minlength=10)
        return bool(up.tolist() == [n // 7] * 7 and down.tolist() == [n // 10] * 10)

    def decrement(value: int, limit: int, times: int) -> int:
        for _ in range(times):
            value = limit if value == 0 or value > limit else value - 1
        return value

    after = [0, 9, 5 + n, decrement(100, 4, n), (2 - 3 * n) % 2**32, n]
    after += [decrement(10**6, 1000, min(32, max(0, n - 32 * b))) for b in range(12)]
    return {
        0: np.array(after, np.uint32),
        1: Satisfies(fair, "each ticket of 0..6 and of 0..9 equally often"),
    }


EXCHANGE = r"""
extern "C" __global__ void atomic_exchange(int* chain, unsigned long long* wide, int* out,
                                           unsigned short* narrow, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = atomicExch(chain, i + 1);
    unsigned long long seen = *wide, want;
    do {
        want = seen;
        seen = atomicCAS(wide, want, want * 3 % 1000003);
    } while (seen != want);
    atomicCAS(&narrow[i & 1], (unsigned short)0, (unsigned short)(7 + (i & 1)));
    float* sum = (float*)(chain + 1);
    atomicExch(sum, 2.5f);
}
"""


def _exchange_make(rng: Rng) -> Args:
    n = 230
    return [
        np.zeros(2, np.int32),
        np.array([7], np.uint64),
        np.zeros(n, np.int32),
        np.zeros(2, np.uint16),
        np.int32(n),
    ]


@CASES.cuda(
    "atomic_exchange",
    EXCHANGE,
    3,
    96,
    _exchange_make,
    "atom.exch atom.cas atom.cas.b16 atom.cas.b64",
    deterministic=False,
)
def _exchange_expect(args: Args) -> dict[int | str, Any]:
    n = int(args[4])

    def one_chain(actual: Array) -> bool:
        # Every value but the last one written is handed on exactly once.
        return bool(np.unique(actual).size == n and actual.min() == 0 and actual.max() <= n)

    def ends(actual: Array) -> bool:
        return bool(1 <= actual[0] <= n and actual[1] == np.float32(2.5).view(np.int32))

    wide = 7 * pow(3, n, 1_000_003) % 1_000_003
    return {
        0: Satisfies(ends, "a thread's number and 2.5"),
        1: np.array([wide], np.uint64),
        2: Satisfies(one_chain, "a chain in which each value was handed on once"),
        3: np.array([7, 8], np.uint16),
    }


# -- floating point ----------------------------------------------------------------------------

FLOATS = r"""
extern "C" __global__ void atomic_floats(const float* in, float* totals, double* wide, int n,
                                         unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float sum;
    __shared__ double wide_sum;
    if (threadIdx.x == 0) sum = 0, wide_sum = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&sum, in[i]);
        atomicAdd(&wide_sum, (double)in[i] / 3);
        atomicAdd(&totals[1], in[i] * 0.25f);
        atomicAdd_system(&wide[1], (double)in[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&totals[0], sum);
        atomicAdd(&wide[0], wide_sum);
    }
}
"""


def _floats_make(rng: Rng) -> Args:
    n = 1_111
    values = rng.integers(-50, 50, n).astype(np.float32)
    return [values, np.zeros(2, np.float32), np.zeros(2), np.int32(n)]


@CASES.cuda(
    "atomic_floats",
    FLOATS,
    12,
    96,
    _floats_make,
    "atom.add.f32 atom.add.f64 bar.sync",
    deterministic=False,
)
def _floats_expect(args: Args) -> dict[int | str, Any]:
    total = float(args[0].sum(dtype=np.float64))
    exact = np.array([total, total / 4], np.float32)
    return {1: exact, 2: Within(np.array([total / 3, total]), rtol=1e-11, atol=1e-9)}


_HALVES_BODY = """
    .reg .b32 %v, %old; .reg .b16 %h; .reg .b64 %p;
    and.b32 %v, %i, 3;
    cvt.rn.f16.u32 %h, %v;
    mov.b32 %v, {%h, %h};
    atom.global.add.noftz.f16x2 %old, [%sums], %v;
    red.global.add.noftz.f16x2 [%sums+4], %v;
    atom.global.add.noftz.f16 %h, [%sums+8], %h;
    cvt.rn.bf16.f32 %h, 0f40000000;
    mov.b32 %v, {%h, %h};
    atom.global.add.noftz.bf16x2 %old, [%sums+12], %v;
    atom.global.add.noftz.bf16 %h, [%sums+16], %h;
    ret;
"""


@CASES.ptx(
    "atomic_halves",
    "u64 sums",
    _HALVES_BODY,
    3,
    32,
    lambda rng: [np.zeros(10, np.uint16)],
    "atom.add.f16 atom.add.bf16",
    arch="compute_90",
)
def _halves_expect(args: Args) -> dict[int | str, Any]:
    total = np.float16(sum(i & 3 for i in range(96))).view(np.uint16)  # 144
    brain = np.float32(2 * 96).view(np.uint32) >> np.uint32(16)
    words = [total] * 5 + [0] + [brain] * 3 + [0]
    return {0: np.array(words, np.uint16)}


CASES.ptx(
    "atomic_every_32",
    "u64 in, u64 totals, u64 blocks",
    _every_operation(_OPERATIONS, 32),
    5,
    96,
    _every_make(_OPERATIONS, 5, 96),
    "atom.shared atom.global red atom.scope bar.sync",
)(_every_expect(_OPERATIONS))
CASES.ptx(
    "atomic_every_64",
    "u64 in, u64 totals, u64 blocks",
    _every_operation(_WIDE, 64),
    5,
    120,
    _every_make(_WIDE, 5, 120),
    "atom.shared atom.global red atom.scope atom.u64",
)(_every_expect(_WIDE))
