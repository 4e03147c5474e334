"""Spin locks for which threads of one warp compete.

Since Volta the lanes of a warp make progress independently: the lane that holds the lock gets on
even while its neighbours spin (CUDA C++ Programming Guide 13.0, "Independent Thread Scheduling").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng, Satisfies
from .cases import Cases

CASES = Cases()


# -- a lock that threads of one warp fight for -------------------------------------------------

SPIN_LOCK = r"""
__device__ unsigned lock;
extern "C" __global__ void spin_lock(volatile unsigned* total, volatile unsigned* order,
                                     unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    bool done = false;
    while (!done) {
        if (atomicCAS(&lock, 0u, 1u) == 0) {
            __threadfence();
            unsigned seen = *total;
            order[seen] = i;
            *total = seen + 1;
            __threadfence();
            atomicExch(&lock, 0u);
            done = true;
        }
    }
}
"""

SPIN_LOCK_PLAIN = r"""
__device__ int lock;
extern "C" __global__ void spin_lock_plain(volatile unsigned long long* product, unsigned* runs) {
    GPUD_COUNT(runs);
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence();
    *product = *product * 5 % 999983;
    __threadfence();
    atomicExch(&lock, 0);
}
"""


def _lock_make(rng: Rng) -> Args:
    return [np.zeros(1, np.uint32), np.zeros(6 * 56, np.uint32)]


@CASES.cuda(
    "spin_lock",
    SPIN_LOCK,
    6,
    56,
    _lock_make,
    "independent-lanes atom.cas ld.volatile",
    deterministic=False,
)
def _lock_expect(args: Args) -> dict[int | str, Any]:
    n = args[1].size
    return {
        0: np.array([n], np.uint32),
        1: Satisfies(
            lambda actual: np.array_equal(np.sort(actual), np.arange(n)), "a permutation of threads"
        ),
        "lock": np.zeros(1, np.uint32),
    }


def _plain_make(rng: Rng) -> Args:
    return [np.ones(1, np.uint64)]


@CASES.cuda("spin_lock_plain", SPIN_LOCK_PLAIN, 4, 33, _plain_make, "independent-lanes atom.cas")
def _plain_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.array([pow(5, 4 * 33, 999_983)], np.uint64)}


# -- retries in a grid-stride loop that no other block has to end -------------------------------

HOOKING = r"""
// Union-find: hook the larger of two roots to the smaller, until no other thread was faster.
extern "C" __global__ void hooking(const int* other, int* parent, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int step = gridDim.x * blockDim.x;
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += step) {
        int x = e, y = other[e];
        while (x != y) {
            if (x < y) { int swap = x; x = y; y = swap; }
            int old = atomicCAS(&parent[x], x, y);
            if (old == x) break;
            x = old;
        }
    }
}
"""


def _hooking_make(rng: Rng) -> Args:
    n = 1000
    other = np.where(rng.random(n) < 0.7, rng.integers(0, n, n), np.arange(n))
    return [other.astype(np.int32), np.arange(n, dtype=np.int32), np.int32(n)]


def _roots(parent: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while not np.array_equal(parent, parent[parent]):
        parent = parent[parent]
    return parent


@CASES.cuda("hooking", HOOKING, 5, 64, _hooking_make, "atom.cas grid-stride", deterministic=False)
def _hooking_expect(args: Args) -> dict[int | str, Any]:
    parent = np.arange(args[1].size)
    for x, y in enumerate(args[0].tolist()):
        roots = _roots(parent)
        parent = np.where(roots == max(roots[x], roots[y]), min(roots[x], roots[y]), roots)
    found = _roots(parent)
    return {
        1: Satisfies(
            lambda actual: bool(np.all(actual >= 0)) and np.array_equal(_roots(actual), found),
            "trees whose roots are the least vertices of their components",
        )
    }
