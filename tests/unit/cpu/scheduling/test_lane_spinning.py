"""Blocks of a lane that wait in vain, and others that do beside a lane's."""

from __future__ import annotations

import threading
import time

import pytest

from gpud.device.cpu.scheduling import run
from gpud.device.interface import LaunchSpec
from gpud.errors import KernelTrap
from tests.unit.cpu.scheduling.lane_driver import LaneDriver


def test_a_launch_whose_blocks_spin_in_vain_ends_and_the_lane_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "SPIN_LIMIT_NS", 1_000_000)
    with LaneDriver() as lane:
        lane.complete(lane.launch("add", lane.pointer(8)))
        number = lane.launch("spin", lane.pointer(), (5000, 1, 1))
        lane.wait(lambda: lane.ended)
        (launch,) = lane.ended
        assert (launch.number, launch.state) == (number, "failed")
        assert isinstance(launch.error, KernelTrap)
        assert "deadlock" in str(launch.error)
        assert "of its 5000 task blocks have not begun" in str(launch.error)
        lane.complete(lane.launch("add", lane.pointer(8)))
        assert lane.words[8] == 2


def test_a_job_that_spins_beside_a_lane_leaves_it_alone() -> None:
    with LaneDriver(slices=32) as lane:
        lane.complete(lane.launch("add", lane.pointer(8)))
        spec = LaunchSpec(
            lane.module.kernel("spin"), "persistent", (5000, 1, 1), (1, 1, 1), lane.pointer()
        )
        over = threading.Event()
        job = lane.device.new_run(lane.device.prepare([spec]), 0, lambda: None, over.set)
        job.resize(40)
        end = time.monotonic() + 1.5  # after a second an SM's thread reports that it spins
        while time.monotonic() < end:
            lane.complete(lane.launch("add", lane.pointer(8)))
            time.sleep(0.05)
        job.kill()
        assert over.wait(20)
        lane.complete(lane.launch("add", lane.pointer(8)))
