"""Kernels that read their orders only at news: run on the CPU device, stepped, and assembled."""

from __future__ import annotations

import random
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
from gpud.device.cuda.program.by_value import News, encode_addresses, job_values, pass_by_value
from gpud.device.cuda.program.forward_news import HASH, add_news, look_limit
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once

SOURCE = r"""
extern "C" __global__ void k(unsigned* p, unsigned* gate) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) {
        unsigned ticket = atomicAdd(gate + 1, 1);
        while (*(volatile unsigned*)gate <= ticket) {}
        sum = 0;
    }
    __syncthreads();
    atomicAdd(&sum, threadIdx.x + blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) p[blockIdx.x] = sum + 1;
}
"""
TOTAL, BLOCKS, THREADS = 40, 2, 32
ALWAYS = 2**32 - 1


def program(form: Any = "persistent", **options: Any) -> Module:
    plain = flatten_module(parse(compile_program(SOURCE, form=form, **options).ptx))
    return add_news(pass_by_value(report_blocks(plain)))


class Running:
    """The kernel on the CPU device, with records that a test changes."""

    def __init__(
        self, device: CPUDevice, limit: int, claims: cw.Claims, named: bool,
        module: Module | None = None,
    ) -> None:  # fmt: skip
        text = print_module(module or program(bounds_checks=False))
        kernel = device.load(text).kernel("k")
        self._memory, self.data, self._door = (
            device.allocate(size) for size in (1024, 4 * TOTAL, 256)
        )
        job, launch, status, bitmap, self._said, self._news = (
            self._memory.address + at for at in (0, 128, 256, 384, 512, 640)
        )
        record = cw.job_record((TOTAL, 1, 1), claims)
        where = bitmap if named else 0
        for at, raw in ((0, record), (128, cw.launch_record(job, status, BLOCKS, named=where))):
            self._memory.view[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        words = self._memory.view.view(np.uint32)
        self.orders = words[(128 + cw.ORDERS) // 4 :][:2]
        self.bitmap, self.said, self.news = words[96:], words[128:129], words[160:161]
        self.record, self.left = words, self._memory.view[256 + cw.left_at(BLOCKS) :][:BLOCKS]
        self.gate = self._door.view.view(np.uint32)
        structure = encode_addresses(job, status, 0, News(self._said, self._news, limit))
        values = b"".join(
            (
                self.data.address.to_bytes(8, "little"), self._door.address.to_bytes(8, "little"),
                structure + job_values(record), launch.to_bytes(8, "little"),
            )
        )  # fmt: skip
        self.launch = device.launch(kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), values)
        until(lambda: self.waiting == BLOCKS)

    @property
    def waiting(self) -> int:
        """How many blocks wait at the gate."""
        return int(self.gate[1]) - int(self.gate[0])

    @property
    def done(self) -> int:
        return int(self.record[cw.DONE // 4])

    @property
    def claimed(self) -> int:
        return int(self.record[cw.NEXT // 4])

    def step(self, count: int) -> None:
        """Let as many task blocks through the gate, and wait until all blocks wait again."""
        for _ in range(count):
            self.gate[0] += 1
            until(lambda: self.waiting == BLOCKS)


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


@pytest.mark.parametrize("claims", [cw.Claims(), cw.Claims(1, 1), cw.Claims(2, 2)])
def test_obeyed(device: CPUDevice, claims: cw.Claims) -> None:
    run = Running(device, ALWAYS, claims, named=False)
    run.step(3)
    run.orders[0] = 0
    run.said[0] += 1
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.left.tolist() == [1, 1]
    assert run.news[0] == 1
    assert run.done == run.claimed < TOTAL, "what was claimed is run, and nothing more is claimed"
    assert np.count_nonzero(run.data.view.view(np.uint32)) == run.done


@pytest.mark.parametrize("claims", [cw.Claims(), cw.Claims(2, 1)])
def test_orders_are_not_read_without_news(device: CPUDevice, claims: cw.Claims) -> None:
    run = Running(device, ALWAYS, claims, named=False)
    run.step(4)  # each block has read them
    run.orders[0] = 0  # without a number
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.done == TOTAL


def test_a_launch_that_does_not_look_reads_what_others_forward(device: CPUDevice) -> None:
    run = Running(device, 0, cw.Claims(), named=False)
    run.step(4)
    run.orders[0] = 0
    run.said[0] += 1
    run.step(4)
    assert run.claimed > 6, "nobody has looked"
    run.news[0] = 1  # as a helper's block does
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.done == run.claimed < TOTAL


def test_barred_sms_are_seen_without_news(device: CPUDevice) -> None:
    run = Running(device, 0, cw.Claims(), named=True)
    run.step(4)
    run.bitmap[:8] = ALWAYS
    run.gate[0] = OPEN
    run.launch.result(TIMEOUT_S)
    assert run.done == run.claimed < TOTAL


@pytest.mark.parametrize("block_ns", [None, 500.0, 10_000.0, 1e6])
@pytest.mark.parametrize("blocks", [1, 7, 264, 2112])
def test_a_launch_looks_often_enough(blocks: int, block_ns: float | None) -> None:
    limit = look_limit(blocks, block_ns)
    wanted = blocks / 16 if block_ns is None else blocks * 2000 / block_ns
    numbers = np.arange(200_000, dtype=np.uint64) * HASH % 2**32
    looks = np.flatnonzero(numbers <= limit)
    assert len(looks) == pytest.approx(len(numbers) / max(1.0, wanted), rel=0.02, abs=2)
    assert np.diff(looks).max() <= 2.7 * max(1.0, wanted)


@pytest.mark.parametrize("form", ["sliced", "whole"])
def test_other_forms_stay(form: str) -> None:
    plain = pass_by_value(flatten_module(parse(compile_program(SOURCE, form=form).ptx)))
    assert add_news(plain) is plain


@pytest.mark.parametrize("seed", range(8))
def test_no_lost_news(seed: int) -> None:
    """Whatever is resized, barred and halted when, every task block runs once."""
    fake, when = SteppedDriver(seed), random.Random(seed)
    with device_of(fake, "news") as device:
        sequence = device.prepare(launches(device, "ppspp", total=40))
        job = ResizableRun(device, sequence)
        job.resize(3)
        for _ in range(6000):
            if job.done:
                break
            fake.step()
            dice = when.random()
            if dice < 0.03:
                job.resize(when.randrange(0, 9))
            elif dice < 0.04:
                job.clear(when.sample(range(4), when.randrange(0, 3)))
            elif dice < 0.05:
                device.launches.halt()
            device.watcher.poll()
        job.clear(())
        job.resize(3)
        drive(fake, device, job)
        assert job.error is None
        ran_once(fake, [40] * 5)


@pytest.mark.parametrize("seed", range(4))
def test_a_release_arrives_and_a_pending_block_obeys(seed: int) -> None:
    fake = SteppedDriver(seed, room=8)
    with device_of(fake, "news") as device:
        job, other = (ResizableRun(device, launches(device, "p", total=10**6)) for _ in range(2))
        job.resize(8)
        fake.run(100)
        other.resize(6)  # there is no room for it
        job.resize(2)
        other.resize(1)
        for _ in range(600):
            fake.step()
            device.watcher.poll()
        assert (job.held, other.held) == (2, 1)
        assert fake.on_sms().total() == 3
        for one in (job, other):
            one.end()
            drive(fake, device, one)


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_leaves_room_for_all_threads_of_an_sm(arch: str) -> None:
    usage = assemble(print_module(program()), arch)["k"]
    assert usage.registers <= 32
    assert usage.spill_bytes == 0
