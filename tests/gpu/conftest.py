"""The GPU of these tests; without one, tests that are marked ``gpu`` are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.gpu.driver import Gpu, missing
from tests.gpu.world import OnDevice


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The driver, for launches without gpud."""
    if missing():
        pytest.skip(f"no GPU: {missing()}")
    return Gpu()


@pytest.fixture(scope="session")
def cuda(gpu: Gpu) -> Iterator[Any]:
    """gpud's CUDA device."""
    module = pytest.importorskip("gpud.device.cuda.device", reason="there is no CUDA device yet")
    with module.CUDADevice(0) as device:
        yield device


@pytest.fixture(scope="module")
def device(cuda: Any) -> Any:
    """The CUDA device with one arena; rewritten programs run fenced, as the daemon has them."""
    return OnDevice(cuda)
