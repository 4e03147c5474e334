"""Kernels asked for in each way that the rule for names allows, of one program.

The program has a template, an overloaded name, a name in two namespaces and one in C's manner, so
that a way which finds another kernel than the one that was meant leaves another factor behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()

_SIZE = 700

_SOURCE = r"""
#define SCALE(factor) GPUD_COUNT(runs); \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i < n) out[i] = factor * in[i]
#define PARAMETERS(T) (T* out, const T* in, int n, unsigned* runs)
__global__ void only PARAMETERS(int) { SCALE(3); }
extern "C" __global__ void as_in_c PARAMETERS(int) { SCALE(5); }
__global__ void overloaded PARAMETERS(int) { SCALE(7); }
__global__ void overloaded PARAMETERS(float) { SCALE(11); }
template <class T, int Factor> __global__ void by_template PARAMETERS(T) { SCALE(Factor); }
namespace outer {
__global__ void shared_name PARAMETERS(int) { SCALE(13); }
namespace inner {
__global__ void shared_name PARAMETERS(int) { SCALE(17); }
__global__ void deep PARAMETERS(int) { SCALE(19); }
template <class T> __global__ void typed PARAMETERS(T) { SCALE(23); }
}
}
"""

_NAMES = {
    "plain": ("only", 3),
    "plain_in_namespaces": ("deep", 19),
    "as_in_c": ("as_in_c", 5),
    "mangled": ("_Z4onlyPiPKiiPj", 3),
    "mangled_overload": ("_Z10overloadedPiPKiiPj", 7),
    "qualified": ("outer::shared_name", 13),
    "qualified_twice": ("outer::inner::shared_name", 17),
    "template": ("by_template<int, 29>", 29),
    "template_in_namespaces": ("outer::inner::typed<int>", 23),
}


def _make(rng: Rng) -> Args:
    values = rng.integers(-1000, 1000, _SIZE).astype(np.int32)
    return [np.zeros(_SIZE, np.int32), values, np.int32(_SIZE)]


def _declare(way: str, kernel: str, factor: int) -> None:
    @CASES.cuda(f"name_{way}", _SOURCE, 6, 128, _make, "kernel-names", kernel=kernel)
    def expect(args: Args) -> dict[int | str, Any]:
        return {0: factor * args[1]}


for _way, (_kernel, _factor) in _NAMES.items():
    _declare(_way, _kernel, _factor)
