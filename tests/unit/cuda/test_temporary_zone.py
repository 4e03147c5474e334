"""The memory that programs map in their turns, over the model of the driver."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver, DriverError
from gpud.errors import ConnectionLost, DeviceLost, InvalidArgument, OutOfMemory
from gpud_client.adapters.mapped import MappedRange, MappedZone, ProcessGpu
from tests.driver_model import SteppedDriver
from tests.unit.cuda.model_runs import device_of


class Program:
    """A process with a driver of its own that maps the zone."""

    def __init__(self) -> None:
        self.fake = SteppedDriver()
        self.gpu = ProcessGpu(driver=Driver(self.fake))
        self.zone = MappedZone(self.gpu)

    def map(self, memory: int, size: int) -> None:
        """Map what the device host has sent."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(theirs, [size.to_bytes(8, sys.byteorder)], [memory])
            os.close(memory)
        self.zone.map(ours.detach(), self.zone.address)

    def close(self) -> None:
        self.zone.close()
        self.gpu.close()
        assert not +self.fake.alive, self.fake.alive


@contextmanager
def program() -> Iterator[Program]:
    one = Program()
    yield one
    one.close()


def lend(device: CUDADevice, to: Program, size: int) -> None:
    to.map(device.zone.lend(size), device.zone.size)


def test_programs_map_the_same_memory_one_after_the_other_and_it_is_zeroed_between() -> None:
    with device_of(SteppedDriver()) as device, program() as one, program() as two:
        size = 3 * one.gpu.granule
        lend(device, one, size - 5)
        assert (one.zone.size, device.zone.size) == (size, size)
        assert one.fake.memory.read(one.zone.address, size) == bytes(size), "the new is zeroed"
        one.fake.memory.write(one.zone.address, b"secret")
        one.zone.unmap()
        assert not one.fake.memory.reaches(one.zone.address, 1)
        lend(device, two, size)
        assert two.fake.memory.read(two.zone.address, 6) == b"secret", "it is the same memory"
        two.zone.unmap()
        device.zone.clear()
        lend(device, one, size)
        assert one.fake.memory.read(one.zone.address, size) == bytes(size)


def test_the_zone_is_as_large_as_was_asked_for_last_and_there_is_one() -> None:
    fake = SteppedDriver()
    with device_of(fake) as device, program() as one:
        granule = one.gpu.granule
        before = fake.alive["piece"]
        for granules in (1, 4, 2):
            lend(device, one, granules * granule)
            assert (device.zone.size, fake.alive["piece"]) == (granules * granule, before + 1)
            one.zone.unmap()
        device.zone.free()
        device.zone.clear()
        assert (device.zone.size, fake.alive["piece"]) == (0, before)


def test_whichever_call_fails_there_is_one_zone_or_none_and_the_next_turn_has_it() -> None:
    failed, over = 0, False
    for nth in range(1, 60):
        fake = SteppedDriver()
        with suppress(DeviceLost), device_of(fake) as device, program() as one:
            before, granule = fake.alive["piece"], one.gpu.granule
            fake.fail(nth, "OUT_OF_MEMORY")
            try:
                lend(device, one, granule)
                device.zone.clear()
                one.zone.unmap()
                os.close(device.zone.lend(2 * granule))
            except (OutOfMemory, InvalidArgument, DriverError):
                failed += 1
            over = fake.counted < nth
            fake.fail(0, "")
            if one.zone.size:  # clearing it has failed
                one.fake.memory.write(one.zone.address, b"secret")
                one.zone.unmap()
            assert fake.alive["piece"] - before == bool(device.zone.size)
            device.zone.clear()
            lend(device, one, 2 * granule)
            assert one.fake.memory.read(one.zone.address, 100) == bytes(100)
        if over:
            break
    assert over
    assert failed > 5


def test_a_zone_that_does_not_come_is_said_and_what_the_gpu_lacks_too() -> None:
    with program() as one:
        ours, theirs = socket.socketpair()
        theirs.close()
        with pytest.raises(ConnectionLost, match="its device host has ended"):
            one.zone.map(ours.detach(), one.zone.address)
        memory = MappedRange(one.gpu)
        granule = one.gpu.granule
        memory.back(granule - 1, 2)
        assert memory.backed_bytes == 2 * granule
        one.fake.memory.room_bytes = granule
        with pytest.raises(OutOfMemory, match=f"{2 * granule} bytes were asked for"):
            memory.back(0, 4 * granule)
        assert memory.backed_bytes == 2 * granule
        memory.close()
        assert one.gpu.whole(1) == granule
