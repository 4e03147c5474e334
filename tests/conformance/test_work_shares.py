"""Work follows shares on the CPU device, from 1/32 of an SM to several SMs."""

from __future__ import annotations

import pytest

from gpud.device.cpu.device import CPUDevice
from tests.conformance.suite.case import Form
from tests.conformance.work_shares import SLICES, errors


@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize(
    ("sms", "slices", "rounds"),
    [
        pytest.param(1, (1, 31), 2_000, id="the-smallest-share", marks=pytest.mark.ci),
        pytest.param(1, (4, 28), 100_000, id="long-task-blocks", marks=pytest.mark.ci),
        pytest.param(1, (1, 2, 3, 26), 500, id="four-jobs"),
        pytest.param(2, (1, 63), 20_000, id="two-sms", marks=pytest.mark.ci),
        pytest.param(4, (16, 48, 64), 20_000, id="four-sms", marks=pytest.mark.ci),
    ],
)
def test_work_follows_shares(sms: int, slices: tuple[int, ...], rounds: int, form: Form) -> None:
    assert sum(slices) == sms * SLICES
    with CPUDevice(sms) as device:
        parts = errors(device, slices, form, rounds)
    assert max(map(abs, parts)) <= 0.05, parts
