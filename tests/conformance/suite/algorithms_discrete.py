"""Hashes, automata, dynamic programming and number theory: integer work with exact answers.

The references are Python's own (``zlib``, ``hashlib``) where it has them.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- CRC-32 of each thread's record, with a table that the block builds ------------------------

CRC32 = r"""
extern "C" __global__ void crc32(const unsigned char* records, int length, unsigned* out, int n,
                                 unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned table[256];
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) {
        unsigned c = i;
        for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
        table[i] = c;
    }
    __syncthreads();
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < n) {
        unsigned c = ~0u;
        for (int i = 0; i < length; ++i) c = table[(c ^ records[r * length + i]) & 255] ^ c >> 8;
        out[r] = ~c;
    }
}
"""


def _crc_make(rng: Rng) -> Args:
    n, length = 500, 37
    records = rng.integers(0, 256, (n, length)).astype(np.uint8)
    return [records, np.int32(length), np.zeros(n, np.uint32), np.int32(n)]


@CASES.cuda("crc32", CRC32, 6, 96, _crc_make, "bar.sync", long=True)
def _crc_expect(args: Args) -> dict[int | str, Any]:
    return {2: np.array([zlib.crc32(row.tobytes()) for row in args[0]], np.uint32)}


# -- SHA-256 of one message block a thread -----------------------------------------------------

_PRIMES = [p for p in range(2, 312) if all(p % q for q in range(2, math.isqrt(p) + 1))]
_ROOT_FRACTIONS = [
    # The first 32 fractional bits of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
    next(k for k in range(int(p ** (1 / 3) * 2**32) + 3, 0, -1) if k**3 <= p << 96) & 0xFFFFFFFF
    for p in _PRIMES
]
SHA256 = (
    "__constant__ unsigned K[64] = {"
    + ", ".join(f"{k:#010x}" for k in _ROOT_FRACTIONS)
    + r"""};
