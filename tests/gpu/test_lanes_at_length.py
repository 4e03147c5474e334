"""The rest of what holds of lanes on the CPU device, over the model of the CUDA driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpud_client as gc
from tests.gpu.served_daemon import Served
from tests.integration import test_lane_ends as ends
from tests.integration import test_lane_jobs as jobs
from tests.integration import test_lane_lending as lending
from tests.integration import test_lanes as lanes

pytestmark = pytest.mark.ci

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


test_a_running_job_tells_its_progress_and_what_it_costs = (
    jobs.test_a_running_job_tells_its_progress_and_what_it_costs
)
test_a_sequence_tells_its_progress_launch_by_launch = (
    jobs.test_a_sequence_tells_its_progress_launch_by_launch
)
test_a_job_runs_no_longer_than_its_timeout = jobs.test_a_job_runs_no_longer_than_its_timeout
test_a_timeout_is_that_of_the_whole_sequence = jobs.test_a_timeout_is_that_of_the_whole_sequence
test_what_follows_a_failure_in_a_sequence_does_not_begin = (
    jobs.test_what_follows_a_failure_in_a_sequence_does_not_begin
)
test_cancelling_a_launch_that_has_just_ended_leaves_the_next = (
    jobs.test_cancelling_a_launch_that_has_just_ended_leaves_the_next
)
test_jobs_that_end_while_somebody_begins_to_wait_are_told_once = (
    jobs.test_jobs_that_end_while_somebody_begins_to_wait_are_told_once
)
test_it_is_a_future_wherever_one_is_taken = jobs.test_it_is_a_future_wherever_one_is_taken
test_output_is_complete_when_the_job_has_ended = jobs.test_output_is_complete_when_the_job_has_ended
test_jobs_of_lanes_are_followed_and_follow = jobs.test_jobs_of_lanes_are_followed_and_follow
test_a_lane_can_have_sms_of_its_own = jobs.test_a_lane_can_have_sms_of_its_own
test_a_deadline_orders_lanes_that_wait_for_their_share = (
    jobs.test_a_deadline_orders_lanes_that_wait_for_their_share
)
test_a_forked_process_does_not_write_into_the_ring = (
    jobs.test_a_forked_process_does_not_write_into_the_ring
)
beside = lending.beside
test_an_idle_lane_lends_its_share_and_has_it_for_each_launch = (
    lending.test_an_idle_lane_lends_its_share_and_has_it_for_each_launch
)
test_what_a_lane_lends_is_shown = lending.test_what_a_lane_lends_is_shown
test_closing_a_lane_cancels_what_is_in_it = ends.test_closing_a_lane_cancels_what_is_in_it


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    served = Served()
    with served.connect() as session:
        assert session.devices[0].kind == "cuda"
        yield session
    served.close()


@pytest.fixture
def gpu(server: gc.Session) -> Iterator[gc.Session]:
    with gc.connect(server.path) as session:
        yield session
