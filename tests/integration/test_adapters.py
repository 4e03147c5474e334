"""Frameworks' allocations in a workload's memory: a daemon and programs over the driver's model.

The daemon's device host is a process of its own; each program here has a model of its own, as a
process has a driver of its own. They share the temporary zone by its descriptor.
"""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.driver.calls import Driver
from gpud_client.adapters import cupy, numba, pytorch
from gpud_client.adapters.framework import FrameworkMemory
from gpud_client.adapters.mapped import ProcessGpu
from gpud_client.adapters.mapped_workload import open_mapped
from gpud_client.adapters.recording import read_recording
from gpud_client.workloads.kinds import Allocated, Event, Freed, needed_sizes
from tests.driver_model import CPUDriver
from tests.gpu.host_process import MEMORY_BYTES
from tests.gpu.served_daemon import Served
from tests.integration.mapped_programs import MIB, Program, running, usage
from tests.support.record_pytorch import train as train_with_pytorch
from tests.support.waiting import until
from tests.unit.client.test_kinds import RECORDING

pytestmark = pytest.mark.ci

GRANULE = 2 << 20


def train(program: Program, value: int, iterations: int) -> bool:
    """Keep weights, use scratch, and have a gradient that is freed in the next iteration."""
    memory, right = program.memory, True
    weights = memory.allocate(3 * MIB)
    program.fill(weights, 3 * MIB, value)
    gradient = 0
    for _ in range(iterations):
        with memory.iteration():
            if gradient:
                right &= program.holds(gradient, MIB, value)
                memory.free(gradient)
            scratch = memory.allocate(10 * MIB)
            if memory.place(scratch) == "temporary":
                right &= program.holds(scratch, 10 * MIB, 0) or program.holds(
                    scratch, 10 * MIB, value
                )
            program.fill(scratch, 10 * MIB, value)
            gradient = memory.allocate(MIB)
            program.fill(gradient, MIB, value)
            right &= program.holds(weights, 3 * MIB, value)
            memory.free(scratch)
    return right


def test_three_programs_share_temporary_memory_and_keep_their_values(
    served: Served, cpu: CPUDevice
) -> None:
    # 3 x (5 + 12) MiB of less than 61: but for the shared zone, a fourth would not fit either.
    sizes = {"persistent": "5MiB", "temporary": "12MiB", "offset": "1MiB"}
    programs = [Program(served, cpu, **sizes) for _ in range(4)]
    device = usage(served)["devices"][0]
    assert device["temporary_bytes"] == 12 * MIB
    with ThreadPoolExecutor() as pool:
        right = list(pool.map(lambda one: train(programs[one], one + 1, 12), range(4)))
    assert right == [True] * 4
    rows = usage(served)["workloads"]
    assert all(row["turns"] > 1 for row in rows), rows
    for program in programs:
        # What persists is learned in the first iteration: later gradients lie in its own memory.
        assert program.memory.held_bytes <= MIB
        program.close()
    with served.connect() as gpu:
        assert gpu.query("memory")["devices"][0]["memory_used_bytes"] == 0


