"""A model of the CUDA driver in memory: contexts, memory, modules, streams, blocks that claim.

Problem: there is no GPU where these tests run, and what goes wrong on one (a call that fails,
blocks that leave late, a dead context) cannot be had on demand anyway.

Approach: it stands where ``cuda.bindings.driver`` would. Enumerations and structures are the real
ones; functions are here. Device memory is memory of this process, so addresses mean something.
What is put on streams happens when a test says so: `FakeDriver.step` does one thing,
`FakeDriver.run` all. Kernels are what the rewriter makes of them, reduced to what the device sees:
a block reads its limit, sees whether its SM is named, claims, and counts. Blocks are placed on SMs;
those on streams of green contexts only on the SMs of these.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver as real

from gpud.compiler import control_words as cw
from gpud.compiler.ptx.model import Variable
from gpud.compiler.ptx.parser import parse
from gpud.device.cuda import gate, green
from gpud.device.interface import parameters_of

_NO_CONTEXT = ("cuInit", "cuDevice", "cuCtxSetCurrent")
_WAITING = ("cuCtxSetLimit", "cuMemFree", "cuMemFreeHost", "cuModuleUnload", "cuCtxSynchronize")


class Block:
    """A block, to come or there, and its SM once it is there."""

    def __init__(self, doing: Callable[[Block], Iterator[None]]) -> None:
        self.doing = doing(self)
        self.sm = -1


class Launch:
    """A kernel on the device: blocks that are to come, and those that are there."""

    def __init__(self, name: str, blocks: list[Block], sms: tuple[int, ...]) -> None:
        self.name = name
        self.sms = sms
        self.pending = deque(blocks)
        self.resident: list[Block] = []
        self.placed: Counter[int] = Counter()


class Stream:
    """What was put on a stream, in order."""

    def __init__(self, number: int, priority: int, sms: tuple[int, ...]) -> None:
        self.number = number
        self.priority = priority
        self.sms = sms
        self.queue: deque[Callable[[], bool]] = deque()


class FakeDriver:
    """The model.

    Args:
        seed: of the order in which streams and blocks go on.
        room: blocks that can be resident, as many on each SM.
        sms: how many SMs there are.
        unit: how many of them are the fewest that a green context has; what is left of a division
            by that remains.
        version: of CUDA, as the driver tells it.
        tells: SMs whose blocks read another number than theirs.

    Attributes:
        fail_at: the number of the call that fails, from 1; 0: none.
        fail_with: its status.
        only: the only functions that are counted for ``fail_at``; empty: all.
        calls: names, in order.
        seen: the arguments of the first call of each.
        ran: (kernel, address of the job record, task block), in order.
        where: the SM on which each of these ran.
        faults: task blocks that fault: (kernel, task block) to a `cw.FaultKind`.
        waits: calls that waited for the device while blocks were there.
        log: what the driver writes into the log of a load that fails.
    """

    def __init__(
        self,
        seed: int = 0,
        room: int = 64,
        *,
        sms: int = 4,
        unit: int = 1,
        version: int = 13000,
        tells: Mapping[int, int] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.room = room
        self.sms = sms
        self.unit = unit
        self.version = version
        self.tells = tells or {}
        self.units = list(range(sms))  # what the driver splits, in order
        self.random.shuffle(self.units)
        self.fail_at = 0
        self.fail_with = "UNKNOWN_TO_US"
        self.only: tuple[str, ...] = ()
        self.calls: list[str] = []
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.counted = 0
        self.ran: list[tuple[str, int, int]] = []
        self.where: list[int] = []
        self.faults: dict[tuple[str, int], cw.FaultKind] = {}
        self.waits: list[str] = []
        self.log = b"ptxas fatal: nothing is right here\nmore\n"
        self.occupancy = 2
        self.local_bytes = 16
        self.granule = 1 << 16
        self.free_bytes = 12345
        self.dead: Any = None
        self.hostage: set[str] = set()
        self.alive: Counter[str] = Counter()
        self._memory: dict[int, tuple[str, np.ndarray[Any, Any]]] = {}
        self._spans: dict[int, int] = {}
        self._mapped: dict[int, int] = {}
        self._behind: dict[int, np.ndarray[Any, Any]] = {}
        self._handles: dict[int, Any] = {}
        self._next = 0x1000
        self._streams: dict[int, Stream] = {0: Stream(0, 0, tuple(range(sms)))}
        self._resources: dict[int, tuple[Any, list[int]]] = {}
        self._events: dict[int, list[bool]] = {}
        self._launches: list[Launch] = []
        self._current = threading.local()

    # -- the door

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name.startswith("cuuint"):
            return getattr(real, name)  # enumerations, structures
        if not hasattr(real, name):
            raise AttributeError(name)
        return lambda *arguments: self._called(name, arguments)

    def _called(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        self.calls.append(name)
        self.seen.setdefault(name, arguments)
        if self.dead is not None:
            return (self.dead, None, None)
        if not name.startswith(_NO_CONTEXT) and not getattr(self._current, "yes", False):
            return (real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None, None)
        if not self.only or name in self.only:
            self.counted += 1
            if self.counted == self.fail_at:
                return (self._status(self.fail_with), None, None)
        if name in _WAITING and self.resident:
            self.waits.append(name)
        found = getattr(self, f"_{name}")(*arguments)
        if isinstance(found, real.CUresult):
            return (found, None, None)
        values = found if isinstance(found, tuple) else () if found is None else (found,)
        return (real.CUresult.CUDA_SUCCESS, *values)

    @staticmethod
    def _status(name: str) -> Any:
        known = real.CUresult.__members__
        return known.get(f"CUDA_ERROR_{name}", real.CUresult.CUDA_ERROR_INVALID_VALUE)

    def lose(self, status: str = "ILLEGAL_ADDRESS") -> None:
        """The context dies: from now on every call says so."""
        self.dead = self._status(status)

    def fail(self, nth: int, status: str, *only: str) -> None:
        """Have the ``nth`` call from now on fail, of all or of those named."""
        self.counted, self.fail_at, self.fail_with, self.only = 0, nth, status, only

    # -- time

    @property
    def resident(self) -> int:
        """Blocks that are there."""
        return sum(len(launch.resident) for launch in self._launches)

    def on_sms(self, name: str = "") -> Counter[int]:
        """How many blocks are there on each SM, of kernels whose name begins so."""
        return Counter(
            block.sm
            for launch in self._launches
            if launch.name.startswith(name)
            for block in launch.resident
        )

    def step(self) -> bool:
        """Do one thing that can be done; whether there was one."""
        ways: list[Callable[[], bool]] = []
        for stream in self._streams.values():
            if stream.queue:
                ways.append(lambda stream=stream: self._first_of(stream))  # type: ignore[misc]
        for launch in self._launches:
            if launch.resident and launch.name not in self.hostage:
                ways.append(lambda launch=launch: self._go_on(launch))  # type: ignore[misc]
        self.random.shuffle(ways)
        return any(way() for way in ways)

    def run(self, steps: int = 1_000_000) -> None:
        """Do things until there is nothing to do, or so many."""
        for _ in range(steps):
            if not self.step():
                return

    def _first_of(self, stream: Stream) -> bool:
        before = self.resident
        if stream.queue[0]():
            stream.queue.popleft()
            return True
        return self.resident > before

    def _go_on(self, launch: Launch) -> bool:
        block = self.random.choice(launch.resident)
        if next(block.doing, self) is self:
            launch.resident.remove(block)
        return True

    def _admit(self, launch: Launch) -> bool:
        """Give a launch room; whether it is over."""
        if launch not in self._launches:
            self._launches.append(launch)
        while launch.pending and self.resident < self.room:
            there = self.on_sms()
            free = [sm for sm in launch.sms if there[sm] < -(-self.room // self.sms)]
            if not free:
                break
            self.random.shuffle(free)
            block = launch.pending.popleft()
            block.sm = min(free, key=lambda sm: (there[sm], launch.placed[sm]))
            launch.placed[block.sm] += 1
            launch.resident.append(block)
        if launch.pending or launch.resident:
            return False
        self._launches.remove(launch)
        return True

    # -- what blocks do

    def _persistent(self, name: str, control: int, index: int, block: Block) -> Iterator[None]:
        job = self.u64(control + cw.JOB)
        yield
        self._begun(control, index)
        while index < self.u32(control + cw.LIMIT):
            named = self.u32(control + cw.NAMED)
            if named and self.u32(job + named + block.sm // 32 * 4) >> block.sm % 32 & 1:
                break
            claim = self.u32(job + cw.NEXT)
            self.put(job + cw.NEXT, claim + 1)
            total = self.u32(job + cw.TOTAL)
            if claim >= total:
                break
            yield
            kind = self.faults.get((name, claim))
            if kind is not None:
                self._fault(job, kind, claim)
                break
            self._ran(name, job, claim, block)
            self.put(job + cw.DONE, self.u32(job + cw.DONE) + 1)
            yield
            if self.u32(job + cw.KILL):
                break
        self.put(control + cw.LIVE, self.u32(control + cw.LIVE) - 1)

    def _begun(self, control: int, index: int) -> None:
        if index == 0:
            self.put(control + cw.BEGUN, 1)

    def _fault(self, job: int, kind: cw.FaultKind, claim: int) -> None:
        self.put(job + cw.NEXT, max(self.u32(job + cw.NEXT), self.u32(job + cw.TOTAL)))
        if self.u32(job + cw.FAULT_STATE) == cw.NO_FAULT:
            self.put(job + cw.FAULT_KIND, kind)
            self.put(job + cw.FAULT_SITE, 7)
            self.put(job + cw.FAULT_CLAIM, claim)
            self.put(job + cw.FAULT_ADDRESS, 0xDEAD00)
            self.put(job + cw.FAULT_STATE, cw.COMPLETE)

    def _ran(self, name: str, job: int, claim: int, block: Block) -> None:
        self.ran.append((name, job, claim))
        self.where.append(block.sm)

    def _probe(self, words: int, block: Block) -> Iterator[None]:
        yield
        number = min(self.tells.get(block.sm, block.sm), cw.MOST_SMS)
        self.put(words + 64 + 4 * number, 1)

    def _sliced(self, name: str, control: int, index: int, block: Block) -> Iterator[None]:
        job, claim = self.u64(control + cw.JOB), self.u32(control + cw.BASE) + index
        yield
        self._begun(control, index)
        kind = self.faults.get((name, claim))
        if kind is None:
            self._ran(name, job, claim, block)
        else:
            self._fault(job, kind, claim)

    def _plain(self, name: str, index: int, block: Block) -> Iterator[None]:
        yield
        self._ran(name, 0, index, block)

    def _gate(self, job: int, previous: int, run: int, stage: int, _: Block) -> Iterator[None]:
        yield
        if self.u32(run + 4 * gate.STOP):
            return
        if previous:
            done = self.u32(previous + cw.DONE) == self.u32(previous + cw.TOTAL)
            if not done or self.u32(run + 4 * gate.HELPED) == stage:
                return
        self.put(job + cw.NEXT, 0)
        yield
        self.put(run + 4 * gate.CURRENT, stage)

    # -- memory

    def u32(self, address: int) -> int:
        """A word."""
        return int(struct.unpack("<I", self._bytes(address, 4))[0])

    def u64(self, address: int) -> int:
        """Two words."""
        return int(struct.unpack("<Q", self._bytes(address, 8))[0])

    def put(self, address: int, value: int) -> None:
        """Set a word."""
        self._bytes(address, 4)
        ctypes.memmove(address, struct.pack("<I", value & 0xFFFFFFFF), 4)

    def _bytes(self, address: int, size: int) -> bytes:
        assert self._reaches(address, size), f"{size} bytes at {address:#x} are nobody's"
        return ctypes.string_at(address, size)

    def _reaches(self, address: int, size: int) -> bool:
        end = address + size
        if any(at <= address and end <= at + length for at, length in self._spans.items()):
            return True
        for start, length in sorted(self._mapped.items()):  # neighbours are as one
            if start <= address < start + length:
                address = start + length
        return address >= end

    def _new(self, kind: str, value: Any = None) -> int:
        self._next += 0x10
        self._handles[self._next] = value
        self.alive[kind] += 1
        return self._next

    def _drop(self, kind: str, handle: Any) -> Any:
        self.alive[kind] -= 1
        return self._handles.pop(int(handle))

    def _allocated(self, kind: str, size: int) -> int:
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self._memory[address] = (kind, memory)
        self._spans[address] = size
        self.alive[kind] += 1
        return address

    def _freed(self, kind: str, address: int) -> None:
        found, _ = self._memory.pop(int(address))
        assert found == kind
        del self._spans[int(address)]
        self.alive[kind] -= 1

    def _copy(self, to: int, source: int, size: int) -> Any:
        if not size or int(to) == 0 or int(source) == 0:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE
        ctypes.memmove(int(to), int(source), size)
        return None

    def _put_on(self, stream: Any, what: Callable[[], Any]) -> None:
        def once() -> bool:
            return what() is not False

        self._streams[int(stream)].queue.append(once)

    # -- the functions: device and context

    def _cuInit(self, flags: int) -> None:
        pass

    def _cuDeviceGetCount(self) -> int:
        return 1

    def _cuDeviceGet(self, index: int) -> int:
        return index

    def _cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Model GPU".ljust(length, b"\0")

    def _cuDeviceGetUuid(self, device: int) -> Any:
        return SimpleNamespace(bytes=bytes(range(16)))

    def _cuDeviceTotalMem(self, device: int) -> int:
        return 1 << 30

    def _cuDeviceGetAttribute(self, which: Any, device: int) -> int:
        return {
            "MULTIPROCESSOR_COUNT": self.sms,
            "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
            "COOPERATIVE_LAUNCH": 1,
            "VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED": 1,  # the older name of the same
        }[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def _cuDevicePrimaryCtxSetFlags(self, device: int, flags: int) -> None:
        self.context_flags = flags

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        self.alive["context"] += 1
        return 0xC0

    def _cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self.alive["context"] -= 1

    def _cuCtxSetCurrent(self, context: int) -> None:
        self._current.yes = True

    def _cuCtxSetLimit(self, which: Any, value: int) -> Any:
        assert which == real.CUlimit.CU_LIMIT_STACK_SIZE
        if value > 1 << 19:
            return self._bad()
        self.stack_bytes = value
        return None

    def _cuCtxGetStreamPriorityRange(self) -> tuple[int, int]:
        return 0, -5

    def _cuCtxSynchronize(self) -> None:
        self.run()

    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.free_bytes, 1 << 30

    # -- memory

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        return self._allocated("host", size)

    def _cuMemFreeHost(self, address: int) -> None:
        self._freed("host", address)

    def _cuMemAlloc(self, size: int) -> int:
        return self._allocated("device", size)

    def _cuMemFree(self, address: int) -> None:
        self._freed("device", address)

    def _cuMemsetD8(self, address: int, value: int, size: int) -> None:
        self._put_on(0, lambda: ctypes.memset(address, value, size) and None)

    def _cuMemcpyHtoD(self, to: int, source: int, size: int) -> Any:
        if not self._reaches(int(to), size) or not size:
            return self._bad()
        staged = ctypes.string_at(source, size)  # where the device gets it in its own time
        return self._put_on(0, lambda: ctypes.memmove(to, staged, size) and None)

    def _cuMemcpyDtoH(self, to: int, source: int, size: int) -> Any:
        self._cuStreamSynchronize(0)
        return self._copy(to, source, size) if self._reaches(int(source), size) else self._bad()

    def _bad(self) -> Any:
        return real.CUresult.CUDA_ERROR_INVALID_VALUE

    def _cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: Any) -> Any:
        if not self._reaches(int(to), size):
            return self._bad()
        return self._put_on(stream, lambda: self._copy(to, source, size))

    def _cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: Any) -> Any:
        if not self._reaches(int(source), size):
            return self._bad()
        return self._put_on(stream, lambda: self._copy(to, source, size))

    def _cuMemsetD32Async(self, address: int, value: int, count: int, stream: Any) -> None:
        assert count == 1
        self._put_on(stream, lambda: self.put(address, value))

    def _cuStreamWriteValue32(self, stream: Any, address: int, value: int, flags: int) -> None:
        self._put_on(stream, lambda: self.put(address, value))

    def _cuMemGetAllocationGranularity(self, wanted: Any, kind: Any) -> int:
        return self.granule

    def _cuMemAddressReserve(self, size: int, align: int, address: int, flags: int) -> int:
        memory = np.full(size + align, 0xA5, np.uint8)
        found = memory.ctypes.data + -memory.ctypes.data % align
        self._memory[found] = ("range", memory)
        self.alive["range"] += 1
        return found

    def _cuMemAddressFree(self, address: int, size: int) -> None:
        assert not [at for at in self._mapped if address <= at < address + size]
        del self._memory[address]
        self.alive["range"] -= 1

    def _cuMemCreate(self, size: int, wanted: Any, flags: int) -> int:
        return self._new("piece", np.full(size, 0xA5, np.uint8))

    def _cuMemRelease(self, handle: int) -> None:
        self._drop("piece", handle)

    def _cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> None:
        memory = self._handles[handle]
        assert memory.size == size
        assert not self._reaches(address, 1)
        ctypes.memmove(address, memory.ctypes.data, size)
        self._mapped[address] = size
        self._behind[address] = memory
        self.alive["mapping"] += 1

    def _cuMemUnmap(self, address: int, size: int) -> None:
        assert self._mapped.pop(address) == size
        ctypes.memmove(self._behind.pop(address).ctypes.data, address, size)
        self.alive["mapping"] -= 1

    def _cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> None:
        assert self._reaches(address, size)
        assert len(access) == count

    # -- modules

    def _cuModuleLoadDataEx(
        self, image: bytes, count: int, options: list[Any], values: list[Any]
    ) -> Any:
        text = image.rstrip(b"\0").decode()
        if "refuse_me" in text:
            values[0][: len(self.log)] = self.log
            return real.CUresult.CUDA_ERROR_INVALID_PTX
        program = parse(text)
        places = {
            item.name: self._allocated("variable", 64)
            for item in program.items
            if isinstance(item, Variable) and item.space in ("global", "const")
        }
        return self._new("module", (program, places))

    def _cuLinkCreate(self, count: int, options: list[Any], values: list[Any]) -> int:
        self._next += 0x10
        self._handles[self._next] = []
        return self._next

    def _cuLinkAddData(
        self,
        state: int,
        kind: Any,
        data: bytes,
        size: int,
        name: bytes,
        count: int,
        options: list[Any],
        values: list[Any],
    ) -> Any:
        assert len(data) == size
        if b"refuse_me" in data:
            return real.CUresult.CUDA_ERROR_INVALID_PTX
        self._handles[state].append(ctypes.create_string_buffer(data, size))
        return None

    def _cuLinkComplete(self, state: int) -> tuple[int, int]:
        (code,) = self._handles[state]  # machine code is PTX here
        return ctypes.addressof(code), len(code)

    def _cuLinkDestroy(self, state: int) -> None:
        del self._handles[state]

    def _cuModuleUnload(self, module: int) -> None:
        _, places = self._drop("module", module)
        for address in places.values():
            self._freed("variable", address)

    def _cuModuleGetFunction(self, module: int, name: bytes) -> int:
        program, _ = self._handles[module]
        self._next += 0x10
        self._handles[self._next] = program.entries()[name.decode()]
        return self._next

    def _cuModuleGetGlobal(self, module: int, name: bytes) -> Any:
        _, places = self._handles[module]
        if name.decode() not in places:
            return real.CUresult.CUDA_ERROR_NOT_FOUND
        return places[name.decode()], 64

    def _cuFuncGetAttribute(self, which: Any, function: int) -> int:
        return {
            "MAX_THREADS_PER_BLOCK": 512,
            "NUM_REGS": 40,
            "LOCAL_SIZE_BYTES": self.local_bytes,
        }.get(which.name.removeprefix("CU_FUNC_ATTRIBUTE_"), 0)

    def _cuFuncSetAttribute(self, function: int, which: Any, value: int) -> None:
        self.shared_room = value

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: int, threads: int, shared: int
    ) -> int:
        return self.occupancy

    # -- streams, events, launches

    def _cuStreamCreateWithPriority(self, flags: int, priority: int) -> int:
        assert flags == int(real.CUstream_flags.CU_STREAM_NON_BLOCKING)
        number = self._new("stream")
        self._streams[number] = Stream(number, priority, tuple(range(self.sms)))
        return number

    # -- green contexts

    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _resource(self, numbers: list[int]) -> Any:
        made = real.CUdevResource()
        made.type = real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        made.sm.smCount = len(numbers)
        made.sm.minSmPartitionSize, made.sm.smCoscheduledAlignment = self.unit, 1
        self._resources[int(made.getPtr())] = (made, numbers)
        return made

    def _numbers(self, resource: Any) -> list[int]:
        return self._resources[int(resource.getPtr())][1]

    def _cuDeviceGetDevResource(self, device: int, kind: Any) -> Any:
        assert kind == real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return self._resource(self.units)

    def _cuDevSmResourceSplitByCount(
        self, groups: int, whole: Any, flags: int, least: int
    ) -> tuple[list[Any], int, Any]:
        numbers = self._numbers(whole)
        assert least % self.unit == 0
        most = min(groups, len(numbers) // least)
        parts = [numbers[least * n : least * (n + 1)] for n in range(most)]
        found = [self._resource(part) for part in parts]
        return found, most, self._resource(numbers[least * most :])

    def _cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> int:
        assert len(resources) == count > 0
        self._next += 0x10
        self._handles[self._next] = [n for one in resources for n in self._numbers(one)]
        return self._next

    def _cuGreenCtxCreate(self, described: int, device: int, flags: int) -> int:
        assert flags == int(real.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        return self._new("green", [tuple(self._handles[described]), set()])

    def _cuGreenCtxDestroy(self, green: int) -> None:
        _, streams = self._drop("green", green)
        assert not streams & self._streams.keys(), "streams outlive their context"

    def _cuGreenCtxStreamCreate(self, green: int, flags: int, priority: int) -> int:
        number = self._cuStreamCreateWithPriority(flags, priority)
        numbers, streams = self._handles[green]
        self._streams[number].sms = numbers
        streams.add(number)
        return number

    def _cuStreamDestroy(self, stream: int) -> None:
        assert not self._streams.pop(stream).queue
        self._drop("stream", stream)

    def _cuStreamSynchronize(self, stream: int) -> None:
        queue = self._streams[stream].queue
        while queue and stream == 0:
            assert self._first_of(self._streams[0])
        while queue:
            assert self.step(), "waits for ever"

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        recorded = self._events[event]  # what is recorded later does not matter
        self._put_on(stream, lambda: recorded[0])

    def _cuEventCreate(self, flags: int) -> int:
        number = self._new("event")
        self._events[number] = [True]
        return number

    def _cuEventDestroy(self, event: int) -> None:
        del self._events[event]
        self._drop("event", event)

    def _cuEventRecord(self, event: int, stream: int) -> None:
        recorded = self._events[event] = [False]

        def reached() -> None:
            recorded[0] = True

        self._put_on(stream, reached)

    def _cuEventQuery(self, event: int) -> Any:
        return None if self._events[event][0] else real.CUresult.CUDA_ERROR_NOT_READY

    def _cuEventSynchronize(self, event: int) -> None:
        recorded = self._events[event]
        while not recorded[0]:
            assert self.step(), "waits for ever"

    def _cuLaunchHostFunc(self, stream: int, function: Any, data: int) -> None:
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int(function))
        self._put_on(stream, lambda: call(data) and None)

    def _cuLaunchKernel(self, function: int, *rest: int) -> None:
        *shape, stream, pointers, _extra = rest
        self._launch(function, tuple(shape), stream, pointers)

    def _cuLaunchCooperativeKernel(self, function: int, *rest: int) -> None:
        *shape, stream, pointers = rest
        self._launch(function, tuple(shape), stream, pointers)

    def _launch(self, function: int, shape: tuple[int, ...], stream: int, pointers: int) -> None:
        entry = self._handles[function]
        parameters = parameters_of(entry)
        values = []
        for index, parameter in enumerate(parameters):
            at = ctypes.c_uint64.from_address(pointers + 8 * index).value
            raw = ctypes.string_at(at, parameter.size)  # now: the driver copies them
            values.append(int.from_bytes(raw, "little"))
        count = shape[0] * shape[1] * shape[2]
        doing: list[Callable[[Block], Iterator[None]]]
        if entry.name == gate.GATE:
            job, previous, run, stage = values
            doing = [partial(self._gate, job, previous, run, stage)]
        elif entry.name == green.PROBE:
            doing = [partial(self._probe, values[0])] * count
        elif entry.name.startswith("persistent"):
            assert shape[1:3] == (1, 1)
            doing = [partial(self._persistent, entry.name, values[-1], n) for n in range(count)]
        elif entry.name.startswith(("sliced", "whole")):
            doing = [partial(self._sliced, entry.name, values[-1], n) for n in range(count)]
        else:
            doing = [partial(self._plain, entry.name, n) for n in range(count)]
        launch = Launch(entry.name, [Block(one) for one in doing], self._streams[stream].sms)
        self._put_on(stream, lambda: self._admit(launch))
