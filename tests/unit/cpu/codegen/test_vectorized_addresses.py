"""Addresses that LLVM must not take for ones with a constant stride (`Thread._opaque`).

LLVM 22's vectoriser models the low bits of a loop's index as a narrow index that wraps, and loses
its own proviso about that in loops marked as parallel. Every kernel here addresses memory with some
bits of a thread's number, and is compared with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUKernel
from tests.unit.cpu.device_helpers import TIMEOUT_S, Array, cuda, pointer, words

THREADS = 256

EXCHANGE = r"""
extern "C" __global__ void exchange(unsigned long long* keys, int stages) {
    __shared__ unsigned long long s[512];
    unsigned long long* mine = keys + blockIdx.x * 512;
    s[threadIdx.x] = mine[threadIdx.x];
    s[threadIdx.x + 256] = mine[threadIdx.x + 256];
    __syncthreads();
    int stage = 0;
    for (unsigned size = 2; size <= 512; size <<= 1)
        for (unsigned stride = size >> 1; stride > 0; stride >>= 1) {
            if (stage++ < stages) {
                unsigned at = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
                bool up = (at & size) == 0;
                unsigned long long a = s[at], b = s[at + stride];
                if ((a > b) == up) { s[at] = b; s[at + stride] = a; }
            }
            __syncthreads();
        }
    mine[threadIdx.x] = s[threadIdx.x];
    mine[threadIdx.x + 256] = s[threadIdx.x + 256];
}
"""


def bitonic(keys: Array, stages: int) -> Array:
    """The first ``stages`` exchanges of a bitonic sort of each row of 512."""
    keys, stage, threads = keys.copy(), 0, np.arange(256)
    size = 2
    while size <= 512:
        stride = size >> 1
        while stride > 0:
            if stage < stages:
                at = 2 * threads - (threads & (stride - 1))
                a, b = keys[:, at], keys[:, at + stride]
                swap = (a > b) == ((at & size) == 0)
                keys[:, at], keys[:, at + stride] = np.where(swap, b, a), np.where(swap, a, b)
            stage += 1
            stride >>= 1
        size <<= 1
    return keys


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 4, 6, 7, 15, 28, 45])
def test_bitonic_exchange(device: CPUDevice, stages: int) -> None:
    kernel = _kernel(device, EXCHANGE, "exchange")
    keys = np.random.default_rng(stages).integers(0, 2**64, (2, 512), dtype=np.uint64)
    memory = device.allocate(keys.nbytes)
    memory.view[:] = keys.view(np.uint8).ravel()
    parameters = pointer(memory) + stages.to_bytes(4, "little")
    device.launch(kernel, (2, 1, 1), (256, 1, 1), parameters).result(TIMEOUT_S)
    got = memory.view.view(np.uint64).reshape(2, 512)
    assert np.array_equal(got, bitonic(keys, stages))


INDICES: dict[str, tuple[str, Callable[[Array, int], Array]]] = {
    "stride": ("2 * t - (t & (k - 1))", lambda t, k: 2 * t - (t & (k - 1))),
    "and": ("(t & 3) + k", lambda t, k: (t & 3) + k),
    "and_times": ("(t & 15) * 5 + (t >> 4)", lambda t, k: (t & 15) * 5 + (t >> 4)),
    "byte": ("(unsigned char)(t * 3)", lambda t, k: (t * 3) & 255),
    "signed_byte": ("(signed char)(t + k) + 128", lambda t, k: (t + k + 128) & 255),
    "short": ("(unsigned short)(t * 300) / 128", lambda t, k: ((t * 300) & 65535) // 128),
    "shr": ("(t >> 2) * 3 + (t & 1)", lambda t, k: (t >> 2) * 3 + (t & 1)),
    "shr_by": ("t >> (k & 7)", lambda t, k: t >> (k & 7)),
    "rem": ("t % 48 + t / 48", lambda t, k: t % 48 + t // 48),
    "rem_by": ("t % k + k", lambda t, k: t % k + k),
    "shl_shr": ("(t << 27) >> 25", lambda t, k: ((t << 27) & 0xFFFFFFFF) >> 25),
    "xor": ("(t ^ k) & 511", lambda t, k: (t ^ k) & 511),
    "not": ("(~t) & 255", lambda t, k: ~t & 255),
    "negative": ("255 - (t & 127)", lambda t, k: 255 - (t & 127)),
    "times_24": ("__umul24(t & 31, 7)", lambda t, k: (t & 31) * 7),
    "permuted": ("__byte_perm(t, 0, 0x4440)", lambda t, k: t & 255),
    "bfe": ("bfe(t, 3, 3) * 9 + bfe(t, 0, 3)", lambda t, k: ((t >> 3) & 7) * 9 + (t & 7)),
    "bfi": ("bfi(t, k & 255, 4, 5)", lambda t, k: (k & 255 & ~0x1F0) | ((t & 31) << 4)),
}

_SOURCE = r"""
__device__ unsigned bfe(unsigned a, unsigned b, unsigned c) {
    unsigned d; asm("bfe.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d;
}
__device__ unsigned bfi(unsigned a, unsigned b, unsigned c, unsigned d) {
    unsigned f;
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(f) : "r"(a), "r"(b), "r"(c), "r"(d));
    return f;
}
extern "C" __global__ void moves(const unsigned* from, unsigned* to, unsigned* last, unsigned k) {
    __shared__ unsigned tile[1024];
    unsigned t = threadIdx.x;
    for (int i = 0; i < 4; i++) tile[t + 256 * i] = from[t + 256 * i];
    __syncthreads();
    unsigned at = INDEX;
    unsigned gathered = from[at] + 3 * tile[at];
    to[t] = gathered;
    atomicMax(&last[at], t + 1);
    __syncthreads();
    atomicAdd(&tile[at], t);
    __syncthreads();
    to[256 + t] = tile[at];
}
"""


@pytest.mark.parametrize("name", INDICES)
def test_bits_of_a_thread_number_as_an_index(device: CPUDevice, name: str) -> None:
    text, index = INDICES[name]
    kernel = _kernel(device, _SOURCE.replace("INDEX", text), "moves")
    threads = np.arange(THREADS, dtype=np.int64)
    for k in (1, 2, 8, 16, 100, 128):
        source, values = words(device, 1024)
        values[:] = np.random.default_rng(k).integers(0, 2**32, 1024, dtype=np.uint32)
        target, got = words(device, 2 * THREADS)
        ends, last = words(device, 1024)
        parameters = pointer(source) + pointer(target) + pointer(ends) + k.to_bytes(4, "little")
        device.launch(kernel, (1, 1, 1), (THREADS, 1, 1), parameters).result(TIMEOUT_S)
        at = index(threads, k)
        assert np.array_equal(got[:THREADS], values[at] * np.uint32(4)), k
        added = values.copy()
        np.add.at(added, at, threads.astype(np.uint32))
        assert np.array_equal(got[THREADS:], added[at]), k
        latest = np.zeros(1024, np.uint32)
        np.maximum.at(latest, at, threads.astype(np.uint32) + 1)
        assert np.array_equal(last, latest), k


_kernels: dict[tuple[int, str], CPUKernel] = {}


def _kernel(device: CPUDevice, source: str, name: str) -> CPUKernel:
    key = (id(device), source)
    if key not in _kernels:
        _kernels[key] = device.load(cuda(source)).kernel(name)
    return _kernels[key]
