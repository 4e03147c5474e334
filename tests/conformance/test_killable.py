"""Variants with kill polls compute what the kernels without compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.compiler.abi.reserved_names import killable_variant
from gpud.device.cpu.device import CPUDevice
from tests.conformance.runner import LoadedCase, problems_of, rewritten, source_of, straight
from tests.conformance.suite import CASES, Case

pytestmark = pytest.mark.ci

FORMS = ("persistent", "sliced")


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def check(device: CPUDevice, case: Case) -> int:
    """Runs the variants of a case; returns how many there are."""
    entry = source_of(case.name).entry
    count = 0
    for form in FORMS:
        if form not in case.forms or not rewritten(case.name, form).kernels[entry].killable:
            continue
        loaded = LoadedCase(device, case, form)
        loaded.kernel = loaded.module.kernel(killable_variant(entry))
        run = loaded.start()
        while run.launches_left:
            job = run.launch()
            straight(5)(job)
            run.ended(job)
        assert problems_of(run) == [], form
        count += 1
    return count


# Single products of matrices have no loops.
LOOPING = [
    case
    for case in CASES
    if case.forms and not case.headers and not case.opcodes and "tensor-core" not in case.covers
][::5]


@pytest.mark.parametrize("case", LOOPING, ids=lambda case: case.name)
def test_killable_variants_agree_with_numpy(case: Case, device: CPUDevice) -> None:
    check(device, case)


def test_the_chosen_cases_have_variants() -> None:
    kernels = [rewritten(case.name).kernels[source_of(case.name).entry] for case in LOOPING]
    assert sum(kernel.killable for kernel in kernels) > len(LOOPING) // 4
