"""What these tests and those of faults run against: a daemon with its clients, in two kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import gpud_client as gc
from gpud.device.cpu.device import CPUDevice
from tests.gpu.served_daemon import Served
from tests.integration.daemon_world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A daemon in this process, fake hosts and raw clients; not started."""
    async with World() as one:
        yield one


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    """A daemon as a process, with the CPU device."""
    with gc.local("cpu:2") as session:
        yield session


@pytest.fixture
def gpu(server: gc.Session) -> Iterator[gc.Session]:
    """Another session of it."""
    with gc.connect(server.path) as session:
        yield session


@pytest.fixture(scope="module")
def cpu() -> Iterator[CPUDevice]:
    """Runs the kernels of a model of the driver in this process."""
    with CPUDevice(1) as device:
        yield device


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A daemon that serves a GPU, over the model of the driver, with short turns."""
    daemon = Served(turn_slice="2ms", turn_linger="20ms", turn_overstay="0.5s")
    try:
        yield daemon
    finally:
        daemon.close()
