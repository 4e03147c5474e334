"""Floating-point results on other machines than this one: targets, levels, block sizes.

LLVM's code depends on the processor, on the level of optimisation and, by way of the loops over
threads, on the size of a block. The references are the suite's, exact and the same for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
import pytest

from gpud.device import jit
from gpud.device.cpu.device import CPUDevice
from tests.conformance.runner import problems_of, run_case, straight, unoptimised
from tests.conformance.suite import CASES, Case, find
from tests.conformance.suite.chains import BLOCK
from tests.conformance.suite.chains import CASES as CHAINS

TARGETS = {"x86-64-v2": "sse4.2", "x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}
"""A processor's name and the feature that shows whether this machine runs its code."""

BLOCKS = (1, 2, 8, 32, BLOCK)
GPUD_LEVEL = 2

ALONE = [
    case
    for case in CASES
    if case.opcodes and case.name.startswith(("float", "half", "bfloat", "convert", "set"))
]
"""Instructions one at a time, in the blocks that they have."""


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def compile_for(change: pytest.MonkeyPatch, target: str, level: int) -> None:
    """Have LLVM generate code for ``target``, optimised to ``level``."""
    if not llvm.get_host_cpu_features().get(TARGETS[target]):
        pytest.skip(f"this machine does not run code for {target}")
    tuning = llvm.create_pipeline_tuning_options

    def machine(_: int = 2) -> Any:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.Target.from_default_triple()
        return triple.create_target_machine(cpu=target, features="", opt=level, jit=True)

    change.setattr(jit, "_target_machine", machine)
    change.setattr(
        llvm, "create_pipeline_tuning_options", lambda speed_level: tuning(speed_level=level)
    )


def agrees(device: CPUDevice, case: Case) -> None:
    run = run_case(device, case, "persistent", conduct=straight(2))
    assert problems_of(run) == []


def in_blocks(case: Case, threads: int) -> Case:
    """A case of `CHAINS` in blocks of ``threads``."""
    grid = (case.grid[0] * BLOCK // threads,)
    return dataclasses.replace(case, grid=grid, block=(threads,))


@pytest.mark.parametrize("threads", BLOCKS)
def test_chains_in_blocks_of_any_size(device: CPUDevice, threads: int) -> None:
    """On this machine, as gpud optimises."""
    agrees(device, in_blocks(find("chains_f32"), threads))


def at_levels(*levels: int) -> pytest.MarkDecorator:
    """Every level in one size of blocks, gpud's own in all; the rest is for `make stress`."""
    chosen = [
        pytest.param(level, threads, marks=pytest.mark.ci)
        if level == GPUD_LEVEL or threads == 8
        else pytest.param(level, threads, marks=pytest.mark.slow)
        for level in levels
        for threads in BLOCKS
    ]
    return pytest.mark.parametrize(("level", "threads"), chosen)


@at_levels(0, 1, GPUD_LEVEL, 3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [case.name for case in CHAINS])
def test_chains_on_every_target(
    device: CPUDevice,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    target: str,
    level: int,
    threads: int,
) -> None:
    compile_for(monkeypatch, target, level)
    agrees(device, in_blocks(find(name), threads))


@pytest.mark.ci
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_instructions_on_every_target(
    device: CPUDevice, monkeypatch: pytest.MonkeyPatch, case: Case, target: str
) -> None:
    compile_for(monkeypatch, target, GPUD_LEVEL)
    agrees(device, case)


@pytest.mark.ci
@pytest.mark.parametrize("threads", BLOCKS)
@pytest.mark.parametrize("name", [case.name for case in CHAINS])
def test_chains_without_optimisation(device: CPUDevice, name: str, threads: int) -> None:
    with unoptimised():
        agrees(device, in_blocks(find(name), threads))
