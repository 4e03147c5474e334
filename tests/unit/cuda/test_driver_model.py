"""The model of the driver itself: forbidden calls are misuses or have the driver's status."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real

from tests.driver_model import Misuse, SteppedDriver
from tests.unit.cuda.model_runs import PROGRAM

GRANULE = 1 << 16
BAD = "ERROR_INVALID_VALUE"
NON_BLOCKING, DEFAULT_STREAM, MAPPED = 1, 1, 2


class World:
    """A model with a context, and one object of each kind."""

    def __init__(self) -> None:
        self.driver = SteppedDriver()
        self.context = self.made("cuDevicePrimaryCtxRetain", 0)
        self.made("cuCtxSetCurrent", self.context)
        self.stream = self.made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
        self.event = self.made("cuEventCreate", 2)
        self.host = self.made("cuMemHostAlloc", 4096, MAPPED)
        self.memory = int(self.made("cuMemAlloc", 4096))
        self.module = self.made("cuModuleLoadData", PROGRAM.encode() + b"\0")
        self.plain = self.made("cuModuleGetFunction", self.module, b"plain_e")
        self.range = int(self.made("cuMemAddressReserve", 4 * GRANULE, GRANULE, 0, 0))
        self.piece = self.made("cuMemCreate", GRANULE, None, 0)

    def status(self, name: str, *arguments: Any) -> str:
        """The status of a call."""
        found = getattr(self.driver, name)(*arguments)[0]
        return str(found.name).removeprefix("CUDA_")

    def made(self, name: str, *arguments: Any) -> Any:
        """The result of a call, which must succeed."""
        status, *values = getattr(self.driver, name)(*arguments)
        assert not int(status), (name, status)
        return [*values, None][0]

    def launch(self, name: str = "cuLaunchKernel", **changed: Any) -> str:
        """The status of a launch of the plain kernel."""
        value = np.zeros(1, np.uint64)
        pointers = np.array([value.ctypes.data], np.uint64)
        given: dict[str, Any] = {
            "grid": (1, 1, 1),
            "block": (32, 1, 1),
            "shared": 0,
            "at": pointers.ctypes.data,
        }
        given |= changed
        more = (0,) if name == "cuLaunchKernel" else ()
        return self.status(
            name, self.plain, *given["grid"], *given["block"], given["shared"], self.stream,
            given["at"], *more,
        )  # fmt: skip

    def unloaded_and_launched(self) -> None:
        """Launch a kernel of an unloaded module."""
        self.made("cuModuleUnload", self.module)
        self.launch()

    def launched_and_unloaded(self) -> None:
        """Unload a module with a kernel on a stream."""
        self.launch()
        self.made("cuModuleUnload", self.module)

    def twice(self, name: str, *arguments: Any) -> None:
        """Make a call twice that can be made once."""
        self.made(name, *arguments)
        self.made(name, *arguments)

    def mapped(self) -> Any:
        """Map memory to the first granule."""
        return self.made("cuMemMap", self.range, GRANULE, 0, self.piece, 0)


@pytest.fixture
def world() -> World:
    return World()


MISUSES: dict[str, Callable[[World], Any]] = {
    "an event for a stream": lambda w: w.made("cuStreamSynchronize", w.event),
    "a number that is no handle": lambda w: w.made("cuEventQuery", 5),
    "an event that is no more": lambda w: w.twice("cuEventDestroy", w.event),
    "a stream that is no more": lambda w: w.twice("cuStreamDestroy", w.stream),
    "a stream with work": lambda w: (w.launch(), w.made("cuStreamDestroy", w.stream)),
    "memory freed twice": lambda w: w.twice("cuMemFree", w.memory),
    "memory freed in the middle": lambda w: w.made("cuMemFree", w.memory + 256),
    "host memory freed as the device's": lambda w: w.made("cuMemFree", w.host),
    "a copy from pageable memory": lambda w: w.made(
        "cuMemcpyHtoDAsync", w.memory, np.zeros(8, np.uint8).ctypes.data, 8, w.stream
    ),
    "a module that is no more": lambda w: w.unloaded_and_launched(),
    "a module in use": lambda w: w.launched_and_unloaded(),
    "no parameters": lambda w: w.launch(at=0),
    "a parameter that is nowhere": lambda w: w.launch(at=np.zeros(1, np.uint64).ctypes.data),
    "addresses that are not reserved": lambda w: w.made(
        "cuMemMap", w.range + 4 * GRANULE, GRANULE, 0, w.piece, 0
    ),
    "a place that is taken": lambda w: (w.mapped(), w.mapped()),
    "a half of a mapping": lambda w: (w.mapped(), w.made("cuMemUnmap", w.range, GRANULE // 2)),
    "addresses with memory": lambda w: (
        w.mapped(),
        w.made("cuMemAddressFree", w.range, 4 * GRANULE),
    ),
    "a part of a range": lambda w: w.made("cuMemAddressFree", w.range, GRANULE),
    "memory released twice": lambda w: w.twice("cuMemRelease", w.piece),
    "a text without end": lambda w: w.made("cuModuleLoadData", b".version 8.0"),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_what_is_forbidden_is_no_status(world: World, misuse: Callable[[World], Any]) -> None:
    with pytest.raises(Misuse):
        misuse(world)


def test_what_the_driver_refuses_has_its_status(world: World) -> None:
    status, launch = world.status, world.launch
    assert launch(grid=(0, 1, 1)) == launch(block=(1024, 1, 1)) == "ERROR_INVALID_VALUE"
    assert launch(shared=(48 << 10) + 1) == launch(block=(1, 1, 65)) == "ERROR_INVALID_VALUE"
    too_many = launch("cuLaunchCooperativeKernel", grid=(9, 1, 1))
    assert too_many == "ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
    assert status("cuMemAlloc", 0) == "ERROR_INVALID_VALUE"
    assert status("cuMemCreate", GRANULE - 1, None, 0) == "ERROR_INVALID_VALUE"
    assert status("cuMemMap", world.range, GRANULE, 8, world.piece, 0) == "ERROR_INVALID_VALUE"
    assert status("cuMemSetAccess", world.range, GRANULE, [0], 1) == "ERROR_INVALID_VALUE"
    for to in (world.memory + 2, world.range):  # misaligned, and nothing is there
        assert status("cuStreamWriteValue32", world.stream, to, 1, 0) == "ERROR_INVALID_VALUE"
    assert status("cuEventElapsedTime", world.event, world.event) == "ERROR_INVALID_HANDLE"
    assert status("cuModuleGetGlobal", world.module, b"nothing") == "ERROR_NOT_FOUND"
    assert status("cuModuleGetFunction", world.module, b"nothing") == "ERROR_NOT_FOUND"


def test_memory_is_exported_if_it_was_made_so_and_stays_until_all_have_given_it_up(
    world: World,
) -> None:
    kind = real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    assert world.status("cuMemExportToShareableHandle", world.piece, kind, 0) == BAD
    wanted = real.CUmemAllocationProp()
    wanted.requestedHandleTypes = kind
    piece = world.made("cuMemCreate", GRANULE, wanted, 0)
    assert world.status("cuMemExportToShareableHandle", piece, kind, 1) == BAD
    descriptor = world.made("cuMemExportToShareableHandle", piece, kind, 0)
    room = world.driver.memory.room_bytes
    other = World()  # another process
    assert other.status("cuMemImportFromShareableHandle", 1 << 20, kind) == BAD
    assert other.status("cuMemImportFromShareableHandle", 0, kind) == BAD
    imported = other.made("cuMemImportFromShareableHandle", descriptor, kind)
    os.close(descriptor)
    other.made("cuMemMap", other.range, GRANULE, 0, imported, 0)
    other.made("cuMemSetAccess", other.range, GRANULE, [real.CUmemAccessDesc()], 1)
    other.made("cuMemRelease", imported)
    world.made("cuMemRelease", piece)
    assert world.driver.memory.room_bytes == room + GRANULE
    other.driver.memory.write(other.range, b"here")
    assert other.driver.memory.read(other.range, 4) == b"here"
    room = other.driver.memory.room_bytes
    other.made("cuMemUnmap", other.range, GRANULE)
    assert other.driver.memory.room_bytes == room, "it was never counted here"
    wanted.requestedHandleTypes = real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
    with pytest.raises(Misuse, match="as descriptors only"):
        world.made("cuMemCreate", GRANULE, wanted, 0)


def test_mapped_memory_is_reached_when_that_is_permitted(world: World) -> None:
    world.mapped()
    assert not world.driver.memory.reaches(world.range, 1)
    world.made("cuMemSetAccess", world.range, GRANULE, [real.CUmemAccessDesc()], 1)
    assert world.driver.memory.reaches(world.range, GRANULE)
    assert not world.driver.memory.reaches(world.range, GRANULE + 1)
    world.made("cuMemRelease", world.piece)  # it stays as long as it is mapped
    assert world.driver.u32(world.range) == 0xA5A5A5A5
    world.made("cuMemUnmap", world.range, GRANULE)
    assert not world.driver.memory.reaches(world.range, 1)


def test_memory_that_is_freed_before_a_copy_to_it_ends_the_context(world: World) -> None:
    world.made("cuMemcpyHtoDAsync", world.memory, world.host, 8, world.stream)
    world.made("cuMemFree", world.memory)
    world.driver.run()
    assert world.status("cuStreamSynchronize", world.stream) == "ERROR_ILLEGAL_ADDRESS"


def test_a_context_is_current_in_the_thread_that_made_it_so(world: World) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(world.status("cuMemGetInfo")))
    thread.start()
    thread.join()
    assert found == ["ERROR_INVALID_CONTEXT"]
    assert world.status("cuMemGetInfo") == "SUCCESS"
    world.made("cuDevicePrimaryCtxRelease", 0)
    assert world.status("cuMemGetInfo") == "ERROR_INVALID_CONTEXT"


def test_a_wait_is_for_what_was_recorded_before_it(world: World) -> None:
    world.made("cuEventRecord", world.event, world.stream)
    other = world.made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
    world.made("cuStreamWaitEvent", other, world.event, 0)
    world.made("cuStreamWaitEvent", world.stream, world.event, 0)  # its own is no knot
    world.made("cuEventRecord", world.event, other)
    world.made("cuCtxSynchronize")
    assert world.status("cuEventQuery", world.event) == "SUCCESS"


def test_addresses_are_no_numbers_as_in_the_bindings(world: World) -> None:
    address: Any = world.made("cuMemAlloc", 64)
    with pytest.raises(TypeError):
        address + 8
    assert address != real.CUdeviceptr(int(address))
