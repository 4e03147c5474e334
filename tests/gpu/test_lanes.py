"""Lanes on the CUDA device over the model of the driver: what holds of them on the CPU device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from tests.gpu.served_daemon import Served
from tests.integration import test_lanes as lanes

lane = lanes.lane
test_a_program_changes_one_line = lanes.test_a_program_changes_one_line
test_reads_and_writes_of_an_array_wait_for_its_launches = (
    lanes.test_reads_and_writes_of_an_array_wait_for_its_launches
)
test_errors_name_kernel_block_and_array_as_on_the_ordinary_path = (
    lanes.test_errors_name_kernel_block_and_array_as_on_the_ordinary_path
)
test_running_and_waiting_jobs_are_cancelled = lanes.test_running_and_waiting_jobs_are_cancelled
test_a_sequence_is_one_job = lanes.test_a_sequence_is_one_job
test_a_killed_clients_lane_is_closed_with_its_running_blocks = (
    lanes.test_a_killed_clients_lane_is_closed_with_its_running_blocks
)


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    served = Served()
    with served.connect() as session:
        assert session.devices[0].kind == "cuda"
        yield session
    served.close()


def test_launches_that_wait_together_have_their_own_parameters(
    gpu: gc.Session, lane: gc.Lane
) -> None:
    put = gpu.kernel(lanes.SOURCE, "put")
    for _ in range(4):  # sequences that run again are queued in other ways
        out = gpu.zeros(200, np.uint32)
        for at in range(200):
            put.submit(1, 1, (np.uint64(out.ptr + 4 * at), at), stream=lane)
        lane.synchronize()
        assert out.get().tolist() == list(range(200))
