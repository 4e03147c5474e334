"""Random structured kernels give the same results on the CPU device and in the interpreter.

``GPUD_STRUCTURED_KERNELS`` sets how many to try, 12 by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.codegen import kernel as codegen
from gpud.device.cpu.codegen.analysis.rematerialization import Rematerializable
from gpud.device.cpu.codegen.preparation import pipeline as preparing
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import Form, LaunchSpec, Memory
from tests.property.structured_interpreter import Machine
from tests.property.structured_kernels import KEPT, Generator, Kernel, Statement
from tests.property.structured_ptx import to_ptx
from tests.support.resizable_run import ResizableRun

pytestmark = pytest.mark.ci

EXAMPLES = int(os.environ.get("GPUD_STRUCTURED_KERNELS", "12"))
TIMEOUT_S = 30.0
N = 5
UNTOUCHED = 0xAAAAAAAA

few = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    # Each example is compiled: shrinking takes as many runs again, so only a longer run shrinks.
    phases=(Phase.explicit, Phase.generate, *((Phase.shrink,) if EXAMPLES > 12 else ())),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(1) as one:
        yield one


def check(device: CPUDevice, kernel: Kernel, *, rewrite: bool) -> None:
    """Run ``kernel``, rewritten or as it is, and compare every word that it leaves behind."""
    threads, blocks = kernel.threads, kernel.blocks
    text, form = to_ptx(kernel), "unmodified"
    if rewrite:
        program = compile_program(text)
        text, form = program.ptx, program.kernels["k"].form.value
    data = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    sizes = (threads * blocks * KEPT, data.size, threads * blocks)
    memories: list[Memory] = [device.allocate(4 * size) for size in sizes]
    out, read, own = (memory.view.view(np.uint32) for memory in memories)
    out[:], read[:] = UNTOUCHED, data
    values = [int(memory.address).to_bytes(8, "little") for memory in memories]
    arguments = [*values, N.to_bytes(4, "little")]
    loaded = device.load(text).kernel("k")
    job = ResizableRun(
        device, [LaunchSpec.of(loaded, cast(Form, form), blocks, kernel.shape, arguments)]
    )
    job.resize(2)
    job.result(TIMEOUT_S)
    for number in range(blocks):
        mine = np.zeros(threads, np.uint32)
        machine = Machine(kernel, number, N, data, mine)
        expected = machine.results(np.full((threads, KEPT), UNTOUCHED, np.uint32))
        got = out.reshape(blocks, threads, KEPT)[number]
        assert np.array_equal(got, expected), f"block {number} of\n{to_ptx(kernel)}"
        assert np.array_equal(own.reshape(blocks, threads)[number], mine), to_ptx(kernel)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from((8, 20, 30)))
def test_unmodified_kernels(device: CPUDevice, seed: int, size: int) -> None:
    check(device, Generator(Random(seed), size).kernel(), rewrite=False)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from((8, 20, 30)))
def test_rewritten_kernels(device: CPUDevice, seed: int, size: int) -> None:
    check(device, Generator(Random(seed), size).kernel(), rewrite=True)


@settings(few, max_examples=max(1, EXAMPLES // 2))
@given(st.integers(0, 2**32 - 1))
def test_keeping_every_register_changes_nothing(
    device: CPUDevice, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Without recomputation, split inductions or webs, the results are the same."""
    kernel = Generator(Random(seed), 12).kernel()
    check(device, kernel, rewrite=False)
    with monkeypatch.context() as without:
        without.setattr(Rematerializable, "_candidates", lambda *_: {})
        check(device, kernel, rewrite=False)
    with monkeypatch.context() as without:
        without.setattr(codegen, "split_inductions", lambda *_: None)
        check(device, kernel, rewrite=False)
    with monkeypatch.context() as without:
        without.setattr(preparing, "split_webs", lambda entry: entry)
        check(device, kernel, rewrite=False)


def _rounds() -> Kernel:
    """A loop of few threads that loads what its last round stored."""
    stored = Statement("local", (("v", 1), ("i", 0), ("add", ("i", 0), ("v", 1))))
    rounds = ("add", ("c", 3), ("shr", ("tid",), 5))
    return Kernel((7, 1, 1), 1, [Statement("loop", (rounds, 0, False), [stored])])


def test_no_loop_is_taken_for_one_over_threads(device: CPUDevice) -> None:
    """LLVM unrolled the loop over threads, and vectorised the kernel's own instead."""
    check(device, _rounds(), rewrite=False)


def test_the_comparison_sees_a_wrong_word(
    device: CPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checker that misses a planted fault would prove nothing."""
    monkeypatch.setattr(Machine, "_loop", lambda *_: None)
    with pytest.raises(AssertionError, match="block 0 of"):
        check(device, _rounds(), rewrite=False)
