"""Device specifications."""

from __future__ import annotations

import os

import pytest

from gpud.device.spec import DeviceSpec, parse_device

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("auto", DeviceSpec("cpu", CORES)),
        ("cpu", DeviceSpec("cpu", CORES)),
        ("cpu:8", DeviceSpec("cpu", 8)),
        (" cpu:8@75 ", DeviceSpec("cpu", 8, 75)),
        ("cpu@120", DeviceSpec("cpu", CORES, 120)),
        ("cpu:1024", DeviceSpec("cpu", 1024)),
        ("cuda", DeviceSpec("cuda", 0)),
        ("cuda:7", DeviceSpec("cuda", 7)),
    ],
)
def test_valid_specifications(text: str, spec: DeviceSpec) -> None:
    assert parse_device(text) == spec
    assert parse_device(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cpu:", "cpu:-1", "cpu:0", "cpu:1025", "cpu:99999", "cpu:1.5", "CPU", "auto:2",
     "auto@90", "cpu:2@", "cpu:2@9", "cuda:0@90", "cpu:٣", "cpu,cpu"],
)  # fmt: skip
def test_invalid_specifications(text: str) -> None:
    with pytest.raises(ValueError, match=r"device|GPU|'auto'"):
        parse_device(text)
