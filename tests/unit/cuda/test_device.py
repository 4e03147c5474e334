"""Memory, arenas, programs and occupancy of the CUDA device, against a model of the driver."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest

from gpud.compiler.abi.control_words import JOB_BYTES, NAMED_BYTES
from gpud.compiler.pipeline import compile_program
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver, DriverError
from gpud.device.cuda.memory.arena import CUDAArena
from gpud.device.cuda.memory.pool import DeviceBlock
from gpud.device.cuda.memory.staging import MappedPart
from gpud.device.cuda.program.module import CUDAModule
from gpud.device.interface import LaunchSpec
from gpud.errors import (
    CompileError,
    DeviceLost,
    InvalidArgument,
    KernelNotFound,
    LaunchConfigError,
    OutOfMemory,
)
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive, launches, ran_once

GRANULE = 1 << 16
SIZE = 16 * GRANULE
WAIT_S = 60


@pytest.fixture
def memfd() -> Iterator[int]:
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


def written(descriptor: int, offset: int, data: bytes) -> None:
    os.pwrite(descriptor, data, offset)


def test_device_properties() -> None:
    with device_of(SteppedDriver()) as device:
        assert (device.kind, device.name, device.sms) == ("cuda", "Model GPU", 4)
        assert (device.capability, device.memory_bytes) == (90, 1 << 30)
        assert device.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_memory_is_zero_and_seen_from_both_sides() -> None:
    with device_of(SteppedDriver()) as device:
        block = device.allocate(1000)
        assert block.view.size == 1000
        assert not block.view.any()
        assert block.address == block.view.ctypes.data


def test_too_little_memory_says_how_much_there_is() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        fake.fail(1, "OUT_OF_MEMORY", "cuMemAlloc")
        with pytest.raises(OutOfMemory, match="12345 are available"):
            DeviceBlock(device.context, 1 << 40)


def test_runs_take_no_new_memory_once_they_have_run() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        opened = len(fake.calls)
        sequence = device.prepare(launches(device, "ppp"))
        assert sequence.record_bytes == 3 * JOB_BYTES + NAMED_BYTES
        jobs = [ResizableRun(device, sequence), ResizableRun(device, sequence)]
        for job in jobs:
            job.resize(1)
            fake.run()
            device.watcher.poll()
            fake.calls.append("next")
        later = fake.calls[fake.calls.index("next") :]
        assert all(job.complete for job in jobs)
        assert not [n for n in later if "Alloc" in n or "Create" in n or "Free" in n]
        assert not [n for n in fake.calls[opened:] if "Alloc" in n or "Free" in n]


def test_small_blocks_are_cut_from_the_first_slab() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        before = fake.alive["host"], fake.alive["device"]
        blocks = [device.host_blocks.take(size) for size in (1, 300, 4096, 64)]
        assert [block.size for block in blocks] == [256, 512, 4096, 256]
        for number, block in enumerate(blocks):
            assert block.address == block.view.ctypes.data == block.words.ctypes.data
            block.view[:] = number
        assert [set(block.view.tolist()) for block in blocks] == [{0}, {1}, {2}, {3}]
        device.host_blocks.give(blocks[1])
        assert device.host_blocks.take(257) is blocks[1]
        assert (fake.alive["host"], fake.alive["device"]) == before
        device.device_blocks.take(1 << 21)
        assert fake.alive["device"] == before[1] + 1
        taken = {device.device_blocks.take(1 << 17).address for _ in range(20)}
        assert len(taken) == 20
        assert fake.alive["device"] == before[1] + 3


# -- arenas


def sound(fake: SteppedDriver, device: CUDADevice, arena: CUDAArena, *modules: CUDAModule) -> None:
    """Assert that what checks let through is backed by memory, and no other memory is held."""
    assert fake.memory.reaches(arena.address, arena.backed)
    for module in modules:
        raw = device.context.read(module._addresses["gpud_arena"] or 0, 16)
        base, size = np.frombuffer(raw, np.uint64).tolist()
        assert base == arena.address
        assert size <= arena.backed
    assert fake.alive["piece"] == len(arena._pieces) + 1
    assert fake.alive["mapping"] == len(arena._pieces) + len(arena._sunk)


def let_through(device: CUDADevice, module: CUDAModule) -> int:
    """The size that the bounds checks of a program read."""
    raw = device.context.read((module._addresses["gpud_arena"] or 0) + 8, 8)
    return int.from_bytes(raw, "little")


def poked(device: CUDADevice, address: int, data: bytes) -> None:
    """Write to memory as a kernel does."""
    source = np.frombuffer(data, np.uint8)
    device.context.copy_in(address, source.ctypes.data, source.size)


def test_an_arena_has_memory_where_it_was_committed(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        assert arena.ranges() == ((arena.address, GRANULE),)
        written(memfd, 100, b"hello")
        arena.commit(100, 2 * GRANULE)
        assert arena.ranges() == ((arena.address, 3 * GRANULE),)
        assert device.context.read(arena.address + 100, 5) == b"hello"
        assert device.context.read(arena.address, 100) == bytes(100)
        assert device.context.read(arena.address + 105, 3 * GRANULE - 105) == bytes(
            3 * GRANULE - 105
        )
        assert device.arenas.ranges((arena.address, SIZE)) == arena.ranges()
        assert device.arenas.ranges((1, 2)) == device.arenas.ranges(None) == ()
        poked(device, arena.address + GRANULE, b"there")
        arena.download(GRANULE, 5)
        assert os.pread(memfd, 5, GRANULE) == b"there"
        for outside in (0, 3 * GRANULE, 3 * GRANULE - 1):
            with pytest.raises(InvalidArgument, match=r"not all have memory|no part"):
                arena.upload(outside, SIZE if outside == 0 else 2)
        arena.close()
        arena.close()
        assert device.arenas.ranges((arena.address, SIZE)) == ()


def test_what_moves_is_mapped_once_and_comes_back(
    memfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[tuple[int, int]] = []
    made = MappedPart.__init__

    def noted(part: MappedPart, descriptor: int, offset: int, size: int) -> None:
        mapped.append((offset, size))
        made(part, descriptor, offset, size)

    monkeypatch.setattr(MappedPart, "__init__", noted)
    with device_of(SteppedDriver()) as device:
        arena, whole = device.map_arena(memfd, SIZE), (GRANULE, 2 * GRANULE)
        arena.commit(*whole, from_file=False)
        for turn in range(1, 4):
            poked(device, arena.address + GRANULE + turn, bytes([turn]))
            arena.download(*whole, moves=True)
            arena.release(*whole)
            assert os.pread(memfd, 5, GRANULE) == bytes(range(turn + 1)) + bytes(4 - turn)
            arena.commit(*whole)
            assert device.context.read(arena.address + GRANULE, 5) == os.pread(memfd, 5, GRANULE)
        assert mapped == [whole]
        written(memfd, GRANULE + 100, b"others read and write the file, too")
        arena.upload(GRANULE, 200)
        assert device.context.read(arena.address + GRANULE + 100, 6) == b"others"
        arena.close()


def test_pieces_go_when_the_last_part_in_them_goes(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        arena.commit(GRANULE, 100)
        arena.commit(GRANULE + 200, 100)  # the same granule
        arena.commit(0, 4 * GRANULE)  # overlaps it
        assert fake.alive["piece"] == 4  # the sink, the first granule, and these
        arena.release(GRANULE, 100)
        arena.release(0, 4 * GRANULE)
        assert fake.alive["piece"] == 3
        arena.release(GRANULE + 200, 100)
        assert fake.alive["piece"] == 2
        sound(fake, device, arena)
        for offset, size in ((0, 0), (-1, 5), (SIZE - 1, 2)):
            with pytest.raises(InvalidArgument, match="no part of an arena"):
                arena.commit(offset, size)
        arena.close()


def test_what_is_shrunk_gives_back_the_granules_that_nothing_kept_needs(memfd: int) -> None:
    """Random ranges, which may lie in the same granules, against a count of who needs each."""
    chance = random.Random(1)
    fake = SteppedDriver()  # memory is short: what is spare goes at once
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        held: dict[int, tuple[int, int]] = {}
        shrunk = 0
        for number in range(600):
            free = sorted([(0, 100), *held.values(), (SIZE, 0)])
            gaps = [(a + n, b - a - n) for (a, n), (b, _) in pairwise(free) if b - a - n > 9]
            if gaps and (not held or chance.random() < 0.5):
                begin, room = chance.choice(gaps)
                offset = begin + chance.randrange(room // 2)
                size = chance.randrange(1, room - (offset - begin) + 1)
                whole = chance.random() < 0.3
                arena.commit(offset, size, from_file=False, most=None if whole else GRANULE)
                held[number] = offset, size
            else:
                one = chance.choice(list(held))
                offset, size = held.pop(one)
                if chance.random() < 0.6 and size > 1:
                    kept = chance.randrange(1, size)
                    arena.shrink(offset, size, kept)
                    held[one] = offset, kept
                    shrunk += 1
                else:
                    arena.release(offset, size)
            needed = {0}
            for offset, size in held.values():
                needed |= set(range(offset // GRANULE, -(-(offset + size) // GRANULE)))
            backed = {n for piece in arena._pieces for n in range(piece.first, piece.last)}
            assert needed <= backed
            large = [piece for piece in arena._pieces if piece.last - piece.first > 1]
            spare = backed - needed
            assert spare <= {n for piece in large for n in range(piece.first, piece.last)}
            assert all(
                piece.parts and needed & set(range(piece.first, piece.last))
                for piece in arena._pieces
            )
            sound(fake, device, arena)
        assert shrunk > 100
        for offset, size in held.values():
            arena.release(offset, size)
        assert fake.alive["piece"] == 2
        arena.close()


def test_pieces_are_exported_in_order_and_so_many_at_once(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        arena.commit(GRANULE + 5, 2 * GRANULE, from_file=False, most=1)
        arena.commit(6 * GRANULE, 2 * GRANULE, from_file=False)
        poked(device, arena.address + GRANULE + 5, b"hello")
        found = arena.export(GRANULE + 5, 2 * GRANULE, 9)
        assert [(at, size) for at, size, _ in found] == [
            (number * GRANULE, GRANULE) for number in (1, 2, 3)
        ]
        assert os.pread(found[0][2], 5, 5) == b"hello"
        found += arena.export(GRANULE + 5, 2 * GRANULE, 1)
        assert found[3][:2] == found[0][:2]
        found += arena.export(7 * GRANULE, 5, 2)
        assert found[4][:2] == (6 * GRANULE, 2 * GRANULE)
        with pytest.raises(InvalidArgument, match="not all have memory"):
            arena.export(2 * GRANULE, 3 * GRANULE, 9)
        for _, _, descriptor in found:
            os.close(descriptor)
        fake.fail(1, "NOT_PERMITTED", "cuMemExportToShareableHandle")
        with pytest.raises(InvalidArgument, match=r"exports no memory.*get\(\) and set\(\)"):
            arena.export(GRANULE + 5, 5, 9)
        arena.close()


def test_a_driver_that_exports_no_memory_is_not_asked_for_any_that_could_be(memfd: int) -> None:
    fake = SteppedDriver()
    fake.contexts.attributes["HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"] = 0
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        arena.commit(GRANULE, 5)
        with pytest.raises(InvalidArgument, match="exports no memory for programs to map"):
            arena.export(GRANULE, 5, 9)
        arena.close()


def test_checks_let_through_what_has_memory_and_no_more(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        before = device.load(PROGRAM, (arena.address, SIZE))
        assert let_through(device, before) == GRANULE
        arena.commit(GRANULE // 2, 2 * GRANULE)
        beside = device.load(PROGRAM, (arena.address, SIZE))
        assert let_through(device, before) == let_through(device, beside) == 3 * GRANULE
        arena.release(GRANULE // 2, 2 * GRANULE)
        assert let_through(device, before) == 3 * GRANULE  # kernels may use it
        arena.commit(SIZE - 5, 5)
        assert let_through(device, before) == let_through(device, beside) == SIZE
        sound(fake, device, arena, before, beside)
        arena.close()


def test_an_arena_smaller_than_a_granule_is_bounds_checkd_by_its_own_size(memfd: int) -> None:
    with device_of(SteppedDriver()) as device:
        arena = device.map_arena(memfd, GRANULE // 4)
        module = device.load(PROGRAM, (arena.address, GRANULE // 4))
        arena.commit(0, 100)
        assert let_through(device, module) == arena.backed == GRANULE // 4
        arena.close()


def test_holes_in_the_prefix_are_backed_by_the_sink(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        module = device.load(PROGRAM, (arena.address, SIZE))
        arena.commit(6 * GRANULE, GRANULE)  # the sink backs the hole
        assert fake.alive["piece"] == 3
        sound(fake, device, arena, module)
        assert device.context.read(arena.address, 7 * GRANULE) == bytes(7 * GRANULE)
        with pytest.raises(InvalidArgument, match="not all have memory"):
            arena.upload(2 * GRANULE, 5)
        poked(device, arena.address + 3 * GRANULE, b"stray")
        written(memfd, 2 * GRANULE + 7, b"hello")
        arena.commit(2 * GRANULE + 7, 2 * GRANULE)  # replaces the sink
        expected = b"hello" + bytes(3 * GRANULE - 12)
        assert device.context.read(arena.address + 2 * GRANULE + 7, 3 * GRANULE - 7) == expected
        poked(device, arena.address + 3 * GRANULE, b"array")
        sound(fake, device, arena, module)
        arena.release(2 * GRANULE + 7, 2 * GRANULE)  # replaced by the sink, as memory is short
        assert fake.alive["piece"] == 3
        assert b"array" not in device.context.read(arena.address, 7 * GRANULE)
        sound(fake, device, arena, module)
        arena.commit(0, 7 * GRANULE, from_file=False)  # the whole prefix
        assert device.context.read(arena.address, 7 * GRANULE) == bytes(7 * GRANULE)
        sound(fake, device, arena, module)
        arena.close()


def test_spare_memory_stays_while_there_is_enough(memfd: int) -> None:
    fake = SteppedDriver()
    fake.memory.free_bytes = 1 << 29
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        arena.commit(2 * GRANULE, GRANULE)
        arena.release(2 * GRANULE, GRANULE)
        assert fake.alive["piece"] == 3
        fake.memory.free_bytes = 12345
        arena.commit(4 * GRANULE, GRANULE)
        arena.release(4 * GRANULE, GRANULE)
        assert fake.alive["piece"] == 2
        sound(fake, device, arena)
        arena.close()


def test_nothing_is_given_back_while_kernels_run_unless_memory_is_short(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        arena = device.map_arena(memfd, SIZE)
        arena.commit(GRANULE, 4 * GRANULE, from_file=False)
        job = ResizableRun(device, launches(device, "p", total=50))
        job.resize(2)
        fake.run(5)
        arena.release(GRANULE, 4 * GRANULE)
        assert fake.alive["piece"] == 3
        with pytest.raises(InvalidArgument, match="not all have memory"):
            arena.download(GRANULE, 5)
        written(memfd, GRANULE + 7, b"hello")
        arena.commit(GRANULE, 2 * GRANULE)  # is still mapped
        assert device.context.read(arena.address + GRANULE + 7, 5) == b"hello"
        assert fake.alive["piece"] == 3
        arena.commit(8 * GRANULE, GRANULE)
        arena.release(8 * GRANULE, GRANULE)
        assert fake.alive["piece"] == 4
        fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
        arena.commit(6 * GRANULE, GRANULE)  # after spare memory was reclaimed
        assert fake.alive["piece"] == 4
        sound(fake, device, arena)
        fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
        with pytest.raises(OutOfMemory):  # nothing is spare any more
            arena.commit(9 * GRANULE, GRANULE)
        arena.release(6 * GRANULE, GRANULE)
        fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
        with pytest.raises(OutOfMemory):  # the pieces that it touches are not spare
            arena.commit(6 * GRANULE, 2 * GRANULE)
        assert fake.alive["piece"] == 4
        fake.fail(0, "")
        drive(fake, device, job)
        arena.release(GRANULE, 2 * GRANULE)
        assert fake.alive["piece"] == 2
        sound(fake, device, arena)
        arena.close()


def test_an_arena_that_cannot_be_placed_is_refused(memfd: int) -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        first = device.map_arena(memfd, SIZE)
        with pytest.raises(InvalidArgument, match="it is taken"):
            device.map_arena(memfd, SIZE, base=first.address)
        with pytest.raises(InvalidArgument, match="its range"):
            device.map_arena(memfd, 2 * SIZE)
        assert fake.alive["range"] == 1
        first.close()
        second = device.map_arena(memfd, SIZE, base=first.address)
        assert second.address == first.address
        second.close()


def test_whichever_call_fails_what_bounds_checks_let_through_has_memory(memfd: int) -> None:
    failed, over = 0, False
    for nth in range(1, 200):
        fake = SteppedDriver()
        with suppress(DeviceLost), device_of(fake) as device:
            arena: CUDAArena | None = None
            modules: list[CUDAModule] = []
            fake.fail(nth, "OUT_OF_MEMORY")
            try:
                arena = device.map_arena(memfd, SIZE)
                modules.append(device.load(PROGRAM, (arena.address, SIZE)))
                arena.commit(GRANULE, GRANULE)
                arena.commit(5 * GRANULE, GRANULE)  # leaves a hole
                arena.commit(0, 4 * GRANULE)  # a part of the hole, and pieces
                arena.release(GRANULE, GRANULE)
                arena.release(0, 4 * GRANULE)
                arena.commit(3 * GRANULE, 5 * GRANULE)
            except (OutOfMemory, CompileError, DriverError):
                failed += 1
            over = fake.counted < nth
            fake.fail(0, "")
            if arena is not None:
                sound(fake, device, arena, *modules)
                arena.commit(0, SIZE)
                sound(fake, device, arena, *modules)
                assert all(let_through(device, module) == SIZE for module in modules)
                arena.close()
        if over:
            break
    assert over
    assert failed > 40


# -- programs


def test_programs_and_their_variables() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        module = device.load(PROGRAM, (0x1000, 0x2000))
        raw = device.context.read(module._addresses["gpud_arena"] or 0, 16)
        assert np.frombuffer(raw, np.uint64).tolist() == [0x1000, 0x2000]
        with pytest.raises(KeyError, match=r"no variable 'gpud_arena'.*: table"):
            module.symbol("gpud_arena")
        table = module.symbol("table")
        table[2:5] = b"abc"
        assert table[1:6].tobytes()[1:4] == b"abc"
        assert np.asarray(table).size == table.size == len(table) == 16
        with pytest.raises(ValueError, match="4 bytes do not fill 16"):
            table[:] = bytes(4)
        assert module.ranges() == ((table.address, 16),)
        assert [p.size for p in module.kernel("persistent_a").parameters] == [8, 8]
        with pytest.raises(KernelNotFound):
            module.kernel("nobody")


def test_a_program_that_is_refused_brings_the_drivers_log() -> None:
    with device_of(SteppedDriver()) as device:
        text = PROGRAM.replace("plain_e", "refuse_me")
        with pytest.raises(CompileError, match=r"INVALID_PTX.: ptxas fatal: nothing is right") as e:
            device.load(text)
        assert e.value.log == "ptxas fatal: nothing is right here\nmore"


def test_a_forgotten_program_is_unloaded_when_nothing_runs() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        before = fake.alive["module"]
        sequence = device.prepare(launches(device, "p"))
        job = ResizableRun(device, sequence)
        job.resize(1)
        device.load(PROGRAM)
        device.load(PROGRAM)
        assert fake.alive["module"] == before + 3
        fake.run()
        device.watcher.poll()
        device.load(PROGRAM)
        assert fake.alive["module"] == before + 2
    assert fake.waits == []


def test_occupancy_and_what_does_not_fit() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        kernel = device.load(PROGRAM).kernel("persistent_a")
        assert device.occupancy(kernel, (256, 1, 1)) == 2
        assert device.occupancy(kernel, (32, 1, 1), 100 << 10) == 2
        assert 227 << 10 in {one.shared_room for one in fake.handles.all("function")}
        for block, shared, words in (
            ((1024, 2, 1), 0, "more than the 1024 that a block may have"),
            ((1, 1, 65), 0, "an extent is over 64"),
            ((1024, 1, 1), 0, "more than the [0-9]+ that a block of this kernel may have"),
            ((32, 1, 1), 228 << 10, "more than the 232448 that an SM gives"),
            ((32, 1, 1), -1, "cannot be negative"),
        ):
            with pytest.raises(LaunchConfigError, match=words):
                device.occupancy(kernel, block, shared)
        fake.occupancy = 0
        with pytest.raises(LaunchConfigError, match="40 registers a thread"):
            device.occupancy(kernel, (512, 1, 1))


def test_local_memory_is_reserved_before_anything_runs() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device:
        assert fake.contexts.stack_bytes == device.context.stack_bytes == 4 << 10
        module = device.load(PROGRAM)
        fake.modules.attributes["LOCAL_SIZE_BYTES"] = 5000
        device.occupancy(module.kernel("persistent_a"), (32, 1, 1))
        assert fake.contexts.stack_bytes == 5000
        fake.modules.attributes["LOCAL_SIZE_BYTES"] = (
            1 << 30
        )  # over the limit: the launch reports it
        device.occupancy(module.kernel("sliced_c"), (32, 1, 1))
        assert device.context.stack_bytes == 5000
        job = ResizableRun(device, launches(device, "p"))
        job.resize(1)
        fake.run(3)
        fake.modules.attributes["LOCAL_SIZE_BYTES"] = 6000
        device.occupancy(module.kernel("persistent_b"), (32, 1, 1))
        assert fake.contexts.stack_bytes == 5000
        drive(fake, device, job)
    assert fake.waits == []


def test_a_sequence_is_checked() -> None:
    with device_of(SteppedDriver()) as device:
        (spec,) = launches(device, "p")
        for wrong, error, words in (
            (spec._replace(parameters=b""), ValueError, "takes 8 bytes of parameters, not 0"),
            (spec._replace(grid=(2**31, 1, 1)), LaunchConfigError, "split the work"),
            (spec._replace(form="whole", grid=(1, 65536, 1)), LaunchConfigError, "over 65535"),
        ):
            with pytest.raises(error, match=words):
                device.prepare([wrong])
        with pytest.raises(ValueError, match="one launch or more"):
            device.prepare([])


# -- the thread that watches


def test_a_watched_device_runs_jobs_by_itself_and_sleeps_at_idle() -> None:
    fake = SteppedDriver()
    device = CUDADevice(driver=Driver(fake))
    job = ResizableRun(device, launches(device, "pp"))
    job.resize(2)
    ends = threading.Event()

    def time_passes() -> None:
        while not ends.is_set():
            with device.lock:
                fake.step()

    clock = threading.Thread(target=time_passes)
    clock.start()
    try:
        assert job.wait(WAIT_S)
    finally:
        ends.set()
        clock.join()
    assert job.complete
    assert not device.watcher.busy
    assert device.watcher.poll() is None
    ran_once(fake, [10, 10])
    device.close()
    assert not +fake.alive
    with pytest.raises(RuntimeError, match="closed"):
        ResizableRun(device, job.sequence).resize(1)


def test_a_lost_device_is_reported_by_the_watcher_thread() -> None:
    fake = SteppedDriver()
    device = CUDADevice(driver=Driver(fake))
    job = ResizableRun(device, launches(device, "p"))
    with device.lock:
        job.resize(1)
        fake.lose()
    device.watcher.wake()
    assert job.wait(WAIT_S)
    assert isinstance(job.error, DeviceLost)
    device.watcher.close()


def test_a_compiler_that_is_too_new_for_the_driver_is_named() -> None:
    fake = SteppedDriver(version=12040)
    with device_of(fake) as device:
        fake.fail(1, "UNSUPPORTED_PTX_VERSION", "cuModuleLoadDataEx")
        with pytest.raises(CompileError, match=r"newer than the driver, which is for CUDA 12\.4"):
            device.load(PROGRAM)


def test_what_the_rewriter_makes_runs_with_its_hidden_parameter() -> None:
    source = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry persistent_own(.param .u32 n, .param .u64 to)
{
    .reg .b64 %to; .reg .b32 %n;
    ld.param.u64 %to, [to];
    ld.param.u32 %n, [n];
    st.global.u32 [%to], %n;
    ret;
}
"""
    program = compile_program(source)
    fake = SteppedDriver()
    with device_of(fake) as device:
        module = device.load(program.ptx, (1 << 20, 1 << 20))
        assert module.checked_arena == (1 << 20, 1 << 20)
        kernel = module.kernel("persistent_own")
        assert [(p.offset, p.size) for p in kernel.parameters] == [(0, 4), (8, 8), (16, 8)]
        spec = LaunchSpec.of(kernel, "persistent", (3, 2), 32, [bytes(4), bytes(8)])
        job = ResizableRun(device, [spec])
        job.resize(2)
        fake.run()
        device.watcher.poll()
        assert job.complete
        ran_once(fake, [6])
