"""A kernel that does nothing, to measure the cost of starting and awaiting one launch."""

from __future__ import annotations

import numpy as np

from bench.kernel_pairs.pair import Pair, Problem

__all__ = ["LAUNCH"]


def _one_block(_: int) -> Problem:
    return Problem(grid=(1, 1, 1), arguments=(np.int32(0),), expect={})


LAUNCH = Pair(
    "launch",
    "one empty block; not in the mean",
    'extern "C" __global__ void launch(int n) {}\n',
    "__kernel void launch(int n) {}\n",
    (32, 1, 1),
    _one_block,
    tiny=1,
    full=1,
    counts=False,
)