__device__ unsigned rotate(unsigned x, int n) { return __funnelshift_r(x, x, n); }
extern "C" __global__ void sha256(const unsigned* blocks, unsigned* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    unsigned w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (int i = 0; i < 16; ++i) w[i] = __byte_perm(blocks[t * 16 + i], 0, 0x0123);
    #pragma unroll 8
    for (int i = 16; i < 64; ++i) {
        unsigned a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7]
               + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    unsigned v[8];
    for (int i = 0; i < 8; ++i) v[i] = h[i];
    // Whole, they take longer to compile than all of the other algorithms.
    #pragma unroll 8
    for (int i = 0; i < 64; ++i) {
        unsigned e = v[4], a = v[0];
        unsigned t1 = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25))
                      + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        unsigned t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22))
                      + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        for (int j = 7; j; --j) v[j] = v[j - 1];
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) out[t * 8 + i] = __byte_perm(h[i] + v[i], 0, 0x0123);
}
"""
)


def _sha_make(rng: Rng) -> Args:
    n = 130
    message = np.zeros((n, 64), np.uint8)
    message[:, :55] = rng.integers(0, 256, (n, 55))
    message[:, 55] = 0x80
    message[:, 62:] = (0x01, 0xB8)  # 440 bits
    return [message, np.zeros((n, 32), np.uint8), np.int32(n)]


@CASES.cuda(
    "sha256",
    SHA256,
    3,
    56,
    _sha_make,
    "shf prmt constant-bank local-array block.partial-warp",
    long=True,
)
def _sha_expect(args: Args) -> dict[int | str, Any]:
    digests = [hashlib.sha256(row[:55].tobytes()).digest() for row in args[0]]
    return {1: np.frombuffer(b"".join(digests), np.uint8).reshape(args[1].shape).copy()}


# -- Conway's game of life, four generations of one torus a block ------------------------------

LIFE = r"""
extern "C" __global__ void life(unsigned char* boards, int generations, unsigned* runs) {
    GPUD_COUNT_2D(runs);
    __shared__ unsigned char cell[2][24][32];
    unsigned char* mine = boards + (blockIdx.y * gridDim.x + blockIdx.x) * 24 * 32;
    int x = threadIdx.x, y = threadIdx.y, now = 0;
    cell[0][y][x] = mine[y * 32 + x];
    for (int g = 0; g < generations; ++g, now ^= 1) {
        __syncthreads();
        int around = 0;
        for (int dy = 23; dy <= 25; ++dy)
            for (int dx = 31; dx <= 33; ++dx) around += cell[now][(y + dy) % 24][(x + dx) % 32];
        around -= cell[now][y][x];
        cell[now ^ 1][y][x] = around == 3 || (around == 2 && cell[now][y][x]);
    }
    mine[y * 32 + x] = cell[now][y][x];
}
"""


def _life_make(rng: Rng) -> Args:
    return [rng.integers(0, 2, (2, 4, 24, 32)).astype(np.uint8), np.int32(4)]


@CASES.cuda("life", LIFE, (4, 2), (32, 24), _life_make, "bar.sync block.768 grid.2d")
def _life_expect(args: Args) -> dict[int | str, Any]:
    board = args[0]
    for _ in range(int(args[1])):
        shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]
        around = sum(np.roll(board, shift, axis=(2, 3)) for shift in shifts)
        board = ((around == 3) | ((around == 2) & (board == 1))).astype(np.uint8)
    return {0: board}


# -- edit distance by anti-diagonals -----------------------------------------------------------

EDIT_DISTANCE = r"""
extern "C" __global__ void edit_distance(const char* a, const char* b, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int line[3][121];
    const char* s = a + blockIdx.x * 120;
    const char* t = b + blockIdx.x * 120;
    int i = threadIdx.x;
    for (int d = 0; d <= 240; ++d) {
        int* now = line[d % 3];
        int* one = line[(d + 2) % 3];
        int* two = line[(d + 1) % 3];
        for (int row = i; row <= 120; row += blockDim.x) {
            int column = d - row;
            if (column < 0 || column > 120) continue;
            if (row == 0 || column == 0) now[row] = d;
            else
                now[row] = min(min(one[row - 1], one[row]) + 1,
                               two[row - 1] + (s[row - 1] != t[column - 1]));
        }
        __syncthreads();
    }
    if (i == 0) out[blockIdx.x] = line[0][120];
}
"""


def _edit_make(rng: Rng) -> Args:
    a, b = (rng.integers(97, 101, (8, 120)).astype(np.int8) for _ in range(2))
    b[:, 10:90] = a[:, 15:95]
    return [a, b, np.zeros(8, np.int32)]


@CASES.cuda("edit_distance", EDIT_DISTANCE, 8, 120, _edit_make, "bar.sync block.partial-warp")
def _edit_expect(args: Args) -> dict[int | str, Any]:
    def distance(s: list[int], t: list[int]) -> int:
        previous = list(range(len(t) + 1))
        for i, x in enumerate(s, 1):
            current = [i]
            for j, y in enumerate(t, 1):
                substituted = previous[j - 1] + (x != y)
                current.append(min(previous[j] + 1, current[-1] + 1, substituted))
            previous = current
        return previous[-1]

    pairs = zip(args[0].tolist(), args[1].tolist(), strict=True)
    return {2: np.array([distance(s, t) for s, t in pairs], np.int32)}


# -- all-pairs shortest paths of one graph a block ---------------------------------------------

FLOYD_WARSHALL = r"""
extern "C" __global__ void floyd_warshall(unsigned* graphs, unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned* d = graphs + blockIdx.x * 1024;
    int i = threadIdx.y * 32, j = threadIdx.x;
    for (int k = 0; k < 32; ++k) {
        unsigned through = min(d[i + k] + d[k * 32 + j], 1000000u);
        if (through < d[i + j]) d[i + j] = through;
        __syncthreads();
    }
}
"""


def _floyd_make(rng: Rng) -> Args:
    graphs = rng.integers(1, 1000, (5, 32, 32)).astype(np.uint32)
    graphs[rng.random(graphs.shape) < 0.85] = 1_000_000
    graphs[:, np.arange(32), np.arange(32)] = 0
    return [graphs]


@CASES.cuda(
    "floyd_warshall",
    FLOYD_WARSHALL,
    5,
    (32, 32),
    _floyd_make,
    "bar.sync block.1024 global-after-barrier",
)
def _floyd_expect(args: Args) -> dict[int | str, Any]:
    d = args[0].copy()
    for k in range(32):
        d = np.minimum(d, d[:, :, k : k + 1] + d[:, k : k + 1, :])
    return {0: d}
