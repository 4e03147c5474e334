"""Fixtures for tests on a GPU; without one, tests marked ``gpu`` are skipped and say why.

With ``GPUD_RECORD=NAME`` the outcomes are saved as bench/results/gpu_tests_NAME.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from bench.gpu.instrumentation.driver import Gpu, missing
from bench.gpu.record import cuda_device, keep
from gpud.errors import DeviceLost
from tests.gpu.device_arrays import OnDevice

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
    device = cuda_device()
    yield device
    with suppress(DeviceLost):  # then it ends with the process
        device.close()


@pytest.fixture(scope="module")
def device(cuda: Any) -> Any:
    """The CUDA device with one arena; rewritten programs run checked, as in the daemon."""
    return OnDevice(cuda)


@pytest.fixture(autouse=True)
def _ends_with_the_context(request: pytest.FixtureRequest) -> Iterator[None]:
    cuda = request.getfixturevalue("cuda") if "cuda" in request.fixturenames else None
    yield
    if cuda is not None:
        leave_if_lost(cuda, request.config)


def leave_if_lost(cuda: Any, config: Any) -> None:
    """End the process if the context is lost: every later test would fail.

    With pytest-xdist such a process would take all remaining tests, as they fail so fast; xdist
    starts another process.
    """
    try:
        cuda.context.enter().is_over(cuda.control_event)
    except DeviceLost as error:
        if hasattr(config, "workerinput"):
            os._exit(1)
        pytest.exit(str(error), returncode=1)


RECORD = pytest.StashKey[Gpu]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Open the GPU, if outcomes are to be saved: at the end its context may be lost."""
    wanted = os.environ.get("GPUD_RECORD") and not hasattr(session.config, "workerinput")
    if wanted and not missing():
        session.config.stash[RECORD] = Gpu()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Save the outcomes, if requested."""
    if RECORD in session.config.stash:
        name = os.environ["GPUD_RECORD"]
        keep(f"tests_{name}", session.config.stash[RECORD], outcomes(session.config, exitstatus))


def outcomes(config: pytest.Config, exitstatus: int) -> dict[str, Any]:
    """The number of tests by outcome, and the failed ones."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats = {one: reporter.stats.get(one, []) for one in OUTCOMES}
    bad = [report.nodeid for one in ("failed", "error") for report in stats[one]]
    return {**{one: len(stats[one]) for one in OUTCOMES}, "bad": bad, "exit": int(exitstatus)}
