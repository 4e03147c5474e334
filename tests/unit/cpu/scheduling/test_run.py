"""Runs: every task block once, whatever is resized when (gates: `gated_runs`)."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.scheduling.sequence import CPUSequence
from gpud.device.interface import Form, LaunchSpec
from gpud.errors import LaunchConfigError
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, cuda, pointer, rewritten, words
from tests.unit.cpu.scheduling.gated_runs import FORMS, RESIZABLE, SOURCE, TOTAL, make

# -- to the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grid", [1, TOTAL, (5, 4), (3, 2, 4), (1, 1, 7)])
def test_every_task_block_runs_once(
    device: CPUDevice, form: Form, grid: int | tuple[int, ...]
) -> None:
    work = make(device, form, grid)
    total = work.runs.size
    work.job.resize(3)
    work.job.result(TIMEOUT_S)
    assert work.runs.tolist() == [1] * total
    assert work.job.progress == (total, total, total)
    assert (work.job.done, work.job.held) == (True, 0)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_runs_before_the_first_resize(device: CPUDevice, form: Form) -> None:
    work = make(device, form)
    assert work.job.progress == (0, 0, TOTAL)
    assert (work.job.slices, work.job.held, work.job.done) == (0, 0, False)
    assert not work.job.wait(0)


def test_a_job_that_is_over_and_its_owner_form_no_cycle(device: CPUDevice) -> None:
    class Owner:
        def __init__(self, sequence: CPUSequence) -> None:
            self.job = ResizableRun(device, sequence, on_left=self.called, on_done=self.called)

        def called(self, job: ResizableRun) -> None:
            pass

    gc.disable()  # only the collector frees a cycle
    try:
        owner = Owner(make(device, "persistent").job.sequence)
        seen = weakref.ref(owner), weakref.ref(owner.job._run)
        owner.job.resize(2)
        owner.job.result(TIMEOUT_S)
        del owner
        until(lambda: not any(one() for one in seen))
    finally:
        gc.enable()


# -- resizing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", RESIZABLE)
def test_stop_leaves_exactly_the_unclaimed_task_blocks(device: CPUDevice, form: Form) -> None:
    work = make(device, form, gate=0)
    work.job.resize(3)
    until(lambda: work.job.progress[0] == 3)
    work.job.stop()
    assert work.job.held == 3, "started blocks are never evicted"
    work.gate[0] = OPEN
    until(lambda: work.job.held == 0)
    assert work.runs.tolist() == [1] * 3 + [0] * (TOTAL - 3)
    assert work.job.progress == (3, 3, TOTAL)
    assert not work.job.done
    work.job.resize(2)
    work.finish()


def test_a_persistent_job_shrinks_at_the_next_task_block(device: CPUDevice) -> None:
    work = make(device, "persistent", gate=0)
    work.job.resize(2)
    work.job.resize(5)
    until(lambda: work.job.progress[0] == 5)
    work.job.resize(1)
    assert (work.job.held, work.job.slices) == (5, 1)
    work.gate[0] = 5
    until(lambda: work.job.held == 1)
    # The one that stays has claimed again.
    until(lambda: work.job.progress == (6, 5, TOTAL))
    work.job.resize(3)
    until(lambda: work.job.progress[0] == 8)
    work.finish()


def test_a_sliced_job_takes_its_new_size_with_the_next_blocks(device: CPUDevice) -> None:
    work = make(device, "sliced", gate=0)
    work.job.resize(4)
    until(lambda: work.job.progress == (4, 0, TOTAL))
    work.job.resize(3)
    work.gate[0] = 4
    until(lambda: work.job.progress == (7, 4, TOTAL))
    work.job.resize(8)
    work.finish()


@pytest.mark.parametrize("form", ["whole", "unmodified"])
def test_a_form_that_cannot_be_resized_runs_to_its_end(device: CPUDevice, form: Form) -> None:
    work = make(device, form, gate=0)
    work.job.resize(1)
    until(lambda: work.job.progress == (TOTAL, 0, TOTAL))
    work.job.resize(4)
    work.job.stop()
    work.finish()


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "takes 2 arguments, not 0"),
        ([bytes(8)], "takes 2 arguments, not 1"),
        ([bytes(8)] * 3, "takes 2 arguments, not 3"),
        ([bytes(8), bytes(4)], r"argument 1 .* has 4 bytes, .* 8"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    device: CPUDevice, form: Form, values: list[bytes], message: str
) -> None:
    kernel = make(device, form).kernel
    with pytest.raises(ValueError, match=message):
        LaunchSpec.of(kernel, form, 1, 32, values)


@pytest.mark.parametrize("what", ["grid", "block"])
@pytest.mark.parametrize("extents", [0, -3, (4, 0), (1, 2, -1), (1, 2, 3, 4), (), True, 2.0, "32"])
def test_malformed_extents_are_refused(device: CPUDevice, what: str, extents: object) -> None:
    kernel = make(device, "persistent").kernel
    grid, block = (extents, 32) if what == "grid" else (1, extents)
    with pytest.raises(LaunchConfigError) as caught:
        LaunchSpec.of(kernel, "persistent", grid, block, [bytes(8)] * 2)  # type: ignore[arg-type]
    assert caught.value.parameter == what


@pytest.mark.parametrize("grid", [2**31, (2**16, 2**15), (2**20, 2**20, 2**20)])
def test_too_many_task_blocks_are_refused(device: CPUDevice, grid: tuple[int, ...]) -> None:
    with pytest.raises(LaunchConfigError, match="split the work") as caught:
        make_only_job(device, grid)
    assert caught.value.limit == 2**31 - 1


def test_the_largest_grid_is_accepted(device: CPUDevice) -> None:
    job = make_only_job(device, 2**31 - 1)
    assert job.progress == (0, 0, 2**31 - 1)


def make_only_job(device: CPUDevice, grid: int | tuple[int, ...]) -> ResizableRun:
    kernel = make(device, "persistent").kernel
    return ResizableRun(device, [LaunchSpec.of(kernel, "persistent", grid, 32, [bytes(8)] * 2)])


# -- waiting -----------------------------------------------------------------------------------


def test_on_done_holds_no_lock(device: CPUDevice) -> None:
    """A scheduler's own lock is held in its callback and around resize: no order of the two."""
    kernel = make(device, "persistent").kernel
    seen: list[bool] = []
    finished = threading.Event()

    def ask(job: ResizableRun) -> None:
        other = threading.Thread(target=lambda: job.progress, daemon=True)
        other.start()
        other.join(2)
        seen.append(not other.is_alive())
        finished.set()

    runs, _ = words(device, 1)
    door, opening = words(device, 2)
    opening[0] = OPEN
    values = [pointer(runs), pointer(door)]
    job = ResizableRun(device, [LaunchSpec.of(kernel, "persistent", 1, 32, values)], on_done=ask)
    job.resize(1)
    assert finished.wait(TIMEOUT_S)
    assert seen == [True]


