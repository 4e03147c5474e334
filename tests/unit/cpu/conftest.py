"""A CPU device of two SMs for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.device.cpu.device import CPUDevice


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one
