"""Kernels whose blocks give claims back: run and released on the CPU device, and assembled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
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
from gpud.device.cuda.program.count_chunks import count_chunks
from gpud.device.cuda.program.forward_news import add_news
from gpud.device.cuda.program.give_back import (
    give_back,
    returned_claims,
    stack_bytes,
    stack_head,
)
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
extern "C" __global__ void k(unsigned* ran, int loops) {
    float x = threadIdx.x;
    for (int k = 0; k < loops; k++) x = x * 0.999f + 0.5f;
    if (x == 12345.0f) ran[0] += 100;
    if (threadIdx.x == 0) atomicAdd(ran + blockIdx.x, 1);
}
"""
TOTAL, BLOCKS, THREADS, NODES = 60, 3, 32, 8
JOB, LAUNCH, STATUS, SAID, SEEN, STACK = 0, 128, 256, 384, 448, 512
ALWAYS = 2**32 - 1


def plain(form: Any = "persistent", source: str = SOURCE) -> Module:
    made = compile_program(source, form=form, bounds_checks=False)
    return pass_by_value(report_blocks(flatten_module(parse(made.ptx))))


class World:
    """The kernel on the CPU device, launched again and again on one job record."""

    def __init__(
        self, device: CPUDevice, claims: cw.Claims, module: Module, nodes: int = NODES
    ) -> None:
        self._device = device
        self._kernel = device.load(print_module(module)).kernel("k")
        self._memory, self.data = device.allocate(2048), device.allocate(4 * TOTAL)
        self._record = cw.job_record((TOTAL, 1, 1), claims)
        self._put(JOB, self._record)
        self._put(STACK, stack_head(nodes) if nodes else bytes(stack_bytes(0)))
        self._stack = self._memory.address + STACK if nodes else 0
        self.words = self._memory.view.view(np.uint32)

    def _put(self, at: int, raw: bytes) -> None:
        self._memory.view[at : at + len(raw)] = np.frombuffer(raw, np.uint8)

    def begin(self, loops: int) -> Any:
        """Launch blocks that stay."""
        places = JOB, LAUNCH, STATUS, SAID, SEEN
        job, launch, status, said, seen = (self._memory.address + at for at in places)
        self._put(LAUNCH, cw.launch_record(job, status, BLOCKS))
        self._put(STATUS, cw.status_record(BLOCKS))
        values = b"".join(
            (
                self.data.address.to_bytes(8, "little"), loops.to_bytes(8, "little"),
                encode_addresses(job, status, 0, News(said, seen, ALWAYS), self._stack),
                job_values(self._record), launch.to_bytes(8, "little"),
            )
        )  # fmt: skip
        return self._device.launch(self._kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), values)

    def release(self) -> None:
        self.words[(LAUNCH + cw.STAYS) // 4] = 0
        self.words[SAID // 4] += 1

    @property
    def done(self) -> int:
        return int(self.words[(JOB + cw.DONE) // 4])

    @property
    def claimed(self) -> int:
        return min(TOTAL, int(self.words[(JOB + cw.NEXT) // 4]))

    @property
    def returned(self) -> list[tuple[int, int]]:
        return returned_claims(self._memory.view[STACK:].tobytes())

    @property
    def used(self) -> int:
        return int(self.words[STACK // 4 + 1])

    @property
    def ran(self) -> list[int]:
        counts: list[int] = self.data.view.view(np.uint32)[:TOTAL].tolist()
        return counts


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def released(device: CPUDevice, claims: cw.Claims, nodes: int, change: Any = replace) -> World:
    """A world whose blocks were released while each had claimed in advance."""
    for _ in range(40):  # on a busy machine all may be claimed before we look
        world = World(device, claims, change(give_back(plain())), nodes)
        launch = world.begin(300_000)
        until(lambda: world.done >= claims.ahead)  # noqa: B023
        world.release()
        early = world.claimed < TOTAL - BLOCKS * claims.most
        launch.result(TIMEOUT_S)
        if early and bool(world.used) == bool(nodes):
            return world
    raise AssertionError("nothing was left whenever a release came")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("claims", "change"),
    [((1, 1), replace), ((1, 3), replace), ((4, 2), count_chunks), ((2, 2), add_news)],
)
def test_once_whatever_is_released_when(
    device: CPUDevice, claims: tuple[int, int], change: Any
) -> None:
    order = random.Random(hash(claims))
    for _ in range(3):
        world = released(device, cw.Claims(*claims), NODES, change)
        check(world)
        for _ in range(order.choice((0, 1, 2))):
            launch = world.begin(100_000)
            wanted = min(TOTAL, world.done + order.randrange(9))
            until(lambda: world.done >= wanted or world.claimed == TOTAL)  # noqa: B023
            world.release()
            launch.result(TIMEOUT_S)
            check(world)
        world.begin(0).result(TIMEOUT_S)
        check(world)
        assert world.returned == []
        assert world.done == TOTAL


def check(world: World) -> None:
    """What is claimed was run once, but for what was given back; nothing is on the device."""
    held = {n for first, count in world.returned for n in range(first, first + count)}
    expected = [int(n < world.claimed and n not in held) for n in range(TOTAL)]
    assert world.ran == expected
    assert world.done == sum(expected)


@pytest.mark.ci
def test_a_released_block_leaves_at_once(device: CPUDevice) -> None:
    """It runs nothing that it has claimed in advance; without a stack it does."""
    left = {}
    for nodes in (NODES, 0):
        world = released(device, cw.Claims(1, 4), nodes)
        left[nodes] = world.claimed - world.done
    assert left[0] == 0
    assert left[NODES] >= 4, "a claim that was given back"


@pytest.mark.ci
def test_who_finds_no_node_runs_its_claim(device: CPUDevice) -> None:
    world = released(device, cw.Claims(1, 2), nodes=1)
    assert len(world.returned) == 1
    assert world.claimed - world.done == 2
    world.begin(0).result(TIMEOUT_S)
    assert world.ran == [1] * TOTAL


def test_what_must_not_hold_several_and_other_forms_stay() -> None:
    waiting = SOURCE.replace("float x", "while (*(volatile unsigned*)ran == 7) {} float x")
    for module in (plain("sliced"), plain("whole"), plain(source=waiting)):
        assert print_module(give_back(module)) == print_module(module)


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_leaves_room_for_all_threads_of_an_sm(arch: str) -> None:
    usage = assemble(print_module(add_news(give_back(plain()))), arch)["k"]
    assert usage.registers <= 32
    assert usage.spill_bytes == 0