class Replay:
    """Does what a recorded program of PyTorch did, through the functions that PyTorch calls."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program = program
        self._callbacks = callbacks = pytorch.Callbacks(program.memory)
        self._allocate = pytorch._ALLOCATE(callbacks.allocate_address)
        self._free = pytorch._FREE(callbacks.free_address)
        self._alive: dict[int, tuple[int, bytes]] = {}
        self._random = np.random.default_rng(seed)
        self.places: list[tuple[int, str]] = []  # of each allocation with its iteration
        self.wrong = 0

    def run(self, events: list[Event]) -> None:
        memory, data = self.program.memory, self.program.bytes
        iteration = 0
        memory.begin()
        for event in events:
            if isinstance(event, Allocated):
                address = self._allocate(event.size, 0, None)
                assert address, memory.failure
                values = self._random.bytes(event.size)
                data.write(address, values)
                self._alive[event.address] = address, values
                self.places.append((iteration, memory.place(address)))
            elif isinstance(event, Freed):
                address, values = self._alive.pop(event.address)
                self.wrong += data.read(address, len(values)) != values
                self._free(address, len(values), 0, None)
            else:
                memory.step()
                iteration += 1
        for address, values in self._alive.values():
            self.wrong += data.read(address, len(values)) != values


def test_recorded_programs_of_pytorch_take_turns_and_their_sizes_are_learned(
    served: Served, cpu: CPUDevice
) -> None:
    events = read_recording(RECORDING)
    true = needed_sizes(events)

    def run(seed: int) -> tuple[Replay, int, int]:
        with running(served, cpu, offset="2MiB", profiled_iterations=2) as program:
            replay = Replay(program, seed)
            replay.run(events)
            work = program.memory.workload
            return replay, work.persistent + work._kept, work.temporary

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(run, range(3)))
    for replay, persistent, temporary in found:
        assert replay.wrong == 0
        later = {place for iteration, place in replay.places if iteration >= 2}
        assert later == {"temporary", "profile"}, "persistent ones lie where they were at first"
        # What outlives an iteration lies where it was made first, in whole granules.
        assert true.persistent_alive <= persistent <= 1.05 * true.persistent_alive + 3 * GRANULE
        assert true.temporary_alive <= temporary <= 1.05 * true.temporary_alive + GRANULE
    assert usage(served)["workloads"] == []


@pytest.mark.parametrize("case", ["steps", "blocks", "moves"])
def test_whatever_a_framework_does_it_keeps_its_values(
    served: Served, cpu: CPUDevice, case: str
) -> None:
    steps, moves = case != "blocks", case == "moves"
    together, enough = threading.Barrier(3), threading.Event()

    def run(seed: int) -> int:
        chance, wrong = random.Random(seed), 0
        terms: dict[str, Any] = {"persistent": "8MiB", "temporary": "4MiB", "offset": "8MiB"}
        if moves:  # two of three fit
            terms |= {"persistent": "16MiB", "movable": True}
        with running(served, cpu, **terms) as program:
            memory, alive = program.memory, dict[int, tuple[int, int]]()

            def act() -> int:
                nonlocal wrong
                bad = 0
                for _ in range(chance.randrange(8)):
                    if alive and chance.random() < 0.5:
                        address = chance.choice(list(alive))
                        size, value = alive.pop(address)
                        bad += not program.holds(address, size, value)
                        memory.free(address)
                    elif sum(size for size, _ in alive.values()) < 5 * MIB:
                        size = chance.choice((1, 1000, 70_000, MIB, 5 * MIB // 2))
                        stream = chance.choice((0, 0, 0, 3, None))
                        address = memory.allocate(size, stream)
                        alive[address] = size, chance.randrange(1, 256)
                        program.fill(address, *alive[address])
                return bad

            wrong += 0 if moves else act()
            together.wait(20)
            for number in itertools.count():
                if number >= 20 and enough.is_set():
                    break
                if steps:
                    memory.step()
                    wrong += act()
                else:
                    with memory.iteration():
                        wrong += act()
            memory.begin() if not steps else None
            for address, (size, value) in alive.items():
                wrong += not program.holds(address, size, value)
        return wrong

    def moved() -> int:
        return int(usage(served)["moved"]["moved_bytes"])

    before = moved()
    with ThreadPoolExecutor() as pool:
        wrong = pool.map(run, range(3))
        try:
            until(lambda: not moves or moved() > before + 30 * MIB)
        finally:
            enough.set()
        assert list(wrong) == [0, 0, 0]
    assert moves or moved() == before


def test_a_framework_that_frees_what_it_never_allocated_is_told(
    served: Served, cpu: CPUDevice, caplog: pytest.LogCaptureFixture
) -> None:
    with running(served, cpu, persistent="4MiB", temporary="2MiB", offset=0) as program:
        memory = program.memory
        address = memory.allocate(100)
        memory.free(address)
        for wrong in (address, 12345):
            with pytest.raises(gc.GpudError, match=f"{wrong:#x}, which it never allocated here"):
                memory.free(wrong)
        callbacks = pytorch.Callbacks(memory)
        pytorch._FREE(callbacks.free_address)(12345, 100, 0, None)
        assert "cannot free 100 bytes for PyTorch" in caplog.text
        with pytest.raises(gc.GpudError, match="0x3039, which it never allocated"):
            memory.begin()
        assert not pytorch._ALLOCATE(callbacks.allocate_address)(1 << 30, 0, None)
        with pytest.raises(gc.OutOfMemory, match="larger offset"):
            memory.begin()
        assert not pytorch._ALLOCATE(callbacks.allocate_address)(1, 1, None)
        with pytest.raises(gc.GpudError, match="use one GPU in a process"):
            memory.begin()
        with memory.iteration():
            with pytest.raises(gc.GpudError, match="is in an iteration"):
                memory.begin()
            assert memory.allocate(0) == memory._profile.address
            kept = memory.allocate(2 * MIB, None)  # more than is left of temporary memory
            assert memory.place(kept) == "persistent"
        with pytest.raises(gc.GpudError, match="in no iteration"):
            memory.end()
    with pytest.raises(gc.GpudError, match="closed"):
        memory.allocate(1)
    memory.close()


def test_what_cannot_be_mapped_is_refused(served: Served, cpu: CPUDevice) -> None:
    with pytest.raises(gc.OutOfMemory, match="largest device"):
        Program(served, cpu, persistent="60MiB", temporary="60MiB")
    with served.connect() as gpu:
        with pytest.raises(gc.GpudError, match="says on which device"):
            open_mapped(gpu, None, (MIB, MIB, 0), 1, GRANULE)
        model = CPUDriver(cpu, MEMORY_BYTES)
        with pytest.raises(gc.GpudError, match="there is no cuda:3 in this process, which sees 1"):
            ProcessGpu(3, driver=Driver(model))
    with gc.local("cpu:1") as alone:
        with pytest.raises(gc.GpudError, match="serves 0 GPUs"):
            FrameworkMemory(alone, gpu=ProcessGpu(driver=Driver(model)))
        with pytest.raises(gc.GpudError, match="no GPU, so a program cannot map"):
            open_mapped(alone, alone.devices[0], (MIB, MIB, 0), 1, GRANULE)


def test_the_next_program_reads_nothing_of_one_that_dies_in_its_turn(
    served: Served, cpu: CPUDevice
) -> None:
    sizes = {"persistent": "4MiB", "temporary": "2MiB", "offset": 0}
    with running(served, cpu, **sizes) as program:
        dying = Program(served, cpu, **sizes)
        dying.memory.begin()
        dying.fill(dying.memory.allocate(MIB), MIB, 7)
        began = threading.Event()
        addresses: list[int] = []

        def begin() -> None:
            program.memory.begin()
            addresses.append(program.memory.allocate(MIB))
            began.set()

        thread = threading.Thread(target=begin)
        thread.start()
        assert not began.wait(0.3)
        dying.session.close()
        assert began.wait(20)
        thread.join()
        assert program.holds(addresses[0], MIB, 0)
        program.memory.end()
        dying.memory.close()


def test_a_program_goes_on_when_the_device_host_is_lost_in_its_turn(
    served: Served, cpu: CPUDevice
) -> None:
    with running(served, cpu, persistent="4MiB", temporary="2MiB", offset=0) as program:
        memory = program.memory
        kept = memory.allocate(1000)
        program.fill(kept, 1000, 5)
        memory.begin()
        scratch = memory.allocate(MIB)
        program.fill(scratch, MIB, 6)
        served.kill_host()
        assert program.holds(scratch, MIB, 6)
        memory.end()
        with memory.iteration():
            assert program.holds(kept, 1000, 5)
            assert program.holds(scratch, MIB, 6), "it was alive, so it was kept"


def test_a_program_alone_keeps_its_turn_until_another_comes(served: Served, cpu: CPUDevice) -> None:
    sizes = {"persistent": "4MiB", "temporary": "2MiB", "offset": 0}
    with running(served, cpu, **sizes) as program:
        for _ in range(2):
            with program.memory.iteration():
                pass
        maps = program.driver.calls.count("cuMemMap")
        for _ in range(20):
            with program.memory.iteration():
                pass
        assert program.driver.calls.count("cuMemMap") == maps
        assert program.memory._zone.size
        # Another comes between two iterations: the zone is given up without waiting for the next.
        with running(served, cpu, **sizes) as other:
            with other.memory.iteration():
                until(lambda: not program.memory._zone.size)
            with program.memory.iteration():
                assert program.memory._zone.size


def test_cupys_memory_is_of_the_workload(served: Served, cpu: CPUDevice) -> None:
    found = pytest.importorskip("cupy")
    with running(served, cpu, persistent="4MiB", temporary="2MiB", offset=0) as program:
        allocate, free = cupy.functions(program.memory, lambda: 0)
        kind = found.cuda.memory.PythonFunctionAllocatorMemory
        with program.memory.iteration():
            array = kind(1000, allocate, free, 0)
            assert program.memory.place(array.ptr) == "profile"
        del array
        assert program.memory._blocks == {}


def test_numbas_memory_is_of_the_workload(served: Served, cpu: CPUDevice) -> None:
    pytest.importorskip("numba.cuda")
    with running(served, cpu, persistent="4MiB", temporary="2MiB", offset=0) as program:
        manager = numba.manager_class(program.memory)(context=None)
        assert manager.interface_version == 1
        pointer = manager.memalloc(1000)
        handle = pointer.device_pointer  # of ctypes, or of the bindings in numba-cuda
        address = int(getattr(handle, "value", handle))
        assert program.memory.place(address) == "persistent"
        assert manager.get_memory_info() == (6 * MIB - 1000, 6 * MIB)
        del pointer
        assert program.memory._blocks == {}


def test_steps_of_pytorchs_optimisers_are_iterations(served: Served, cpu: CPUDevice) -> None:
    torch = pytest.importorskip("torch")

    def install(session: Any) -> FrameworkMemory:
        gpu = ProcessGpu(driver=Driver(CPUDriver(cpu, MEMORY_BYTES)))
        return pytorch.install(session, gpu=gpu, persistent="4MiB", temporary="2MiB", offset=0)

    with served.connect() as session:
        memory = install(session)
        train_with_pytorch(torch, 4)
        assert memory._learner.iteration == 4
        memory.close()
        train_with_pytorch(torch, 1)
        with pytest.raises(gc.GpudError, match="install the adapter before anything is on the GPU"):
            install(session)
