"""Every case in every legal form on a GPU, against NumPy, its plain launch, and the CPU device.

On one GPU the forms must leave the same bytes as the unmodified kernel that the driver launches,
approximate instructions included: they are the same instructions. The CPU device must leave the
same values, NaN for NaN, except in buffers for which the case itself states a tolerance.

``GPUD_REFERENCE=none`` leaves the CPU device out, ``GPUD_PART=1/2`` takes the first of two parts of
the cases: for compute-sanitizer, under which they take long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from bench.gpu.instrumentation.driver import Gpu
from gpud.device.cpu.device import CPUDevice
from gpud.errors import KernelRejected
from tests.conformance.checked_device import CheckedDevice
from tests.conformance.runner import LoadedCase, Run, headers_installed, straight
from tests.conformance.suite import CASES, Case, Results, differences_between, mismatches
from tests.conformance.suite.case import Form
from tests.gpu.comparison import differences
from tests.gpu.device_arrays import captured
from tests.gpu.native_device import run_native

REWRITTEN: tuple[Form, ...] = ("persistent", "sliced", "whole")


def part_of(cases: Sequence[Case], part: str) -> list[Case]:
    """Every n-th case, for ``part`` "k/n"."""
    number, count = map(int, part.split("/"))
    return list(cases[number - 1 :: count])


RUNNABLE = part_of(
    [case for case in CASES if case.forms and not case.rejection],
    os.environ.get("GPUD_PART", "1/1"),
)


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    if os.environ.get("GPUD_REFERENCE") == "none":
        yield None
        return
    with CPUDevice(2) as one:
        yield CheckedDevice(one)


def results(device: Any, case: Case, form: Form) -> tuple[Run, Results]:
    """Run to the end; printed output comes from the job or from standard output."""
    run = LoadedCase(device, case, form).start()
    flush = getattr(device, "synchronize", lambda: None)
    with ExitStack() as stack:
        output = [""] if case.output is None else stack.enter_context(captured(flush))
        while run.launches_left:
            job = run.launch()
            straight(case.blocks if form == "unmodified" else 5)(job)
            run.ended(job)
    found = run.results()
    return run, Results(found.buffers, found.runs, found.symbols, found.output or output[0])


def check(case: Case, run: Run, found: Results) -> None:
    assert mismatches(case, run.arguments, found, run.expected) == []


def skip_without_headers(case: Case) -> None:
    if case.headers and not headers_installed():
        pytest.skip("CUDA's headers are not installed")


def skip_for_newer_devices(case: Case, device: Any) -> None:
    if case.target > device.capability:
        pytest.skip(f"needs a device for {case.arch}")


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_rewritten_as_native_as_numpy_as_the_cpu_device(
    gpu: Gpu, device: Any, reference: Any, case: Case
) -> None:
    skip_without_headers(case)
    skip_for_newer_devices(case, device)
    native: Results | None = None
    if "unmodified" in case.forms:
        with gpu.current():
            native = run_native(gpu, case)
    for form in REWRITTEN:
        if form not in case.forms:
            continue
        run, found = results(device, case, form)
        check(case, run, found)
        if case.deterministic and native is not None:
            assert differences_between(native, found) == [], form
        if reference is not None:
            _, on_cpu = results(reference, case, form)
            assert differences(case, run.expected, on_cpu, found) == [], form


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", [c for c in RUNNABLE if "unmodified" in c.forms], ids=lambda case: case.name
)
def test_unmodified_by_gpud(device: Any, case: Case) -> None:
    skip_without_headers(case)
    skip_for_newer_devices(case, device)
    run, found = results(device, case, "unmodified")
    check(case, run, found)


LACKING = [case for case in CASES if case.rejection and case.expected_form != "rejected"]


@pytest.mark.gpu
@pytest.mark.parametrize("case", LACKING, ids=lambda case: case.name)
def test_what_the_cpu_device_refuses_is_right_or_refused(device: Any, case: Case) -> None:
    refused: KernelRejected | None = None
    try:
        run, found = results(device, case, "unmodified")
    except KernelRejected as error:
        refused = error
    else:
        check(case, run, found)
    assert refused is None or case.rejection in refused.reason
