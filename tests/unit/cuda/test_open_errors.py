"""A GPU that exists and cannot be used: the device host says so, and holds no resources."""

from __future__ import annotations

import pytest

from gpud.device.cuda.driver.calls import Driver
from gpud.device.host.__main__ import DeviceSettings, open_device
from gpud.device.spec import parse_device
from gpud.errors import InvalidArgument
from tests.driver_model import SteppedDriver


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("cuDevicePrimaryCtxRetain", "DEVICE_UNAVAILABLE"),  # compute mode: exclusive
        ("cuDevicePrimaryCtxRetain", "OUT_OF_MEMORY"),
        ("cuCtxSetLimit", "OUT_OF_MEMORY"),
    ],
)
def test_a_gpu_that_cannot_be_opened_is_refused(
    monkeypatch: pytest.MonkeyPatch, function: str, status: str
) -> None:
    fake = SteppedDriver()
    fake.fail(1, status, function)
    monkeypatch.setattr("gpud.device.cuda.device.open_driver", lambda: Driver(fake))
    with pytest.raises(InvalidArgument, match=f"cuda:0 cannot be opened: .*{status}.*nvidia-smi"):
        open_device(parse_device("cuda:0"), DeviceSettings())
    assert not +fake.alive
