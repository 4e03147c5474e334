"""Partitions on a GPU: no other job has blocks on a partition's SMs while its job runs."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.device.interface import LaunchSpec
from tests.conformance.test_named_sms import SOURCE
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, pointer, rewritten, words

THREADS = 1024


class Work:
    """A job whose task blocks report their SM and wait at a gate."""

    def __init__(self, device: Any, total: int) -> None:
        self._device = device
        self._door, self.gate = words(device, 2)
        self._places, self.where = words(device, total)
        self._out, _ = words(device, total * THREADS)
        kernel = device.load(rewritten(SOURCE, "persistent").ptx).kernel("work")
        values = [pointer(one) for one in (self._door, self._places, self._out)]
        launch = LaunchSpec.of(kernel, "persistent", total, THREADS, values)
        self.occupancy: int = device.occupancy(kernel, (THREADS, 1, 1))
        self._sequence = device.prepare([launch])

    def begin(self, exclusive: int = 0) -> None:
        """Make the job."""
        urgent = int(exclusive > 0)
        self.job = ResizableRun(self._device, self._sequence, exclusive=exclusive, priority=urgent)

    def waiting(self) -> int:
        """How many task blocks wait at the gate."""
        return int(self.gate[1]) - int(self.gate[0])

    def finish(self) -> None:
        """Open the gate."""
        self.gate[0] = OPEN
        self.job.result(TIMEOUT_S)


def alone_on_its_sms(device: Any, sms: int) -> None:
    """Give a job ``sms`` SMs exclusively that another job is on, and check where both run."""
    # All is loaded before the first launch: a load may wait for blocks that wait for us.
    offline = Work(device, 16 * device.sms)
    online = Work(device, sms * offline.occupancy)
    slots, own = device.sms * offline.occupancy, sms * online.occupancy
    try:
        offline.begin()
        offline.job.resize(slots)
        until(lambda: offline.waiting() == slots)
        online.begin(exclusive=sms)
        offline.job.resize(slots - sms * offline.occupancy)
        online.job.resize(own)
        offline.gate[0] = slots
        until(lambda: online.waiting() == own)
        until(lambda: offline.waiting() == slots - sms * offline.occupancy)
        alone = set(online.where[:own].tolist())
        assert len(alone) == sms
        begun = int(offline.gate[1])
        assert not alone & set(offline.where[slots:begun].tolist())
        online.finish()
        offline.job.resize(slots)
        until(lambda: offline.waiting() == slots)
        offline.finish()
    finally:
        for work in (offline, online):
            work.gate[0] = OPEN


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_partition_is_one_jobs_alone(cuda: Any) -> None:
    step, most, why = cuda.partitions
    assert step, why
    for sms in (step, most // 2 // step * step):
        alone_on_its_sms(cuda, max(step, sms))
