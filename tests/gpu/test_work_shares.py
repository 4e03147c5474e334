"""Work follows shares on a GPU, from 1/32 of an SM to all of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.suite.case import Form
from tests.conformance.work_shares import SLICES, errors


@pytest.mark.gpu
@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize("least", [1, 4, SLICES, 8 * SLICES])
def test_work_follows_shares(device: Any, least: int, form: Form) -> None:
    everything = device.sms * SLICES
    parts = errors(device, (least, everything - least), form, 2_000)
    assert max(map(abs, parts)) <= 0.05, parts