# -- several jobs ------------------------------------------------------------------------------


def test_jobs_run_side_by_side(device: CPUDevice) -> None:
    held = make(device, "persistent", gate=0)
    held.job.resize(2)
    until(lambda: held.job.progress[0] == 2)
    others = [make(device, form) for form in FORMS]
    for other in others:
        other.job.resize(3)
    for other in others:
        other.job.result(TIMEOUT_S)
        assert other.runs.tolist() == [1] * TOTAL
    assert held.job.progress == (2, 0, TOTAL)
    held.gate[0] = OPEN
    held.job.result(TIMEOUT_S)


def test_the_more_urgent_launch_gets_the_next_free_slot() -> None:
    with CPUDevice(1, capability=75) as device:
        slots = 16
        running = make(device, "persistent", 100, gate=0)
        running.job.resize(slots)
        until(lambda: running.job.progress[0] == slots)
        patient = make(device, "persistent", gate=0)
        patient.job.resize(1)
        urgent = make(device, "persistent", gate=0, priority=5)
        urgent.job.resize(1)
        assert (patient.job.progress[0], urgent.job.progress[0]) == (0, 0)
        running.job.resize(slots - 1)
        running.gate[0] = slots
        until(lambda: urgent.job.progress[0] == 1)
        assert patient.job.progress[0] == 0
        for work in (running, urgent, patient):
            work.gate[0] = OPEN
            work.job.result(TIMEOUT_S)


@pytest.mark.parametrize("form", FORMS)
def test_each_job_has_its_own_output(device: CPUDevice, form: Form) -> None:
    text = cuda(SOURCE) if form == "unmodified" else rewritten(SOURCE, form).ptx
    kernel = device.load(text).kernel("says")
    jobs = [ResizableRun(device, [LaunchSpec.of(kernel, form, n, 32, [])]) for n in (3, 5)]
    for job in jobs:
        job.resize(2)
    for job, n in zip(jobs, (3, 5), strict=True):
        job.result(TIMEOUT_S)
        lines = sorted(job.output.decode().splitlines())
        assert lines == [f"block {i}" for i in range(n)]
