"""Frameworks' allocations in a workload's memory: a daemon and programs over the driver's model.

The daemon's device host is a process of its own; each program here has a model of its own, as a
process has a driver of its own. They share the temporary zone by its descriptor.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.driver.calls import Driver
from gpud_client.adapters.framework import FrameworkMemory
from gpud_client.adapters.mapped import ProcessGpu
from tests.driver_model import CPUDriver
from tests.gpu.host_process import MEMORY_BYTES
from tests.gpu.served_daemon import Served

GRANULE = 1 << 16
MIB = 1 << 20


@pytest.fixture(scope="module")
def cpu() -> Iterator[CPUDevice]:
    with CPUDevice(1) as device:
        yield device


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    daemon = Served(turn_slice="2ms", turn_linger="20ms")
    try:
        yield daemon
    finally:
        daemon.close()


class Program:
    """A program with a driver of its own and a framework that allocates."""

    def __init__(self, served: Served, cpu: CPUDevice, **terms: Any) -> None:
        self.driver = CPUDriver(cpu, MEMORY_BYTES)
        self.session = served.connect()
        gpu = ProcessGpu(driver=Driver(self.driver))
        self.memory = FrameworkMemory(self.session, gpu=gpu, **terms)
        self.bytes = self.driver.memory  # fails where nothing is mapped

    def fill(self, address: int, size: int, value: int) -> None:
        """Do what a kernel would."""
        self.bytes.write(address, bytes([value]) * size)

    def holds(self, address: int, size: int, value: int) -> bool:
        """Read what a kernel would."""
        return self.bytes.read(address, size) == bytes([value]) * size

    def close(self) -> None:
        self.memory.close()
        self.session.close()
        assert {name: n for name, n in self.driver.alive.items() if n and name != "module"} == {}


@contextmanager
def running(served: Served, cpu: CPUDevice, **terms: Any) -> Iterator[Program]:
    program = Program(served, cpu, **terms)
    try:
        yield program
    finally:
        program.close()


def usage(served: Served) -> dict[str, Any]:
    with served.connect() as gpu:
        answer: dict[str, Any] = gpu.query("workloads")
        return answer


def train(program: Program, value: int, iterations: int) -> bool:
    """Keep weights, use scratch, and have a gradient that is freed in the next iteration."""
    memory, right = program.memory, True
    weights = memory.allocate(3 * MIB)
    program.fill(weights, 3 * MIB, value)
    gradient = 0
    for _ in range(iterations):
        with memory.iteration():
            if gradient:
                right &= program.holds(gradient, MIB, value)
                memory.free(gradient)
            scratch = memory.allocate(10 * MIB)
            if memory.place(scratch) == "temporary":
                right &= program.holds(scratch, 10 * MIB, 0) or program.holds(
                    scratch, 10 * MIB, value
                )
            program.fill(scratch, 10 * MIB, value)
            gradient = memory.allocate(MIB)
            program.fill(gradient, MIB, value)
            right &= program.holds(weights, 3 * MIB, value)
            memory.free(scratch)
    return right


def test_three_programs_share_temporary_memory_and_keep_their_values(
    served: Served, cpu: CPUDevice
) -> None:
    # 3 x (5 + 12) MiB of less than 61: but for the shared zone, a fourth would not fit either.
    sizes = {"persistent": "5MiB", "temporary": "12MiB", "offset": "1MiB"}
    programs = [Program(served, cpu, **sizes) for _ in range(4)]
    device = usage(served)["devices"][0]
    assert device["temporary_bytes"] == 12 * MIB
    with ThreadPoolExecutor() as pool:
        right = list(pool.map(lambda one: train(programs[one], one + 1, 12), range(4)))
    assert right == [True] * 4
    rows = usage(served)["workloads"]
    assert all(row["turns"] > 1 for row in rows), rows
    for program in programs:
        # What persists is learned in the first iteration: later gradients lie in its own memory.
        assert program.memory.held_bytes <= MIB
        program.close()
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0
