"""Tiers of tests, a time limit for fixtures, settings of Hypothesis for all tests, and Ctrl-C.

`CI` lists what `make test` leaves to continuous integration: tests that take long for what they
add to the rest. ``slow`` tests are for `make stress`, ``gpu`` tests for `make gpu-test`.

The same examples each time and no limits of time: a test fails because of what it tests, not
because other programs had the cores. ``make stress`` takes the profile ``search``, which looks for
new ones.

The time limit of a test ends with its first failure. What it leaves, such as a lane with a launch
that nobody lets go, could then hang its fixtures: they have a limit of their own.

A shell ignores SIGINT in what it runs in the background, and every child inherits that: tests that
send it would wait for ever.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Generator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

# Programs that take seconds to compile or to run in all of their forms.
_LONG_PROGRAMS = (
    *("bitonic_sort", "black_scholes", "bulk_reductions", "call_signatures", "convolution"),
    *("copy_async", "crc32", "cub_sort", "divergent", "device_heap", "histogram", "int128"),
    *("leaving_loop", "matrix_moves", "memcpy_async", "memory_widths", "merge_path", "numba_rows"),
    *("placed_objects", "print_all", "radix_pass", "reductions_parted", "sha256", "softmax"),
    *("standard_library", "struct_local_copy", "waiting_signatures", "welford"),
)

# Products of matrices, each shape much like the others; what is left runs for every change.
_MATRICES = (
    *("mma_m8", "mma_m16n8k4", "mma_m16n8k8", "mma_m16n8k128", "mma_m16n8k256", "mma_m16n8k32"),
    *("mma_m16n8k64", "wmma_mma_col", "wmma_mma_row_row", "tex3d"),
    *("wmma_mma_and_popc", "wmma_mma_xor_popc", "wmma_mma_row_col_m8"),
)

# Pages whose examples start a daemon each; README's run for every change.
_PAGES = (
    *("check-a-kernel.md", "client.md", "debug-a-kernel.md", "first-kernel.md", "lanes.md"),
    *("share-a-gpu.md", "use-notebooks.md", "training.md", "workloads.md"),
)

CI = (
    *(
        "tests/conformance/test_conformance.py"
        f"::test_forms_agree_with_numpy_and_with_each_other[{name}]"
        for name in _LONG_PROGRAMS
    ),
    *(
        "tests/conformance/test_conformance.py"
        f"::test_forms_agree_with_numpy_and_with_each_other[{beginning}"
        for beginning in _MATRICES
    ),
    *(
        f"tests/conformance/test_conformance.py::test_the_form_is_the_expected_one[{name}]"
        for name in _LONG_PROGRAMS
    ),
    *(f"tests/unit/test_docs.py::test_examples_run[{page}" for page in _PAGES),
    "tests/compiler/passes/test_bounds_checks_random.py",
    "tests/conformance/test_checking.py",
    "tests/conformance/test_killable.py",
    "tests/conformance/test_stress.py::test_a_mutant_makes_it_fail",
    *(
        f"tests/conformance/test_work_shares.py::test_work_follows_shares[{case}-"
        for case in ("long-task-blocks", "the-smallest-share", "two-sms", "four-sms")
    ),
    "tests/conformance/test_suite.py::test_case_compiles_and_has_its_entry",
    "tests/conformance/test_suite.py::test_every_case_assembles",
    "tests/conformance/test_suite.py::test_reference_is_deterministic_and_leaves_its_arguments_alone",
    # What hostile and dying programs can do, beyond faults of kernels.
    "tests/faults/test_access.py",
    "tests/faults/test_attacks.py",
    "tests/faults/test_checked_memory.py",
    "tests/faults/test_client_failures.py",
    "tests/faults/test_fuzz.py::test_a_live_daemon_answers_for_every_message",
    "tests/faults/test_fuzz.py::test_a_planted_bug_of_the_parser_is_found",
    "tests/faults/test_fuzz.py::test_the_benchmark_counts_and_names_the_batch",
    "tests/faults/test_fuzz.py::test_the_parser_guided_by_coverage",
    "tests/faults/test_fuzz_inputs.py::test_command_lines",
    "tests/faults/test_fuzz_inputs.py::test_compiler_options_at_a_live_daemon",
    "tests/faults/test_fuzz_session.py",
    "tests/faults/test_host_calls.py",
    "tests/faults/test_host_failures.py",
    "tests/faults/test_host_kills.py",
    "tests/faults/test_host_timeouts.py",
    "tests/faults/test_kernel_faults_end_to_end.py",
    "tests/faults/test_lane_rings.py::test_a_live_daemon_ends_hostile_lanes_and_no_other",
    "tests/faults/test_lane_rings.py::test_the_campaign_notices_what_is_wrong",
    "tests/faults/test_limits.py",
    "tests/faults/test_out_of_bounds.py",
    "tests/faults/test_soak.py",
    # The served model of the driver, whole daemons from start to end, the demo, the benchmarks.
    "tests/gpu/test_bench_colocation.py",
    "tests/gpu/test_bench_driver.py",
    "tests/gpu/test_bench_shares.py",
    "tests/gpu/test_over_model.py",
    "tests/gpu/test_served.py",
    "tests/integration/test_adapters.py",
    "tests/integration/test_adapters_that_move.py",
    "tests/integration/test_administration.py::test_a_drain_ends_the_daemon_after_its_jobs",
    "tests/gpu/test_lane_rings.py",
    "tests/gpu/test_lanes_at_length.py",
    "tests/integration/test_benchmarks.py",
    "tests/integration/test_checking.py::test_with_asyncio",
    "tests/integration/test_client.py::test_a_grid_that_synchronises",
    "tests/integration/test_client_local.py",
    "tests/integration/test_daemon_flow_control.py::test_many_submissions_at_once",
    "tests/integration/test_daemon_process.py",
    "tests/integration/test_daemon_requests.py::test_bad_content_in_the_name_of_a_job_that_runs",
    "tests/integration/test_demo.py",
    "tests/integration/test_dumps.py",
    "tests/integration/test_gpuctl.py::test_a_job_is_seen_resized_and_cancelled_from_another_shell",
    "tests/integration/test_gpuctl.py::test_every_look_works_on_the_real_daemon",
    "tests/integration/test_gpuctl.py::test_the_event_log_of_a_daemon_replays",
    "tests/integration/test_host_process.py",
    "tests/integration/test_lane_ends.py::test_eight_clients_with_a_lane_each_are_all_served",
    "tests/integration/test_lane_wake_ups.py",
    "tests/integration/test_gpuctl.py::test_run_into_a_pipe_says_once_why_it_waits",
    "tests/integration/test_gpuctl.py::test_run_needs_no_name_of_the_only_kernel",
    "tests/integration/test_gpuctl.py::test_run_says_what_is_lost_with_its_daemon",
    "tests/integration/test_lane_ends.py",
    "tests/integration/test_notebooks.py",
    "tests/integration/test_progress.py",
    "tests/integration/test_reconnect.py",
    "tests/integration/test_shares.py",
    "tests/integration/test_why.py::test_why_of_a_job_that_has_ended",
    "tests/integration/test_workload_leases.py::test_a_lease_ends_with_its_program_and_with_a_pause",
    "tests/integration/test_workload_leases.py::test_a_program_that_does_nothing_gives_its_turn",
    "tests/integration/test_workload_moves.py::test_a_client_killed_while_regions_are_away",
    "tests/integration/test_workload_jobs.py::test_a_paused_device_begins_no_iteration",
    "tests/integration/test_workload_jobs.py::test_lanes_and_online_jobs_run_in_turns_and_between",
    "tests/integration/test_workload_jobs.py::test_two_threads_do_not_share_a_workload",
    "tests/integration/test_workload_moves.py::test_what",
    "tests/integration/test_workload_moves.py::test_without_host_memory_a_movable_workload_waits",
    "tests/integration/test_workloads_on_a_gpu.py",
    "tests/integration/test_workloads.py::test_a_client_that_is_killed_in_its_turn",
    "tests/integration/test_workloads.py::test_a_workload_alone_asks_nobody_until_another_comes",
    "tests/integration/test_workloads.py::test_persistent_memory_grows",
    "tests/integration/test_workloads.py::test_temporary_memory_is_zero",
    "tests/integration/test_workloads.py::test_the_list_shows_zones_to_scale",
    "tests/integration/test_workloads.py::test_training_in_turns_has_the_losses_of_training_alone",
    "tests/integration/test_workloads.py::test_who_overstays_is_named_and_can_be_ended",
    "tests/integration/test_workloads.py::test_workloads_can_be_awaited",
    "tests/integration/test_workloads_on_a_gpu.py::test_what_is_lost_with_a_host_is_named",
    # Planted faults of the scheduler, long histories of shares, each path of the claim protocol.
    "tests/property/test_lane_ring.py::test_no_lost_wake_up_in_any_interleaving[shared]",
    "tests/property/test_scheduler.py::test_a_planted_fault_is_caught",
    "tests/property/test_ptx_properties.py",
    "tests/property/test_shares.py::test_bursts_do_not_change_what_weights_say[2-8]",
    "tests/property/test_shares.py::test_bursts_do_not_change_what_weights_say[4-",
    "tests/property/test_structured_kernels.py",
    "tests/unit/client/test_textures.py::test_a_job_reads_through_a_texture",
    "tests/unit/cpu/lower/test_matrix_products.py::test_a_sum_is_rounded_once",
    "tests/unit/cpu/scheduling/test_spinning.py::test_it_fails_and_says_what_to_do[backing_off-",
    "tests/unit/cpu/scheduling/test_spinning.py::test_it_fails_and_says_what_to_do[later-sliced",
    "tests/unit/cpu/scheduling/test_spinning.py::test_what_ends_by_itself_is_left_alone",
    "tests/unit/cuda/test_give_back.py::test_a_released_block_leaves_at_once",
    "tests/unit/cuda/test_give_back.py::test_who_finds_no_node_runs_its_claim",
    "tests/unit/cuda/test_give_back.py::test_once_whatever_is_released_when",
    "tests/unit/test_claim_protocol.py::test_what_is_given_back_is_run_once",
    "tests/unit/test_mutation.py",
)
"""Beginnings of the ids of tests of continuous integration's tier."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of continuous integration's tier."""
    for item in items:
        if item.nodeid.startswith(CI):
            item.add_marker(pytest.mark.ci)


_TEARDOWN_S = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """End the process with its tracebacks if fixtures of a test do not end."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]  # the one that is not captured
    faulthandler.dump_traceback_later(_TEARDOWN_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


_SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=_SLOWNESS, print_blob=True
)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOWNESS, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
