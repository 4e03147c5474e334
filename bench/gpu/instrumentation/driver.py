"""A small wrapper of the CUDA driver for benchmarks and tests: kernels launched without gpud.

Problem: gpud's cost is measured against plain launches of the same PTX, timed by the device.
Approach: `cuda.bindings` with errors as exceptions, in the device's primary context, which CuPy and
gpud's CUDA device in the same process use as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cuda.driver.calls import ENVIRONMENT, Driver
from gpud.device.cuda.driver.machine_code import MachineCode
from gpud.device.interface import PlacedParameter, parameters_of

__all__ = [
    "Buffer",
    "DriverError",
    "Event",
    "Function",
    "Gpu",
    "Graph",
    "HostWords",
    "Module",
    "bindings",
    "check",
    "linked",
    "missing",
]

_MAPPED: Final = 2
_NON_BLOCKING: Final = 1


class DriverError(Exception):
    """A driver call failed; the message has the status, and the assembler's log if there is one."""


def check(result: tuple[Any, ...]) -> Any:
    """Return the results of a call of ``cuda.bindings``, without its status.

    Raises:
        DriverError: the status is not success.
    """
    status, *values = result
    if int(status):
        raise DriverError(f"{getattr(status, 'name', status)} ({int(status)})")
    return values[0] if len(values) == 1 else tuple(values)


def bindings() -> Any:
    """``cuda.bindings.driver``.

    Raises:
        ImportError: it is not installed.
    """
    from cuda.bindings import driver

    return driver


@functools.cache
def missing() -> str:
    """Why nothing can run on a GPU here; empty if it can."""
    try:
        cu = bindings()
    except ImportError:
        return "cuda-bindings is not installed; it comes with the extras daemon and cuda13"
    os.environ.update(ENVIRONMENT)  # read by cuInit; as for gpud's CUDA device
    try:
        check(cu.cuInit(0))
        count = check(cu.cuDeviceGetCount())
    except (RuntimeError, DriverError) as error:
        return f"no NVIDIA driver answers ({error})"
    return "" if count else "the NVIDIA driver sees no GPU"


class Gpu:
    """A GPU with its primary context, current in the calling thread.

    Attributes:
        sms: streaming multiprocessors.
        capability: compute capability times ten.
        most_shared: bytes of shared memory that a block may have.
        memory: bytes of device memory.
    """

    def __init__(self, index: int = 0) -> None:
        why = missing()
        if why:
            raise DriverError(why)
        self.cu: Any = bindings()
        cu = self.cu
        self.device = check(cu.cuDeviceGet(index))
        self.context = check(cu.cuDevicePrimaryCtxRetain(self.device))
        check(cu.cuCtxSetCurrent(self.context))
        self.sms = self._attribute("MULTIPROCESSOR_COUNT")
        major, minor = (
            self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")
        )
        self.capability = 10 * major + minor
        self.most_shared = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.memory: int = check(cu.cuDeviceTotalMem(self.device))
        low, high = check(cu.cuCtxGetStreamPriorityRange())
        self.lowest_priority, self.highest_priority = int(low), int(high)
        self._described = self._describe()

    def _attribute(self, name: str) -> int:
        which = getattr(self.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(self.cu.cuDeviceGetAttribute(which, self.device)))

    def describe(self) -> dict[str, Any]:
        """Return the GPU and its driver, for results; make no call, as the context may be lost."""
        return self._described

    def _describe(self) -> dict[str, Any]:
        name = check(self.cu.cuDeviceGetName(128, self.device)).split(b"\0")[0].decode()
        version = int(check(self.cu.cuDriverGetVersion()))
        return {
            "gpu": name,
            "sms": self.sms,
            "compute_capability": self.capability / 10,
            "memory_gib": round(self.memory / 2**30, 1),
            "driver": _driver_release(),
            "cuda": f"{version // 1000}.{version % 1000 // 10}",
        }

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread, and restore the previous one afterwards."""
        check(self.cu.cuCtxPushCurrent(self.context))
        try:
            yield
        finally:
            check(self.cu.cuCtxPopCurrent())

    # -- memory

    def buffer(self, values: npt.NDArray[Any]) -> Buffer:
        """Device memory with a copy of ``values``."""
        return Buffer(self, values)

    def host_words(self, count: int) -> HostWords:
        """Page-locked words that both sides can access."""
        return HostWords(self, count)

    # -- work

    def stream(self, priority: int = 0) -> Any:
        """Return a stream that does not wait for the default one; a lower number is more urgent."""
        return check(self.cu.cuStreamCreateWithPriority(_NON_BLOCKING, priority))

    def event(self) -> Event:
        """Return an event that records the time."""
        return Event(self)

    def load(self, ptx: str) -> Module:
        """Load a module of PTX."""
        return Module(self, ptx)

    def synchronise(self, stream: Any = None) -> None:
        """Wait until a stream is idle; without one, the whole context."""
        if stream is None:
            check(self.cu.cuCtxSynchronize())
        else:
            check(self.cu.cuStreamSynchronize(stream))


def _driver_release() -> str:
    """Return the driver's version as nvidia-smi prints it, ``"580.159"``, from NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # noqa: BLE001 - a detail of a report: its lack must not end a measurement
        return "unknown"
    return found.decode() if isinstance(found, bytes) else str(found)


