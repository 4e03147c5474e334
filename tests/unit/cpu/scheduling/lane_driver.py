"""A lane of a CPU device, driven through its ring as a client does."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping

from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch
from gpud.server.ipc import memfd
from gpud.wire import lane_ring as ring

SOURCE = r"""
extern "C" __global__ void put(unsigned* out, unsigned value) { out[blockIdx.x] = value; }
extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }
struct Big { unsigned values[64]; };
extern "C" __global__ void sum(unsigned* out, Big big) {
    unsigned all = 0;
    for (int i = 0; i < 64; i++) all += big.values[i];
    out[0] = all;
}
extern "C" __global__ void wrong(unsigned* out) { if (blockIdx.x == 3) __trap(); out[0] = 1; }
extern "C" __global__ void print(unsigned value) { printf("%u;", value); }
extern "C" __global__ void spin(volatile unsigned* flag) { while (!*flag) {} }
extern "C" __global__ void hold(volatile unsigned* flag, unsigned* begun) {
    atomicAdd(begun, 1u);
    while (!*flag) {}
}
extern "C" __global__ void where(unsigned* out) {
    unsigned at = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[at] = blockIdx.x + 100 * blockIdx.y + 10000 * blockIdx.z + 1000000 * threadIdx.x;
}
"""
LIMIT_S = 20.0
UNIT = 32


class LaneDriver:
    """A device with one lane; also its observer."""

    def __init__(
        self, sms: int = 2, slices: int | None = None, beside: LaneDriver | None = None
    ) -> None:
        self.device: CPUDevice = CPUDevice(sms) if beside is None else beside.device
        if beside is None:
            self.memory = self.device.allocate(4096)
            # With bounds checks, as hostile launches may have any grid.
            arena = self.memory.address, self.memory.view.size
            self.module = self.device.load(compile_program(SOURCE).ptx, arena)
        else:
            self.module, self.memory = beside.module, beside.memory
        self.words = self.memory.view.view("u4")
        self.ended: list[EndedLaunch] = []
        self.over = threading.Event()
        self._barrier = threading.Lock()
        descriptor = memfd.create("ring", -(-ring.RING_BYTES // 4096) * 4096)
        self.map = mmap.mmap(descriptor, 0)
        self.lane = self.device.open_lane(descriptor, UNIT, 1, self)
        os.close(descriptor)
        self.lane.resize(UNIT * sms if slices is None else slices)
        self.head = self.number = 0
        self.flags = ring.flags(None)
        self.slices_at_end = 0  # of the launch whose completion was read
        self.sites: dict[str, int] = {}

    def another(self, slices: int) -> LaneDriver:
        """Open another lane on the same device, which ends with this one's device."""
        return LaneDriver(self.device.sms, slices, self)

    def __enter__(self) -> LaneDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.lane.kill()
        self.device.close()

    def launch_ended(self, launch: EndedLaunch) -> None:
        self.ended.append(launch)

    def on_left(self) -> None:
        """Nothing is to be reported."""

    def on_over(self) -> None:
        self.over.set()

    def word(self, at: int) -> int:
        value: int = struct.unpack_from("<I", self.map, at)[0]
        return value

    def wait(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < end
            time.sleep(0.0002)

    def site(self, name: str, form: str = "persistent", block: int = 1) -> int:
        if name not in self.sites:
            added: list[int] = []
            kernel = self.module.kernel(name)
            spec = LaunchSpec(kernel, form, (1, 1, 1), (block, 1, 1), b"")  # type: ignore[arg-type]
            self.lane.add_site(spec, added.append)
            self.wait(lambda: added)
            self.sites[name] = added[0]
        return self.sites[name]

    def write(
        self,
        site: int,
        parameters: bytes,
        grid: tuple[int, int, int],
        changed: Mapping[str, int] | None = None,
    ) -> int:
        """Write a record, with the fields of ``changed`` in place of the right ones."""
        wrong = changed or {}
        number = self.number
        size, at = wrong.get("size", len(parameters)), ring.SLOTS_AT
        record = struct.pack(
            "<6I4xI", wrong.get("number", number), wrong.get("site", site), *grid, size, self.flags
        )
        room = ring.SLOT_BYTES * ring.slots_of(len(parameters))
        record = (record + parameters).ljust(room, b"\0")
        for first in range(0, len(record), ring.SLOT_BYTES):
            slot = at + self.head % ring.SLOTS * ring.SLOT_BYTES
            self.map[slot : slot + ring.SLOT_BYTES] = record[first : first + ring.SLOT_BYTES]
            self.head += 1
        self.number += 1
        return number

    def publish(self, head: int | None = None) -> None:
        """Say what is written, and wake who listens."""
        struct.pack_into("<I", self.map, ring.HEAD, self.head if head is None else head)
        with self._barrier:  # as the client has it: the device sees `head`, or this `listening`
            pass
        if self.word(ring.LISTENING):
            self.lane._wake(ring.HEAD)

    def launch(
        self, name: str, parameters: bytes, grid: tuple[int, int, int] = (1, 1, 1), block: int = 1
    ) -> int:
        number = self.write(self.site(name, block=block), parameters, grid)
        self.publish()
        return number

    def complete(self, number: int) -> tuple[int, ...]:
        """Wait for a launch's completion, and return it."""
        self.wait(lambda: (self.word(ring.COMPLETED) - number - 1) & 0xFFFFFFFF < 1 << 31)
        at = ring.COMPLETIONS_AT + number % ring.SLOTS * ring.COMPLETION_BYTES
        number_, status, *times = struct.unpack_from("<IIQQQ", self.map, at)
        self.slices_at_end = status >> ring.SLICES_SHIFT
        return number_, status & 0xFF, *times

    def pointer(self, index: int = 0) -> bytes:
        return (self.memory.address + 4 * index).to_bytes(8, "little")
