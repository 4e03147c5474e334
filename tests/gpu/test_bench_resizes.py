"""The resize measurements, in short on the CPU device."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gpu import random_resizes, resize
from gpud.device.cpu.device import CPUDevice
from tests.conformance.suite import find
from tests.gpu.test_bench_timestamps import cpu_clock, made


def test_steps_settle_when_the_blocks_say_so() -> None:
    # Two blocks until 100; one leaves then, its place is taken again at 250.
    notes = made([(0, 300, 0), (0, 100, 64), (250, 300, 64)])
    commands = [(0, 1.0, 2), (80, 0.5, 1), (200, 1.0, 2), (290, 0.5, 1)]
    first, second, third = resize.steps_of(notes, commands, 0)
    assert first.settled_ns == 0
    assert second.settled_ns == pytest.approx(20, abs=1)
    assert third.settled_ns == pytest.approx(50, abs=1)
    (_, never, *_) = resize.steps_of(made([(0, 300, 0), (0, 300, 64)]), commands, 0)
    assert never.settled_ns is None


def test_the_trace_has_what_was_told_and_what_was() -> None:
    notes = made([(0, 1_000_000, 0), (0, 400_000, 64)])
    found = resize.trace(notes, [(0, 1.0, 2), (350_000, 0.5, 1)], 1)
    assert found["commanded_sms"] == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert found["observed_sms"] == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert np.diff(found["ms"]) == pytest.approx(0.1)


def test_a_share_is_stepped_under_a_kernel() -> None:
    with CPUDevice(2, capability=75) as device:
        found = resize.measure(device, cpu_clock, 0.2, 500.0, 0.02)
    assert found["lost"] == 0
    assert found["task_blocks"] >= 16
    assert set(found["settled_us"]) == {"1->0.5", "0.5->0.1", "0.1->1"}


def test_random_resizes_go_on_until_there_are_enough() -> None:
    with CPUDevice(2) as device:
        found = random_resizes.measure(device, [find("saxpy")], 150, 60.0, 3, each=60)
        none = random_resizes.measure(device, [find("saxpy")], 150, 0.0, 3)
    assert found["problems"] == []
    assert found["events"] >= 150
    assert found["rounds"] >= 2
    assert found["kernels_run"] == found["kernels"] == 2
    assert none["events"] == 0
