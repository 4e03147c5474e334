"""A kernel that never ends is ended alone on a GPU.

Apart from the other faults: if it cannot be ended, nothing else in the process will work.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.fault_world import TIMEOUT_S, World


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_a_kernel_without_end_is_ended_alone(device: Any) -> None:
    world, neighbour = World(device), World(device)
    for one in (world, neighbour):
        one.lives()
    world.memory.view[:] = 0
    job = world.job("endless")
    try:
        job.resize(2)
        neighbour.lives()
        assert not job.done
    finally:
        job.kill()
    assert job.wait(TIMEOUT_S)
    assert not job.complete
    world.lives()
    neighbour.lives()
