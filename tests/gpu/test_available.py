"""The messages of commands and tests on a machine without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import available, sanitize
from bench.gpu.instrumentation.driver import check, missing
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from tests.driver_model import SteppedDriver
from tests.gpu.conftest import OUTCOMES, leave_if_lost, outcomes

ROOT = Path(__file__).parents[2]
NO_GPU = pytest.mark.skipif(not missing(), reason="there is a GPU")


@NO_GPU
def test_commands_end_with_1_and_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(available.__file__))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this needs an NVIDIA GPU: " in done.stderr


@NO_GPU
@pytest.mark.parametrize("target", ["gpu-test", "gpu-bench"])
def test_targets_fail_and_say_what_is_missing(target: str) -> None:
    done = subprocess.run(
        ["make", target, f"GPU_PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "this needs an NVIDIA GPU: " in done.stderr


def test_a_status_that_is_not_success_is_an_exception() -> None:
    class Status(int):
        name = "CUDA_ERROR_PLANTED"

    assert check((Status(0), 5)) == 5
    assert check((Status(0), 5, 6)) == (5, 6)
    assert check((Status(0),)) == ()
    with pytest.raises(Exception, match="CUDA_ERROR_PLANTED"):
        check((Status(7), 5))


def test_the_sanitizer_checks_the_rewritten_suite() -> None:
    line = sanitize.command("racecheck", "shared")
    assert line[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    assert line[line.index("--error-exitcode") + 1] == str(sanitize.FOUND)
    assert line[-1] == "test_rewritten and (shared)"
    assert "tests/gpu/test_conformance.py" in line


def test_outcomes_are_counted(pytestconfig: pytest.Config) -> None:
    found = outcomes(pytestconfig, 1)
    assert set(found) == {*OUTCOMES, "bad", "exit"}
    assert found["exit"] == 1
    assert len(found["bad"]) == found["failed"] + found["error"]


def test_a_process_that_lost_its_context_runs_no_more_tests() -> None:
    fake = SteppedDriver()
    device = CUDADevice(driver=Driver(fake), watch=False)
    leave_if_lost(device, object())
    fake.lose("ILLEGAL_ADDRESS")
    with pytest.raises(pytest.exit.Exception, match="ILLEGAL_ADDRESS"):
        leave_if_lost(device, object())
