"""Blocks that open their launch themselves: what they decide, on the CPU device, and assembled."""

from __future__ import annotations

from collections.abc import Iterator

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
from gpud.device.cuda.launch.gate import CURRENT, HELPED, RUN_BYTES, STOP
from gpud.device.cuda.program.by_value import Folded, encode_addresses, job_values, pass_by_value
from gpud.device.cuda.program.count_chunks import count_chunks
from gpud.device.cuda.program.fold_gate import UNDECIDED, fold_gates
from gpud.device.cuda.program.forward_news import add_news
from gpud.device.cuda.program.give_back import give_back
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
extern "C" __global__ void k(unsigned* ran) {
    if (threadIdx.x + threadIdx.y == 0) atomicAdd(ran + blockIdx.x, 1);
}
"""
STAGE, TOTAL, BLOCKS = 3, 40, 6
PREVIOUS, JOB, LAUNCH, STATUS, RUN = 0, 128, 256, 384, 512


def plain() -> Module:
    made = compile_program(SOURCE, form="persistent", bounds_checks=False)
    return pass_by_value(report_blocks(flatten_module(parse(made.ptx))))


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(4) as one:
        yield one


@pytest.mark.parametrize(
    ("done", "stopped", "helped", "opens"),
    [
        (TOTAL, False, 0, True),
        (TOTAL, False, STAGE - 1, True),
        (TOTAL, False, STAGE, False),
        (TOTAL, True, 0, False),
        (TOTAL - 1, False, 0, False),
    ],
)
def test_they_open_a_launch_only_behind_one_that_is_done_unhelped_and_not_stopped(
    device: CPUDevice, done: int, stopped: bool, helped: int, opens: bool
) -> None:
    kernel = device.load(print_module(fold_gates(plain()))).kernel("k")
    for block in ((32, 1, 1), (8, 4, 1)):  # the leader is one thread, whatever the shape
        memory, ran = device.allocate(1024), device.allocate(4 * TOTAL)
        words = memory.view.view(np.uint32)
        record = cw.job_record((TOTAL, 1, 1))
        launch = cw.launch_record(memory.address + JOB, memory.address + STATUS, BLOCKS)
        places = ((PREVIOUS, record), (JOB, record), (LAUNCH, launch),
                  (STATUS, cw.status_record(BLOCKS)), (RUN, bytes(RUN_BYTES)))  # fmt: skip
        for at, raw in places:
            memory.view[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        words[(PREVIOUS + cw.DONE) // 4] = done
        words[(JOB + cw.NEXT) // 4] = UNDECIDED
        run = words[RUN // 4 :][: RUN_BYTES // 4]
        run[[CURRENT, STOP, HELPED]] = STAGE - 1, stopped, helped
        addresses = encode_addresses(
            memory.address + JOB, memory.address + STATUS, 0,
            folded=Folded(memory.address + RUN, STAGE),
        )  # fmt: skip
        values = b"".join(
            (ran.address.to_bytes(8, "little"), addresses, job_values(record),
             (memory.address + LAUNCH).to_bytes(8, "little"))
        )  # fmt: skip
        for _ in range(2):  # a helper finds it decided
            device.launch(kernel, (BLOCKS, 1, 1), block, values).result(TIMEOUT_S)
            assert run[CURRENT] == (STAGE if opens else STAGE - 1)
            run[[CURRENT, STOP, HELPED]] = run[CURRENT], 0, 0
        assert ran.view.view(np.uint32)[:TOTAL].tolist() == [int(opens)] * TOTAL
        assert TOTAL <= words[(JOB + cw.NEXT) // 4] < UNDECIDED


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_it_assembles_with_every_other_change(arch: str) -> None:
    both = count_chunks(give_back(plain()))
    for program in (plain(), both, add_news(both)):
        before = assemble(print_module(program), arch)["k"]
        after = assemble(print_module(fold_gates(program)), arch)["k"]
        assert after.spill_bytes == 0
        assert after.registers <= before.registers + 8
