"""Kernel parameters: scalars of every kind, structs by value, null pointers, pointers in structs.

Source: CUDA C++ Programming Guide 13.0, section "Global functions" (up to 32,764 bytes of
parameters from sm_70 on); PTX ISA 9.0, section 5.1.6.1 (kernel parameters).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .case import AddressOf, Args, Hidden, Rng, Struct
from .cases import Cases

CASES = Cases()


# -- scalars of every kind ---------------------------------------------------------------------

SCALARS = r"""
extern "C" __global__ void scalar_parameters(bool flag, char c, unsigned char uc, short s,
                                             unsigned short us, int i, unsigned u, long long l,
                                             unsigned long long ul, float f, double d,
                                             double* out, unsigned* runs) {
    GPUD_COUNT(runs);
    double* mine = out + 11 * (blockIdx.x * blockDim.x + threadIdx.x);
    mine[0] = flag;
    mine[1] = c;
    mine[2] = uc;
    mine[3] = s;
    mine[4] = us;
    mine[5] = i;
    mine[6] = u;
    mine[7] = (double)(l >> 20);
    mine[8] = (double)(ul >> 20);
    mine[9] = f;
    mine[10] = d;
}
"""


def _scalars_make(rng: Rng) -> Args:
    return [
        np.bool_(True),
        np.int8(-100),
        np.uint8(200),
        np.int16(-30_000),
        np.uint16(60_000),
        np.int32(-2_000_000_000),
        np.uint32(4_000_000_000),
        np.int64(-(2**62) - 12345),
        np.uint64(2**63 + 2**40),
        np.float32(1.25),
        np.float64(-1e300),
        np.zeros((4, 11)),
    ]


@CASES.cuda(
    "scalar_parameters", SCALARS, 2, 2, _scalars_make, "parameter.bool parameter.narrow block.2"
)
def _scalars_expect(args: Args) -> dict[int | str, Any]:
    row = [float(a) for a in args[:7]]
    row += [float(int(args[7]) >> 20), float(int(args[8]) >> 20), 1.25, -1e300]
    return {11: np.tile(np.array(row), (4, 1))}


# -- structs of 4, 8 and 56 bytes --------------------------------------------------------------

STRUCTS = r"""
struct Four { short x; signed char y; unsigned char z; };
struct Eight { float x; int y; };
struct Mixed { char tag; double scale; int offset[3]; unsigned short mask; long long big[3]; };
extern "C" __global__ void struct_parameters(Four a, Eight b, Mixed c, double* out,
                                             unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a.x + a.y * a.z + b.x * b.y + c.scale * c.offset[i % 3] + c.tag + c.mask
             + (double)c.big[i % 3];
}
"""

_MIXED = "<b7xd3iH2xqqq"  # 56 bytes, padded as C++ pads it


def _structs_make(rng: Rng) -> Args:
    offsets = rng.integers(-100, 100, 3).tolist()
    mixed = struct.pack(_MIXED, -7, 0.5, *offsets, 40_000, -(2**40), 2**41, 12)
    four = np.void(struct.pack("<hbB", -300, -5, 250))
    return [four, struct.pack("<fi", 1.5, 1001), mixed, np.zeros(96)]


@CASES.cuda("struct_parameters", STRUCTS, 3, 32, _structs_make, "parameter.struct")
def _structs_expect(args: Args) -> dict[int | str, Any]:
    tag, scale, o0, o1, o2, mask, *big = struct.unpack(_MIXED, args[2])
    i = np.arange(96)
    offset = np.array([o0, o1, o2])[i % 3]
    total = -300.0 - 5 * 250 + 1.5 * 1001 + scale * offset + tag + mask + np.array(big)[i % 3]
    return {3: total}


# -- large structs, indexed at run time --------------------------------------------------------

LARGE = r"""
struct Table {{ int value[{count}]; }};
extern "C" __global__ void {name}(const __grid_constant__ Table table, const int* index, int* out,
                                  int n, unsigned* runs) {{
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table.value[index[i]] - table.value[{count} - 1];
}}
"""


def _large(count: int) -> tuple[Any, Any]:
    def make(rng: Rng) -> Args:
        table = rng.integers(-(2**30), 2**30, count).astype(np.int32)
        n = 500
        index = rng.integers(0, count, n).astype(np.int32)
        return [table.tobytes(), index, np.zeros(n, np.int32), np.int32(n)]

    def expect(args: Args) -> dict[int | str, Any]:
        table = np.frombuffer(args[0], np.int32)
        return {2: table[args[1]] - table[-1]}

    return make, expect


# -- a struct that the kernel changes: its own copy --------------------------------------------

LOCAL_COPY = r"""
struct State { unsigned word[14]; };
extern "C" __global__ void struct_local_copy(State state, unsigned* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < 14; ++k) state.word[(i + 5 * k) % 14] += i * k;
    unsigned h = 0;
    for (int k = 0; k < 14; ++k) h = h * 31 + state.word[k];
    out[i] = h;
}
"""


def _copy_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, 14).astype(np.uint32).tobytes(), np.zeros(120, np.uint32)]


@CASES.cuda(
    "struct_local_copy", LOCAL_COPY, 1, 120, _copy_make, "parameter.struct local-array", long=True
)
def _copy_expect(args: Args) -> dict[int | str, Any]:
    out = []
    for i in range(120):
        words = np.frombuffer(args[0], np.uint32).tolist()
        for k in range(14):
            words[(i + 5 * k) % 14] += i * k
        h = 0
        for word in words:
            h = h * 31 + word & 0xFFFFFFFF
        out.append(h)
    return {1: np.array(out, np.uint32)}


# -- null pointers, and device pointers inside a struct and a buffer ---------------------------

POINTERS = r"""
struct View { const int* data; int length; float scale; float* result; };
extern "C" __global__ void pointer_parameters(View view, const float* bias, const int* const* lists,
                                              int* sums, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < view.length)
        view.result[i] = view.data[i] * view.scale + (bias ? bias[i] : 0.25f);
    if (i < 4) {
        int sum = 0;
        if (lists[i])
            for (int k = 0; k < 10; ++k) sum += lists[i][k];
        else sum = -1;
        sums[i] = sum;
    }
}
"""


def _pointers_make(rng: Rng) -> Args:
    n = 150
    data = rng.integers(-1000, 1000, n).astype(np.int32)
    view = Struct(struct.pack("<qifq", 0, n, 2.0, 0), {0: AddressOf(4), 16: AddressOf(5)})
    table = Hidden(np.zeros(4, np.uint64), {0: AddressOf(4), 8: AddressOf(4, 40), 24: AddressOf(6)})
    more = Hidden(rng.integers(-9, 9, 10).astype(np.int32))
    return [view, None, AddressOf(7), np.zeros(4, np.int32), Hidden(data),
            Hidden(np.zeros(n, np.float32)), more, table]  # fmt: skip


@CASES.cuda(
    "pointer_parameters",
    POINTERS,
    5,
    32,
    _pointers_make,
    "parameter.null parameter.pointer-in-struct",
)
def _pointers_expect(args: Args) -> dict[int | str, Any]:
    data, more = args[4].array, args[6].array
    result = data.astype(np.float32) * np.float32(2) + np.float32(0.25)
    sums = [data[:10].sum(), data[10:20].sum(), -1, more.sum()]
    return {3: np.array(sums, np.int32), 5: result}


# -- no parameters at all ----------------------------------------------------------------------

NO_PARAMETERS = r"""
__device__ unsigned gpud_runs[23];
__device__ int squares[23 * 56];
__device__ int factor = 3;
extern "C" __global__ void no_parameters() {
    GPUD_COUNT(gpud_runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    squares[i] = factor * i * i;
}
"""


def _nothing(rng: Rng) -> Args:
    return []


@CASES.cuda(
    "no_parameters",
    NO_PARAMETERS,
    23,
    56,
    _nothing,
    "parameter.none module-symbol",
    counts="symbol",
    symbols={"factor": np.array([5], np.int32)},
)
def _no_parameters_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(23 * 56, dtype=np.int32)
    return {"squares": 5 * i * i}


_MAKE_4096, _EXPECT_4096 = _large(1024)
_MAKE_32000, _EXPECT_32000 = _large(8000)

CASES.cuda(
    "struct_4096",
    LARGE.format(count=1024, name="struct_4096"),
    6,
    96,
    _MAKE_4096,
    "parameter.struct",
)(_EXPECT_4096)
CASES.cuda(
    "struct_32000",
    LARGE.format(count=8000, name="struct_32000"),
    6,
    96,
    _MAKE_32000,
    "parameter.struct parameter.large",
    arch="compute_90",
)(_EXPECT_32000)
