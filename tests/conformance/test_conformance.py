"""Every case in every legal form on the CPU device: NumPy's values, the same bytes in all forms."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gpud.compiler.abi.control_words import Claims
from gpud.compiler.forms.classifier import Form
from gpud.device.cpu.device import CPUDevice
from gpud.errors import KernelRejected
from tests.conformance.checked_device import CheckedDevice
from tests.conformance.runner import (
    headers_installed,
    problems_of,
    rewritten,
    run_case,
    source_of,
    straight,
    unoptimised,
)
from tests.conformance.suite import CASES, Case, Results, differences_between, find
from tests.conformance.suite.case import Form as CaseForm

NAME = operator.attrgetter("name")


def tiers(cases: Iterable[Case]) -> list[Any]:
    """The cases as parameters, of which long ones are left to continuous integration."""
    return [
        pytest.param(one, id=one.name, marks=pytest.mark.ci if one.long else ()) for one in cases
    ]


FORMS: tuple[CaseForm, ...] = ("unmodified", "persistent", "sliced", "whole")

EXPECTED = {
    "persistent": (Form.PERSISTENT, False),
    "persistent-exit-aware": (Form.PERSISTENT, True),
    "sliced": (Form.SLICED, False),
    "whole": (Form.WHOLE, False),
}

# Between them: one and three dimensions, barriers, exit-aware ones, warp collectives, blocks that
# wait for lower ones, and a task block more than chunks have room for.
CLAIMING = ("saxpy", "stencil_3d", "early_return", "lookback_scan", "last_block_reduce")

# Instructions that copy a NaN's payload; and atomics, and the pairs and mixed sums of sm_100, whose
# NaNs nobody has measured.
KEEPS_PAYLOADS = re.compile(r"^(abs|neg|copysign)\.|atom|\.f32x2 |\.f32\.f16 ")


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    """Rewritten programs run checked, as the daemon has them."""
    with CPUDevice(2) as one:
        yield CheckedDevice(one)


def _skip_without_headers(case: Case) -> None:
    if case.headers and not headers_installed():
        pytest.skip("CUDA's headers are not installed")


def agree(case: Case, device: Any, forms: Sequence[CaseForm]) -> None:
    """Run the case in each of ``forms`` that it has: NumPy's values, and the first form's bytes.

    The unmodified kernel, which nobody runs, is compiled with hardly any optimisation. But not
    those of single instructions: which NaN an atomic sum gives depends on LLVM.
    """
    _skip_without_headers(case)
    first: Results | None = None
    for form in forms:
        if form not in case.forms:
            continue
        conduct = straight(case.blocks if form == "unmodified" else 5)
        quick = form == "unmodified" and not case.opcodes
        with unoptimised() if quick else nullcontext():
            run = run_case(device, case, form, conduct=conduct)
        assert problems_of(run) == [], form
        results = run.results()
        if case.opcodes:
            assert payloads(case, results) == [], form
        if case.deterministic and first is not None:
            assert differences_between(first, results) == [], form
        first = first or results


def payloads(case: Case, results: Results) -> list[str]:
    """The single-precision instructions that gave another NaN than the canonical one."""
    return [
        case.labels[index]
        for index, array in results.buffers.items()
        if array.dtype == np.float32
        and ";" in case.labels[index]  # not an input
        and not KEEPS_PAYLOADS.search(case.labels[index])
        and (array.view(np.uint32)[np.isnan(array)] != 0x7FFFFFFF).any()
    ]


@pytest.mark.parametrize("case", tiers(c for c in CASES if c.forms and not c.opcodes))
def test_forms_agree_with_numpy_and_with_each_other(case: Case, device: Any) -> None:
    agree(case, device, FORMS)


OPCODES = [case for case in CASES if case.forms and case.opcodes]


@pytest.mark.parametrize("case", OPCODES, ids=NAME)
def test_opcodes_agree_with_their_references(case: Case, device: Any) -> None:
    """In the form that most kernels run in: an instruction's code does not depend on the form."""
    agree(case, device, ("persistent",))


@pytest.mark.ci
@pytest.mark.parametrize("case", OPCODES, ids=NAME)
def test_opcodes_in_the_other_forms(case: Case, device: Any) -> None:
    agree(case, device, ("unmodified", "sliced", "whole"))


@pytest.mark.parametrize("claims", [Claims(4), Claims(1, 1), Claims(3, 2)], ids=str)
@pytest.mark.parametrize("name", CLAIMING)
def test_how_blocks_claim_changes_nothing(name: str, claims: Claims, device: Any) -> None:
    run = run_case(device, find(name), "persistent", conduct=straight(2), claims=claims)
    assert problems_of(run) == []


@pytest.mark.parametrize("case", tiers(CASES))
def test_the_form_is_the_expected_one(case: Case) -> None:
    _skip_without_headers(case)
    if case.expected_form == "rejected":
        with pytest.raises(KernelRejected) as caught:
            rewritten(case.name)
        assert case.rejection in caught.value.reason
        return
    kernel = rewritten(case.name).kernels[source_of(case.name).entry]
    x, y, z = (*case.block, 1, 1)[:3]
    form = kernel.form_for((x, y, z))
    assert (form, kernel.exit_aware) == EXPECTED[case.expected_form], kernel.why
    legal = {str(one) for one in kernel.legal} if form is kernel.form else {str(form)}
    assert {one for one in case.forms if one != "unmodified"} <= legal


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.rejection and c.expected_form != "rejected"],
    ids=NAME,
)
def test_what_the_device_lacks_is_refused_with_its_reason(case: Case, device: Any) -> None:
    with pytest.raises(KernelRejected) as caught:
        run_case(device, case, "unmodified", conduct=straight(1))
    assert case.rejection in caught.value.reason
