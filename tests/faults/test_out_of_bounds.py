"""Every kind of access, once each, out of its session's arena: contained and reported.

campaigns/out_of_bounds/run.py runs 10,000 of the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from campaigns.out_of_bounds.accesses import ACCESSES, Access
from campaigns.out_of_bounds.affine import affine
from campaigns.out_of_bounds.campaign import Tally, generated
from campaigns.out_of_bounds.cases import ALL, Case
from campaigns.out_of_bounds.check import load, run
from campaigns.out_of_bounds.kernels import MODES, PLACES, KernelSpec
from campaigns.out_of_bounds.world import TIMEOUT_S, World
from campaigns.out_of_bounds.written import written

pytestmark = pytest.mark.ci

SEED = 20
PARTS = 3


def one_of_each() -> list[Access]:
    """Every kind of access, either in its global or in its generic form."""
    kinds: dict[str, list[Access]] = {}
    for access in ACCESSES:
        kinds.setdefault(access.name.replace(".global", ""), []).append(access)
    return [forms[number % len(forms)] for number, forms in enumerate(kinds.values())]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as one:
        yield one


def checked(tally: Tally, world: World) -> Tally:
    tally.fail("at the end", world.neighbour_faults())
    assert not tally.failures, "\n".join(
        "\n    ".join((what, *problems)) for what, problems in tally.failures[:10]
    )
    return tally


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_kernels(world: World, part: int) -> None:
    some = one_of_each()[part::PARTS]
    tally = Tally()
    generated(world, tally, SEED + part, 0, most=12, accesses=some)
    assert checked(tally, world).cases >= len(some)


def test_kernels_as_people_write_them(world: World) -> None:
    tally = Tally()
    written(world, tally, SEED, 0, every=2)
    checked(tally, world)


def test_addresses_that_wrap_around_between_threads(world: World) -> None:
    tally = Tally()
    affine(world, tally, SEED, 6)
    checked(tally, world)


STORE = next(access for access in ACCESSES if access.name == "st.global.u32")
LOAD = next(access for access in ACCESSES if access.name == "ld.global.u32")
COUNT = """
extern "C" __global__ void count(int* x, int turns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int turn = 0; turn < turns; turn++) x[i] += turn & 1;
}"""


def case_of(spec: KernelSpec, side: str, target: int) -> Case:
    """All threads of the first task block use ``target``."""
    return Case(
        spec, spec.accesses[0], side, target, 0, 0, 31, 0, 0, ALL, (2, 1, 1),
        random.Random(1).getrandbits(63), side, twin=False,
    )  # fmt: skip


def test_neighbours_jobs_go_on(world: World) -> None:
    spec = KernelSpec("bad", (STORE,), MODES["parameter"], PLACES["straight"], (32, 1, 1))
    (loaded,) = load(world, [spec])
    with gc.connect(world.root.path) as neighbour:
        kernel = neighbour.kernel(COUNT, "count")
        values = neighbour.zeros(64 * 32, np.int32)
        before = world.neighbour_faults()
        jobs = []
        for number in range(10):
            jobs.append(kernel.submit(64, 32, (values, 2000)))
            target = world.layout.neighbours[number % 2][0]
            outcome = run(world, loaded, case_of(spec, "neighbour", target))
            assert not outcome.problems, outcome.problems
        for job in jobs:
            job.result(TIMEOUT_S)
        assert (values.get() == 1000 * len(jobs)).all()
        assert world.neighbour_faults() == before == []


def test_the_checks_see_what_a_missing_check_lets_through() -> None:
    with World(bounds_checks=False) as unchecked:
        for access in (STORE, LOAD):
            spec = KernelSpec("k", (access,), MODES["memory"], PLACES["straight"], (32, 1, 1))
            (loaded,) = load(unchecked, [spec])
            target = unchecked.layout.neighbours[1][0]
            outcome = run(unchecked, loaded, case_of(spec, "neighbour", target))
            said = " ".join(outcome.problems)
            assert "did not fail" in said
            assert "went on after its bad access" in said
            changed = bool(unchecked.neighbour_faults())
            assert changed or access is LOAD


def test_the_checks_see_a_wrong_report(world: World) -> None:
    spec = KernelSpec("k", (STORE,), MODES["parameter"], PLACES["straight"], (32, 1, 1))
    other = KernelSpec("k", (LOAD,), MODES["parameter"], PLACES["straight"], (32, 1, 1))
    (loaded,) = load(world, [spec])
    wrong = case_of(other, "after", world.layout.end)
    said = " ".join(run(world, loaded, wrong).problems)
    assert "reported instruction" in said
    assert "reported line" in said


def test_the_launch_of_a_sequence_is_named(world: World) -> None:
    source = 'extern "C" __global__ void mark(int* x, int at) { x[at] = at; }'
    kernel = world.gpu.kernel(source, "mark")
    values = world.gpu.zeros(8, np.int32)
    base = values.ptr
    beyond = (world.layout.end - base) // 4
    calls = [kernel.call(1, 1, (values, at)) for at in (1, 2, beyond, 3)]
    with pytest.raises(gc.IllegalAddress) as failed:
        world.gpu.sequence(calls).result(TIMEOUT_S)
    assert failed.value.launch == 2
    assert failed.value.address == world.layout.end
    assert values.get().tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    kernel.submit(1, 1, (values, 5)).result(TIMEOUT_S)
    assert values.get()[5] == 5