class Buffer:
    """Device memory for one array; freed with the object.

    Attributes:
        address: of the first byte.
        nbytes: its size.
    """

    def __init__(self, gpu: Gpu, values: npt.NDArray[Any]) -> None:
        self._gpu = gpu
        first = np.ascontiguousarray(values)
        self._dtype, self._shape = first.dtype, first.shape
        self.nbytes = first.nbytes
        self.address = int(check(gpu.cu.cuMemAlloc(max(first.nbytes, 1))))
        self.set(first)

    def set(self, values: npt.NDArray[Any]) -> None:
        """Copy in; returns when it is there."""
        first = np.ascontiguousarray(values)
        check(self._gpu.cu.cuMemcpyHtoD(self.address, first.ctypes.data, first.nbytes))
        # The copy may return before it is done, and non-blocking streams do not wait for it.
        check(self._gpu.cu.cuStreamSynchronize(0))

    def get(self) -> npt.NDArray[Any]:
        """Copy out the current content."""
        found = np.empty(self._shape, self._dtype)
        check(self._gpu.cu.cuMemcpyDtoH(found.ctypes.data, self.address, found.nbytes))
        return found

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._gpu.cu.cuMemFree(self.address)


class HostWords:
    """Page-locked 32-bit words, zero at first; freed with the object.

    Attributes:
        words: as the host sees them.
        address: of the first one as the device sees it.
    """

    def __init__(self, gpu: Gpu, count: int) -> None:
        self._gpu = gpu
        self._host = int(check(gpu.cu.cuMemHostAlloc(4 * count, _MAPPED)))
        self.address = int(check(gpu.cu.cuMemHostGetDevicePointer(self._host, 0)))
        raw = (ctypes.c_uint32 * count).from_address(self._host)
        self.words: npt.NDArray[np.uint32] = np.ctypeslib.as_array(raw)
        self.words[:] = 0

    def __del__(self) -> None:
        if hasattr(self, "_host"):
            self._gpu.cu.cuMemFreeHost(self._host)


