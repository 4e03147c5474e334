"""A stand-in for ``cuda.bindings.driver`` that runs kernels: streams, with the CPU device behind.

Enumerations are the real ones. Device memory is memory of this process, full of rubbish when it is
new; what of a reserved range has no memory behind it ends the process when it is touched. What is
put on a stream happens in its order, and beside other streams; a copy that names no stream is
ordered with the null stream only, as the driver has it. A green context has some of the CPU
device's SMs, which are split one by one. It shows that the code around the driver makes sense, not
that the driver does what is expected of it.

Fences are the CPU device's, for the range that a program has been given when a launch begins: a
kernel is compiled anew if that has changed. So are kill polls, which a kill word that is written on
a stream reaches. A fault is written into the job record when the launch is over, without the number
of the task block: only the rewritten program knows that, and here it was not what found the fault.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver as real

from gpud.compiler import control_words as cw
from gpud.compiler.names import ARENA, CONTROL, HEAP, PRINT
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.launch import Launch
from gpud.errors import GpudError, IllegalAddress

__all__ = ["FakeDriver"]

TIMEOUT_S = 60.0
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
OK = real.CUresult.CUDA_SUCCESS
Answer = tuple[Any, ...]
Step = Callable[[Callable[[], None]], None]
"""Something on a stream: begins it, and calls what it is given when it is over."""

_GRANULE = 1 << 21
_EVERYTHING = 2**64 - 1  # the size of a range that is no limit
_READ_WRITE, _NO_ACCESS = 3, 0
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE, _NO_REPLACE = (
    0x1, 0x2, 0x10, 0x20, 0x4000, 0x100000,
)  # fmt: skip
_RUBBISH = 0xA5

_ATTRIBUTES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH": 1,
    "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "CU_FUNC_ATTRIBUTE_NUM_REGS": 8,
    "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 1024,
}


class Event:
    """A point on a stream; recorded again, it is another."""

    def __init__(self) -> None:
        self.at: float | None = 0.0
        self.waiting: list[Callable[[], None]] = []


class Stream:
    """What was put on a stream and is not over; ``sms``: where its kernels run, None: anywhere."""

    def __init__(self, sms: tuple[int, ...] | None = None) -> None:
        self.sms = sms
        self.queue: deque[Step] = deque()
        self.busy = False
        self.captured: list[Step] | None = None


class FakeDriver:
    """See the module.

    Attributes:
        freed: how many pieces of memory were given back.
        launches: how many kernels were launched.
        copied_bytes: between host and device, by copies that streams made.
        room_bytes: what is left for `cuMemCreate`; a quarter of the memory never is.
    """

    def __init__(self, device: CPUDevice, memory_bytes: int = 1 << 30) -> None:
        self.device = device
        self.memory_bytes = memory_bytes
        self.room_bytes = memory_bytes * 3 // 4
        self.copied_bytes = 0
        self.launches = 0
        self.freed = 0
        self._running: list[_Running] = []
        self._memory: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._null = Stream()
        self._streams = [self._null]
        self._resources: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self._described: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise AttributeError(f"the stand-in has no {name}")
        return getattr(real, name)  # enumerations and types

    # -- streams

    def _put(self, stream: Any, step: Step) -> Answer:
        on = stream if isinstance(stream, Stream) else self._null
        with self._lock:
            if on.captured is not None:
                on.captured.append(step)
                return (OK,)
            on.queue.append(step)
        self._go_on(on)
        return (OK,)

    def _go_on(self, stream: Stream) -> None:
        with self._lock:
            if stream.busy or not stream.queue:
                self._idle.notify_all()
                return
            stream.busy = True
            step = stream.queue.popleft()
        step(lambda: self._over(stream))

    def _over(self, stream: Stream) -> None:
        with self._lock:
            stream.busy = False
        self._go_on(stream)

    def _now(self, stream: Any, act: Callable[[], object]) -> Answer:
        """A step that is over at once."""

        def step(over: Callable[[], None]) -> None:
            act()
            over()

        return self._put(stream, step)

    def _wait_for(self, streams: list[Stream]) -> None:
        with self._idle:
            assert self._idle.wait_for(
                lambda: not any(one.busy or one.queue for one in streams), TIMEOUT_S
            )

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> Answer:
        assert flags == 1
        assert -5 <= priority <= 0
        self._streams.append(Stream())
        return OK, self._streams[-1]

    def cuStreamDestroy(self, stream: Stream) -> Answer:
        self._streams.remove(stream)
        return (OK,)

    def cuStreamSynchronize(self, stream: Any) -> Answer:
        self._wait_for([stream if isinstance(stream, Stream) else self._null])
        return (OK,)

    def cuCtxSynchronize(self) -> Answer:
        self._wait_for(self._streams)
        return (OK,)

    def cuLaunchHostFunc(self, stream: Stream, function: Any, data: int) -> Answer:
        return self._now(stream, lambda: _HOST_FUNCTION(int(function))(data))

    def cuStreamWriteValue32(self, stream: Any, to: int, value: int, flags: int) -> Answer:
        def write() -> None:
            ctypes.c_uint32.from_address(int(to)).value = value
            with self._lock:
                killed = [one for one in self._running if one.job + cw.KILL == int(to)]
            for one in killed:
                one.look()

        return self._now(stream, write)

    # -- green contexts

    def _resource(self, numbers: tuple[int, ...]) -> Any:
        made = real.CUdevResource()
        made.type = real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        made.sm.smCount, made.sm.minSmPartitionSize = len(numbers), 1
        self._resources[int(made.getPtr())] = made, numbers
        return made

    def cuDeviceGetDevResource(self, device: int, kind: Any) -> Answer:
        return OK, self._resource(tuple(range(self.device.sms)))

    def cuDevSmResourceSplitByCount(
        self, groups: int, whole: Any, flags: int, least: int
    ) -> Answer:
        _, numbers = self._resources[int(whole.getPtr())]
        most = min(groups, len(numbers) // least)
        parts = [numbers[at : at + least] for at in range(0, most * least, least)]
        rest = self._resource(numbers[most * least :])
        return OK, [self._resource(part) for part in parts], most, rest

    def cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> Answer:
        found = [number for one in resources for number in self._resources[int(one.getPtr())][1]]
        self._described.append(tuple(found))
        return OK, len(self._described) - 1

    def cuGreenCtxCreate(self, described: int, device: int, flags: int) -> Answer:
        assert flags == 1
        return OK, self._described[described]

    def cuGreenCtxDestroy(self, green: tuple[int, ...]) -> Answer:
        return (OK,)

    def cuCtxFromGreenCtx(self, green: tuple[int, ...]) -> Answer:
        return OK, "context"

    def cuGreenCtxStreamCreate(self, green: tuple[int, ...], flags: int, priority: int) -> Answer:
        answer = self.cuStreamCreateWithPriority(flags, priority)
        answer[1].sms = green
        return answer

    # -- events and graphs

    def cuEventCreate(self, flags: int) -> Answer:
        return OK, Event()

    def cuEventDestroy(self, event: Event) -> Answer:
        return (OK,)

    def cuEventRecord(self, event: Event, stream: Any) -> Answer:
        event.at = None

        def reach() -> None:
            with self._lock:
                event.at = time.perf_counter()
                waiting, event.waiting = event.waiting, []
                self._idle.notify_all()
            for call in waiting:
                call()

        return self._now(stream, reach)

    def cuEventSynchronize(self, event: Event) -> Answer:
        with self._idle:
            assert self._idle.wait_for(lambda: event.at is not None, TIMEOUT_S)
        return (OK,)

    def cuEventQuery(self, event: Event) -> Answer:
        return (OK if event.at is not None else real.CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventElapsedTime(self, first: Event, second: Event) -> Answer:
        assert first.at is not None
        assert second.at is not None
        return OK, 1e3 * (second.at - first.at)

    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> Answer:
        def step(over: Callable[[], None]) -> None:
            with self._lock:
                if event.at is None:
                    event.waiting.append(over)
                    return
            over()

        return self._put(stream, step)

    def cuStreamBeginCapture(self, stream: Stream, mode: Any) -> Answer:
        assert mode == real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        stream.captured = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Stream) -> Answer:
        captured, stream.captured = stream.captured, None
        return OK, captured

    def cuGraphInstantiate(self, graph: list[Step], flags: int) -> Answer:
        return OK, graph

    def cuGraphLaunch(self, graph: list[Step], stream: Stream) -> Answer:
        for step in graph:
            self._put(stream, step)
        return (OK,)

    # -- the device

    def cuInit(self, flags: int) -> Answer:
        return (OK,)

    def cuDeviceGetCount(self) -> Answer:
        return OK, 1

    def cuDeviceGet(self, index: int) -> Answer:
        return OK, index

    def cuDevicePrimaryCtxSetFlags(self, device: int, flags: int) -> Answer:
        return (OK,)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Answer:
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: int) -> Answer:
        return (OK,)

    def cuCtxSetCurrent(self, context: str) -> Answer:
        assert context == "context"
        return (OK,)

    def cuCtxSetLimit(self, which: Any, value: int) -> Answer:
        assert which == real.CUlimit.CU_LIMIT_STACK_SIZE
        return (OK,)

    def cuCtxPushCurrent(self, context: str) -> Answer:
        return self.cuCtxSetCurrent(context)

    def cuCtxPopCurrent(self) -> Answer:
        return OK, "context"

    def cuDeviceGetAttribute(self, which: Any, device: int) -> Answer:
        return OK, _ATTRIBUTES.get(which.name, self.device.sms)

    def cuDeviceTotalMem(self, device: int) -> Answer:
        return OK, self.memory_bytes

    def cuMemGetInfo(self) -> Answer:
        return OK, self.room_bytes, self.memory_bytes

    def cuCtxGetStreamPriorityRange(self) -> Answer:
        return OK, 0, -5

    def cuDeviceGetName(self, length: int, device: int) -> Answer:
        return OK, b"Fake GPU".ljust(length, b"\0")

    def cuDeviceGetUuid(self, device: int) -> Answer:
        return OK, real.CUuuid()

    def cuDriverGetVersion(self) -> Answer:
        return OK, 13000

    # -- memory

    def cuMemAlloc(self, size: int) -> Answer:
        memory = self.device.allocate(size)
        with self._lock:
            self._memory[memory.address] = memory
        return OK, memory.address

    def cuMemHostAlloc(self, size: int, flags: int) -> Answer:
        assert flags & 2
        return self.cuMemAlloc(size)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Answer:
        return OK, address

    def cuMemFree(self, address: int) -> Answer:
        self.cuCtxSynchronize()
        with self._lock:
            del self._memory[address]
            self.freed += 1
        return (OK,)

    def cuMemFreeHost(self, address: int) -> Answer:
        return self.cuMemFree(address)

    def cuMemcpyHtoD(self, to: int, of: int, size: int) -> Answer:
        self._wait_for([self._null])
        ctypes.memmove(int(to), int(of), size)
        return (OK,)

    def cuMemcpyDtoH(self, to: int, of: int, size: int) -> Answer:
        return self.cuMemcpyHtoD(to, of, size)

    def cuMemcpyHtoDAsync(self, to: int, of: int, size: int, stream: Any) -> Answer:
        self.copied_bytes += size
        return self._now(stream, lambda: ctypes.memmove(int(to), int(of), size))

    def cuMemcpyDtoHAsync(self, to: int, of: int, size: int, stream: Any) -> Answer:
        return self.cuMemcpyHtoDAsync(to, of, size, stream)

    def cuMemcpyDtoDAsync(self, to: int, of: int, size: int, stream: Any) -> Answer:
        return self.cuMemcpyHtoDAsync(to, of, size, stream)

    def cuMemsetD8(self, to: int, byte: int, size: int) -> Answer:
        return self._now(None, lambda: ctypes.memset(int(to), byte, size))

    def cuMemsetD32Async(self, to: int, word: int, count: int, stream: Any) -> Answer:
        raw = int(word).to_bytes(4, "little") * count
        return self._now(stream, lambda: ctypes.memmove(int(to), raw, len(raw)))

    # -- memory behind ranges of addresses

    def cuMemGetAllocationGranularity(self, wanted: Any, kind: Any) -> Answer:
        return OK, _GRANULE

    def cuMemAddressReserve(self, size: int, align: int, base: int, flags: int) -> Answer:
        found = _mapped(base, size, _NO_ACCESS, _NO_REPLACE if base else 0)
        if found is None:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        return OK, found

    def cuMemAddressFree(self, address: int, size: int) -> Answer:
        assert _libc.munmap(address, size) == 0
        return (OK,)

    def cuMemCreate(self, size: int, wanted: Any, flags: int) -> Answer:
        assert size % _GRANULE == 0
        with self._lock:
            if size > self.room_bytes:
                return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
            self.room_bytes -= size
        return OK, _Piece(size)

    def cuMemRelease(self, piece: _Piece) -> Answer:
        with self._lock:
            self.room_bytes += piece.size
        os.close(piece.file)
        return (OK,)

    def cuMemMap(self, address: int, size: int, offset: int, piece: _Piece, flags: int) -> Answer:
        assert (offset, size) == (0, piece.size)
        assert _mapped(address, size, _NO_ACCESS, _FIXED, piece.file) == address
        return (OK,)

    def cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> Answer:
        assert _libc.mprotect(address, size, _READ_WRITE) == 0
        return (OK,)

    def cuMemUnmap(self, address: int, size: int) -> Answer:
        assert _mapped(address, size, _NO_ACCESS, _FIXED) == address
        return (OK,)

    # -- programs

    def cuModuleLoadData(self, image: bytes) -> Answer:
        assert image.endswith(b"\0")
        # The CPU device would print in its own way; under another name it runs what a GPU does.
        return OK, Module(self.device.load(image[:-1].decode().replace(PRINT, "written_down")))

    def cuModuleLoadDataEx(self, image: bytes, *_: Any) -> Answer:
        return self.cuModuleLoadData(image)

    def cuLinkCreate(self, *_: Any) -> Answer:
        return real.CUresult.CUDA_ERROR_NOT_SUPPORTED, None  # programs are loaded as they are

    def cuModuleUnload(self, module: Any) -> Answer:
        return (OK,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Answer:
        return OK, module.loaded.kernel(name.decode())

    def cuModuleGetGlobal(self, module: Any, name: bytes) -> Answer:
        loaded = module.loaded
        offset = loaded.layout.data.offsets.get(name.decode())
        if offset is None:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None, None
        return OK, loaded.data.address + offset, loaded.data.sizes.get(name.decode(), 16)

    def cuFuncGetAttribute(self, which: Any, kernel: Any) -> Answer:
        return OK, _ATTRIBUTES[which.name]

    def cuFuncSetAttribute(self, kernel: Any, which: Any, value: int) -> Answer:
        return (OK,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, kernel: Any, threads: int, shared: int
    ) -> Answer:
        return OK, 2048 // threads

    def cuLaunchKernel(
        self, kernel: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared: int, stream: Any, pointers: int, extra: int = 0,
    ) -> Answer:  # fmt: skip
        assert extra == 0
        buffer = bytearray()
        places = (ctypes.c_void_p * max(1, len(kernel.parameters))).from_address(pointers)
        for place, parameter in zip(places, kernel.parameters, strict=False):
            buffer += bytes(parameter.offset - len(buffer))
            buffer += ctypes.string_at(place or 0, parameter.size)
        assert math.prod((gx, gy, gz, bx, by, bz)) > 0
        grid, block, raw = (gx, gy, gz), (bx, by, bz), bytes(buffer)
        on = stream if isinstance(stream, Stream) else self._null

        rewritten = kernel.parameters and kernel.parameters[-1].name.endswith(CONTROL)

        def step(over: Callable[[], None]) -> None:
            control = int.from_bytes(raw[-8:], "little") if rewritten else 0
            job = ctypes.c_uint64.from_address(control + cw.JOB).value if rewritten else 0

            running = _Running(job)

            def ended(launch: Launch) -> None:
                with self._lock:
                    self._running.remove(running)
                if launch.output:  # as a GPU's driver does, in time for whoever waits
                    os.write(1, launch.output)
                if rewritten:
                    _left(launch.error, control, job)
                over()

            _fence(kernel)
            self.launches += 1
            with self._lock:
                self._running.append(running)
            running.launch = self.device.launch(
                kernel, grid, block, raw, shared=shared, sms=on.sms, on_done=ended
            )
            running.look()  # it may have been killed before there was anything to kill

        return self._put(stream, step)

    def cuLaunchCooperativeKernel(self, *arguments: Any) -> Answer:
        return self.cuLaunchKernel(*arguments)


class Module:
    """A loaded program with a number, as handles have."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def __int__(self) -> int:
        return id(self)


