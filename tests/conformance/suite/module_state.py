"""State beyond one thread: module variables between launches, the device heap, ``printf``.

Source: CUDA C++ Programming Guide 13.0, sections "Formatted Output", "Assertion" and "Dynamic
Global Memory Allocation and Operations".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- module variables that one launch leaves for the next --------------------------------------

GENERATIONS = r"""
__device__ unsigned generation = 100;
__device__ unsigned finished;
__device__ unsigned history[8];
static __device__ int hidden[64];
extern "C" __global__ void generations(int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    hidden[i] += i + (int)generation;
    out[i] = hidden[i];
    __syncthreads();
    if (threadIdx.x == 0 && atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1) {
        history[generation % 8] = generation;
        __threadfence();
        atomicAdd(&generation, 1u);
    }
}
"""


def _generations_make(rng: Rng) -> Args:
    return [np.zeros(64, np.int32)]


@CASES.cuda(
    "generations",
    GENERATIONS,
    16,
    4,
    _generations_make,
    "state-outlives-launch module-symbol nctaid atom.inc",
    launches=3,
)
def _generations_expect(args: Args) -> dict[int | str, Any]:
    # Every block reads "generation" before it counts itself, and the last to count raises it.
    i = np.arange(64, dtype=np.int32)
    history = np.zeros(8, np.uint32)
    for g in (100, 101, 102):
        history[g % 8] = g
    return {
        0: 3 * i + 100 + 101 + 102,
        "generation": np.array([103], np.uint32),
        "history": history,
        "finished": np.array([0], np.uint32),
    }


# -- an error flag that is only ever set -------------------------------------------------------

ERROR_FLAG = r"""
__device__ int error_code;
__device__ unsigned long long first_bad = ~0ull;
__constant__ int limit = 10;
extern "C" __global__ void error_flag(const int* in, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && in[i] > limit) {
        atomicMax(&error_code, in[i]);
        atomicMin(&first_bad, (unsigned long long)i);
    }
}
"""


def _flag_make(rng: Rng) -> Args:
    return [rng.integers(0, 60, 500).astype(np.int32), np.int32(500)]


@CASES.cuda(
    "error_flag",
    ERROR_FLAG,
    16,
    32,
    _flag_make,
    "state-outlives-launch module-symbol",
    symbols={"limit": np.array([50], np.int32)},
)
def _flag_expect(args: Args) -> dict[int | str, Any]:
    bad = np.flatnonzero(args[0] > 50)
    return {
        "error_code": np.array([args[0].max()], np.int32),
        "first_bad": np.array([bad[0]], np.uint64),
        "limit": np.array([50], np.int32),
    }


# -- malloc and free in device code ------------------------------------------------------------

HEAP = r"""
struct Node { Node* next; int value; };
extern "C" __global__ void device_heap(const int* in, long long* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Node* list = 0;
    for (int k = 0; k < in[i]; ++k) {
        Node* node = (Node*)malloc(sizeof(Node));
        if (!node) { out[i] = -1; return; }
        node->next = list;
        node->value = i * k;
        list = node;
    }
    char* more = new char[40];
    for (int k = 0; k < 40; ++k) more[k] = (char)(i + k);
    long long sum = 0;
    while (list) {
        Node* gone = list;
        sum = sum * 3 + list->value;
        list = list->next;
        free(gone);
    }
    for (int k = 0; k < 40; ++k) sum += more[k];
    delete[] more;
    free(0);
    out[i] = sum + (((unsigned long long)more & 15) ? 1000000 : 0);
}
"""


def _heap_make(rng: Rng) -> Args:
    n = 150
    return [rng.integers(0, 12, n).astype(np.int32), np.zeros(n, np.int64), np.int32(n)]


@CASES.cuda("device_heap", HEAP, 5, 32, _heap_make, "malloc generic", long=True)
def _heap_expect(args: Args) -> dict[int | str, Any]:
    out = []
    for i, length in enumerate(args[0].tolist()):
        total = 0
        for k in reversed(range(length)):
            total = total * 3 + i * k
        out.append(total + sum(((i + k + 128) & 255) - 128 for k in range(40)))
    return {1: np.array(out, np.int64)}


# -- printf with every conversion --------------------------------------------------------------

PRINT = r"""
extern "C" int printf(const char*, ...);
extern "C" __global__ void print_all(const char* word, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float f = i * 0.37f - 2;
    double d = 1e5 * i + 0.125;
    printf("%d|%5i|%-6d|%+d|%06d|% d\n", i, -i, i, i, -i, i);
    printf("%u %x %X %#x %o %#o %08X\n", i * 1000003u, i * 77777u, i * 77777u, i, i, i, ~i);
    printf("%f %.3f %10.2f %-9.1f| %+.0f %e %.2E %g %G\n", f, d, d, f, f, d, d, d, f);
    printf("%lld %llu %lx %hd %hhu %ld\n", (long long)i << 40, 1ull << (i + 40), 1ul << i,
           (short)(i * 5000), (unsigned char)(i * 100), (long)-i);
    printf("%c%c %s %8s|%-8s|%.3s %%\n", 'a' + i % 26, '!', word, "ab", "cd", word);
    printf("%*d|%-*d|%.*f|%5.3d\n", 4 + i % 3, i, 6, i, i % 4, d, i);
    if (i == 0) printf("no arguments\n");
    if (i == 1) printf("%d %d\n%d\n", 1, 2, 3);
}
"""
_WORD = b"gpud!"


def _print_make(rng: Rng) -> Args:
    return [np.frombuffer(_WORD + b"\0", np.int8).copy(), np.int32(21)]


def _print_output(args: Args) -> list[str]:
    lines = []
    word = _WORD.decode()
    for i in range(int(args[1])):
        f = float(np.float32(np.float64(np.float32(0.37)) * i - 2))
        d = 1e5 * i + 0.125
        u, x = i * 1000003, i * 77777
        lines.append(f"{i}|{-i:5}|{i:<6}|{i:+}|{-i:06}|{i: }")
        octal = f"0{i:o}" if i else "0"
        hexadecimal = f"{i:#x}" if i else "0"
        lines.append(f"{u} {x:x} {x:X} {hexadecimal} {i:o} {octal} {~i & 0xFFFFFFFF:08X}")
        lines.append(f"{f:f} {d:.3f} {d:10.2f} {f:<9.1f}| {f:+.0f} {d:e} {d:.2E} {d:g} {f:G}")
        short = (i * 5000 + 2**15) % 2**16 - 2**15
        lines.append(f"{i << 40} {1 << (i + 40)} {1 << i:x} {short} {i * 100 % 256} {-i}")
        lines.append(f"{chr(97 + i % 26)}! {word} {'ab':>8}|{'cd':<8}|{word[:3]} %")
        lines.append(f"{i:{4 + i % 3}}|{i:<6}|{d:.{i % 4}f}|{f'{i:03d}':>5}")
    return [*lines, "no arguments", "1 2", "3"]


@CASES.cuda("print_all", PRINT, 3, 8, _print_make, "printf", output=_print_output, long=True)
def _unchanged(args: Args) -> dict[int | str, Any]:
    return {}


# -- assertions that hold ----------------------------------------------------------------------

ASSERT = r"""
extern "C" __device__ __attribute__((noreturn)) void __assertfail(
    const char* message, const char* file, unsigned line, const char* function, unsigned long size);
#define CHECK(e) ((e) ? (void)0 : __assertfail(#e, __FILE__, __LINE__, __func__, 1))
extern "C" __global__ void assertions(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    CHECK(in[i] >= 0);
    if (in[i] < 0) __trap();
    out[i] = in[i] / 2;
    CHECK(2 * out[i] + (in[i] & 1) == in[i]);
}
"""


def _assert_make(rng: Rng) -> Args:
    return [rng.integers(0, 1000, 300).astype(np.int32), np.zeros(300, np.int32), np.int32(300)]


@CASES.cuda("assertions", ASSERT, 10, 32, _assert_make, "assert trap")
def _assert_expect(args: Args) -> dict[int | str, Any]:
    return {1: args[0] // 2}
