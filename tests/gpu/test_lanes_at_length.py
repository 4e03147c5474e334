"""The rest of what holds of lanes on the CPU device, over the model of the CUDA driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpud_client as gc
from tests.gpu.served_daemon import Served
from tests.integration import test_lanes as lanes

lane = lanes.lane
test_what_nobody_asks_about_is_not_settled_and_not_kept = (
    lanes.test_what_nobody_asks_about_is_not_settled_and_not_kept
)
test_more_launches_than_the_ring_holds_wait_for_room = (
    lanes.test_more_launches_than_the_ring_holds_wait_for_room
)
test_a_sequence_may_be_longer_than_the_ring = lanes.test_a_sequence_may_be_longer_than_the_ring
test_arguments_are_checked_as_ever = lanes.test_arguments_are_checked_as_ever
test_threads_share_a_lane = lanes.test_threads_share_a_lane
test_futures_are_waited_for_together_while_one_is_settled = (
    lanes.test_futures_are_waited_for_together_while_one_is_settled
)
test_options_that_a_lane_does_not_have_are_refused = (
    lanes.test_options_that_a_lane_does_not_have_are_refused
)
test_arrays_are_checked_as_ever = lanes.test_arrays_are_checked_as_ever
test_futures_and_callbacks_work_though_nobody_asks = (
    lanes.test_futures_and_callbacks_work_though_nobody_asks
)
test_failures_and_callbacks_of_dropped_jobs_are_not_lost = (
    lanes.test_failures_and_callbacks_of_dropped_jobs_are_not_lost
)
test_jobs_follow_each_other_between_lanes_and_streams = (
    lanes.test_jobs_follow_each_other_between_lanes_and_streams
)
test_memory_of_arrays_comes_free_while_a_lane_is_open = (
    lanes.test_memory_of_arrays_comes_free_while_a_lane_is_open
)
test_a_closed_lane_gives_its_share_back = lanes.test_a_closed_lane_gives_its_share_back


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    served = Served()
    with served.connect() as session:
        assert session.devices[0].kind == "cuda"
        yield session
    served.close()
