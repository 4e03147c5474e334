"""Random resize events on a GPU, in short; ``make gpu-bench`` has a million of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conformance.runner import LoadedCase
from tests.conformance.stress import stress
from tests.conformance.suite import CASES, find
from tests.conformance.test_stress import CASES as SOME

KINDS = ("shrink", "grow", "stop", "resume")


def loaded(device: Any, names: Sequence[str]) -> list[LoadedCase]:
    return [
        LoadedCase(device, find(name), form)
        for name in names
        for form in ("persistent", "sliced")
        if form in find(name).forms
    ]


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_every_task_block_runs_exactly_once_whatever_is_resized(device: Any) -> None:
    report = stress(device, loaded(device, SOME), 2_000, seed=7)
    assert report.problems == []
    assert set(report.events) <= set(KINDS)
    assert report.events.total() >= 2_000


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(4))
def test_a_part_of_the_suite_under_resizes(device: Any, part: int) -> None:
    names = [
        case.name
        for case in CASES
        if "sliced" in case.forms and not case.headers and case.target <= device.capability
    ]
    report = stress(device, loaded(device, names[part::12]), 1_000, seed=part)
    assert report.problems == []
