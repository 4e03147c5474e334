"""No false alarms: the suite's programs are right, and the checking mode finds nothing in them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest

from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.errors import CheckFailed
from tests.conformance.checking_device import CheckingDevice
from tests.conformance.runner import (
    LoadedCase,
    headers_installed,
    problems_of,
    source_of,
    straight,
    unoptimised,
)
from tests.conformance.suite import CASES, Case
from tests.conformance.suite.case import Form

pytestmark = pytest.mark.ci

NAME = operator.attrgetter("name")
FORMS: tuple[Form, ...] = ("persistent", "sliced", "whole")


ABSENT_LANES = ("absent_lanes", "exit_before_shuffle")
"""Programs whose shuffles do read lanes that take no part."""


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    """What is found does not depend on LLVM's effort."""
    with unoptimised(), CPUDevice(2) as one:
        yield CheckingDevice(one)


def assert_nothing_is_found(case: Case, device: Any) -> None:
    if case.headers and not headers_installed():
        pytest.skip("CUDA's headers are not installed")
    form = next(form for form in FORMS if form in case.forms)
    program = compile_program(
        source_of(case.name).ptx, form=form, progress=case.progress, check=True
    )
    run = LoadedCase(device, case, form, ptx=program.ptx).start()
    while run.launches_left:
        job = run.launch()
        straight(5)(job)  # raises what was found
        run.ended(job)
    assert problems_of(run) == []


@pytest.mark.parametrize("case", [case for case in CASES if set(case.forms) & set(FORMS)], ids=NAME)
def test_nothing_is_found_in_the_suite(case: Case, device: Any) -> None:
    if case.name in ABSENT_LANES:
        with pytest.raises(CheckFailed, match="not among its members"):
            assert_nothing_is_found(case, device)
    else:
        assert_nothing_is_found(case, device)
