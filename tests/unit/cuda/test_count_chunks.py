"""Kernels that count task blocks by chunks: run on the CPU device, and assembled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.program.by_value import pass_by_value
from gpud.device.cuda.program.count_chunks import count_chunks
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S
from tests.unit.cuda.test_forward_news import BLOCKS, SOURCE, TOTAL, Running


def program(form: Any = "persistent", **options: Any) -> Module:
    plain = flatten_module(parse(compile_program(SOURCE, form=form, **options).ptx))
    return count_chunks(pass_by_value(report_blocks(plain)))


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def running(device: CPUDevice, claims: cw.Claims) -> Running:
    return Running(device, 0, claims, False, program(bounds_checks=False))


def ran(run: Running) -> int:
    return int(np.count_nonzero(run.data.view.view(np.uint32)))


@pytest.mark.parametrize("claims", [(1, 0), (1, 1), (2, 0), (3, 2), (4, 4), (64, 64)])
def test_complete_when_all_is_claimed(device: CPUDevice, claims: tuple[int, int]) -> None:
    run = running(device, cw.Claims(*claims))
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.done == ran(run) == TOTAL


@pytest.mark.parametrize("claims", [(1, 0), (4, 0), (4, 4), (5, 2)])
def test_complete_when_released(device: CPUDevice, claims: tuple[int, int]) -> None:
    run = running(device, cw.Claims(*claims))
    run.step(3)
    run.orders[0] = 0
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.left.tolist() == [1, 1]
    assert run.done == ran(run) < TOTAL
    assert run.done == run.claimed


def test_what_is_done_is_counted_late_and_together(device: CPUDevice) -> None:
    run = running(device, cw.Claims(8, 0))
    seen = set()
    for _ in range(20):
        run.step(1)
        seen.add(run.done)
        assert ran(run) - 7 * BLOCKS - BLOCKS <= run.done <= ran(run)
    assert all(done % 8 == 0 for done in seen)
    assert len(seen) > 1
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.done == TOTAL


def test_one_at_a_time_is_counted_at_once(device: CPUDevice) -> None:
    run = running(device, cw.Claims())
    run.step(5)
    until(lambda: run.done == 5)
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)


@pytest.mark.parametrize("form", ["sliced", "whole"])
def test_other_forms_stay(form: Any) -> None:
    plain = flatten_module(parse(compile_program(SOURCE, form=form).ptx))
    made = pass_by_value(report_blocks(plain))
    assert print_module(count_chunks(made)) == print_module(made)


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_leaves_room_for_all_threads_of_an_sm(arch: str) -> None:
    usage = assemble(print_module(program()), arch)["k"]
    assert usage.registers <= 32
    assert usage.spill_bytes == 0
