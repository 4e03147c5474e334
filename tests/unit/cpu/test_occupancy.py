"""Occupancy against numbers worked out by hand from the CUDA C++ Programming Guide's table.

Per SM: 7.5 has 1024 threads, 16 blocks, 64 KiB; 8.0 2048, 32, 164 KiB; 8.6 1536, 16, 100 KiB;
9.0 2048, 32, 228 KiB. From 8.0 on each block with shared memory takes 1 KiB more.
"""

from __future__ import annotations

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.occupancy import SM_LIMITS, occupancy
from gpud.errors import LaunchConfigError
from tests.unit.cpu.device_helpers import cuda

KIB = 1024

TABLE = [
    # capability, threads, shared bytes, M
    (75, 32, 0, 16),
    (75, 64, 0, 16),
    (75, 128, 0, 8),
    (75, 256, 0, 4),
    (75, 384, 0, 2),
    (75, 1024, 0, 1),
    (75, 33, 0, 16),  # two warps: 32 // 2
    (75, 65, 0, 10),  # three warps: 32 // 3
    (75, 32, 4 * KIB, 16),
    (75, 32, 4 * KIB + 1, 15),  # granules of 256 bytes: 65536 // 4352
    (75, 32, 64 * KIB, 1),
    (80, 32, 0, 32),
    (80, 64, 0, 32),
    (80, 65, 0, 21),  # 64 // 3
    (80, 1024, 0, 2),
    (80, 768, 0, 2),
    (80, 128, 40 * KIB, 4),  # 164 // 41
    (80, 128, 163 * KIB, 1),
    (80, 128, 81 * KIB, 2),
    (80, 128, 81 * KIB + 1, 1),
    (86, 32, 0, 16),
    (86, 96, 0, 16),
    (86, 97, 0, 12),  # 48 // 4
    (86, 1024, 0, 1),
    (86, 512, 0, 3),
    (86, 64, 48 * KIB, 2),  # 100 // 49
    (86, 64, 99 * KIB, 1),
    (90, 1, 0, 32),
    (90, 1, 1, 32),
    (90, 256, 0, 8),
    (90, 1000, 0, 2),  # 32 warps each
    (90, 992, 0, 2),
    (90, 672, 0, 3),  # 21 warps: 64 // 21
    (90, 704, 0, 2),
    (90, 128, 56 * KIB, 4),  # 228 // 57
    (90, 128, 227 * KIB, 1),
]


@pytest.mark.parametrize(("capability", "threads", "shared", "expected"), TABLE)
def test_blocks_on_an_sm(capability: int, threads: int, shared: int, expected: int) -> None:
    assert occupancy(SM_LIMITS[capability], threads, shared) == expected


@pytest.mark.parametrize("capability", SM_LIMITS)
def test_the_largest_block_fits_once(capability: int) -> None:
    limits = SM_LIMITS[capability]
    assert occupancy(limits, limits.threads_per_block, limits.shared_per_block) == 1


@pytest.mark.parametrize(
    ("capability", "shared"), [(75, 64 * KIB), (80, 163 * KIB), (86, 99 * KIB), (90, 227 * KIB)]
)
def test_more_shared_memory_than_a_block_may_have(capability: int, shared: int) -> None:
    with pytest.raises(LaunchConfigError, match=f"the {shared} that an SM") as caught:
        occupancy(SM_LIMITS[capability], 32, shared + 1)
    assert (caught.value.parameter, caught.value.limit) == ("shared", shared)


def test_more_threads_than_a_block_may_have() -> None:
    with pytest.raises(LaunchConfigError, match=r"1025 threads .* the 1024 ") as caught:
        occupancy(SM_LIMITS[90], 1025, 0)
    assert (caught.value.parameter, caught.value.limit) == ("block", 1024)


# -- through the device ------------------------------------------------------------------------

TILES = r"""
extern "C" __global__ void tiles(float* out) {
    __shared__ float tile[4096];
    extern __shared__ float more[];
    tile[threadIdx.x] = out[threadIdx.x];
    more[threadIdx.x] = tile[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = more[31 - threadIdx.x] + tile[0];
}
"""


def test_static_and_dynamic_shared_memory_count_together() -> None:
    with CPUDevice(1, capability=86) as device:
        kernel = device.load(cuda(TILES)).kernel("tiles")
        assert device.occupancy(kernel, (32, 1, 1)) == 5  # 100 // (16 + 1)
        assert device.occupancy(kernel, (32, 1, 1), 16 * KIB) == 3  # 100 // (32 + 1)
        assert device.occupancy(kernel, (32, 1, 1), 83 * KIB) == 1
        with pytest.raises(LaunchConfigError, match=str(99 * KIB + 1)):
            device.occupancy(kernel, (32, 1, 1), 83 * KIB + 1)
        with pytest.raises(LaunchConfigError, match="negative"):
            device.occupancy(kernel, (32, 1, 1), -1)
