"""The GPU of these tests; without one, tests that are marked ``gpu`` are skipped and say why.

With ``GPUD_RECORD=NAME`` what came of them is kept as bench/results/gpu_tests_NAME.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from bench.gpu.driver import Gpu, missing
from bench.gpu.record import cuda_device, keep
from tests.gpu.world import OnDevice

OUTCOMES = ("passed", "failed", "error", "skipped")


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The driver, for launches without gpud."""
    if missing():
        pytest.skip(f"no GPU: {missing()}")
    return Gpu()


@pytest.fixture(scope="session")
def cuda(gpu: Gpu) -> Iterator[Any]:
    """gpud's CUDA device."""
    with cuda_device() as device:
        yield device


@pytest.fixture(scope="module")
def device(cuda: Any) -> Any:
    """The CUDA device with one arena; rewritten programs run fenced, as the daemon has them."""
    return OnDevice(cuda)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keeps the outcomes, if that was asked for."""
    name = os.environ.get("GPUD_RECORD")
    if name and not missing() and not hasattr(session.config, "workerinput"):
        keep(f"tests_{name}", Gpu(), outcomes(session.config, exitstatus))


def outcomes(config: pytest.Config, exitstatus: int) -> dict[str, Any]:
    """How many tests ended how, and which of them badly."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats = {one: reporter.stats.get(one, []) for one in OUTCOMES}
    bad = [report.nodeid for one in ("failed", "error") for report in stats[one]]
    return {**{one: len(stats[one]) for one in OUTCOMES}, "bad": bad, "exit": int(exitstatus)}
