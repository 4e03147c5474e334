"""Releases that wait for no lock: they reach the blocks of their launch, and of no other."""

from __future__ import annotations

import threading

import numpy as np

from gpud.device.cuda.launch.active_launch import ActiveLaunch
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cuda.model_runs import device_of, drive, launches


def test_at_once() -> None:
    """A release reaches the blocks while another thread holds the device's lock."""
    fake = SteppedDriver(3)
    with device_of(fake) as device:
        job, other = (ResizableRun(device, launches(device, "pp", total=10**6)) for _ in range(2))
        job.resize(8)
        other.resize(4)
        fake.run(100)
        device.watcher.poll()
        there = device.launches._active
        released = [launch for launch in there if launch.count == 8]
        assert len(released) == 2, "the second is queued behind the first"
        resizing = threading.Thread(target=job.resize, args=(3,))
        with device.lock:
            resizing.start()
            until(lambda: all(staying(launch) == 3 for launch in released))
            assert resizing.is_alive()
            assert [staying(launch) for launch in there] == [3, 3, 4, 4]
        resizing.join()
        assert [launch.limit for launch in there] == [3, 3, 4, 4]
        assert job.release_ns == 0
        for _ in range(300):
            fake.step()
            device.watcher.poll()
        assert job.held == 3
        assert job.release_ns > 0
        job.resize(5)
        assert job.held == 5
        for one in (job, other):
            one.end()
            drive(fake, device, one)


def staying(launch: ActiveLaunch) -> int:
    """How many blocks of a launch its words do not tell to release."""
    assert launch.slot is not None
    bits = np.unpackbits(launch.slot.orders[:, 0].copy().view(np.uint8))
    return min(int(bits.sum()), launch.count)


def test_a_launch_that_is_over_is_not_released() -> None:
    fake = SteppedDriver(3)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p"))
        job.resize(4)
        (launch,) = device.launches._active
        drive(fake, device, job)
        other = ResizableRun(device, launches(device, "p"))
        other.resize(4)
        (new,) = device.launches._active
        assert new.slot is not None
        assert launch.slot is not None
        assert new.slot.address == launch.slot.address, "else this test shows nothing"
        assert not device.launches.set_limit(launch, 1)
        assert staying(new) == 4
        drive(fake, device, other)
