"""Kernels, readings, and a cluster on this machine that the tests of a file share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpud_ray.items import InOut, KernelCall
from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.head_state import Beat

os.environ.setdefault("RAY_DEDUP_LOGS", "0")

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""

GPU = GPUReading(
    index=0, name="a common GPU", core_clock_mhz=1_710, sms=68, cores_per_sm=128, idle_cores=1,
    memory_clock_mhz=9_501, bus_width_bits=320, idle_bandwidth=1, memory_bytes=10 << 30,
    memory_free_bytes=10 << 30,
)  # fmt: skip


@pytest.fixture(scope="session")
def gpu() -> GPUReading:
    return GPU


class Nodes:
    """Makes heartbeats of nodes, each numbered on."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, int], int] = {}

    def beat(self, node: str, *gpus: GPUReading, life: int = 1, **fields: Any) -> Beat:
        self.numbers[node, life] = number = self.numbers.get((node, life), 0) + 1
        return Beat(node, life, number, gpus or (GPU,), **fields)

    @staticmethod
    def gpu(**figures: Any) -> GPUReading:
        return replace(GPU, **figures)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def _saxpy(n: int = 256, y: float = 3, **options: Any) -> KernelCall:
    """2 x + y for x = 0, 1, ...; what ``expected`` of the fixture gives."""
    args = (
        np.float32(2), np.arange(n, dtype=np.float32), InOut(np.full(n, y, np.float32)),
        np.int32(n),
    )  # fmt: skip
    return KernelCall(
        source=SAXPY, kernel="saxpy", grid=-(-n // 256), block=256, args=args, **options
    )


@pytest.fixture(scope="session")
def saxpy() -> Any:
    return _saxpy


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """Nodes with 1 and 2 virtual SMs."""
    from gpud_ray.local_cluster import local_cluster

    with local_cluster("cpu:1", "cpu:2") as cluster:
        yield cluster
