"""A CPU device of one SM, and an arena on it, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.device.cpu.device import CPUDevice
from tests.unit.cpu.codegen.checked_arena import Arena


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(1) as one:
        yield one


@pytest.fixture(scope="module")
def world(device: CPUDevice) -> Arena:
    return Arena(device)
