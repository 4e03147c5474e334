"""The gate: it assembles, and its decisions, run on the CPU device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.launch.gate import CURRENT, GATE, HELPED, PTX, RUN_BYTES, STOP
from tests.unit.cpu.device_helpers import TIMEOUT_S

STAGE, TOTAL = 3, 5


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_it_assembles(arch: str) -> None:
    assert assemble(PTX, arch)[GATE].spill_bytes == 0


@pytest.fixture(scope="module")
def ready() -> Iterator[tuple[CPUDevice, Any]]:
    with CPUDevice(1) as device:
        yield device, device.load(PTX).kernel(GATE)


@pytest.mark.parametrize(
    ("follows", "done", "stopped", "helped", "opens"),
    [
        (False, 0, False, 0, True),
        (False, 0, True, 0, False),
        (False, 0, False, STAGE, True),  # the host begins anew behind a launch that was helped
        (True, TOTAL, False, 0, True),
        (True, TOTAL, False, STAGE - 1, True),
        (True, TOTAL, False, STAGE, False),
        (True, TOTAL, True, 0, False),
        (True, TOTAL - 1, False, 0, False),
    ],
)
def test_it_opens_a_stage_only_behind_one_that_is_done_unhelped_and_not_stopped(
    ready: tuple[CPUDevice, Any], follows: bool, done: int, stopped: bool, helped: int, opens: bool
) -> None:
    device, kernel = ready
    jobs, run = device.allocate(2 * cw.JOB_BYTES), device.allocate(RUN_BYTES)
    records = jobs.view[: 2 * cw.JOB_BYTES].view(np.uint32).reshape(2, -1)
    records[:, cw.TOTAL // 4] = TOTAL
    records[:, cw.NEXT // 4] = TOTAL
    records[0, cw.DONE // 4] = done
    words = run.view[:RUN_BYTES].view(np.uint32)
    words[[CURRENT, STOP, HELPED]] = STAGE - 1, stopped, helped
    previous = jobs.address if follows else 0
    passed = (jobs.address + cw.JOB_BYTES, previous, run.address)
    values = b"".join(one.to_bytes(8, "little") for one in passed) + STAGE.to_bytes(4, "little")
    device.launch(kernel, (1, 1, 1), (1, 1, 1), values).result(TIMEOUT_S)
    assert records[:, cw.NEXT // 4].tolist() == [TOTAL, 0 if opens else TOTAL]
    assert words[CURRENT] == (STAGE if opens else STAGE - 1)
