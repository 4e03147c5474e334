"""Sequences of launches as one job: order, resizing at any point, held slices, repeated runs.

`Steps` is a sequence whose launches depend on each other: each task block of a launch adds up what
all task blocks of the launch before have left, so one that begins too early leaves a wrong number.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import Form, LaunchSpec, Memory
from gpud.errors import KernelTrap
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, Array, cuda, pointer, rewritten, words
from tests.unit.cpu.scheduling.gated_runs import SOURCE as GATED

SOURCE = (
    GATED
    + r"""
// in: one word for each task block of the launch before. out: likewise for this one.
extern "C" __global__ void sums(const unsigned* in, unsigned n, unsigned* out, unsigned* runs) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&sum, in[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum + blockIdx.x;
        atomicAdd(&runs[blockIdx.x], 1);
    }
}
extern "C" __global__ void fails(unsigned at) { if (blockIdx.x == at) __trap(); }
// Every thread of the block passes a barrier between two looks at the flag.
extern "C" __global__ void meets(unsigned* arrived, unsigned n) {
    if (threadIdx.x == 0) atomicAdd(arrived, 1);
    __shared__ unsigned seen;
    do {
        __syncthreads();
        if (threadIdx.x == 0) seen = *(volatile unsigned*)arrived;
        __syncthreads();
    } while (seen < n);
}
"""
)
FORMS: tuple[Form, ...] = ("persistent", "sliced", "whole", "unmodified")
LOOPS: tuple[Form, ...] = ("persistent",)


class Kernels:
    """The kernels of `SOURCE` on a device, in every form."""

    def __init__(self, device: CPUDevice) -> None:
        self._modules = {
            form: device.load(cuda(SOURCE) if form == "unmodified" else rewritten(SOURCE, form).ptx)
            for form in FORMS
        }

    def spec(
        self, name: str, form: Form, grid: int, values: list[bytes], block: int = 32
    ) -> LaunchSpec:
        kernel = self._modules[form].kernel(name)
        return LaunchSpec.of(kernel, form, grid, block, values)


@pytest.fixture(scope="module")
def kernels(device: CPUDevice) -> Kernels:
    return Kernels(device)


def word(value: int) -> bytes:
    return value.to_bytes(4, "little")


class Steps:
    """A sequence of `sums` launches with given grids and forms, and what they must leave."""

    def __init__(
        self,
        device: CPUDevice,
        kernels: Kernels,
        grids: Sequence[int],
        forms: Sequence[Form],
        blocks: Sequence[int] | None = None,
    ) -> None:
        self.grids = grids
        self.memories: list[Memory] = []
        self.specs: list[LaunchSpec] = []
        self.runs: list[Array] = []
        self.outs: list[Array] = []
        before, count = words(device, 1, 1)[0], 1
        self.memories.append(before)
        for at, (grid, form) in enumerate(zip(grids, forms, strict=True)):
            out, view = words(device, grid)
            runs, counts = words(device, grid)
            values = [pointer(before), word(count), pointer(out), pointer(runs)]
            self.specs.append(kernels.spec("sums", form, grid, values, (blocks or [32] * 99)[at]))
            self.memories += [out, runs]
            self.outs.append(view)
            self.runs.append(counts)
            before, count = out, grid

    def check(self, times: int = 1) -> None:
        """Every task block of every launch ran ``times`` times, and in order."""
        total = 1
        for grid, out, runs in zip(self.grids, self.outs, self.runs, strict=True):
            assert runs.tolist() == [times] * grid
            expected = (total + np.arange(grid, dtype=np.uint64)).astype(np.uint32)
            assert out.tolist() == expected.tolist()
            total = int(expected.sum(dtype=np.uint64)) % 2**32


class Gated:
    """A sequence of `work` launches that share one gate."""

    def __init__(
        self, device: CPUDevice, kernels: Kernels, grids: Sequence[int], form: Form = "persistent"
    ) -> None:
        self.door, self.gate = words(device, 2)
        self.memories = []
        self.runs = []
        self.specs = []
        for grid in grids:
            memory, counts = words(device, grid)
            self.memories.append(memory)
            self.runs.append(counts)
            values = [pointer(memory), pointer(self.door)]
            self.specs.append(kernels.spec("work", form, grid, values))

    def open(self) -> None:
        self.gate[0] = OPEN


# -- order and results -------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 3, 64])
@pytest.mark.parametrize("form", FORMS)
def test_launches_run_in_order(
    device: CPUDevice, kernels: Kernels, form: Form, slices: int
) -> None:
    steps = Steps(device, kernels, [5, 1, 17, 64, 2, 1, 9], [form] * 7)
    job = ResizableRun(device, steps.specs)
    job.resize(slices)
    job.result(TIMEOUT_S)
    steps.check()
    assert job.progress == (99, 99, 99)
    assert (job.done, job.complete, job.held, job.exhausted) == (True, True, 0, True)


def test_forms_mix_in_one_sequence(device: CPUDevice, kernels: Kernels) -> None:
    steps = Steps(device, kernels, [7] * 12, FORMS * 3)
    job = ResizableRun(device, steps.specs)
    job.resize(2)
    job.result(TIMEOUT_S)
    steps.check()


def test_a_long_sequence(device: CPUDevice, kernels: Kernels) -> None:
    steps = Steps(device, kernels, [3] * 1000, LOOPS * 1000, [32] * 1000)
    job = ResizableRun(device, steps.specs)
    job.resize(4)
    job.result(TIMEOUT_S)
    steps.check()


# -- blocks of each launch ---------------------------------------------------------------------


@pytest.mark.parametrize(("slices", "running"), [(1, (1, 4)), (2, (2, 8)), (3, (3, 12))])
def test_each_launch_has_blocks_in_proportion_to_its_own_occupancy(
    device: CPUDevice, kernels: Kernels, slices: int, running: tuple[int, int]
) -> None:
    sequence = Gated(device, kernels, [20, 20])
    measured = [sequence.specs[0]._replace(occupancy=4), sequence.specs[1]._replace(occupancy=16)]
    job = ResizableRun(device, measured)
    assert job.sequence.occupancy == 4
    job.resize(slices)
    until(lambda: job.progress[0] == running[0])
    assert job.held == slices
    sequence.gate[0] = 20
    until(lambda: job.progress[0] == 20 + running[1])
    assert job.held == slices
    job.resize(1)
    assert job.held == slices, "blocks that run are never evicted"
    sequence.gate[0] = 20 + running[1]
    until(lambda: job.held == 1 and job.progress[:2] == (20 + running[1] + 4, 20 + running[1]))
    sequence.open()
    job.result(TIMEOUT_S)


def test_a_launch_goes_on_when_others_than_its_first_blocks_are_left(
    device: CPUDevice, kernels: Kernels
) -> None:
    # A block of another job is on each SM, so 16 blocks lie on both, and the first 4 on one.
    other = Gated(device, kernels, [2], "whole")
    beside = ResizableRun(device, [other.specs[0]._replace(occupancy=2)])
    beside.resize(1)
    sequence = Gated(device, kernels, [16, 6, 1])
    measured = zip(sequence.specs, (16, 4, 16), strict=True)
    job = ResizableRun(device, [spec._replace(occupancy=most) for spec, most in measured])
    job.resize(4)
    until(lambda: job.progress[0] == 16)
    sequence.gate[0] = 16
    until(lambda: job.progress[0] == 20)
    job.clear([0])
    sequence.open()
    other.open()
    beside.result(TIMEOUT_S)
    job.result(TIMEOUT_S)
    assert [runs.tolist() for runs in sequence.runs] == [[1] * 16, [1] * 6, [1]]


def test_occupancy_must_be_that_of_the_launches(device: CPUDevice, kernels: Kernels) -> None:
    spec = Gated(device, kernels, [1]).specs[0]._replace(occupancy=8)
    for wrong in (0, 9):
        with pytest.raises(ValueError, match=f"between 1 and .* 8, not {wrong}"):
            ResizableRun(device, [spec], occupancy=wrong)


# -- what is held ------------------------------------------------------------------------------


def test_held_counts_released_blocks_until_they_have_left(
    device: CPUDevice, kernels: Kernels
) -> None:
    sequence = Gated(device, kernels, [40])
    left = threading.Semaphore(0)
    job = ResizableRun(device, sequence.specs, on_left=lambda _: left.release())
    job.resize(6)
    until(lambda: job.progress[0] == 6)
    assert (job.held, job.exhausted) == (6, False)
    job.resize(2)
    assert job.held == 6
    sequence.gate[0] = 6
    until(lambda: job.held == 2)
    assert left.acquire(timeout=TIMEOUT_S)
    assert job.slices == 2
    assert not job.exhausted
    sequence.open()
    job.result(TIMEOUT_S)
    assert (job.held, job.exhausted) == (0, True)
    assert job.release_ns > 0
    assert job.first_block_ns > 0


def test_blocks_without_room_go_away_at_once(kernels: Kernels) -> None:
    with CPUDevice(1, capability=75) as small:
        own = Kernels(small)
        sequence = Gated(small, own, [100])
        job = ResizableRun(small, sequence.specs)
        job.resize(40)
        until(lambda: job.progress[0] == 16)
        assert job.held == 40
        job.resize(16)
        assert job.held == 16
        job.resize(18)
        assert job.held == 18
        sequence.open()
        job.result(TIMEOUT_S)
        assert sequence.runs[0].tolist() == [1] * 100


def test_a_job_is_exhausted_when_its_last_launch_is_claimed(
    device: CPUDevice, kernels: Kernels
) -> None:
    sequence = Gated(device, kernels, [3, 2, 5])
    left = threading.Semaphore(0)
    job = ResizableRun(device, sequence.specs, on_left=lambda _: left.release())
    job.resize(4)
    until(lambda: job.progress[0] == 3)
    # The fourth block waits for the launches to come.
    assert (job.held, job.exhausted) == (4, False)
    sequence.gate[0] = 4
    until(lambda: job.progress == (5, 4, 10))
    assert (job.held, job.exhausted) == (4, False)
    sequence.gate[0] = 5
    until(lambda: job.progress[0] == 9)
    assert (job.held, job.exhausted) == (4, False)
    sequence.gate[0] = 6
    until(lambda: job.progress[0] == 10)
    assert job.exhausted
    assert job.held == 4
    for over in range(7, 10):
        sequence.gate[0] = over
        until(lambda over=over: job.held == 10 - over)  # type: ignore[misc]
        assert left.acquire(timeout=TIMEOUT_S)
    assert not job.done
    sequence.open()
    job.result(TIMEOUT_S)


def test_no_more_blocks_than_the_largest_launch_can_use(
    device: CPUDevice, kernels: Kernels
) -> None:
    sequence = Gated(device, kernels, [2, 5, 3])
    job = ResizableRun(device, sequence.specs)
    job.resize(30)
    assert job.held == 5
    sequence.open()
    job.result(TIMEOUT_S)


def test_released_blocks_that_are_wanted_again_stay(device: CPUDevice, kernels: Kernels) -> None:
    sequence = Gated(device, kernels, [40])
    job = ResizableRun(device, sequence.specs)
    job.resize(5)
    until(lambda: job.progress[0] == 5)
    job.resize(0)
    assert job.held == 5
    job.resize(5)
    assert job.held == 5
    sequence.gate[0] = 5
    until(lambda: job.progress == (10, 5, 40))
    sequence.open()
    job.result(TIMEOUT_S)
    assert sequence.runs[0].tolist() == [1] * 40


# -- ending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_end_lets_running_blocks_end_and_runs_no_more(
    device: CPUDevice, kernels: Kernels, form: Form
) -> None:
    sequence = Gated(device, kernels, [5, 5], form)
    ended: list[ResizableRun] = []
    job = ResizableRun(device, sequence.specs, on_done=ended.append)
    job.resize(3)
    until(lambda: job.progress[0] >= 3)
    job.end()
    assert not job.done
    assert job.exhausted
    started = job.progress[0]
    sequence.open()
    assert job.wait(TIMEOUT_S)
    assert (job.complete, job.error, job.held) == (False, None, 0)
    assert job.progress == (started, started, 10)
    assert int(sequence.runs[0].sum()) == started
    assert not sequence.runs[1].any()
    job.end()
    job.resize(4)
    job.result(0)
    until(lambda: len(ended) > 0)
    assert ended == [job]
    assert job.held == 0


def test_end_of_a_job_that_has_nothing_running(device: CPUDevice, kernels: Kernels) -> None:
    for slices in (None, 0):
        ended: list[ResizableRun] = []
        job = ResizableRun(device, Gated(device, kernels, [5]).specs, on_done=ended.append)
        if slices is not None:
            job.resize(slices)
        job.end()
        assert job.wait(0)
        assert ended == [job]
        assert not job.complete


def test_end_of_a_job_whose_blocks_have_no_room(kernels: Kernels) -> None:
    with CPUDevice(1, capability=75) as small:
        own = Kernels(small)
        running, waiting = Gated(small, own, [16]), Gated(small, own, [16])
        one = ResizableRun(small, running.specs)
        one.resize(16)
        until(lambda: one.progress[0] == 16)
        two = ResizableRun(small, waiting.specs)
        two.resize(3)
        assert two.held == 3
        two.end()
        assert two.wait(0)
        running.open()
        one.result(TIMEOUT_S)


def test_a_failed_launch_ends_the_sequence(device: CPUDevice, kernels: Kernels) -> None:
    steps = Steps(device, kernels, [4, 4], LOOPS * 2)
    for form in FORMS:
        launches = [
            steps.specs[0],
            kernels.spec("fails", form, 6, [word(3)]),
            steps.specs[1],
        ]
        steps.runs[0][:] = 0
        job = ResizableRun(device, launches)
        job.resize(2)
        with pytest.raises(KernelTrap) as caught:
            job.result(TIMEOUT_S)
        assert caught.value.kernel == "fails"
        assert (caught.value.launch, caught.value.task_block) == (1, (3, 0, 0))
        assert steps.runs[0].tolist() == [1] * 4
        assert not steps.runs[1].any()
        assert not job.complete
        assert job.error is caught.value


# -- resizing at any moment --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_task_block_of_every_launch_runs_once_whatever_is_resized(
    device: CPUDevice, kernels: Kernels, seed: int
) -> None:
    rng = random.Random(seed)
    active: list[tuple[ResizableRun, Steps]] = []
    left: dict[ResizableRun, int] = {}

    def count(job: ResizableRun) -> None:
        left[job] = left.get(job, 0) + 1

    for _ in range(8):
        count_of = rng.randint(1, 12)
        grids = [rng.choice((1, 2, 7, 30, 100)) for _ in range(count_of)]
        forms = [rng.choice(FORMS[:2]) for _ in grids]
        blocks = [rng.choice((32, 64, 1024)) for _ in grids]
        steps = Steps(device, kernels, grids, forms, blocks)
        active.append((ResizableRun(device, steps.specs, on_left=count), steps))
    for _ in range(400):
        job, _ = rng.choice(active)
        before = job.progress
        job.resize(rng.choice((0, 0, 1, 1, 2, 3, 9, 40)))
        after = job.progress
        assert before[0] <= after[0]
        assert before[1] <= after[1] <= after[0] <= after[2]
    for job, steps in active:
        job.resize(rng.randint(1, 4))
        job.result(TIMEOUT_S)
        steps.check()
        assert job.held == 0


@pytest.mark.parametrize("seed", range(4))
def test_end_at_any_moment_leaves_a_prefix_and_nothing_twice(
    device: CPUDevice, kernels: Kernels, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        steps = Steps(device, kernels, [rng.choice((1, 5, 40)) for _ in range(6)], LOOPS * 6)
        job = ResizableRun(device, steps.specs)
        job.resize(rng.randint(1, 8))
        goal = rng.randrange(job.total)
        until(lambda job=job, goal=goal: job.progress[1] >= goal)  # type: ignore[misc]
        job.end()
        assert job.wait(TIMEOUT_S)
        ran = np.concatenate(steps.runs)
        assert ran.max(initial=0) <= 1
        claimed, done, _ = job.progress
        assert claimed == done == int(ran.sum())
        assert np.all(np.diff(ran.astype(int)) <= 0), "task blocks begin in order"


# -- prepared sequences ---------------------------------------------------------------------------


def test_a_prepared_sequence_is_as_new_after_a_run_that_was_ended(
    device: CPUDevice, kernels: Kernels
) -> None:
    gated = Gated(device, kernels, [6, 2])
    sequence = device.prepare(gated.specs)
    first = ResizableRun(device, sequence)
    first.resize(2)
    until(lambda: first.progress[0] == 2)
    first.end()
    gated.open()
    assert first.wait(TIMEOUT_S)
    second = ResizableRun(device, sequence)
    second.resize(2)
    second.result(TIMEOUT_S)
    assert gated.runs[0].tolist() == [2, 2, 1, 1, 1, 1]
    assert gated.runs[1].tolist() == [1, 1]
    assert first.progress == (2, 2, 8), "what it had done is not forgotten"


def test_many_small_jobs_at_once(device: CPUDevice, kernels: Kernels) -> None:
    steps = Steps(device, kernels, [2, 3], LOOPS * 2)
    sequence = device.prepare(steps.specs)
    done = threading.Semaphore(0)
    for _ in range(300):
        ResizableRun(device, sequence, on_done=lambda _: done.release()).resize(2)
    for _ in range(300):
        assert done.acquire(timeout=TIMEOUT_S)
    assert [runs.tolist() for runs in steps.runs] == [[300] * 2, [300] * 3]


# -- arguments ---------------------------------------------------------------------------------


def test_a_job_needs_a_launch(device: CPUDevice) -> None:
    with pytest.raises(ValueError, match="one launch or more"):
        ResizableRun(device, [])


@pytest.mark.parametrize("size", [0, 7, 15, 17, 24])
def test_parameters_of_the_wrong_size_are_refused(
    device: CPUDevice, kernels: Kernels, size: int
) -> None:
    spec = Gated(device, kernels, [1]).specs[0]
    with pytest.raises(ValueError, match=f"takes 16 bytes of parameters, not {size}"):
        ResizableRun(device, [spec, spec._replace(parameters=bytes(size))])


# -- waiting for each other --------------------------------------------------------------------


@pytest.mark.parametrize("form", ["persistent", "whole"])
def test_blocks_that_wait_for_each_other_through_barriers_go_on(
    device: CPUDevice, kernels: Kernels, form: Form
) -> None:
    """A block that polls with barriers in between is not seen to poll: the others must begin."""
    memory, arrived = words(device, 1)
    job = ResizableRun(device, [kernels.spec("meets", form, 6, [pointer(memory), word(6)], 64)] * 1)
    job.resize(6)
    job.result(TIMEOUT_S)
    assert arrived[0] == 6
