"""A short stress run, and a test of it: each mutant of the rewriter must make it fail."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import count, cycle

import pytest

from campaigns.run import main as campaign
from gpud.compiler.abi.control_words import Claims
from gpud.device.cpu.device import CPUDevice
from tests.conformance.common_opcodes import words
from tests.conformance.runner import LoadedCase, rewritten, unoptimised
from tests.conformance.stress import stress
from tests.conformance.suite import find

# Between them: one to three dimensions, shared memory, early returns before barriers, blocks that
# wait for lower ones, state that outlives a launch, locks, and no parameters at all.
CASES = words("""
saxpy transpose stencil_3d early_return lookback_scan last_block_reduce spin_lock no_parameters
branch_table
""")

# What each fault changes in the rewritten PTX of a persistent kernel, and what must be noticed.
FAULTS = {
    "each claim skips a task block": (
        r"(atom\S*\.add\.u32 %\S*claim, \[%\S+\], )(%\S*chunk);",
        r"add.u32 \2, \2, 1; \1\2; sub.u32 \2, \2, 1;",
        "did not run exactly 1",
    ),
    "a released block throws its claim away": (
        r"(mov\S* %\S*claim, \d+;)(\s*mov.*?)(@%\S*stop) (bra.*?;)(.*?)(at\S* %\S*claim.*?;)",
        r"\6 \2 \3 \1 \3 \4 \5",
        "at rest",
    ),
    "a release is not looked at": (
        r"@%\S*stop bra \S+;",
        "",
        "after a stop",
    ),
    "task blocks that are done are not counted": (
        r"@%\S*counted red\S* \[%\S*own\+56\], 1;",
        "",
        "ended with progress",
    ),
}

_LONGEST_S = 100.0
"""When an event comes is the machine's: a busy one may let few of them meet the fault."""


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def test_every_task_block_runs_exactly_once_whatever_is_resized(device: CPUDevice) -> None:
    how = cycle((Claims(), Claims(4), Claims(1, 1), Claims(3, 2)))
    loaded = [
        LoadedCase(device, find(name), form, claims=next(how))
        for name in CASES
        for form in ("persistent", "sliced")
        if form in find(name).forms
    ]
    report = stress(device, loaded, 1_500, seed=7)
    assert report.problems == []
    assert set(report.events) == {"shrink", "grow", "stop", "resume"}
    assert report.events.total() >= 1_500
    assert report.rests > 0
    assert len(report.runs) == len(loaded)


def test_runs_that_cannot_be_resized_are_refused(device: CPUDevice) -> None:
    plain = LoadedCase(device, find("saxpy"), "unmodified")
    with pytest.raises(ValueError, match="cannot be resized"):
        stress(device, [plain], 10)


@pytest.mark.ci
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mutant_makes_it_fail(fault: str, device: CPUDevice) -> None:
    pattern, replacement, notice = FAULTS[fault]
    right = rewritten("saxpy", "persistent").ptx
    wrong, changed = re.subn(pattern, replacement, right, count=1, flags=re.DOTALL)
    assert changed == 1
    loaded = [LoadedCase(device, find("saxpy"), "persistent", wrong)]
    problems: list[str] = []
    end, seeds = time.monotonic() + _LONGEST_S, count()
    while time.monotonic() < end:
        problems = stress(
            device, loaded, 400, seed=next(seeds), jobs=1, stop_at_problem=False
        ).problems
        if any(notice in problem for problem in problems):
            return
    pytest.fail(f"not noticed: {problems[:5]}")


@pytest.mark.ci
@pytest.mark.timeout(500)  # it compiles all of them, on however busy a machine
def test_the_campaign_runs_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    with unoptimised():
        assert campaign(["resizes", "--short"]) == 0
    told = capsys.readouterr().out
    kernels, run = map(int, re.findall(r"of them run +(\d+), (\d+)", told)[0])
    assert run == kernels > 300
