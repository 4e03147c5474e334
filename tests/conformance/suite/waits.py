"""Kernels whose blocks wait for one another, for locks, or for nobody although it looks like it.

Graph codes are full of all three. Which task block a vertex waits for is chosen by the data in the
first two kernels here; in the others a thread waits at most for one that has already begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Array, Rng, Satisfies
from .cases import Cases

CASES = Cases()


_VERTICES = 6 * 32


def _graph(rng: Rng, vertices: int = _VERTICES) -> tuple[Array, Array]:
    """A random graph of degree 4 or so, both ways, as rows of neighbours."""
    ends = rng.integers(0, vertices, (2 * vertices, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    both = np.unique(np.concatenate([ends, ends[:, ::-1]]), axis=0)
    row = np.zeros(vertices + 1, np.int32)
    np.cumsum(np.bincount(both[:, 0], minlength=vertices), out=row[1:])
    return row, both[:, 1].astype(np.int32)


# -- colouring: a vertex waits for its neighbours of higher priority, wherever they are ---------

COLOURING = r"""
extern "C" __global__ void colouring(const int* row, const int* col, const int* prio,
                                     volatile int* colour, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= n) return;
    for (bool done = false; !done;) {
        bool ready = true;
        unsigned used = 0;
        for (int j = row[v]; j < row[v + 1]; ++j) {
            int u = col[j];
            if (prio[u] <= prio[v]) continue;
            int c = colour[u];
            if (c == 0) ready = false;
            used |= 1u << c;
        }
        if (ready) {
            colour[v] = __ffs(~(used | 1)) - 1;
            __threadfence();
            done = true;
        }
    }
}
"""


def _colouring_make(rng: Rng) -> Args:
    row, col = _graph(rng)
    # The last block's vertices come first: waiting for lower blocks alone would not do.
    prio = np.arange(_VERTICES, dtype=np.int32)
    return [row, col, prio, np.zeros(_VERTICES, np.int32), np.int32(_VERTICES)]


@CASES.cuda(
    "colouring",
    COLOURING,
    6,
    32,
    _colouring_make,
    "waits-for-any-block waits-for-higher-blocks independent-lanes ld.volatile",
    forms="whole unmodified",
    expected_form="whole",
    resident=6,
)
def _colouring_expect(args: Args) -> dict[int | str, Any]:
    row, col, prio, colour, n = args
    colour = colour.copy()
    for v in sorted(range(int(n)), key=lambda v: -prio[v]):
        taken = {int(colour[u]) for u in col[row[v] : row[v + 1]] if prio[u] > prio[v]}
        colour[v] = min(set(range(1, 33)) - taken)
    return {3: colour}


# -- an independent set, chosen in rounds that no barrier separates ------------------------------

INDEPENDENT_SET = r"""
extern "C" __global__ void independent_set(const int* row, const int* col, const int* prio,
                                           volatile signed char* state, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    bool missing;
    do {
        missing = false;
        for (int v = blockIdx.x * blockDim.x + threadIdx.x; v < n; v += gridDim.x * blockDim.x) {
            if (state[v] != 0) continue;
            bool wins = true, loses = false;
            for (int j = row[v]; j < row[v + 1]; ++j) {
                int u = col[j], s = state[u];
                loses = loses || s == 1;
                wins = wins && (s == 2 || prio[v] > prio[u]);
            }
            if (loses) state[v] = 2;
            else if (wins) state[v] = 1;
            else missing = true;
        }
    } while (missing);
}
"""


def _set_make(rng: Rng) -> Args:
    row, col = _graph(rng, 300)
    prio = rng.permutation(300).astype(np.int32)
    return [row, col, prio, np.zeros(300, np.int8), np.int32(300)]


@CASES.cuda(
    "independent_set",
    INDEPENDENT_SET,
    4,
    32,
    _set_make,
    "waits-for-any-block independent-lanes ld.volatile",
    forms="whole unmodified",
    expected_form="whole",
    resident=4,
)
def _set_expect(args: Args) -> dict[int | str, Any]:
    row, col, prio, state, n = args
    state = np.full_like(state, 2)
    for v in sorted(range(int(n)), key=lambda v: -prio[v]):
        if not any(state[u] == 1 for u in col[row[v] : row[v + 1]]):
            state[v] = 1
    return {3: state}


# -- locks for each vertex, taken and given back in the ways that there are ----------------------

LOCKED = r"""
extern "C" __global__ void NAME(const int* col, volatile int* sum, int* lock, int n,
                                unsigned* runs) {
    GPUD_COUNT(runs);
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) {
        int v = col[e];
        BODY
    }
}
"""

_LOCKS = {
    "lock_exchange": r"""
        for (bool done = false; !done;)
            if (atomicExch(&lock[v], 1) == 0) {
                __threadfence(); sum[v] = sum[v] + e; __threadfence();
                atomicExch(&lock[v], 0);
                done = true;
            }""",
    "lock_looking_first": r"""
        for (bool done = false; !done;)
            if (*(volatile int*)&lock[v] == 0 && atomicCAS(&lock[v], 0, 1) == 0) {
                __threadfence(); sum[v] = sum[v] + e; __threadfence();
                *(volatile int*)&lock[v] = 0;
                done = true;
            }""",
    "lock_backing_off": r"""
        unsigned ns = 8;
        for (bool done = false; !done;)
            if (atomicCAS(&lock[v], 0, 1) == 0) {
                __threadfence(); sum[v] = sum[v] + e; __threadfence();
                atomicExch(&lock[v], 0);
                done = true;
            } else if (ns < 64) {
                ns *= 2;
            }""",
    "lock_by_bit": r"""
        for (bool done = false; !done;)
            if ((atomicOr(&lock[v], 4) & 4) == 0) {
                __threadfence(); sum[v] = sum[v] + e; __threadfence();
                atomicAnd(&lock[v], ~4);
                done = true;
            }""",
}


def _locked_make(rng: Rng) -> Args:
    col = rng.integers(0, 5, 400).astype(np.int32)
    return [col, np.zeros(5, np.int32), np.zeros(5, np.int32), np.int32(400)]


def _locked_expect(args: Args) -> dict[int | str, Any]:
    col = args[0]
    sums = np.bincount(col, weights=np.arange(col.size), minlength=5)
    return {1: sums.astype(np.int32)}


for _name, _body in _LOCKS.items():
    CASES.cuda(
        _name,
        LOCKED.replace("NAME", _name).replace("BODY", _body),
        5,
        32,
        _locked_make,
        "independent-lanes lock",
    )(_locked_expect)


# -- shortest paths: relaxed until the value that a thread brings is no improvement ---------------

RELAXATION = r"""
extern "C" __global__ void relaxation(const int* from, const int* to, const int* length,
                                      int* distance, int edges, unsigned* runs) {
    GPUD_COUNT(runs);
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < edges; e += gridDim.x * blockDim.x) {
        int brought = distance[from[e]] + length[e];
        int old = *(volatile int*)&distance[to[e]];
        while (brought < old) {
            int seen = atomicCAS(&distance[to[e]], old, brought);
            if (seen == old) break;
            old = seen;
        }
        atomicMin(&distance[to[e]], brought);
    }
}
"""


def _relaxation_make(rng: Rng) -> Args:
    # Sources 0 to 19 are never targets, so that the order of the edges changes nothing.
    edges, distance = 500, np.full(60, 1 << 20, np.int32)
    distance[:20] = rng.integers(0, 100, 20)
    return [
        rng.integers(0, 20, edges).astype(np.int32),
        rng.integers(20, 60, edges).astype(np.int32),
        rng.integers(1, 50, edges).astype(np.int32),
        distance,
        np.int32(edges),
    ]


@CASES.cuda("relaxation", RELAXATION, 5, 64, _relaxation_make, "atom.cas atom.min grid-stride")
def _relaxation_expect(args: Args) -> dict[int | str, Any]:
    source, target, length, distance, _ = args
    found = distance.copy()
    np.minimum.at(found, target, distance[source] + length)
    return {3: found}


# -- a tree: the lock is a value of the word that is changed --------------------------------------

TREE = r"""
// Binary search tree by children's indices: -1 is none, -2 locked.
extern "C" __global__ void tree(const int* key, int* child, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    volatile int* look = child;
    for (int e = 1 + blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) {
        int at = 0;
        bool in = false;
        while (!in) {
            int slot = 2 * at + (key[e] > key[at]);
            int next = look[slot];
            while (next >= 0) {
                at = next;
                slot = 2 * at + (key[e] > key[at]);
                next = look[slot];
            }
            if (next != -2 && atomicCAS(&child[slot], next, -2) == next) {
                __threadfence();
                look[slot] = e;
                in = true;
            }
            __threadfence();
        }
    }
}
"""


def _tree_make(rng: Rng) -> Args:
    n = 300
    return [rng.permutation(n).astype(np.int32), np.full(2 * n, -1, np.int32), np.int32(n)]


@CASES.cuda(
    "tree", TREE, 4, 32, _tree_make, "independent-lanes atom.cas ld.volatile", deterministic=False
)
def _tree_expect(args: Args) -> dict[int | str, Any]:
    key = args[0]

    def sorted_(child: Array) -> bool:
        """Whether the tree holds every key once, in order."""
        found: list[int] = []
        stack: list[tuple[int, bool]] = [(0, False)]
        while stack and len(found) <= key.size:
            at, visited = stack.pop()
            if visited:
                found.append(int(key[at]))
                continue
            left, right = (int(one) for one in child[2 * at : 2 * at + 2])
            stack += [(right, False)] if right >= 0 else []
            stack.append((at, True))
            stack += [(left, False)] if left >= 0 else []
        return found == list(range(key.size))

    return {1: Satisfies(sorted_, "a search tree of all keys")}