def _fence(kernel: Any) -> None:
    """Check a kernel's accesses from now on, if its program was told of a range."""
    loaded = kernel.module
    arena, heap = _range(loaded, ARENA), _range(loaded, HEAP)
    if heap is not None and heap[1]:
        loaded.heap = SimpleNamespace(range=heap)
    if arena is None:
        return
    loaded.fenced = None if arena[1] == _EVERYTHING else arena
    with kernel._lock:
        if getattr(kernel, "fenced", loaded.fenced) != loaded.fenced:
            kernel._compiled.clear()  # the range is in the code
            kernel.plans.clear()
        kernel.fenced = loaded.fenced


def _range(loaded: Any, name: str) -> tuple[int, int] | None:
    """What a variable of gpud's says, if the program has it."""
    offset = loaded.layout.data.offsets.get(name)
    if offset is None:
        return None
    raw = loaded.data.memory[offset : offset + 16].tobytes()
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


class _Running:
    """A launch on the device, with the address of its job record; 0: it has none."""

    def __init__(self, job: int) -> None:
        self.job = job
        self.launch: Launch | None = None

    def look(self) -> None:
        """End its blocks at their next poll, if its kill word is set."""
        if self.job and self.launch and ctypes.c_uint32.from_address(self.job + cw.KILL).value:
            self.launch.kill()


