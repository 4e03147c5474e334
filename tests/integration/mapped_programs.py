"""Programs whose framework allocates on a GPU, over the model of the driver.

The daemon's device host is a process of its own; each program here has a model of its own, as a
process has a driver of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.driver.calls import Driver
from gpud_client.adapters.framework import FrameworkMemory
from gpud_client.adapters.mapped import ProcessGpu
from tests.driver_model import CPUDriver
from tests.gpu.host_process import MEMORY_BYTES
from tests.gpu.served_daemon import Served

MIB = 1 << 20


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
