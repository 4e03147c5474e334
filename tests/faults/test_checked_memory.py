"""A client can write anything to its board and shadows: kernels stay within its own memory."""

from __future__ import annotations

import numpy as np
import pytest

import gpud_client as gc
from gpud.checked_memory import (
    BOARD_BYTES,
    CURRENT,
    FINDINGS_AT,
    INTERVALS_AT,
    MAGIC,
    MOST_ARRAYS,
    ROW_BYTES,
    ROWS_AT,
    STARTS_AT,
)

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0
WALK = r"""
extern "C" __global__ void walk(float* x, float* y, const long long* where, int n) {
    __shared__ float s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = x[i];
    __syncthreads();
    y[i] += s[63 - threadIdx.x];
    *(volatile float*)where[i % n] = y[i];
    __threadfence();
    atomicAdd(y + i / 2, 1.0f);
}"""


@pytest.mark.parametrize("seed", range(4))
def test_what_a_client_writes_to_its_board_harms_nobody(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with gc.local("cpu:2") as other:
        witness = other.array(np.arange(1 << 16, dtype=np.int32))
        with gc.connect(other.path, check=True) as gpu:
            n = 256
            x, y = gpu.array(np.ones(n, "f4")), gpu.zeros(n, "f4")
            arena = gpu._core.arenas[0]
            board = gpu._core.checking._boards[0].bytes
            near = np.array([arena.base, arena.base + arena.size, witness.ptr, x.ptr, 0], np.uint64)
            walk = gpu.kernel(WALK, "walk")
            for _ in range(12):
                _spoil(rng, board, near)
                where = near[rng.integers(0, len(near), 64)]
                where = where + rng.integers(0, 1 << 12, 64).astype(np.uint64) * np.uint64(4)
                board[:8].view(np.uint64)[0] = MAGIC
                hint = gpu.array(where)
                board[:8].view(np.uint64)[0] = MAGIC
                _spoil(rng, board, near)
                walk.submit(4, 64, (x, y, hint, np.int32(64))).exception(TIMEOUT_S)
                del hint
        assert other.query("status")["devices"][0]["restarts"] == 0
        assert (witness.get() == np.arange(1 << 16)).all()


def _spoil(rng: np.random.Generator, board: np.ndarray, near: np.ndarray) -> None:
    """Write numbers to the board that are addresses, nearly so, or anything."""
    for start, end in (
        (FINDINGS_AT, STARTS_AT),
        (STARTS_AT, ROWS_AT),
        (ROWS_AT, ROWS_AT + 2 * ROW_BYTES * MOST_ARRAYS),
        (INTERVALS_AT, min(BOARD_BYTES, INTERVALS_AT + (1 << 16))),
    ):
        words = board[start:end].view(np.uint64)
        picked = near[rng.integers(0, len(near), len(words))]
        offsets = rng.integers(-(1 << 20), 1 << 20, len(words))
        wild = rng.integers(0, 1 << 63, len(words), dtype=np.uint64) * np.uint64(2)
        words[:] = np.where(rng.random(len(words)) < 0.8, picked + offsets.astype(np.uint64), wild)
    starts = board[STARTS_AT:ROWS_AT].view(np.uint64)
    if rng.random() < 0.7:
        starts.sort()
    count = int(rng.choice([0, 1, 5, 100, MOST_ARRAYS, (1 << 32) - 1]))
    board[CURRENT : CURRENT + 8].view(np.uint64)[0] = count << 32 | int(rng.integers(0, 4))