class _Piece:
    """Memory that can be mapped, at several addresses too."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.file = os.memfd_create("piece")
        os.pwrite(self.file, bytes([_RUBBISH]) * size, 0)


def _left(error: GpudError | None, control: int, job: int) -> None:
    """All blocks of a launch have left: what those count and record that end in the middle."""
    ctypes.c_uint32.from_address(control + cw.LIVE).value = 0
    if error is None:
        return

    def put(at: int, value: int) -> None:
        ctypes.c_uint32.from_address(job + at).value = value & 0xFFFFFFFF

    fields: Any = error
    if isinstance(error, IllegalAddress):
        kind = cw.FaultKind.MISALIGNED if fields.misaligned else cw.FaultKind.ADDRESS
        ctypes.c_uint64.from_address(job + cw.FAULT_ADDRESS).value = fields.address
    else:
        kind = cw.FaultKind.TRAP
    put(cw.FAULT_KIND, kind)
    put(cw.FAULT_SITE, -1 if fields.site is None else fields.site)
    put(cw.FAULT_CLAIM, 0)
    for index, extent in enumerate(fields.thread or (0, 0, 0)):
        put(cw.FAULT_THREAD + 4 * index, extent)
    put(cw.NEXT, ctypes.c_uint32.from_address(job + cw.TOTAL).value)
    put(cw.FAULT_STATE, cw.COMPLETE)


def _mapped(address: int, size: int, access: int, how: int, file: int = -1) -> int | None:
    flags = how | (_PRIVATE | _ANONYMOUS | _NO_RESERVE if file < 0 else _SHARED)
    found = _libc.mmap(address or None, size, access, flags, file, 0)
    return None if found == ctypes.c_void_p(-1).value else int(found)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