class Event:
    """A point in a stream whose time the device keeps."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._event = check(gpu.cu.cuEventCreate(0))

    def record(self, stream: Any) -> None:
        """Put the point behind what is in the stream."""
        check(self._gpu.cu.cuEventRecord(self._event, stream))

    def since_us(self, earlier: Event) -> float:
        """Microseconds between two points; waits for this one."""
        check(self._gpu.cu.cuEventSynchronize(self._event))
        return 1e3 * float(check(self._gpu.cu.cuEventElapsedTime(earlier._event, self._event)))


def linked(gpu: Gpu, ptx: str) -> bytes | None:
    """Return the machine code of a program, as gpud's CUDA device makes it; None if that fails.

    Linked code is relocatable, which may cost registers or save them: plain launches must have the
    same, or the comparison would be one of that.
    """
    return MachineCode().of(Driver(gpu.cu), ptx)


class Module:
    """A loaded program, linked as gpud's are.

    Raises:
        DriverError: the driver refuses it; with ptxas's log where ptxas is installed.
    """

    def __init__(self, gpu: Gpu, ptx: str) -> None:
        self._gpu = gpu
        self._program = parse(ptx)
        try:
            image = linked(gpu, ptx) or ptx.encode() + b"\0"
            self._module = check(gpu.cu.cuModuleLoadData(image))
        except DriverError as error:
            if find_ptxas() is not None:
                assemble(ptx, f"sm_{gpu.capability}")
            raise DriverError(f"the driver refused the PTX: {error}") from error

    def function(self, name: str) -> Function:
        """Return the kernel ``name``."""
        found = check(self._gpu.cu.cuModuleGetFunction(self._module, name.encode()))
        return Function(self._gpu, found, parameters_of(self._program.entries()[name]))

    def symbol(self, name: str) -> tuple[int, int]:
        """(address, size in bytes) of a module variable."""
        address, size = check(self._gpu.cu.cuModuleGetGlobal(self._module, name.encode()))
        return int(address), int(size)


@dataclass
class Function:
    """A kernel of a loaded module; ``parameters`` as `gpud.device.interface.parameters_of`."""

    gpu: Gpu
    handle: Any
    parameters: tuple[PlacedParameter, ...]
    _kept: dict[bytes, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        which = self.gpu.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        return int(check(self.gpu.cu.cuFuncGetAttribute(which, self.handle)))

    def occupancy(self, threads: int, shared: int = 0) -> int:
        """Blocks that fit on one SM."""
        return int(
            check(
                self.gpu.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    self.handle, threads, shared
                )
            )
        )

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        buffer: bytes,
        *,
        stream: Any,
        shared: int = 0,
    ) -> None:
        """Return a plain launch.

        Args:
            grid: raw blocks in x, y, z.
            block: threads in x, y, z.
            buffer: the whole parameter buffer.
            stream: where.
            shared: dynamic shared memory, in bytes.
        """
        _, pointers = self._pointers(buffer)
        gx, gy, gz = grid
        bx, by, bz = block
        at = ctypes.addressof(pointers)
        cu = self.gpu.cu
        check(cu.cuLaunchKernel(self.handle, gx, gy, gz, bx, by, bz, shared, stream, at, 0))

    def _pointers(self, buffer: bytes) -> tuple[Any, Any]:
        """Return the buffer in C memory and the array of pointers to its parameters, made once."""
        found = self._kept.get(buffer)
        if found is None:
            raw = ctypes.create_string_buffer(buffer, max(len(buffer), 1))
            base = ctypes.addressof(raw)
            places = [base + parameter.offset for parameter in self.parameters]
            found = raw, (ctypes.c_void_p * max(len(places), 1))(*places)
            self._kept[buffer] = found
        return found


class Graph:
    """Launches captured once, started with one call: how sequences are launched without gpud.

    Use it in a ``with`` block: what is launched on ``stream`` inside it is captured.
    """

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        self._gpu = gpu
        self._stream = stream

    def __enter__(self) -> Graph:
        cu = self._gpu.cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cu.cuStreamBeginCapture(self._stream, mode))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        graph = check(self._gpu.cu.cuStreamEndCapture(self._stream))
        if kind is None:
            self._exec = check(self._gpu.cu.cuGraphInstantiate(graph, 0))

    def launch(self) -> None:
        """Start it on its stream."""
        check(self._gpu.cu.cuGraphLaunch(self._exec, self._stream))
