"""Some of the generated out-of-bounds cases on a GPU, and a few on the CPU device."""

from __future__ import annotations

from typing import Any

import pytest

from campaigns.out_of_bounds.accesses import ACCESSES
from gpud.device.cpu.device import CPUDevice
from tests.gpu.bounds_checker import BoundsChecker

PARTS = 12
FEW = [one for one in ACCESSES if one.name in ("st.global.u32", "ld.u64", "atom.global.add.u32")]


@pytest.mark.gpu
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", range(PARTS))
def test_accesses_out_of_the_arena_are_refused_and_reported(cuda: Any, part: int) -> None:
    cases, problems = BoundsChecker(cuda).campaign(ACCESSES[part::PARTS], 20 + part)
    assert problems == []
    assert cases >= len(ACCESSES[part::PARTS])


def test_the_same_on_the_cpu_device() -> None:
    with CPUDevice(1) as cpu:
        # One of the arguments of this seed is negative.
        cases, problems = BoundsChecker(cpu).campaign(FEW, 8)
    assert problems == []
    assert cases >= 2


def test_a_missing_check_is_seen() -> None:
    stores = [one for one in ACCESSES if one.name == "st.global.u32"]
    with CPUDevice(1) as cpu:
        world = BoundsChecker(cpu, checked=False)
        seed = next(s for s in range(99) if _hits_a_neighbour(world, stores, s))
        _, problems = world.campaign(stores, seed)
    assert any("instead of IllegalAddress" in problem for problem in problems)
    assert any("neighbour" in problem for problem in problems)


def _hits_a_neighbour(world: BoundsChecker, accesses: list[Any], seed: int) -> bool:
    """Whether the only case of a seed stays in the three arenas: nothing else may be written."""
    import random

    from campaigns.out_of_bounds.cases import cases_of, kernels_of

    (spec,) = kernels_of(random.Random(seed), accesses, most=8)
    case = next(cases_of(random.Random(f"{seed}/{spec.name}"), spec, world.layout))
    near = any(at <= case.target < at + size - 65536 for at, size in world.layout.neighbours)
    return near and not case.twin and case.stride >= 0
